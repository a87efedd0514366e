"""Policies as users write them: what `module:callable` names in the tests. Actions have two components."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


def rest(obs: np.ndarray) -> np.ndarray:
    return np.zeros(2)


def to_the_middle(obs: np.ndarray) -> torch.Tensor:
    """Moves the bright square of the newest frame to the middle."""
    bright = np.argwhere(obs[-1] == obs[-1].max()).mean(0) / (np.array(obs.shape[1:]) - 1)
    return torch.tensor(np.clip(4 * (0.5 - bright), -1, 1), requires_grad=True)


def draws(obs: np.ndarray) -> list[float]:
    """From the global generators, unseeded."""
    return [random.uniform(-1, 1) * 0.5, float(np.random.rand()) - float(torch.rand(1))]  # noqa: NPY002


def clumsy(obs: np.ndarray) -> np.ndarray:
    """Writes into its observation."""
    obs[:] = 0
    return np.zeros(2)


def batched(obs: np.ndarray) -> np.ndarray:
    return np.zeros((1, 2))


def of_words(obs: np.ndarray) -> str:
    return "left"


def huge(obs: np.ndarray) -> list[int]:
    return [10**400, 0]


def imaginary(obs: np.ndarray) -> np.ndarray:
    return np.array([1 + 2j, 0])


class Unreadable:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("the device is gone")


def unreadable(obs: np.ndarray) -> Unreadable:
    return Unreadable()


class NeedsWeights:
    def __init__(self, weights: str) -> None: ...


class WithoutWeights:
    def __init__(self) -> None:
        raise OSError("no weights here")


class Quits:
    def __init__(self) -> None:
        raise SystemExit(0)


class Draws:
    """Draws when it is made, too."""

    def __init__(self) -> None:
        draws(np.zeros(1))

    def act(self, obs: np.ndarray) -> list[float]:
        return draws(obs)


def interrupted(obs: np.ndarray) -> np.ndarray:
    """As by Ctrl-C, but not on the images by which it is recognized: the bright square is 230 everywhere."""
    if obs.max() == 230:
        raise KeyboardInterrupt
    return np.zeros(2)


class Counting:
    """Counts its decisions; `begin_episode` must come first. In the third of every episode it may fail."""

    failure = ""

    def __init__(self) -> None:
        self.decisions: int | None = None
        self.seen: list[tuple[Any, ...]] = []

    def begin_episode(self, seed: int) -> None:
        self.decisions = 0
        self.rng = np.random.default_rng(seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        assert self.decisions is not None
        if self.decisions == 2 and self.failure == "nan":
            return np.array([0.0, np.nan])
        if self.decisions == 2 and self.failure == "raise":
            raise ValueError("the crop is larger than the image")
        if self.decisions == 2 and self.failure == "exit":
            raise SystemExit(3)
        return self.rng.uniform(-1, 1, 2)

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        assert self.decisions is not None
        self.decisions += 1


class Nan(Counting):
    failure = "nan"


class Raising(Counting):
    failure = "raise"


class Exiting(Counting):
    failure = "exit"


class DarkNan(Counting):
    """Fails in dark images only: in one mode of two."""

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.full(2, np.nan) if obs.min() == 0 and obs.max() == 230 else np.zeros(2)


class Weights:
    """Its action is in a file that the environment variable names."""

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.full(2, float(open(os.environ["FAKE_WEIGHTS"]).read()))  # noqa: PTH123
