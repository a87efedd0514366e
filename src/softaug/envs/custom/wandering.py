"""The Distracting Control Suite's colors and background on the images of any environment.

    wrap(env, mode="distracting(scale=0.2,parts=color+background)", chroma=(255, 255, 255))

Its camera belongs to the environment, so that part is not for `wrap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from softaug.envs.custom.wrapper import GROUPS, Distracted, needs_background
from softaug.envs.modes import Mode
from softaug.media.davis import background_videos


class Wandering(Distracted):
    """`distracting(...)`: colors and background start at random and move on with every step of the environment."""

    def __init__(
        self, env: gymnasium.Env, mode: str | Mode, seed: int = 0, *, videos: Any = None, **settings: Any
    ):
        super().__init__(env, mode, seed, videos=videos, **settings)
        assert self.mode.distraction is not None
        self._distraction = self.mode.distraction
        self._direction = 1
        self._length = 0
        if "background" in self._distraction.parts:
            if self._mask is None and self._scene is None:
                raise needs_background(self.mode)
            self._videos = background_videos(videos)
            self._media = self._videos.kind
            self._count = min(self._distraction.videos, len(self._videos))

    def _begin(self, episode: int) -> dict[str, Any]:
        """As in the original: nothing goes by the episode's number, everything is drawn."""
        facts: dict[str, Any] = {}
        if "color" in self._distraction.parts:
            scale = self._distraction.scale
            self._show_shift({group: self._rng.uniform(-scale, scale, 3) for group in GROUPS})
        if self._videos is not None:
            self._show_video(int(self._rng.integers(self._count)))
            self._position = int(self._rng.integers(self._length))
            self._direction = int(self._rng.choice([-1, 1]))
            facts = {"video": self._videos.name(self._video), "media": self._media}
        return facts

    def _advance(self) -> None:
        if not self._distraction.dynamic:
            return
        if self._shift is not None:
            scale = self._distraction.scale
            moved = {
                group: rgb + self._rng.normal(0.0, 0.03 * scale, 3) for group, rgb in self._shift.items()
            }
            self._show_shift({group: np.clip(rgb, -scale, scale) for group, rgb in moved.items()})
        if self._videos is not None:
            last = self._length - 1
            position = self._position + self._direction
            if not 0 <= position <= last:
                self._direction = -self._direction
            self._position = min(max(position, 0), last)

    def appearance_state(self) -> dict[str, Any]:
        return {**super().appearance_state(), "direction": self._direction}

    def set_appearance_state(self, state: Mapping[str, Any]) -> None:
        super().set_appearance_state(state)
        self._direction = int(state["direction"])

    def _show_video(self, index: int) -> None:
        super()._show_video(index)
        self._length = len(self._videos.open(index, 8, 8))
