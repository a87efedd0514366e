"""What an image source and a video source are: the two small interfaces everything else codes against."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class ImageSource(Protocol):
    """Unrelated images to overlay on observations (the paper's epsilon, drawn there from Places365)."""

    kind: str
    """Where the images come from: ``procedural`` or ``folder``."""

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """`count` images, uint8 (count, height, width, 3): a pure function of `rng`'s state."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints, as JSON types: kind, path, number of images, seed, ..."""
        ...


class Video(Protocol):
    """A loop of frames at one size."""

    def __len__(self) -> int:
        """Number of frames."""
        ...

    def frame(self, position: int) -> np.ndarray:
        """Frame `position` modulo the length, uint8 (height, width, 3); the caller may write into it."""
        ...


class VideoSource(Protocol):
    """A numbered set of videos: the test backgrounds of one level."""

    kind: str
    """Where the videos come from: ``procedural``, ``official`` or ``folder``."""

    def __len__(self) -> int:
        """Number of videos."""
        ...

    def name(self, index: int) -> str:
        """What video `index` (modulo the number of videos) is: a file path or a procedural id."""
        ...

    def open(self, index: int, height: int, width: int) -> Video:
        """Video `index` (modulo the number of videos) at an observation's size, resized bilinearly."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints, as JSON types: kind, path, number of videos, ..."""
        ...
