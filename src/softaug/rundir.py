"""The directory of a run: what is in it, who may write to it, and what the run was made with.

config.json       the config; its presence marks a run
run.json          versions, git commit, media, device, GL renderer: what else the numbers may depend on
metrics.jsonl     losses, episodes, evaluations (see `softaug.log`)
checkpoints/      see `softaug.checkpoint`
replay/           the replay's memory-mapped arrays, while the run is unfinished (or if it was to be kept)
tb/, videos/      TensorBoard events; videos of evaluation episodes on request
final_eval.json   the last evaluation; its presence marks a finished run
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

import softaug
from softaug import checkpoint
from softaug.config import Config, differences, read_config, write_config
from softaug.envs.factory import media_facts
from softaug.errors import UserError
from softaug.files import write_atomically
from softaug.media import ImageSource
from softaug.replay import Replay
from softaug.stepper import Stepper
from softaug.versions import versions

EPISODE_FRAMES = 1000  # every task of the suite
PERMANENT_FACTS = ("versions", "git_commit", "device", "threads", "media", "gl_renderer")


class RunDirectory:
    """Paths of one run, locked against a second process as long as this object lives (until `close`)."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.json"
        self.facts = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.replay = path / "replay"
        self.replay_kept = self.replay / "kept"
        self.tensorboard = path / "tb"
        self.videos = path / "videos"
        self.final_eval = path / "final_eval.json"
        self._lock = _lock(path)

    @property
    def finished(self) -> bool:
        return self.final_eval.is_file()

    def close(self) -> None:
        self._lock.close()


def check_new(path: Path) -> None:
    """Refuse a place for a new run that holds one already."""
    if (path / "config.json").exists():
        raise UserError(
            f"{path} already holds a run; go on with it by --resume {path}, or give another --out"
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
    """The directory of a run to go on with. A config that could give other results is refused."""
    begun_with = read_config(path / "config.json")
    if changed := differences(config, begun_with):
        raise UserError(
            f"{path} was begun with another config: {'; '.join(changed)}. Resume it without these flags, "
            "or start a new run in another directory"
        )
    return RunDirectory(path)


def read_json(path: Path) -> dict[str, Any]:
    """One of a run's JSON files."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it or start a new run") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start a new run") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged (no JSON object); restore it or start a new run")
    return values


def changed_facts(run: RunDirectory, facts: dict[str, Any]) -> list[str]:
    """What is not as it was when the run began and may change its numbers, one sentence part each."""
    before = read_json(run.facts)
    return [
        f"{name} {facts[name]} (was {before.get(name)})"
        for name in PERMANENT_FACTS
        if name in before and facts[name] != before[name]  # older runs have recorded less
    ]


def run_facts(device: torch.device, media: dict[str, Any], gl_renderer: str | None = None) -> dict[str, Any]:
    """What the numbers may depend on besides the config. Nothing here names the machine or its user.

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
    package = Path(softaug.__file__).parent

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
    have = sum(file.stat().st_blocks * 512 for file in (run / "replay").glob("*"))
    needed = Replay.disk_bytes(**sizes) * copies - have
    free = shutil.disk_usage(_existing(run.absolute())).free
    if needed > free:
        raise UserError(
            f"the replay needs {needed / 1e9:.1f} GB of disk, but {run} has {free / 1e9:.1f} GB free; "
            "make room, choose another --out, or lower --replay-capacity"
        )


def newest_tree(run: RunDirectory, config: Config, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The state to go on from, or None to begin. A damaged newest checkpoint gives way to the one before it.

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
    except UserError as error:
        if len(complete) == 1:
            raise
        say(f"warning: {error}. Going on from {complete[-2]}")
        tree = checkpoint.load_tree(complete[-2])
        checkpoint.set_aside(complete[-1])
    memory = "ram" if "arrays" in tree["replay"] else "disk"
    if memory != config.replay_memory:
        raise UserError(f"the replay of {run.path} is in {memory}; resume it with --replay-memory {memory}")
    return tree


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
    """Where pictures, videos and colours come from, so that a mistake in their names shows before the start."""
    media: dict[str, Any] = {} if images is None else {"overlay": images.describe()}
    for mode in (config.row.train_mode, *config.eval_modes):
        if (facts := media_facts(config, mode)) is not None:
            media[mode] = facts
    return media


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _lock(path: Path) -> IO[str]:
    """A lock that the system drops when this process ends, however it ends."""
    try:
        file = (path / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{path} cannot be written to ({error.strerror}); mend that or use another") from None
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"another process is training in {path}; wait for it or stop it first") from None
    return file
