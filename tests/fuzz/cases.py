"""One fuzz case is a function of (seed, number): it damages a copy of the corpus, uses it, and judges what happens.

Right is a result or a `UserError` (exit status 0, 1 or 2 of a command). Any other exception is a finding, and so is damage
that goes unnoticed where checksums promise to notice it.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import REPLAY, SIZE, dot_env
from mutate import mutate_bytes, mutate_json, mutate_words, strange

from softaug import cli
from softaug.config import Config, make_config, read_config
from softaug.errors import UserError
from softaug.learning.replay import Replay
from softaug.presets import preset_content
from softaug.storage import checkpoint

OBS = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
STATUSES = (0, 1, 2)
COMMAND_SECONDS = 240  # importing torch alone may take a minute on a busy machine
RUN_FILES = ("config.json", "run.json", "final_eval.json", "metrics.jsonl", "diagnosis.json", "diagnosis.png")


class Finding(Exception):
    """The software did something wrong without an exception of its own."""


class Cases:
    """The corpus, a folder to work in, and what a healthy run gives."""

    def __init__(self, corpus: Path, work: Path):
        from softaug.evaluation.runs import load_policy

        self.corpus, self.work = corpus, work
        self.tree = flat(checkpoint.load_tree(corpus / "run" / "checkpoints" / "000000200"))
        self.actions = {which: load_policy(corpus / "run", which).act(OBS) for which in ("last", "best")}
        self.batch = sample_all(
            Path(shutil.copytree(corpus / "replay", work.with_name("healthy-replay"), dirs_exist_ok=True))
        )
        self.decoded, self.packed = pack_images(corpus / "images", corpus / "good.pack")
        self.kinds: list[tuple[int, Callable[[random.Random], str]]] = [
            (25, self.run_file), (15, self.policy), (10, self.tree_file), (10, self.config_values), (8, self.image),
            (5, self.video), (5, self.replay), (3, self.pack), (3, self.preset), (6, self.colors), (12, self.archive), (20, self.arguments), (1, self.real_command),
        ]  # fmt: skip

    def play(self, seed: int, number: int) -> str:
        """Play case `number`; returns what kind it was and how it ended."""
        rng = random.Random(f"{seed}/{number}")
        case = rng.choices([kind for _, kind in self.kinds], [weight for weight, _ in self.kinds])[0]
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        os.chdir(self.work)
        said = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            try:
                ended = case(rng)
            except UserError as error:
                check_sentence(str(error))
                ended = "refused"
        return f"{case.__name__}: {ended}"

    # --- run directories -------------------------------------------------------------------------------------

    def run_file(self, rng: random.Random) -> str:
        """A file of results or settings is damaged; readers of runs say so or cope."""
        from softaug.evaluation.runs import load_policy
        from softaug.results.reading import read_run
        from softaug.results.report import Reporter
        from softaug.results.reproduce.collect import describe_runs, select

        run = self.copy("run")
        file = run / rng.choice(RUN_FILES)
        damage(rng, file)
        use = rng.randrange(4)
        if use == 0:
            Reporter([run], samples=False).write(self.work / "page.html")
        elif use == 1:
            describe_runs(select([read_run(run)], [("walker_walk", "sac")]))
        elif use == 2:
            load_policy(run).act(OBS)
        else:
            read_config(run / "config.json")
            read_run(run)
        return "used"

    def policy(self, rng: random.Random) -> str:
        """Damaged weights or checksums: refused, or an undamaged checkpoint is used, which acts the same."""
        from softaug.evaluation.runs import load_policy

        run = self.copy("run")
        which = rng.choice(("last", "best"))
        folder = run / "checkpoints" / ("000000200" if which == "last" else "best")
        file = rng.choice([path for path in sorted(folder.iterdir()) if path.name != "tree.json"])
        damage(rng, file)
        actions = load_policy(run, which).act(OBS)
        if not np.array_equal(actions, self.actions[which]):
            raise Finding(f"a damaged {folder.name}/{file.name} was used: the policy acts differently")
        return "unharmed"

    def tree_file(self, rng: random.Random) -> str:
        """A damaged training state is never resumed from."""
        folder = self.copy("run") / "checkpoints" / "000000200"
        damage(rng, rng.choice(sorted(folder.iterdir())))
        tree = flat(checkpoint.load_tree(folder))
        if tree.keys() != self.tree.keys() or any(not same(tree[key], self.tree[key]) for key in tree):
            raise Finding("a damaged checkpoint was loaded: its tree differs")
        return "unharmed"

    def config_values(self, rng: random.Random) -> str:
        """Strange values in fields of the config, from Python and from a file."""
        values = read_config(self.corpus / "run" / "config.json").to_json()
        fields: dict[str, Any] = {
            rng.choice(list(values)): strange(rng) for _ in range(rng.choice((1, 2, 3)))
        }
        Config.from_json({**values, **fields})
        if all(isinstance(value, type(values[name])) for name, value in fields.items()):
            make_config(**{name: value for name, value in fields.items() if not isinstance(value, list)})
        return "accepted"

    def replay(self, rng: random.Random) -> str:
        """A damaged replay is never resumed from: what it gives is what it held, or it is refused."""
        folder = self.copy("replay")
        damage(rng, rng.choice(sorted(folder.glob("*.bin"))))
        batch = sample_all(folder)
        if any(not torch.equal(one, other) for one, other in zip(batch, self.batch, strict=True)):
            raise Finding("a damaged replay was resumed from: its samples differ")
        return "unharmed"

    def preset(self, rng: random.Random) -> str:
        file = self.work / "tuned.json"
        text = preset_content(
            "small", {"batch_size": 32, "actor_lr": 5e-4, "filters": [8, 8, 8]}, {"study": "x"}
        )
        file.write_bytes(mutate_json(rng, text) if rng.random() < 0.8 else mutate_bytes(rng, text.encode()))
        make_config(preset=str(file))
        return "accepted"

    # --- media -----------------------------------------------------------------------------------------------

    def image(self, rng: random.Random) -> str:
        from softaug.media.check import check_dataset
        from softaug.media.folder_images import FolderImages

        images = self.copy("images")
        for file in rng.sample(sorted(images.iterdir()), rng.randint(1, 4)):
            file.write_bytes(mutate_bytes(rng, file.read_bytes()))
        sample = FolderImages(images).sample(4, 12, 10, np.random.default_rng(0))
        if sample.shape != (4, 12, 10, 3):
            raise Finding(f"images of shape {sample.shape}")
        check_dataset("mine", images, everything=True)
        return "used"

    def pack(self, rng: random.Random) -> str:
        """Packed images are as they were packed, or refused."""
        from softaug.media.folder_images import FolderImages
        from softaug.media.packed_images import pack_path

        images, good = self.corpus / "images", self.corpus / "good.pack"
        file = pack_path(images)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(mutate_bytes(rng, good.read_bytes()))
        try:
            sample = FolderImages(images).sample(4, 12, 10, np.random.default_rng(0))
        finally:
            file.unlink()
        if not any(np.array_equal(sample, known) for known in (self.packed, self.decoded)):
            raise Finding("a damaged pack was used: its images differ")
        return "used"

    def video(self, rng: random.Random) -> str:
        from softaug.media import video_source

        videos = self.copy("videos")
        file = videos / "video0.mp4"
        file.write_bytes(mutate_bytes(rng, file.read_bytes()))
        frame = video_source("easy", videos).open(0, 12, 10).frame(rng.randrange(100))
        if frame.shape != (12, 10, 3):
            raise Finding(f"a frame of shape {frame.shape}")
        return "used"

    def colors(self, rng: random.Random) -> str:
        from softaug.media.official import load_colors

        file = self.copy("colors") / "color_easy.pt"
        file.write_bytes(mutate_bytes(rng, file.read_bytes()))
        for setting in load_colors(file):
            if any(not np.all((rgb >= 0) & (rgb <= 1)) for rgb in setting.values()):
                raise Finding("a color outside 0..1")
        return "used"

    def archive(self, rng: random.Random) -> str:
        """Nothing lands outside the target, which is whole or absent."""
        from softaug.media.unpack import unpack

        file = self.copy("archives") / rng.choice(
            sorted(path.name for path in (self.corpus / "archives").iterdir())
        )
        if rng.random() < 0.95:
            file.write_bytes(mutate_bytes(rng, file.read_bytes()))
        before = sorted(self.work.iterdir())
        try:
            unpack(file, self.work / "target")
        except UserError:
            if sorted(self.work.iterdir()) != before:
                raise Finding("a refused archive left something behind") from None
            raise
        if sorted(self.work.iterdir()) != sorted([*before, self.work / "target"]):
            raise Finding("an archive wrote outside its folder")
        return "unpacked"

    # --- command line ----------------------------------------------------------------------------------------

    def lines(self) -> tuple[list[str], ...]:
        """Good command lines, about a copy of the run."""
        run, out = str(self.copy("run")), str(self.work / "out")
        return (
            ["train", "--task", "walker_walk", "--method", "soda", "--preset", "small", "--seed", "1", "--out", out,
             "--decisions", "100", "--filters", "8,8", "--strides", "2,1", "--eval-modes", "train,color_hard", "--quiet"],
            ["train", "--resume", run, "--quiet", "--json"],
            ["eval", run, "--episodes", "1", "--workers", "1", "--modes", "train,color_hard", "--seed", "3", "--json"],
            ["eval", run, "--checkpoint", "best", "--episodes", "1", "--workers", "1", "--modes", "train", "--out", out],
            ["play", run, "--mode", "train", "--out", f"{out}.mp4", "--size", "16", "--fps", "10", "--no-large"],
            ["diagnose", run, "--states", "2", "--modes", "color_hard", "--seed", "1", "--json"],
            ["report", run, "--out", f"{out}.html", "--no-samples", "--json"],
            ["export", run, "--format", "torchscript", "--out", out],
            ["reproduce", "video-and-color", "--runs", run, "--only-existing", "--out", f"{out}-tables", "--preset", "small"],
            ["sweep", "--tasks", "walker_walk", "--methods", "sac,soda", "--seeds", "0-1", "--out", f"{out}-sweep", "--dry-run"],
            ["data", "list", "--json"], ["data", "add", "mine", run], ["data", "check", "mine"], ["data", "remove", "mine"],
            ["gallery", "--tasks", "walker_walk", "--modes", "train", "--out", f"{out}.png", "--no-augmentations"],
        )  # fmt: skip

    def arguments(self, rng: random.Random) -> str:
        """Mutated command lines, in this process. Training and rendering are replaced by stand-ins."""
        words = mutate_words(rng, list(rng.choice(self.lines())))
        slow = {
            "bench",
            "doctor",
            "download",
            "--watch",
            "--open",
        }  # nothing to do with arguments, or meant to wait
        if any(word.partition("=")[0] in slow for word in words):
            return "skipped"
        harmless = {"sweep": "--dry-run", "reproduce": "--only-existing"}
        if words[:1] and words[0] in harmless and harmless[words[0]] not in words:
            return "skipped"  # a valid line would train for days, in processes of its own
        return status_of(words)

    def real_command(self, rng: random.Random) -> str:
        """A damaged run through the real command, in a process of its own."""
        run = self.copy("run")
        damage(rng, run / rng.choice(RUN_FILES))
        words = rng.choice((["report", str(run), "--out", "page.html", "--no-samples"], ["export", str(run), "--format",
                            "torchscript"], ["eval", str(run), "--modes", "nonsense"], ["train", "--resume", str(run)]))  # fmt: skip
        if words[0] == "train":
            shutil.rmtree(run / "checkpoints")
            (run / "config.json").write_bytes(b"{" + (run / "config.json").read_bytes())
        command = [sys.executable, "-m", "softaug.cli", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, errors="replace"
        )
        if done.returncode not in STATUSES or "Traceback" in done.stderr:
            raise Finding(f"{words[0]}: exit status {done.returncode}: {done.stderr[-1500:]}")
        return f"{words[0]} {done.returncode}"

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.corpus / name, self.work / name))


def sample_all(folder: Path) -> list[torch.Tensor]:
    """Resume from a replay's files, and sample more than it holds."""
    replay = Replay(folder, **REPLAY)
    tree = checkpoint.load_tree(folder / "state")["replay"]
    replay.verify(tree)
    replay.load_state(tree)
    return list(replay.sample(200, np.random.default_rng(0), n_step=2))


def pack_images(folder: Path, keep: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images of a folder, decoded and from a pack of it, which is moved to `keep`."""
    from softaug.media.folder_images import FolderImages
    from softaug.media.packed_images import build

    decoded = FolderImages(folder).sample(4, 12, 10, np.random.default_rng(0))
    path = build(folder, 3, 16)
    packed = FolderImages(folder).sample(4, 12, 10, np.random.default_rng(0))
    shutil.move(path, keep)
    return decoded, packed


def damage(rng: random.Random, file: Path) -> None:
    """Change, empty or remove a file."""
    content = file.read_bytes()
    if rng.random() < 0.05:
        file.unlink()
    elif file.suffix == ".json" and rng.random() < 0.7:
        file.write_bytes(mutate_json(rng, content.decode()))
    elif file.suffix == ".jsonl" and rng.random() < 0.7:
        lines = content.decode().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = mutate_json(rng, lines[at]).decode()
        file.write_text("\n".join(lines) + "\n")
    else:
        file.write_bytes(mutate_bytes(rng, content))


def status_of(words: list[str]) -> str:
    try:
        status = cli.main(words)
    except SystemExit as stop:  # argparse's
        status = stop.code if isinstance(stop.code, int) else 1
    if status not in STATUSES:
        raise Finding(f"exit status {status} of {words}")
    return f"{words[0][:20]!r} {status}" if words[0] in cli.COMMANDS else f"no command {status}"


def check_sentence(text: str) -> None:
    if not text.strip() or "Traceback" in text or len(text) > 5000:
        raise Finding(f"not a sentence: {text[:200]!r}")


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list | tuple)
        else None
    )
    if items is None:
        return {path: tree}
    return {key: leaf for name, child in items for key, leaf in flat(child, f"{path}/{name}").items()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def stand_ins() -> None:
    """No training and no rendering: what is fuzzed here is everything around them."""
    import softaug.envs
    import softaug.training.run
    from softaug.sweep import estimate

    def train(config: Any, out: Any, **_: Any) -> Any:
        raise UserError(f"training of {config.task} in {out} is not part of the fuzz test")

    softaug.training.run.train = train  # type: ignore[assignment]
    softaug.envs.make_env = dot_env  # type: ignore[assignment]
    import softaug.evaluation.gallery

    softaug.evaluation.gallery.make_env = dot_env  # type: ignore[assignment]
    if hasattr(estimate, "measure"):
        estimate.measure = lambda *_, **__: None  # type: ignore[attr-defined]
