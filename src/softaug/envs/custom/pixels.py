"""Any Gymnasium environment with images and continuous actions, as the trainer wants it.

    env = softaug.envs.adapt(my_robot.make_env(), image_size=84)
    obs, info = env.reset(seed=0)          # uint8 (9, 84, 84): three frames, newest last
    env.step(action)                       # action float32 (A,) in [-1, 1], mapped to the environment's own range

An image is the observation itself, one entry of a dict observation, or what `render()` returns where observations
are no images. It is resized to a square (a wider or higher image is squeezed as a whole: nothing is cut off, and
things change their proportions), and gray becomes RGB. `softaug.envs.adapt` stacks the frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from softaug.envs.custom.frames import find_frame, resize
from softaug.envs.custom.wrapper import Distracted
from softaug.envs.decisions import ActionRange, EnvStep, refuse_if_over, repeat_action
from softaug.envs.observations import newest_frame
from softaug.errors import UserError

SMALL_INFO = 16
"""Entries of `info` with more numbers than this are not passed on: evaluations keep them as JSON."""

UNBOUNDED = 1e9
"""Action bounds of this size or more are placeholders for none."""


class PixelEnv(gymnasium.Env):
    """Single frames, uint8 (H, W, 3). See `softaug.envs.adapt` for the arguments; `name` is for messages.

    A time limit truncates (the return continues, unseen); only the environment itself terminates.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        image_size: int,
        action_repeat: int = 1,
        image_key: str = "",
        episode_decisions: int = 0,
        name: str = "the environment",
    ) -> None:
        sizes = {"image_size": image_size, "action_repeat": action_repeat}
        if wrong := [f"{argument} ({size})" for argument, size in sizes.items() if size < 1]:
            raise UserError(f"{', '.join(wrong)} must be at least 1")
        if episode_decisions < 0:
            raise UserError(
                f"episode_decisions ({episode_decisions}) must be at least 1, or 0 for {name}'s own limit"
            )
        self.inner, self.name = env, name
        self.action_repeat = action_repeat
        self._reader = find_frame(env, image_key, name)
        self.controls = _check_actions(env.action_space, name)
        """The environment's own actions, to which [-1, 1] is mapped."""
        self.episode_decisions = _episode_decisions(env, action_repeat, episode_decisions, name)
        self._size = image_size
        self.actions = ActionRange(self.controls.low, self.controls.high, name)
        self.action_space = self.actions.space
        self.observation_space = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.render_mode = "rgb_array"
        fps = (env.metadata.get("render_fps") or 25) / action_repeat
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.full_frame = np.zeros((image_size, image_size, 3), np.uint8)
        """The newest image as the environment gave it, uint8 (its height, its width, 3)."""
        self._frame = np.zeros((image_size, image_size, 3), np.uint8)
        self._decisions = 0
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode. `options` (the evaluation's episode number) go to `softaug.envs.wrap`, if that is there:
        other environments may refuse what they do not know.
        """
        super().reset(seed=seed)
        passed = options if any(isinstance(layer, Distracted) for layer in _layers(self.inner)) else None
        obs, info = self.inner.reset(seed=seed, options=passed)
        self._decisions, self._over = 0, False
        return self._seen(obs), {key: value for key, value in info.items() if _is_small(value)}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One decision: the action is repeated, rewards are summed. info["frames"]: env steps it took."""
        refuse_if_over(self._over)
        control = self.actions.control(action).astype(self.controls.dtype)
        # Rounding must not lead out of the environment's space.
        control = np.clip(control, self.controls.low, self.controls.high)
        (obs, total, terminated, truncated), frames = repeat_action(
            lambda: self._env_step(control), self.action_repeat
        )
        self._decisions += 1
        truncated = truncated or (not terminated and self._decisions >= self.episode_decisions)
        self._over = terminated or truncated
        return self._seen(obs), total, terminated, truncated, {"frames": frames}

    def render(self) -> np.ndarray:
        """The newest frame, uint8 (H, W, 3)."""
        return self._frame.copy()

    def close(self) -> None:
        self.inner.close()

    def get_state(self) -> dict[str, Any] | None:
        """What `set_state` continues from, or None if the environment has no `get_state()` and `set_state(state)`.

        Apart from the environment's own state: its `np_random`, how far a `TimeLimit` is, and the draws of
        `softaug.envs.wrap`. Other wrappers with a memory of their own must be covered by the environment's two methods.
        """
        if not can_restore(self.inner):
            return None
        inner = self.inner.get_wrapper_attr("get_state")()
        _check_tree(inner, f"{self.name}.get_state()")
        return {
            "inner": inner,
            "np_random": _random_state(self.inner),
            "layers": [_layer_state(layer) for layer in _layers(self.inner)],
            "decisions": self._decisions,
            "over": self._over,
            "frame": self._frame.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly where `get_state` was called, on this or another environment made alike."""
        self.inner.reset(seed=0)  # Gymnasium's wrappers refuse to step before a reset
        self.inner.get_wrapper_attr("set_state")(state["inner"])
        if state["np_random"] is not None:
            self.inner.unwrapped.np_random.bit_generator.state = state["np_random"]
        for layer, layer_state in zip(_layers(self.inner), state["layers"], strict=True):
            _set_layer_state(layer, layer_state)
        self._decisions, self._over = int(state["decisions"]), bool(state["over"])
        # States of version 0.1 hold the stack (3k, H, W).
        self._frame[:] = state["frame"] if "frame" in state else newest_frame(state["stack"])

    def _env_step(self, control: np.ndarray) -> EnvStep:
        obs, reward, terminated, truncated, _ = self.inner.step(control)
        return obs, self._number(reward), bool(terminated), bool(truncated)

    def _seen(self, obs: Any) -> np.ndarray:
        """What the environment shows now, uint8 (H, W, 3)."""
        self.full_frame = self._reader.of(obs, self.inner)
        self._frame[:] = resize(self.full_frame, self._size)
        return self._frame.copy()

    def _number(self, reward: Any) -> float:
        values = np.asarray(reward, np.float64)
        if values.size != 1 or not np.isfinite(values).all():
            raise UserError(
                f"{self.name} returned the reward {reward!r} after {self._decisions} decisions of an episode; "
                "it must be one finite number"
            )
        return float(values.reshape(()))


# Actions and time limits.


def _check_actions(space: spaces.Space, name: str) -> spaces.Box:
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"{name} has the actions {space}, but SAC needs continuous ones: a Box of floats with finite bounds"
        )
    if not (np.abs([space.low, space.high]) < UNBOUNDED).all():
        raise UserError(
            f"{name}'s action bounds are infinite or as good as that ({UNBOUNDED:g} and more); give them "
            "finite ones (gymnasium.wrappers.TransformAction with a finite Box), to which [-1, 1] can be mapped"
        )
    return space


def _episode_decisions(env: gymnasium.Env, action_repeat: int, given: int, name: str) -> int:
    limits = [-(-steps // action_repeat) for steps in time_limits(env)] + ([given] if given else [])
    if not limits:
        raise UserError(
            f"{name} has no time limit; give one with episode_decisions (--episode-decisions N; episodes may end earlier)"
        )
    return min(limits)


def time_limits(env: gymnasium.Env) -> list[int]:
    """Every limit in env steps that the environment is known to have: of a wrapper, its spec or an attribute."""
    found: list[Any] = [
        layer._max_episode_steps for layer in _layers(env) if isinstance(layer, gymnasium.wrappers.TimeLimit)
    ]
    found.append(None if env.spec is None else env.spec.max_episode_steps)
    found.append(getattr(env.unwrapped, "max_episode_steps", None))
    return [int(steps) for steps in found if isinstance(steps, int | np.integer) and steps > 0]


# State, for runs that are resumed.


def can_restore(env: gymnasium.Env) -> bool:
    """Whether it, or a wrapper around it, has `get_state()` and `set_state(state)` (others have a `set_state(a, b)`)."""
    for method, arguments in (("get_state", ()), ("set_state", (None,))):
        if not env.has_wrapper_attr(method):
            return False
        try:
            inspect.signature(env.get_wrapper_attr(method)).bind(*arguments)
        except (TypeError, ValueError):
            return False
    return True


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """The wrappers from the outside in, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _layer_state(layer: gymnasium.Env) -> Any:
    if isinstance(layer, gymnasium.wrappers.TimeLimit):
        return layer._elapsed_steps
    return layer.appearance_state() if isinstance(layer, Distracted) else None


def _set_layer_state(layer: gymnasium.Env, state: Any) -> None:
    if isinstance(layer, gymnasium.wrappers.TimeLimit):
        layer._elapsed_steps = state
    elif isinstance(layer, Distracted):
        layer.set_appearance_state(state)


def _random_state(env: gymnasium.Env) -> Any:
    random = env.unwrapped.np_random
    return random.bit_generator.state if isinstance(random, np.random.Generator) else None


def _check_tree(tree: Any, where: str) -> None:
    """A checkpoint holds arrays and plain values, never pickled objects."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            _check_tree(value, f"{where}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            _check_tree(value, f"{where}[{index}]")
    elif not (tree is None or isinstance(tree, bool | int | float | str | np.generic | np.ndarray)):
        raise UserError(
            f"{where} is a {type(tree).__name__}; a state may hold numpy arrays, numbers, text and dicts or lists of these"
        )


def _is_small(value: Any) -> bool:
    if isinstance(value, Mapping):
        return len(value) <= SMALL_INFO and all(map(_is_small, value.values()))
    return isinstance(value, bool | int | float | str | np.generic) or (
        isinstance(value, np.ndarray) and value.size <= SMALL_INFO
    )
