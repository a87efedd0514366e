"""Frames and stacks. An environment makes single frames, uint8 (H, W, 3); a stack is uint8 (3k, H, W), newest last.

Training sends single frames from the environment to the replay and stacks them for acting (`FrameStack`); everything
else gets its stacks from the environment (`StackedFrames`). Gymnasium's `FrameStackObservation` gives (k, H, W, 3), which
every policy would have to turn around, and cannot be saved in the middle of an episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from softaug.errors import UserError

MAX_FRAME_STACK = 100


def newest_frame(obs: np.ndarray) -> np.ndarray:
    """The last frame (H, W, 3) of a stack (3k, H, W)."""
    return np.ascontiguousarray(obs[-3:].transpose(1, 2, 0))


class FrameStack:
    """The last k frames of an episode as one observation; before its start, the first frame repeats."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: (3k, H, W)."""
        self._stack = np.zeros(shape, np.uint8)

    @property
    def obs(self) -> np.ndarray:
        """A copy: uint8 (3k, H, W), the caller's."""
        return self._stack.copy()

    @obs.setter
    def obs(self, stack: np.ndarray) -> None:
        self._stack[:] = stack

    def begin(self, frame: np.ndarray) -> np.ndarray:
        """The first observation of an episode, from its first frame (H, W, 3)."""
        self._stack.reshape(-1, 3, *self._stack.shape[1:])[:] = frame.transpose(2, 0, 1)
        return self.obs

    def add(self, frame: np.ndarray) -> np.ndarray:
        """The observation with `frame` (H, W, 3) as its newest."""
        self._stack[:-3] = self._stack[3:]
        self._stack[-3:] = frame.transpose(2, 0, 1)
        return self.obs


class StackedFrames(gymnasium.Wrapper):
    """An environment of single frames (H, W, 3) as one of stacks (3 * frame_stack, H, W)."""

    def __init__(self, env: gymnasium.Env, frame_stack: int) -> None:
        super().__init__(env)
        is_whole = isinstance(frame_stack, int | np.integer) and not isinstance(frame_stack, bool)
        if not is_whole or not 1 <= frame_stack <= MAX_FRAME_STACK:
            raise UserError(
                f"frame_stack must be a whole number from 1 to {MAX_FRAME_STACK}, not {frame_stack!r}."
            )
        assert env.observation_space.shape is not None
        height, width, channels = env.observation_space.shape
        shape = (channels * int(frame_stack), height, width)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._frames = FrameStack(shape)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        return self._frames.begin(frame), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        return self._frames.add(frame), reward, terminated, truncated, info

    def get_state(self) -> dict[str, Any] | None:
        """The environment's state and the stack; None if the environment cannot save its own."""
        state = self.env.get_wrapper_attr("get_state")()
        return None if state is None else {**state, "stack": self._frames.obs}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly where `get_state` was called, on this or another environment made alike."""
        shape = self.observation_space.shape
        if state["stack"].shape != shape:
            raise UserError(
                f"The state is of an environment of {state['stack'].shape}, this one has {shape}."
            )
        self.env.get_wrapper_attr("set_state")(state)
        self._frames.obs = state["stack"]


class NewestFrames(gymnasium.ObservationWrapper):
    """An environment that makes stacks by itself (3k, H, W) as one of single frames (H, W, 3)."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        _, height, width = env.observation_space.shape
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return newest_frame(observation)


def single_frames(env: gymnasium.Env) -> gymnasium.Env:
    """The frames (H, W, 3) below an environment of stacks."""
    return env.env if isinstance(env, StackedFrames) else NewestFrames(env)
