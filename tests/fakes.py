"""A tiny deterministic pixel environment and a fake image source: what tests train on instead of MuJoCo."""

from __future__ import annotations

import os
import pkgutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from softaug.config import Config

SIZE = 12
BACKGROUND = {"train": (30, 30, 60), "color_hard": (90, 40, 20), "video_easy": (20, 90, 40)}


class DotEnv(gymnasium.Env):
    """Move the bright dot to the middle: 20 decisions of at most a quarter of the image each.

    Reward: 1 minus the dot's distance to the middle (0 at the middle, about 1 at an edge). Ends by a time limit;
    with `terminates`, also when the dot touches the edge (a real end, and episodes of irregular length).
    """

    action_repeat = 2
    episode_decisions = 20

    def __init__(
        self,
        mode: str = "train",
        seed: int = 0,
        *,
        frame_stack: int = 2,
        size: int = SIZE,
        terminates: bool = False,
    ):
        self.observation_space = gymnasium.spaces.Box(0, 255, (3 * frame_stack, size, size), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.mode, self.size, self.frame_stack, self.terminates = mode, size, frame_stack, terminates
        self._rng = np.random.default_rng(seed)
        self._position = np.zeros(2)
        self._decisions = 0
        self._stack = np.zeros(self.observation_space.shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._position = self._rng.uniform(-0.9, 0.9, 2)
        self._decisions = 0
        self._stack = np.concatenate([self._frame()] * self.frame_stack)
        return self._stack.copy(), {"media": "fake"}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        if np.abs(action).max() > 1:
            raise ValueError(f"action {action} is out of bounds")
        self._position = np.clip(self._position + 0.25 * np.asarray(action), -1, 1)
        self._decisions += 1
        self._stack = np.concatenate([self._stack[3:], self._frame()])
        distance = float(np.linalg.norm(self._position))
        terminated = self.terminates and bool(np.abs(self._position).max() == 1)
        return self._stack.copy(), 1 - distance, terminated, self._decisions >= self.episode_decisions, {}

    def get_state(self) -> dict[str, Any]:
        return {
            "rng": self._rng.bit_generator.state,
            "position": self._position.copy(),
            "decisions": self._decisions,
            "stack": self._stack.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._position = state["position"].copy()
        self._decisions = state["decisions"]
        self._stack = state["stack"].copy()

    def _frame(self) -> np.ndarray:
        frame = np.empty((3, self.size, self.size), np.uint8)
        frame[:] = np.array(BACKGROUND[self.mode], np.uint8)[:, None, None]
        row, column = np.round((self._position + 1) / 2 * (self.size - 3)).astype(int)
        frame[:, row : row + 3, column : column + 3] = 255
        return frame


@dataclass(frozen=True)
class DotFactory:
    """Makes `DotEnv`s; picklable, so that it works in other processes."""

    frame_stack: int = 2
    terminates: bool = False

    def __call__(self, mode: str, seed: int) -> DotEnv:
        return DotEnv(mode, seed, frame_stack=self.frame_stack, terminates=self.terminates)


class FakeImages:
    """Images of one random color each."""

    kind = "procedural"

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        colors = rng.integers(0, 256, (count, 1, 1, 3), dtype=np.uint8)
        return np.broadcast_to(colors, (count, height, width, 3)).copy()

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


def tiny_config(**overrides: Any) -> Config:
    """A run of a few hundred decisions on `DotEnv` that takes a second or two."""
    values: dict[str, Any] = {
        "method": "sac",
        "preset": "small",
        "decisions": 240,
        "image_size": SIZE,
        "crop_size": SIZE - 2,
        "frame_stack": 2,
        "filters": (8, 8),
        "strides": (2, 1),
        "pad_own_layers": 1,
        "projection_dim": 16,
        "hidden_dim": 32,
        "batch_size": 16,
        "aux_batch_size": 16,
        "discount": 0.9,
        "n_step": 1,
        "replay_capacity": 1000,
        "random_decisions": 60,
        "initial_updates": 20,
        "eval_every": 100,
        "eval_episodes": 2,
        "eval_modes": ("train", "color_hard"),
        "checkpoint_every": 50,
        "log_every": 30,
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
        "env_process": False,
    }
    return Config(**{**values, **overrides})


def train_dot(
    config: Config, out: Path, *, terminates: bool = False, kill_in: str = "", kill_call: int = 1
) -> None:
    """Begin or resume a run on `DotEnv`, as a person would after a crash. For other processes.

    kill_in: "module.function" to be killed in (SIGKILL), at its call number `kill_call`, before it does anything.
    """
    import torch  # not above: environments in their own process need none of it

    from softaug.training.run import train

    torch.set_num_threads(1)

    if kill_in:
        _kill_in(kill_in, kill_call)
    begun = (out / "config.json").exists()
    train(
        config,
        out,
        env_factory=DotFactory(terminates=terminates),
        images=FakeImages(),
        resume=begun,
        quiet=True,
    )


def _kill_in(name: str, call: int) -> None:
    path, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(path)
    original, calls = getattr(owner, attribute), 0

    def killing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, attribute, killing)
