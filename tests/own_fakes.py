"""Environments as users write them, and functions that make them: what `module:callable` names in the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from fakes import FakeImages, _kill_in
from gymnasium import spaces

from softaug.config import Config

HEIGHT, WIDTH = 18, 26


class CornerEnv(gymnasium.Env):
    """Push the bright square away from the edges: touching one ends the episode for good.

    Observation: {"camera": uint8 (3, 18, 26), "position": (2,)}; actions from (-2, 0) to (2, 4), of which (0, 2) rests.
    """

    def __init__(self, background: int = 40):
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (3, HEIGHT, WIDTH), np.uint8),
                "position": spaces.Box(-1, 1, (2,), np.float64),
            }
        )
        self.action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 4], np.float32))
        self.background = background
        self.position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if options:
            raise ValueError(f"unknown options {options}")  # as strict environments do
        self.position = self.np_random.uniform(-0.6, 0.6, 2)
        return self._obs(), {"start": self.position.copy(), "map": np.zeros((50, 50))}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        move = 0.1 * (action - [0, 2]) + 0.02 * self.np_random.normal(size=2)
        self.position = np.clip(self.position + move, -1, 1)
        over = bool(np.abs(self.position).max() == 1)
        return self._obs(), 0.0 if over else 1.0, over, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        camera = np.full((3, HEIGHT, WIDTH), self.background, np.uint8)
        row, column = np.round((self.position + 1) / 2 * (HEIGHT - 5, WIDTH - 5)).astype(int)
        camera[:, row : row + 5, column : column + 5] = 230
        return {"camera": camera, "position": self.position.copy()}


class RestorableEnv(CornerEnv):
    """The same with its state, as exact resume asks for; Gymnasium's `np_random` need not be in it."""

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position = state["position"].copy()


def make_corner() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(CornerEnv(), 15)


def make_restorable() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(RestorableEnv(), 15)


def make_dark() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(RestorableEnv(background=0), 15)


def make_pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", render_mode="rgb_array")


def make_car() -> gymnasium.Env:
    return gymnasium.make("CarRacing-v3", continuous=True)


def not_an_environment() -> Any:
    return object()


def train_own(config: Config, out: Path, *, kill_in: str = "", kill_call: int = 1) -> None:
    """Begin or resume the run of `config`, as a person would after a crash; see `fakes.train_dot`."""
    import torch

    from softaug.training.run import train

    torch.set_num_threads(1)
    if kill_in:
        _kill_in(kill_in, kill_call)
    train(config, out, images=FakeImages(), resume=(out / "config.json").exists(), quiet=True)
