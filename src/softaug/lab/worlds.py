"""What an agent of the lab lives in: an environment in the chosen appearance, and the same states in that of training."""

from __future__ import annotations

import base64
import gc
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import mujoco
import numpy as np
from PIL import Image

from softaug.config import Config
from softaug.envs.custom.pixels import PixelEnv
from softaug.envs.factory import ConfigEnvs, modes_of
from softaug.envs.observations import FrameStack, StackedFrames
from softaug.errors import UserError
from softaug.lab.backdrops import Backdrops
from softaug.lab.images import change_image
from softaug.lab.live_env import SCENE_SIZE, LiveEnv, Push
from softaug.lab.settings import (
    IMAGE_FIELDS,
    SCENE_FIELDS,
    SESSION_FIELDS,
    TRAINING_MODE,
    Settings,
    check_mode,
)

EPISODES = 100
"""A seed also chooses the mode's video or turn of the camera: the one of episode seed modulo this."""
MAX_PLACE_BYTES = 64_000

Place = dict[str, Any]
"""Where an episode is, for another world with the same seed."""


class World(Protocol):
    """One agent's environment. Call `apply` and `reset` first."""

    controls: tuple[str, ...]
    """Settings that change something here."""
    modes: tuple[str, ...]
    decisions_per_second: float
    """Of the real thing."""

    def apply(self, settings: Settings) -> bool:
        """Whether the episode must begin anew, because it cannot continue in this mode."""
        ...

    def reset(self, seed: int) -> None: ...

    def step(self, action: np.ndarray) -> tuple[float, bool]:
        """Reward, and whether the episode is over."""
        ...

    def push(self, push: Push | None) -> bool:
        """Push from now on, or stop; False if there is nothing to push at that point."""
        ...

    def obs(self) -> np.ndarray: ...

    def training_obs(self) -> np.ndarray | None:
        """The same states in the appearance of training; None if they cannot be shown in it."""
        ...

    def scene(self) -> np.ndarray: ...

    def place(self) -> Place | None: ...

    def go_to(self, place: Place) -> None: ...

    def close(self) -> None: ...


def make_world(config: Config, backdrops: Backdrops) -> World:
    return OwnWorld(config) if config.own_env else SuiteWorld(config, backdrops)


class SuiteWorld:
    """A task of the suite or robot push."""

    controls: tuple[str, ...] = (*SESSION_FIELDS, *IMAGE_FIELDS, *SCENE_FIELDS, "mode", "push")

    def __init__(self, config: Config, backdrops: Backdrops) -> None:
        self._config, self._backdrops = config, backdrops
        self.modes = modes_of(config)
        self._live = self._make(TRAINING_MODE)
        self._training: Any = ConfigEnvs(config)(TRAINING_MODE, 0).unwrapped
        step = self._live._env.control_timestep() * self._live.action_repeat
        self.decisions_per_second = 1.0 / step
        self._seed, self._started, self._over = 0, False, False
        self._pushing: tuple[int, Push] | None = None
        self._stack, self._training_stack = _stack(config), _stack(config)

    def apply(self, settings: Settings) -> bool:
        mode = check_mode(settings.mode, self.modes, own=False)
        self._backdrops.check(settings)
        if mode != self._live.mode.name:
            self._change_mode(mode)
        self._live.show(settings)
        if self._started:
            _replace_newest(self._stack, self._live.frame())
        return False

    def reset(self, seed: int) -> None:
        self._seed, options = seed, {"episode": seed % EPISODES}
        self._started, self._over, self._pushing = True, False, None
        frame, _ = self._live.reset(seed=seed, options=options)
        training_frame, _ = self._training.reset(seed=seed, options=options)
        self._stack.begin(frame)
        self._training_stack.begin(training_frame)

    def step(self, action: np.ndarray) -> tuple[float, bool]:
        if self._pushing is not None:
            body, push = self._pushing
            self._live.set_force(body, self._live.force(push, body))
        frame, reward, terminated, truncated, _ = self._live.step(action)
        self._live.set_force(0, None)
        self._stack.add(frame)
        self._copy_physics()
        self._training_stack.add(self._training_frame())
        self._over = bool(terminated or truncated)
        return float(reward), self._over

    def push(self, push: Push | None) -> bool:
        if push is None:
            self._pushing = None
            return True
        if self._pushing is not None and (push.x, push.y) == (self._pushing[1].x, self._pushing[1].y):
            self._pushing = (self._pushing[0], push)  # dragged on: the body is the one that was clicked
            return True
        body = self._live.body_at(push.x, push.y)
        self._pushing = None if body is None else (body, push)
        return body is not None

    def obs(self) -> np.ndarray:
        return self._stack.obs

    def training_obs(self) -> np.ndarray:
        return self._training_stack.obs

    def scene(self) -> np.ndarray:
        return self._live.scene()

    def place(self) -> Place:
        return self._live.get_place()

    def go_to(self, place: Place) -> None:
        self.reset(self._seed)
        self._live.set_place(place)
        self._copy_physics()
        self._stack.begin(self._live.frame())
        self._training_stack.begin(self._training_frame())

    def close(self) -> None:
        self._live.close()
        self._training.close()

    def _change_mode(self, mode: str) -> None:
        """Another environment, in the same state."""
        made = self._make(mode)
        if self._started:
            made.reset(seed=self._seed, options={"episode": self._seed % EPISODES})
            if not self._over:
                made.set_place(self._live.get_place())
        self._live.close()
        self._live = made
        gc.collect()  # dm_control's environments are cycles of references, and each holds tens of MB

    def _make(self, mode: str) -> LiveEnv:
        return make_live_env(self._config, mode, 0, self._backdrops)

    def _copy_physics(self) -> None:
        """Positions only: what an image shows. The task's own draws are alike, as both are reset with one seed."""
        source, target = self._live.physics, self._training.physics
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(source.model.ptr, kind))
        mujoco.mj_getState(source.model.ptr, source.data.ptr, state, kind)
        mujoco.mj_setState(target.model.ptr, target.data.ptr, state, kind)
        mujoco.mj_fwdPosition(target.model.ptr, target.data.ptr)

    def _training_frame(self) -> np.ndarray:
        return self._training._rendered()


class OwnWorld:
    """An environment of the user's own: its images can be changed, the scene behind them cannot."""

    controls: tuple[str, ...] = (*SESSION_FIELDS, *IMAGE_FIELDS, "mode")

    def __init__(self, config: Config) -> None:
        self._config = config
        self.modes = modes_of(config)
        self._settings = Settings()
        self._mode = TRAINING_MODE
        self._env = self._make(TRAINING_MODE)
        self.decisions_per_second = float(self._env.metadata.get("render_fps") or 25.0)
        self._seed = self._decisions = 0
        self._frame = self._env.full_frame
        self._stack, self._training_stack = _stack(config), _stack(config)
        self._started = False

    def apply(self, settings: Settings) -> bool:
        mode = check_mode(settings.mode, self.modes, own=True)
        if other := mode != self._mode:
            made = self._make(mode)
            self._env.close()
            self._env, self._mode = made, mode
        self._settings = settings
        if self._started and not other:
            _replace_newest(self._stack, self._changed(self._frame))
        return other

    def reset(self, seed: int) -> None:
        frame, _ = self._env.reset(seed=seed, options={"episode": seed % EPISODES})
        self._seed, self._decisions, self._started = seed, 0, True
        self._frame = frame
        self._stack.begin(self._changed(self._frame))
        self._training_stack.begin(self._frame)

    def step(self, action: np.ndarray) -> tuple[float, bool]:
        frame, reward, terminated, truncated, _ = self._env.step(action)
        self._decisions += 1
        self._frame = frame
        self._stack.add(self._changed(self._frame))
        self._training_stack.add(self._frame)
        return float(reward), bool(terminated or truncated)

    def push(self, push: Push | None) -> bool:
        return push is None

    def obs(self) -> np.ndarray:
        return self._stack.obs

    def training_obs(self) -> np.ndarray | None:
        return self._training_stack.obs if self._mode == TRAINING_MODE else None

    def scene(self) -> np.ndarray:
        full = self._env.full_frame
        width = max(1, round(full.shape[1] * SCENE_SIZE / full.shape[0]))
        large = np.asarray(Image.fromarray(full).resize((width, SCENE_SIZE), Image.Resampling.BILINEAR))
        return self._changed(large)

    def place(self) -> None:
        return None

    def go_to(self, place: Place) -> None:
        raise UserError("an environment of your own starts at a seed; a link cannot say where its episode is")

    def close(self) -> None:
        self._env.close()

    def _make(self, mode: str) -> PixelEnv:
        env = ConfigEnvs(self._config)(mode, 0).unwrapped
        assert isinstance(env, PixelEnv)
        return env

    def _changed(self, frame: np.ndarray) -> np.ndarray:
        return change_image(
            frame, self._settings, np.random.default_rng([self._seed, self._decisions, len(frame)])
        )


class ChangedImages(gymnasium.ObservationWrapper):
    """The frames (H, W, 3) of an environment of the user's own, changed; for test episodes."""

    def __init__(self, env: gymnasium.Env, settings: Settings) -> None:
        super().__init__(env)
        self._settings, self._rng = settings, np.random.default_rng(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return change_image(observation, self._settings, self._rng)


def make_live_env(
    config: Config, mode: str, seed: int, backdrops: Backdrops, settings: Settings | None = None
) -> LiveEnv:
    """As `ConfigEnvs` makes it, with an appearance that can be changed."""
    return LiveEnv(
        config.task,
        mode,
        seed,
        image_size=config.image_size,
        action_repeat=config.action_repeat or None,
        videos=config.videos or None,
        colors=config.colors or None,
        render=config.render,
        backdrops=backdrops,
        settings=settings,
    )


@dataclass(frozen=True)
class LiveEnvs:
    """Environments in the appearance of some settings, for test episodes: (mode, seed) -> environment. Picklable."""

    config: Config
    settings: Settings
    backdrops: Backdrops

    def __call__(self, mode: str, seed: int) -> gymnasium.Env:
        if self.config.own_env:
            frames: gymnasium.Env = ChangedImages(
                ConfigEnvs(self.config)(mode, seed).unwrapped, self.settings
            )
        else:
            frames = make_live_env(self.config, mode, seed, self.backdrops, self.settings)
        return StackedFrames(frames, self.config.frame_stack)


def _stack(config: Config) -> FrameStack:
    return FrameStack((3 * config.frame_stack, config.image_size, config.image_size))


def _replace_newest(stack: FrameStack, frame: np.ndarray) -> None:
    """The same state in another appearance."""
    obs = stack.obs
    obs[-3:] = frame.transpose(2, 0, 1)
    stack.obs = obs


# A place as text, for links.


def place_to_text(place: Mapping[str, Any]) -> str:
    """Short enough for a URL: the numbers' own bytes, so that they come back to the last bit."""
    plain = {
        "decisions": place["decisions"],
        "integration": _bytes_text(place["integration"]),
        "sensordata": _bytes_text(place["sensordata"]),
        "task": {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in place["task"].items()
        },
        "total": place.get("total", 0.0),
    }
    packed = zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def place_from_text(text: str) -> Place:
    """The reverse of `place_to_text`; anything else is a `UserError`."""
    try:
        if len(text) > MAX_PLACE_BYTES:
            raise ValueError("too long")
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(packed, 4 * MAX_PLACE_BYTES)
        if not unpacker.eof:
            raise ValueError("too long or cut off")
        plain = json.loads(content)
        numbers = {name: _numbers(plain[name]) for name in ("integration", "sensordata")}
        task = {
            str(name): np.asarray(value, np.float64) if isinstance(value, list) else value
            for name, value in dict(plain["task"]).items()
        }
        if not all(isinstance(value, np.ndarray | bool | int | float | str) for value in task.values()):
            raise ValueError("no numbers")
        total = float(plain["total"])
        if not math.isfinite(total):
            raise ValueError("no return")
        return {"decisions": int(plain["decisions"]), "task": task, "total": total, **numbers}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, zlib.error) as error:
        raise UserError(f"the state in this link is damaged ({error}); copy the link again") from None


def _bytes_text(numbers: np.ndarray) -> str:
    return base64.b64encode(np.asarray(numbers, "<f8").tobytes()).decode()


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
