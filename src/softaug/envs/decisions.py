"""A decision: one action in [-1, 1], mapped to the environment's own range and repeated for some env steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from softaug.errors import UserError

EnvStep = tuple[Any, float, bool, bool]
"""observation, reward, terminated, truncated of one env step"""


class ActionRange:
    """Actions, float32 (A,) in [-1, 1], for an environment whose own are between `low` and `high`.

    Values outside are clipped. Gymnasium's `RescaleAction` would pass a NaN on and compute in float32.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, name: str) -> None:
        """name: of the environment, for messages."""
        self._low, self._high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        self._name = name
        self.space = spaces.Box(-1.0, 1.0, (self._low.size,), np.float32)

    def control(self, action: np.ndarray) -> np.ndarray:
        """The environment's own action, float64, in the shape of its bounds."""
        values = np.asarray(action, np.float64)
        if values.shape != self.space.shape:
            raise UserError(
                f"The action has shape {values.shape}, but {self._name} takes {self.space.shape}."
            )
        if np.isnan(values).any():
            raise UserError(f"The action contains NaN: {values}; check the policy for a diverged network.")
        share = (np.clip(values, -1.0, 1.0).reshape(self._low.shape) + 1.0) * 0.5
        return self._low + share * (self._high - self._low)


def repeat_action(step: Callable[[], EnvStep], times: int) -> tuple[EnvStep, int]:
    """The last of `times` env steps with their rewards summed (fewer if the episode ends), and how many they were."""
    total, frames, over = 0.0, 0, False
    while frames < times and not over:
        obs, reward, terminated, truncated = step()
        total += reward
        frames += 1
        over = terminated or truncated
    return (obs, total, terminated, truncated), frames


def refuse_if_over(over: bool) -> None:
    if over:
        raise UserError("The episode is over (or was never started); call reset() before step().")
