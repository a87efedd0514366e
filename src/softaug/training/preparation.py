"""What a run needs before its first decision: its directory, locked and checked, and facts about this machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from softaug.config import Config, read_config, write_config
from softaug.config.comparing import differences
from softaug.envs.factory import media_facts
from softaug.errors import UserError
from softaug.files import free_bytes, read_object, write_atomically
from softaug.learning.replay import DamagedReplay, Replay, has_checksums
from softaug.media import ImageSource
from softaug.storage import checkpoint
from softaug.storage.run_files import RunFiles
from softaug.training.stepper import Stepper
from softaug.versions import versions

EPISODE_FRAMES = 1000  # every task of the suite
LOCK_SECONDS = 2.0
"""Time to wait for the lock: a helper process being started may hold it for some milliseconds after a SIGKILL."""
REMEDY = "restore it or start a new run"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PERMANENT_FACTS = ("versions", "git_commit", "device", "threads", "media", "gl_renderer")


class RunDirectory(RunFiles):
    """The files of one run, locked against a second process as long as this object lives (until `close`)."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._lock = _lock(path)

    def close(self) -> None:
        self._lock.close()


def check_new(path: Path) -> None:
    """Refuse a place for a new run that holds one already."""
    if RunFiles(path).config.exists():
        raise UserError(
            f"{path} already holds a run; continue it with --resume {path}, or give another --out"
        )
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give a directory as --out")


def begin_run(path: Path, config: Config, facts: dict[str, Any]) -> RunDirectory:
    """Make the directory of a new run."""
    check_new(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error.strerror}); give another --out") from None
    run = RunDirectory(path)
    write_atomically(run.facts, json.dumps({"run_id": uuid.uuid4().hex[:12], **facts}, indent=2) + "\n")
    write_config(config, run.config)
    return run


def reopen_run(path: Path, config: Config) -> RunDirectory:
    """The directory of a run to continue. A config that could give other results is refused."""
    if RunFiles(path).published:
        raise UserError(
            f"{path} is a published policy, which has nothing to resume; start a new run in another directory"
        )
    begun_with = read_config(RunFiles(path).config)
    if changed := differences(config, begun_with):
        raise UserError(
            f"{path} was begun with another config: {'; '.join(changed)}. Resume it without these flags, "
            "or start a new run in another directory"
        )
    return RunDirectory(path)


def read_final_eval(run: RunDirectory) -> dict[str, Any]:
    """The last evaluation of a finished run, as the arguments of `softaug.training.run.Result`."""
    try:
        final = read_object(run.final_eval, REMEDY)
        counts = {name: final[name] for name in ("decisions", "frames", "updates")}
        tables = {"evaluation": final["modes"], "adapted": final["adapted"]}
        if not all(type(count) is int for count in counts.values()) or not all(
            _is_table(modes) for modes in tables.values()
        ):
            raise ValueError("not an evaluation")
    except (UserError, KeyError, ValueError):
        raise UserError(
            f"{run.final_eval} is damaged; training is complete and its weights are in {run.checkpoints}: restore the "
            f"file from a copy, or evaluate the run again with: softaug eval {run.path}"
        ) from None
    return {**counts, **tables}


def _is_table(modes: Any) -> bool:
    """Whether `modes` is mode -> returns, mean, standard deviation and media."""
    return isinstance(modes, dict) and all(
        isinstance(values, dict)
        and isinstance(values.get("returns"), list)
        and all(isinstance(values.get(name), int | float) for name in ("mean", "std"))
        and "media" in values
        for values in modes.values()
    )


def changed_facts(run: RunDirectory, facts: dict[str, Any]) -> list[str]:
    """What is not as it was when the run began and may change its numbers, one sentence part each."""
    before = read_object(run.facts, REMEDY)
    return [
        f"{name} {facts[name]} (was {before.get(name)})"
        for name in PERMANENT_FACTS
        if name in before and facts[name] != before[name]  # older runs have recorded less
    ]


def run_facts(device: torch.device, media: dict[str, Any], gl_renderer: str | None = None) -> dict[str, Any]:
    """What the numbers may depend on apart from the config. Nothing here names the machine or its user.

    gl_renderer: the OpenGL driver that renders the training environment; None if it does not say.
    """
    return {
        "versions": versions(),
        "gl_renderer": gl_renderer,
        "git_commit": git_commit(),
        "device": str(device) if device.type != "cuda" else f"cuda: {torch.cuda.get_device_name(device)}",
        "threads": torch.get_num_threads(),
        "media": media,
    }


def git_commit() -> str | None:
    """The commit of the checkout this package is run from, with ``-dirty`` if it was changed; else None."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed package may lie in somebody else's checkout, whose commit says nothing about it.
    if shutil.which("git") is None or git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return f"{git('rev-parse', 'HEAD')}{'-dirty' if git('status', '--porcelain', '--', '.') else ''}"


def check_disk(run: Path, config: Config, sizes: dict[str, Any]) -> None:
    """Refuse to start what cannot end for lack of disk; what a killed run has allocated already counts."""
    # In RAM the replay is part of every checkpoint: those kept and the one being written.
    copies = 1 if config.replay_memory == "disk" else config.keep_checkpoints + 1
    have = sum(file.stat().st_blocks * 512 for file in RunFiles(run).replay.glob("*"))
    needed = Replay.disk_bytes(**sizes) * copies - have
    free = free_bytes(run)
    if needed > free:
        raise UserError(
            f"the replay needs {needed / 1e9:.1f} GB of disk, but {run} has {free / 1e9:.1f} GB free; "
            "make room, choose another --out, or lower --replay-capacity"
        )


def newest_tree(run: RunDirectory, config: Config, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The state to continue from, or None to begin. A damaged newest checkpoint gives way to the one before it.

    Not to an older one: the replay's slack spares what the last two checkpoints can sample, no more.
    """
    run.checkpoints.mkdir(exist_ok=True)
    checkpoint.remove_leftovers(run.checkpoints)
    complete = checkpoint.complete_checkpoints(run.checkpoints)
    if not complete:
        checkpoint.remove_directory(run.replay)  # of a run killed before its first checkpoint
        return None
    try:
        tree = checkpoint.load_tree(complete[-1])
    except checkpoint.Damaged as error:
        if len(complete) == 1:
            raise
        say(f"warning: {error}. Continuing from {complete[-2]}")
        tree = checkpoint.load_tree(complete[-2])
        checkpoint.set_aside(complete[-1])
    memory = "ram" if "arrays" in tree["replay"] else "disk"
    if memory != config.replay_memory:
        raise UserError(f"the replay of {run.path} is in {memory}; resume it with --replay-memory {memory}")
    return tree


def with_sound_replay(
    run: RunDirectory, tree: dict[str, Any], replay: Replay, say: Callable[[str], None]
) -> dict[str, Any]:
    """`tree`, or the checkpoint before it if the replay's files are damaged only where that one does not read."""
    if not has_checksums(tree["replay"]):
        say(
            "the replay was written by an older version without checksums: it is used unchecked, and gets checksums "
            "with the next checkpoint"
        )
    try:
        replay.verify(tree["replay"])
    except DamagedReplay as error:
        complete = checkpoint.complete_checkpoints(run.checkpoints)
        if len(complete) == 1:
            raise
        try:
            tree = checkpoint.load_tree(complete[-2])
            replay.verify(tree["replay"])
        except UserError:
            raise error from None
        say(
            f"warning: the replay's newest part is damaged. Continuing from {complete[-2]}, which does not need it"
        )
        checkpoint.set_aside(complete[-1])
    return tree


@contextmanager
def full_disk_explained(out: Path) -> Iterator[None]:
    """Turn a write that failed for lack of space into a sentence; the last checkpoint is whole all the same."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise UserError(
            f"the disk is full ({error.strerror}) while writing to {out}; free some space, then continue with: "
            f"softaug train --resume {out}"
        ) from None


def replay_sizes(config: Config, stepper: Stepper, *, fixed_length: bool) -> dict[str, Any]:
    """The replay's arguments that decide how large it is.

    fixed_length: episodes never end early, so a replay as long as the run never comes round and needs no slack.
    """
    space, actions = stepper.observation_space.shape, stepper.action_space.shape
    assert space is not None and actions is not None
    capacity = min(config.replay_capacity, config.decisions)
    comes_round = capacity < config.decisions or not fixed_length
    repeat = stepper.facts["action_repeat"]
    return {
        "capacity": capacity,
        "slack": 2 * config.checkpoint_every if comes_round else 0,
        "episode_decisions": stepper.facts["episode_decisions"] or -(-EPISODE_FRAMES // repeat),
        "frame_shape": (space[1], space[2], 3),
        "action_dim": actions[0],
    }


def all_media(config: Config, images: ImageSource | None) -> dict[str, Any]:
    """Where images, videos and colors come from, so that a mistake in their names shows before the start."""
    media: dict[str, Any] = {} if images is None else {"overlay": images.describe()}
    for mode in (config.row.train_mode, *config.eval_modes):
        if (facts := media_facts(config, mode)) is not None:
            media[mode] = facts
    return media


def _lock(path: Path) -> IO[str]:
    """A lock that the system drops when this process ends, however it ends."""
    try:
        file = (path / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{path} cannot be written to ({error.strerror}); fix that or use another") from None
    if sys.platform != "win32":
        import fcntl

        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    file.close()
                    raise UserError(
                        f"another process is training in {path}; wait for it or stop it first"
                    ) from None
                time.sleep(0.02)
    _locks.add(file)
    return file


# A forked child shares the lock and would keep it after this process: it closes its copy. (A program started by exec
# does not get it: Python opens files close-on-exec.)
_locks: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _close_locks() -> None:
    for file in list(_locks):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)
