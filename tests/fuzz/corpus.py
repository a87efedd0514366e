"""Good files to damage: a run with checkpoints, images, a video, colors, archives. All tiny, made in a second or two."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from fabricated import fabricate_run
from fakes import BACKGROUND, DotEnv
from PIL import Image

from softaug.config import Config
from softaug.envs.modes import Mode
from softaug.evaluation.recording import Recorder
from softaug.learning.agent import make_agent
from softaug.learning.replay import Replay
from softaug.storage import checkpoint
from softaug.tasks import domain_and_task

SIZE = 16
SETTINGS = {
    "image_size": SIZE, "crop_size": 12, "filters": (4, 4), "strides": (2, 1), "hidden_dim": 8, "projection_dim": 4,
    "frame_stack": 2, "decisions": 200, "eval_every": 100, "random_decisions": 100, "batch_size": 8, "replay_capacity": 200,
}  # fmt: skip


REPLAY = {
    "capacity": 60, "slack": 20, "episode_decisions": 10, "frame_shape": (SIZE, SIZE, 3), "frame_stack": 2, "action_dim": 2,
    "discount": 0.99,
}  # fmt: skip


def make_corpus(folder: Path) -> None:
    """Fill `folder` with run/, replay/, images/, videos/, colors/ and archives/."""
    _make_replay(folder / "replay")
    _make_run(folder / "run")
    _make_media(folder)
    _make_archives(folder / "archives")


def dot_env(
    task: str,
    mode: str = "train",
    seed: int = 0,
    *,
    image_size: int = 100,
    frame_stack: int | None = None,
    **settings: object,
) -> DotEnv:
    """Instead of `softaug.envs.make_env`: nothing is rendered, so that an episode takes milliseconds."""
    domain_and_task(task)
    Mode.parse(mode)
    return DotEnv(
        mode if mode in BACKGROUND else "train", seed, size=image_size, frame_stack=frame_stack or 2
    )


def _make_run(path: Path) -> None:
    config: Config = fabricate_run(path, "walker_walk", "sac", seed=0, **SETTINGS)
    agent = make_agent(config, (6, SIZE, SIZE), 2)
    weights = agent.policy_weights()
    for decisions in (100, 200):
        tree = {"counters": {"decisions": decisions}, "agent": agent.state()}
        checkpoint.save_checkpoint(path / "checkpoints", decisions, tree, weights, keep=2)
    checkpoint.save_best(path / "checkpoints", weights, {"decisions": 100, "return": 12.5})
    (path / "diagnosis.json").write_text(
        json.dumps({"checkpoint": {"decisions": 200}, "modes": {"color_hard": {"cosine_features": {"mean": 0.5, "std": 0.1,
        "relative": 0.2}, "recognised": 0.5}}, "baseline": {}, "notes": ["a note"]})
    )  # fmt: skip
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(path / "diagnosis.png")


def _make_replay(path: Path) -> None:
    """A ring that has come round, and its state as a checkpoint has it."""
    rng = np.random.default_rng(0)
    replay = Replay(path, **REPLAY)
    for _ in range(12):
        replay.begin_episode(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8))
        for _ in range(10):
            frame = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            replay.add(rng.uniform(-1, 1, 2).astype(np.float32), float(rng.random()), False, frame)
    replay.flush()
    checkpoint.save_tree(path / "state", {"replay": replay.state()})


def _make_media(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("images", "videos", "colors"):
        (folder / name).mkdir()
    pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    for number, suffix in enumerate(("png", "jpg", "webp")):
        Image.fromarray(pixels).save(folder / "images" / f"{number}.{suffix}")
    Image.fromarray(rng.integers(0, 65536, (24, 32), dtype=np.uint16)).save(folder / "images" / "gray16.png")
    with Recorder(folder / "videos" / "video0.mp4", min_size=1) as recorder:
        for _ in range(8):
            recorder.add(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    keys = ("grid_rgb1", "grid_rgb2", "self_rgb", "skybox_rgb")
    torch.save([{key: rng.random(3) for key in keys} for _ in range(5)], folder / "colors" / "color_easy.pt")


def _make_archives(folder: Path) -> None:
    folder.mkdir()
    content = {"top/a.txt": b"some text" * 50, "top/b/c.bin": bytes(range(256)), "top/d.png": b"\x89PNG"}
    for name, compression in (("stored.zip", zipfile.ZIP_STORED), ("deflated.zip", zipfile.ZIP_DEFLATED),
                              ("lzma.zip", zipfile.ZIP_LZMA), ("bz2.zip", zipfile.ZIP_BZIP2)):  # fmt: skip
        with zipfile.ZipFile(folder / name, "w", compression) as archive:
            for entry, data in content.items():
                archive.writestr(entry, data)
    for mode, name in (
        ("w", "plain.tar"),
        ("w:gz", "a.tar.gz"),
        ("w:bz2", "a.tar.bz2"),
        ("w:xz", "a.tar.xz"),
    ):
        with tarfile.open(folder / name, mode) as archive:  # type: ignore[call-overload]
            for entry, data in content.items():
                info = tarfile.TarInfo(entry)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    # The flag of an encrypted entry, in its local and its central header.
    data = bytearray((folder / "stored.zip").read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02", 0, data.index(b"PK\x01\x02") + 4) + 8] |= 1
    (folder / "encrypted.zip").write_bytes(data)


def git_commit() -> str | None:
    """For the summary: the commit, with ``-dirty`` if files differ from it."""
    from softaug.training.preparation import git_commit as commit

    try:
        return commit()
    except (OSError, subprocess.SubprocessError):
        return None
