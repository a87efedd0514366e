"""Video files of what an agent sees."""

from __future__ import annotations

import os
import uuid
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
from PIL import Image

from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.files import output_file

GAP = 4
"""Black pixels between the two images."""


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
            self._temporary.touch()  # PyAV opens it with the first frame only
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


class Filmed(gymnasium.Wrapper):
    """Records every frame of `env` next to that of `large`, the same episode rendered larger.

    Both environments get the same seeds and actions, so they are in the same state; only `env` is seen by the agent.
    full_frame: show the image that `env` (an adapted environment of the user's own) was given, instead of `large`.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        large: gymnasium.Env | None,
        recorder: Recorder,
        *,
        size: int,
        crop_size: int,
        full_frame: bool = False,
    ):
        super().__init__(env)
        self.large, self.recorder, self.size, self.crop_size = large, recorder, size, crop_size
        self.full_frame = full_frame

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._film(obs, None if self.large is None else self.large.reset(seed=seed, options=options)[0])
        return obs, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._film(result[0], None if self.large is None else self.large.step(action)[0])
        return result

    def close(self) -> None:
        self.env.close()
        if self.large is not None:
            self.large.close()

    def _film(self, obs: np.ndarray, large_obs: np.ndarray | None) -> None:
        seen = newest_frame(obs)
        margin = (len(seen) - self.crop_size) // 2
        images = [
            enlarge(seen[margin : margin + self.crop_size, margin : margin + self.crop_size], self.size)
        ]
        gap = np.zeros((self.size, GAP, 3), np.uint8)
        if large_obs is not None:
            images += [gap, newest_frame(large_obs)]
        if self.full_frame:
            images += [gap, to_height(self.env.get_wrapper_attr("full_frame"), self.size)]
        self.recorder.add(np.concatenate(images, axis=1))


def enlarge(image: np.ndarray, size: int) -> np.ndarray:
    """A square image (H, H, 3) as (size, size, 3), every pixel a sharp block: what the network gets, no more."""
    index = np.arange(size) * len(image) // size
    return image[index][:, index]


def to_height(image: np.ndarray, height: int) -> np.ndarray:
    """An image (H, W, 3) at another height, in its own proportions."""
    width = max(1, round(image.shape[1] * height / image.shape[0]))
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
