"""What benchmarks share: a stopwatch for functions, and a replay of noise."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softaug.config import Config

if TYPE_CHECKING:
    from softaug.learning.replay import Replay

ACTION_DIM = 6  # walker's
EPISODE = 250
NOISE_FRAMES = 64


class Stopwatch:
    """Sums the seconds spent in the functions it wraps."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._now = now

    def wrap(self, function: Callable) -> Callable:
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = self._now()
            result = function(*arguments, **options)
            self.seconds += self._now() - begun
            return result

        return timed

    def take(self) -> float:
        """The seconds since the last call."""
        elapsed, self.seconds = self.seconds, 0.0
        return elapsed


def make_replay(config: Config, directory: Path, decisions: int = 1000) -> Replay:
    """A memory-mapped replay of noise: a few frames again and again, as drawing them all takes longer."""
    from softaug.learning.replay import Replay  # imports torch, which stepping environments does not need

    rng = np.random.default_rng(0)
    frame_shape = (config.image_size, config.image_size, 3)
    frames = rng.integers(0, 256, (NOISE_FRAMES, *frame_shape), dtype=np.uint8)
    replay = Replay(
        directory,
        capacity=decisions,
        slack=EPISODE,
        episode_decisions=EPISODE,
        frame_shape=frame_shape,
        frame_stack=config.frame_stack,
        action_dim=ACTION_DIM,
        discount=config.discount,
    )
    for decision in range(decisions):
        if decision % EPISODE == 0:
            replay.begin_episode(frames[decision % NOISE_FRAMES])
        action = rng.uniform(-1, 1, ACTION_DIM).astype(np.float32)
        replay.add(action, rng.uniform(), False, frames[(decision + 1) % NOISE_FRAMES])
    return replay
