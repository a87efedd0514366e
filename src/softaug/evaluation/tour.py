"""A tour: one episode whose appearance changes on the way from mode to mode, while the physics continues.

The policy keeps acting on what its camera shows; nothing tells it about the change. Two policies that start with the same
seed start in the same state and see the same colors and videos.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from softaug.config import Config
from softaug.envs.factory import ConfigEnvs
from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.evaluation.evaluate import Task
from softaug.evaluation.runs import Run

MODES = ("train", "color_hard", "video_easy", "video_hard", "train")
"""From the training appearance to the farthest from it, and back."""

UNLIMITED = 250
"""Decisions of an episode without a time limit."""


@dataclass(frozen=True)
class TourFrame:
    """What is seen after a decision."""

    mode: str
    scene: np.ndarray
    """uint8 (size, size, 3)"""
    reward: float
    total: float
    """Rewards since the start of the tour."""
    of: int
    """Decisions of the whole tour, unless the episode ends before."""


def check_tour(run: Run) -> None:
    """Refuse a run whose environment cannot be shown in another appearance on the way."""
    if run.config.own_env:
        raise UserError(
            f"{run.path} was trained in an environment of its own, whose appearance cannot change within an episode; "
            "leave --tour out"
        )


def scene_config(config: Config, size: int) -> Config:
    """A config whose environments show the scenes of `config`'s in frames of `size` pixels, one by one."""
    # Nothing crops them; methods that do not crop at all refuse a smaller crop.
    return dataclasses.replace(config, image_size=size, crop_size=size, frame_stack=1)


def play_tour(
    run: Run, modes: Sequence[str], seed: int, *, size: int, decisions: int | None = None, adapt: bool = False
) -> Iterator[TourFrame]:
    """One episode of `run`'s policy through `modes`, with scenes of `size` pixels, until it ends.

    decisions: in each mode; by default the modes share a whole episode.
    """
    check_tour(run)
    config = run.config
    large = scene_config(config, size)
    env_seed, policy_seed = Task("train", 0).seeds(seed)
    policy = run.policy(adapt)()
    policy.begin_episode(policy_seed)
    eyes, camera = _Traveler(ConfigEnvs(config), env_seed), _Traveler(ConfigEnvs(large), env_seed)
    total, passed = 0.0, 0
    with closing(eyes), closing(camera):
        stay = decisions or max(1, eyes.episode_decisions // len(modes))
        obs = eyes.obs
        for mode in modes:
            eyes.enter(mode, passed)
            camera.enter(mode, passed)
            for _ in range(stay):
                action = policy.act(obs)
                next_obs, reward, over = eyes.step(action)
                scene, _, _ = camera.step(action)
                policy.observe(obs, action, next_obs)
                obs, total, passed = next_obs, total + reward, passed + 1
                yield TourFrame(mode, newest_frame(scene), reward, total, stay * len(modes))
                if over:
                    return


class _Traveler:
    """An episode that is moved from the environment of one mode into that of the next."""

    def __init__(self, envs: ConfigEnvs, seed: int):
        self._envs, self._seed = envs, seed
        self._open = ExitStack()
        self._env = self._make("train")
        self.obs = self._reset()
        environment: Any = self._env.unwrapped
        state = self._state() if self._env.has_wrapper_attr("get_state") else {}
        if "integration" not in state.get("task", {}):
            self.close()
            raise UserError(f"the appearance of {type(environment).__name__} cannot change within an episode")
        self.episode_decisions = int(environment.episode_decisions or UNLIMITED)
        # What the task itself sets in the model (the place of a target): it stays, colors and lamps do not.
        self._task_model = state["task"]["model"]

    def enter(self, mode: str, passed: int) -> None:
        """Continue in `mode`, after `passed` decisions."""
        before = self._state()
        self._open.close()
        self._env = self._make(mode)
        self._reset()
        appearance = self._state()
        model = {**appearance["task"]["model"], **self._task_model}
        moved = {
            "task": {**before["task"], "model": model},
            "stack": before["stack"],
            "video_position": passed,
        }
        self._env.get_wrapper_attr("set_state")({**appearance, **moved})

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        obs, reward, terminated, truncated, _ = self._env.step(action)
        return obs, float(reward), bool(terminated or truncated)

    def close(self) -> None:
        self._open.close()

    def _make(self, mode: str) -> gymnasium.Env:
        return self._open.enter_context(closing(self._envs(mode, self._seed)))

    def _reset(self) -> np.ndarray:
        obs, _ = self._env.reset(seed=self._seed, options={"episode": 0})
        return obs

    def _state(self) -> dict[str, Any]:
        """Nothing, if the environment cannot save its own."""
        return self._env.get_wrapper_attr("get_state")() or {}
