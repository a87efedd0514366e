"""The same physics states seen in several modes.

A `PairedState` is taken from an episode in the training appearance: the state k decisions before the observation (k: frames in a
stack) and the k actions that led to it. Any mode's environment can be put into that state and step through these
actions, so that every frame of its stack shows the same physics, newly rendered in its own appearance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from softaug.errors import UserError
from softaug.evaluation.evaluate import Task
from softaug.evaluation.policy import Policy

MOST_PER_EPISODE, LEAST_EPISODES = 16, 4
EPISODE_FRAMES = 1_000
"""Assumed length of an episode without a time limit."""
MOST_FRUITLESS = 20


@dataclass(frozen=True)
class PairedState:
    """An observation in the training appearance, and how to reach it in another."""

    episode: int
    decision: int
    """Decisions from the start of the episode to the observation."""
    obs: np.ndarray
    """uint8 (3k, H, W)."""
    start: dict[str, Any]
    """`get_state()` of the environment k decisions before."""
    actions: tuple[np.ndarray, ...]
    end: np.ndarray
    """The simulator's state at the observation."""


@dataclass(frozen=True)
class RenderedStates:
    """The states as one mode shows them, each in another draw of it (another color setting, another video)."""

    obs: np.ndarray
    """uint8 (n, 3k, H, W)."""
    media: str | None


def collect_states(
    env: gymnasium.Env,
    policy: Policy,
    count: int,
    seed: int,
    progress: Callable[[], None] = lambda: None,
    *,
    per_episode: int | None = None,
) -> list[PairedState]:
    """Let `policy` act in `env` (the training appearance) and take `count` states, spread over several episodes.

    The episodes are those that `softaug eval` plays in the mode `train` with this seed.
    per_episode: states of each; by default few, so that they are unlike each other.
    """
    rng = np.random.default_rng([seed, 2])
    length = _usual_length(env)
    if per_episode is None:
        per_episode = min(MOST_PER_EPISODE, max(1, count // LEAST_EPISODES))
    states: list[PairedState] = []
    episode = fruitless = 0
    while len(states) < count:
        wanted = min(per_episode, count - len(states))
        decisions = _spread(length, wanted, _frames(env), rng)
        found, played = _states_of_episode(env, policy, episode, decisions, seed)
        for state in found:
            states.append(state)
            progress()
        if played < decisions[-1]:  # it ended early; the next one may, too
            length = played
        episode += 1
        fruitless = 0 if found else fruitless + 1
        if fruitless == MOST_FRUITLESS:
            raise UserError(
                f"{fruitless} episodes ended before a full stack of frames was seen; nothing can be compared"
            )
    return states


def render_states(
    env: gymnasium.Env,
    mode: str,
    states: Sequence[PairedState],
    seed: int,
    progress: Callable[[], None] = lambda: None,
) -> RenderedStates:
    """Every state as `env`, made in `mode`, shows it; state i in the appearance of this mode's evaluation episode i."""
    environment: Any = env.unwrapped
    shown, media = [], None
    for index, state in enumerate(states):
        obs, info = env.reset(seed=Task(mode, index).seeds(seed)[0], options={"episode": index})
        media = info.get("media")
        environment.set_state(with_physics(environment.get_state(), state))
        for action in state.actions:
            obs, *_ = env.step(action)
        if not np.array_equal(_physics(environment), state.end):
            raise RuntimeError(f"the physics of {mode} went another way than in the training appearance")
        shown.append(obs)
        progress()
    return RenderedStates(np.stack(shown), media)


def with_physics(shown: dict[str, Any], state: PairedState) -> dict[str, Any]:
    """The state `shown` of an environment with physics and task replaced by those of `state`; its appearance stays.

    Some modes change the model too (a material's color, a lamp), as some tasks do (the place of a target).
    """
    start = state.start["task"]
    model = {**shown["task"].get("model", {}), **start.get("model", {})}
    # The video shows the frame that it shows at this decision of an evaluation episode.
    position = state.decision - len(state.actions)
    return {**shown, "task": {**start, "model": model}, "video_position": position}


def _states_of_episode(
    env: gymnasium.Env, policy: Policy, episode: int, decisions: Sequence[int], seed: int
) -> tuple[list[PairedState], int]:
    """The states after each of `decisions` decisions (fewer if the episode ends before), and how many were made."""
    environment: Any = env.unwrapped
    env_seed, policy_seed = Task("train", episode).seeds(seed)
    obs, _ = env.reset(seed=env_seed, options={"episode": episode})
    policy.begin_episode(policy_seed)
    _physics(environment)  # refuse at once what cannot be shown in another appearance
    frames = _frames(env)
    starts: dict[int, dict[str, Any]] = {}
    actions: list[np.ndarray] = []
    found = []
    over = False
    while True:
        decision = len(actions)
        if decision in decisions:
            start, end = starts[decision - frames], _physics(environment)
            found.append(PairedState(episode, decision, obs, start, tuple(actions[-frames:]), end))
        if over or decision == decisions[-1]:
            return found, decision
        if decision + frames in decisions:
            starts[decision] = environment.get_state()
        actions.append(policy.act(obs))
        obs, _, terminated, truncated, _ = env.step(actions[-1])
        over = bool(terminated or truncated)


def _spread(length: int, count: int, frames: int, rng: np.random.Generator) -> list[int]:
    """At most `count` decisions of an episode of `length`, one drawn in each of as many equal parts of it."""
    edges = np.linspace(frames, max(length, frames) + 1, count + 1)
    return sorted({int(decision) for decision in rng.uniform(edges[:-1], edges[1:])})


def _frames(env: gymnasium.Env) -> int:
    """k, the frames in an observation."""
    assert env.observation_space.shape is not None
    return env.observation_space.shape[0] // 3


def _usual_length(env: gymnasium.Env) -> int:
    """Decisions of an episode, unless it ends early."""
    environment: Any = env.unwrapped
    limit = getattr(environment, "episode_decisions", None)
    return EPISODE_FRAMES // getattr(environment, "action_repeat", 1) if limit is None else int(limit)


def _physics(environment: Any) -> np.ndarray:
    """The simulator's state."""
    state = environment.get_state() if hasattr(environment, "get_state") else None
    if state is None or "integration" not in state.get("task", {}):
        raise UserError(
            f"{type(environment).__name__} cannot show a given physics state in another appearance, which a diagnosis is about; "
            "it works with the tasks of softaug.make_env"
        )
    return np.asarray(state["task"]["integration"]).copy()
