"""What a mode may change in a scene beyond colors and a keyed video: the hooks through which `DMCEnv` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softaug.envs.appearance import Painter
from softaug.envs.modes import Mode


class Effect:
    """No effect; the families override what they need. None of it reaches the physics.

    `show` is called before each rendering, when the simulator has just computed every position anew: so an effect may
    write to the camera's position in `physics.data`, and finds the task's own there the next time.
    """

    assets = ""
    """MJCF of the textures and materials that the scene needs for it."""
    max_geom: int | None = None
    """How many shapes a scene may have; by default as many as the task's own has."""
    media: str | None = None
    """Where its videos come from, if it has any."""

    def attach(self, physics: Any, painter: Painter) -> None:
        """The scene has been compiled; nothing has been rendered yet."""
        self._physics, self._painter = physics, painter

    def begin(self, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        """An episode has been reset; returns what `info` says of it."""
        return {}

    def frame_passed(self, rng: np.random.Generator) -> None:
        """One env step of a decision is over."""

    def decision_passed(self) -> None:
        """A decision is over."""

    def show(self) -> None:
        """Bring it into the scene that is rendered next; the GL context exists."""

    def draw(self, physics: Any, scene: Any) -> None:
        """Add shapes to MuJoCo's list of what is drawn, once it has been filled."""

    def get_state(self) -> dict[str, Any]:
        """What the rest of the episode depends on, apart from the random generator: arrays and JSON values."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """The reverse of `get_state`."""


def make_effect(
    mode: Mode, task: str, seed: int, videos: str | Path | Sequence[str | Path] | None = None
) -> Effect:
    """The effect of a mode. seed: the one that the environment is made with; videos: as in `make_env`."""
    if mode.turned:
        from softaug.envs.camera_turns import CameraTurns

        return CameraTurns(mode, task, seed)
    if mode.screen:
        from softaug.envs.screen import Screen

        return Screen(mode, task, seed, videos)
    if mode.distraction is not None:
        from softaug.envs.distracting import Distracting

        return Distracting(mode, videos)
    return Effect()


def first_setting(seed: int) -> int:
    """Where DMControl-GB2 begins in its lists of 100 colors or videos; each episode then takes the next one."""
    return int(np.random.RandomState(seed).randint(100))


def media_kind(*kinds: str | None) -> str | None:
    """Where a mode's media come from, if it has several: `official` only if all are, `procedural` if any is."""
    found = {kind for kind in kinds if kind is not None}
    return (
        "procedural"
        if "procedural" in found
        else next(iter(sorted(found - {"official"})), next(iter(found), None))
    )
