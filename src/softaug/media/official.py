"""The benchmark's own files: ``color_{easy,hard}.pt`` and ``video_{easy,hard}/video{n}.mp4``.

Some of them may be missing: what is there is used, in the order of the numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError, unknown
from softaug.media import registry

DATASET = "dmcgb"
LEVELS = ("easy", "hard")
VIDEO_COUNTS = {"easy": 10, "hard": 100}
COLOR_KEYS = ("grid_rgb1", "grid_rgb2", "self_rgb", "skybox_rgb")


def check_level(level: str) -> None:
    """Refuse a level that is neither easy nor hard."""
    if level not in LEVELS:
        raise unknown("level", level, LEVELS)


def find_root(folder: Path) -> Path | None:
    """The folder with the benchmark's files: the given one, or inside a copy of the benchmark's repository."""
    candidates = [folder, folder / "src" / "env" / "data", *sorted(folder.glob("*/src/env/data"))]
    names = [f"{kind}_{level}" for kind in ("video", "color") for level in LEVELS]
    for candidate in candidates:
        if any((candidate / name).is_dir() or (candidate / f"{name}.pt").is_file() for name in names):
            return candidate
    return None


def require_root(folder: Path) -> Path:
    """`find_root`, or a `UserError` if there are none of the files."""
    root = find_root(folder)
    if root is None:
        raise UserError(
            f"{folder} has none of DMControl-GB's files (color_easy.pt, video_easy/video0.mp4, ...)."
        )
    return root


def video_files(root: Path, level: str) -> list[Path]:
    """The official videos of a level that exist, in the order of their numbers."""
    check_level(level)
    paths = (root / f"video_{level}" / f"video{number}.mp4" for number in range(VIDEO_COUNTS[level]))
    return [path for path in paths if path.is_file()]


def missing_files(root: Path) -> list[str]:
    """Official files that are not there, as paths relative to `root`."""
    expected = [f"color_{level}.pt" for level in LEVELS]
    expected += [f"video_{level}/video{n}.mp4" for level in LEVELS for n in range(VIDEO_COUNTS[level])]
    return [name for name in expected if not (root / name).is_file()]


def registered_root() -> Path | None:
    """Where the registered benchmark files are, or None when they are not registered."""
    folder = registry.registered().get(DATASET)
    if folder is None:
        return None
    root = find_root(folder) if folder.is_dir() else None
    if root is None:
        raise UserError(
            f"the registered benchmark folder {folder} holds no DMControl-GB files any more; "
            f"run `softaug data add {DATASET} PATH` or `softaug data remove {DATASET}`."
        )
    return root


def registered_videos(level: str) -> list[Path]:
    """The registered official videos of a level; empty when there are none."""
    check_level(level)
    root = registered_root()
    return video_files(root, level) if root else []


def registered_colors(level: str) -> Path | None:
    """The registered official ``color_{level}.pt``, or None."""
    check_level(level)
    root = registered_root()
    path = root / f"color_{level}.pt" if root else None
    return path if path is not None and path.is_file() else None


def load_colors(path: str | Path) -> list[dict[str, np.ndarray]]:
    """Read the benchmark's color settings: a list of dicts of float64 3-vectors, without executing pickled code.

    The file is a pickle in torch's format; torch's restricted unpickler may build nothing but lists, dicts,
    strings and NumPy arrays of floats, so a file made to run code is refused.
    """
    path = Path(path)
    try:
        with _only_numpy_arrays():
            import torch

            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"there is no color file {path}.") from error
    except Exception as error:  # torch raises many types for a damaged or dangerous file
        reason = str(error).strip().split("\n")[0][:160]
        raise UserError(f"{path} is not a DMControl-GB color file, or not a safe one ({reason}).") from error
    return check_colors(content, str(path))


def check_colors(content: object, origin: str) -> list[dict[str, np.ndarray]]:
    """Settings as float64 3-vectors in 0..1, or a `UserError` that names `origin`."""
    if not isinstance(content, list) or not content:
        raise UserError(f"{origin} holds no list of color settings.")
    return [check_color(setting, f"color setting {i} of {origin}") for i, setting in enumerate(content)]


def check_color(setting: object, where: str) -> dict[str, np.ndarray]:
    """One setting as float64 3-vectors in 0..1; keys may be left out, then that part keeps its color."""
    if not isinstance(setting, Mapping) or not setting:
        raise UserError(f"{where} must be a dict with some of the keys {', '.join(COLOR_KEYS)}.")
    checked = {}
    for key, value in setting.items():
        if key not in COLOR_KEYS:
            raise UserError(f"{where} has the unknown key {key!r}; the keys are {', '.join(COLOR_KEYS)}.")
        try:
            vector = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            vector = np.empty(0)
        if vector.shape != (3,) or not np.all((vector >= 0) & (vector <= 1)):
            raise UserError(f"{where}: {key} must be three numbers between 0 and 1, not {value!r}.")
        checked[key] = vector
    return checked


@contextlib.contextmanager
def _only_numpy_arrays() -> Iterator[None]:
    """Let torch's restricted unpickler build NumPy arrays of floats, under the names old and new NumPy wrote."""
    import _codecs

    import torch

    reconstruct = np.empty(0).__reduce__()[0]
    allowed: list[Any] = [
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        np.dtypes.Float64DType,
        np.dtypes.Float32DType,
        _codecs.encode,  # how protocol 2 spells bytes
    ]
    with torch.serialization.safe_globals(allowed):
        yield
