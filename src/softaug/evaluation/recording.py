"""Video files of what an agent sees."""

from __future__ import annotations

import os
import uuid
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from softaug.errors import UserError
from softaug.files import output_file


class Recorder:
    """An mp4 file of RGB frames (H.264 if this build of PyAV has it), which appears only when it is complete."""

    def __init__(self, path: Path, fps: float = 25, min_size: int = 256, quality: int | None = None):
        """min_size: frames are enlarged by a whole factor until their height has at least this many pixels.

        quality: H.264's constant rate factor, from 0 (best) to 51; None: the encoder's own.
        """
        self.path, self.min_size = output_file(path), min_size
        self._temporary = self.path.with_name(f".writing-{os.getpid()}-{uuid.uuid4().hex[:8]}.mp4")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._temporary), "w", format="mp4")
        except OSError as error:
            raise UserError(
                f"cannot write a video to {path} ({error.strerror}); choose another place"
            ) from None
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream: Any = self._container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        stream.pix_fmt = "yuv420p"
        if quality is not None and codec == "libx264":
            stream.options = {"crf": str(quality)}
        self._stream = stream
        self._started = False

    def add(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 (H, W, 3)."""
        factor = -(-self.min_size // len(frame))
        frame = frame.repeat(factor, 0).repeat(factor, 1)
        # yuv420p halves the color's resolution: even sizes only.
        frame = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")
        if not self._started:
            self._stream.height, self._stream.width = frame.shape[:2]
            self._started = True
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._container.mux(self._stream.encode())
        finally:
            self._container.close()
            if kind is None:
                self._temporary.replace(self.path)
            else:
                self._temporary.unlink(missing_ok=True)
