"""Every media test gets a softaug home of its own, and helpers that make real image and video files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def softaug_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh registry and cache, so that no test sees or changes the user's."""
    home = tmp_path / "softaug-home"
    monkeypatch.setenv("SOFTAUG_HOME", str(home))
    return home


@pytest.fixture
def official_data() -> Path:
    """Part of the benchmark's own files; the test is skipped where they are not."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data" / "dmcgb"
    folder = Path(os.environ.get("SOFTAUG_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip("the benchmark's official files are not here")
    return folder


@pytest.fixture
def make_video() -> Callable[..., Path]:
    """Write a real video whose frame t is gray with value 10 + 5 t."""

    def write(path: Path, frames: int = 20, side: int = 64, faststart: bool = False) -> Path:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"movflags": "faststart"} if faststart else {}
        with av.open(str(path), "w", options=options) as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width = stream.height = side
            stream.pix_fmt = "yuv420p"
            stream.bit_rate = 4_000_000
            rng = np.random.default_rng(0)
            for t in range(frames):
                gray = np.full((side, side, 3), 10 + 5 * t, np.uint8)
                # Noise in a corner, so that frames take bytes and a cut file really loses some.
                gray[: side // 2, : side // 2] = rng.integers(0, 256, (side // 2, side // 2, 3))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(gray, format="rgb24")))
            container.mux(stream.encode())
        return path

    return write


@pytest.fixture
def make_image() -> Callable[..., Path]:
    """Write an image: red grows with x, green with y, blue is constant."""

    def write(path: Path, width: int = 120, height: int = 90, blue: int = 50) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.empty((height, width, 3), np.uint8)
        pixels[..., 0] = np.linspace(0, 255, width)[None, :]
        pixels[..., 1] = np.linspace(0, 255, height)[:, None]
        pixels[..., 2] = blue
        Image.fromarray(pixels).save(path)
        return path

    return write
