"""A dm_control task as a Gymnasium environment of single frames, in any mode of the benchmark."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from softaug.envs import gl

# Before dm_control is imported, which loads the back end.
BACKEND = gl.choose_backend()

import mujoco  # noqa: E402
from dm_control import mujoco as dm_mujoco  # noqa: E402
from dm_control import suite  # noqa: E402
from dm_control.mujoco.engine import Camera  # noqa: E402
from dm_control.rl.control import Environment  # noqa: E402

from softaug.envs.appearance import Painter, more_assets  # noqa: E402
from softaug.envs.chroma import replace_green  # noqa: E402
from softaug.envs.color import STD, ColorSetting, color_settings, default_colors, draw_color  # noqa: E402
from softaug.envs.decisions import ActionRange, EnvStep, refuse_if_over, repeat_action  # noqa: E402
from softaug.envs.effects import first_setting, make_effect, media_kind  # noqa: E402
from softaug.envs.modes import Mode  # noqa: E402
from softaug.envs.observations import newest_frame  # noqa: E402
from softaug.envs.perturb import CAMERA, Perturbation, Perturber, draw_perturbation  # noqa: E402
from softaug.envs.state import load_task, model_arrays, save_task  # noqa: E402
from softaug.errors import UserError, unknown  # noqa: E402
from softaug.tasks import ROBOT_TASKS, domain_and_task  # noqa: E402
from softaug.tasks import action_repeat as default_action_repeat  # noqa: E402

MIN_IMAGE_SIZE, MAX_IMAGE_SIZE = 16, 1024
RENDER_SETTINGS = ("exact", "fast", "coarse", "aliased")
UNLIMITED_TASK_FRAMES = 1000
"""Where a task of the suite has no time limit (lqr), its episodes end after as many frames as most others'."""
# dm_control's tasks use 2048; see `make_env` for what 512 changes in the image.
FAST_SHADOW_MAP = 512
COARSE_SLICES, COARSE_STACKS = 16, 8  # of capsules, spheres and cylinders, instead of 28 and 16

# The process in which GL was first used. Mesa's worker threads do not survive a fork, so a forked child that
# renders would wait for them for ever; with this it can say so instead.
_gl_process: int | None = None


def _claim_gl() -> None:
    global _gl_process
    if _gl_process is None:
        _gl_process = os.getpid()
    elif _gl_process != os.getpid():
        raise UserError(
            "This process was forked from one that had already rendered, and OpenGL does not survive a fork; "
            "start the workers with 'spawn' or 'forkserver' (AsyncVectorEnv(..., context='spawn'))."
        )


class DMCEnv(gymnasium.Env):
    """See `softaug.envs.make_env` for the arguments.

    Observation: one frame, uint8 (H, W, 3); `make_env` stacks them. Action: float32 in [-1, 1], mapped to the task's own
    range; values outside are clipped, NaN is refused.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012 - Gymnasium's own convention

    def __init__(
        self,
        task: str,
        mode: str | Mode = "train",
        seed: int = 0,
        *,
        image_size: int = 100,
        action_repeat: int | None = None,
        videos: str | Path | Sequence[str | Path] | None = None,
        colors: str | Path | Sequence[Mapping] | None = None,
        render: str = "exact",
        render_mode: str = "rgb_array",
    ) -> None:
        domain, task_name = domain_and_task(task)
        self.task_name = task
        self.mode = Mode.parse(mode)
        self.action_repeat = default_action_repeat(task) if action_repeat is None else action_repeat
        self.render_mode = render_mode
        self._render_setting = render
        _check_whole("image_size", image_size, MIN_IMAGE_SIZE, MAX_IMAGE_SIZE)
        _check_whole("action_repeat", self.action_repeat, 1, 1000)
        if render not in RENDER_SETTINGS:
            raise unknown("render setting", render, RENDER_SETTINGS)
        if render_mode != "rgb_array":
            raise UserError(f"Unknown render_mode {render_mode!r}; this environment has 'rgb_array' only.")

        # Sources first: they are cheap to check, and their mistakes are the likeliest.
        self._colors: list[ColorSetting] | None = None
        self._videos: Any = None
        self._media: str | None = None
        if self.mode.recolored:
            self._colors, self._media = color_settings(self.mode, colors, task)
        elif self.mode.family == "video":
            from softaug.media import video_source

            self._videos = video_source(str(self.mode.level), videos)
            self._media = self._videos.kind

        self._made_seed = _check_seed(seed)
        self._effect = make_effect(self.mode, task, seed, videos)
        self._media = media_kind(self._media, self._effect.media)

        self._env = _load(domain, task_name, seed, self._effect.assets)
        self._compiled = {name: array.copy() for name, array in model_arrays(self.physics.model.ptr).items()}
        self._size = image_size
        self._painter = Painter(self.physics)
        if self.mode.family == "video":
            self._painter.make_green(floor=self.mode.level == "hard")
        elif self.mode.recolored:
            self._painter.prepare_colors()
        self._effect.attach(self.physics, self._painter)
        self._perturber = Perturber(self.physics, self._painter)
        self._set_up_rendering(render)
        self._camera: Camera | None = None

        spec = self._env.action_spec()
        # lqr has unbounded motors: there, -1 .. 1 is passed on as it is.
        bounded = np.all(np.abs([spec.minimum, spec.maximum]) < 1e9)
        low, high = (spec.minimum, spec.maximum) if bounded else (-1.0, 1.0)
        self.actions = ActionRange(np.full(spec.shape, low), np.full(spec.shape, high), task)
        self.action_space = self.actions.space
        self.observation_space = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)

        self._frame = np.zeros((image_size, image_size, 3), np.uint8)
        self._episode = self._next_episode = 0
        self._seed(seed)
        self._episode_over = True
        self._video: Any = None
        self._video_position = 0
        self._color: ColorSetting | None = None
        self._perturbation: Perturbation = {}

    @property
    def physics(self) -> dm_mujoco.Physics:
        """dm_control's physics, for example for `physics.named.data.qpos`."""
        return self._env.physics

    @property
    def episode_decisions(self) -> int | None:
        """Decisions until the time limit; None if the task has none."""
        frames = self._env._step_limit
        return None if np.isinf(frames) else -(-round(frames) // self.action_repeat)

    @property
    def gl_renderer(self) -> str:
        """The OpenGL driver's own name of what renders: a GPU, or llvmpipe (Mesa's software renderer)."""
        self._check_open()
        self._open_camera()
        return gl.renderer_of(self.physics)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode.

        seed: restarts every random draw of this environment and its episode counter.
        options: {"episode": e} sets the episode counter, which chooses the video (e modulo their number) or the
        camera's turn.
        """
        self._check_open()
        if seed is not None:
            self._seed(_check_seed(seed))
        episode: Any = (options or {}).get("episode", self._next_episode)
        _check_whole("options['episode']", episode, 0, 2**31)
        self._episode = int(episode)
        self._next_episode = self._episode + 1

        info: dict[str, Any] = {"episode": self._episode}
        if self._media is not None:
            info["media"] = self._media
        if self.mode.recolored:
            info["color"] = self._draw_color()
        elif self.mode.family == "video":
            info["video"] = self._open_video()
        if self.mode.perturbed:
            self._perturb(draw_perturbation(self.np_random, self.mode))
            info |= copy.deepcopy(self._perturbation)
        self._env.reset()
        info |= self._effect.begin(self._episode, self.np_random)
        self._episode_over = False
        self._frame = self._rendered()
        return self._frame.copy(), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One decision: the action is repeated, rewards are summed. info["frames"]: env steps it took."""
        refuse_if_over(self._episode_over)
        control = self.actions.control(action)
        (_, reward, terminated, truncated), frames = repeat_action(
            lambda: self._env_step(control), self.action_repeat
        )
        self._episode_over = terminated or truncated

        self._video_position += 1
        self._effect.decision_passed()
        self._frame = self._rendered()
        return self._frame.copy(), reward, terminated, truncated, {"frames": frames}

    def render(self) -> np.ndarray:
        """The newest frame, uint8 (H, W, 3)."""
        return self._frame.copy()

    def close(self) -> None:
        """Free the GL context; may be called twice."""
        self._camera = None
        self._episode_over = True
        if getattr(self, "_env", None) is not None:
            self.physics.free()
            self._env = None

    def get_state(self) -> dict[str, Any]:
        """Everything the next steps and episodes depend on: numpy arrays and JSON values in nested dicts."""
        self._check_open()
        return {
            "made_with": self._made_with(),
            "task": save_task(self._env, self._compiled),
            "appearance_rng": self.np_random.bit_generator.state,
            "episode": self._episode,
            "next_episode": self._next_episode,
            "episode_over": self._episode_over,
            "frame": self._frame.copy(),
            "video_position": self._video_position,
            "video_open": self._video is not None,
            "color": None if self._color is None else {key: rgb.copy() for key, rgb in self._color.items()},
            "look": copy.deepcopy(self._perturbation),
            "effect": self._effect.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly where `get_state` was called, on this or another environment made alike."""
        self._check_open()
        made_with = dict(state["made_with"])
        if "observation_shape" in made_with:  # states of version 0.1: that of the stack (3k, H, W)
            made_with["image_size"] = made_with.pop("observation_shape")[-1]
        if made_with != self._made_with():
            raise UserError(
                f"The state is of an environment made with {made_with}, this one was made with {self._made_with()}."
            )
        self._open_camera()
        load_task(self._env, self._compiled, state["task"])
        self.np_random.bit_generator.state = state["appearance_rng"]
        self._episode = int(state["episode"])
        self._next_episode = int(state["next_episode"])
        self._episode_over = bool(state["episode_over"])
        self._frame[:] = state["frame"] if "frame" in state else newest_frame(state["stack"])
        if state["color"] is not None:
            self._show_color({key: np.asarray(rgb, np.float64) for key, rgb in state["color"].items()})
        self._perturb(copy.deepcopy(state.get("look", {})))  # states of version 0.1 have none
        if state["video_open"]:
            self._open_video()
        self._video_position = int(state["video_position"])
        self._effect.set_state(state.get("effect", {}))  # states of version 0.1 have none

    # The parts of reset and step.

    def _made_with(self) -> dict[str, Any]:
        return {
            "task": self.task_name,
            "mode": self.mode.name,
            "action_repeat": self.action_repeat,
            "image_size": self._size,
            "media": self._media,
            "render": self._render_setting,
        }

    def _check_open(self) -> None:
        if self._env is None:
            raise UserError("The environment is closed; make a new one.")

    def _seed(self, seed: int) -> None:
        """The task draws as in `suite.load(..., task_kwargs={"random": seed})`; colors from `np_random`."""
        super().reset(seed=seed)
        self._env.task._random = np.random.RandomState(seed)
        self._next_episode = 0

    def _set_up_rendering(self, render: str) -> None:
        """To be done before the GL context exists, which takes these sizes once and for all."""
        visual = self.physics.model.vis
        if render == "aliased":
            visual.quality.offsamples = 0
        if render == "coarse":
            visual.quality.numslices, visual.quality.numstacks = COARSE_SLICES, COARSE_STACKS
        if render != "exact":
            visual.quality.shadowsize = min(visual.quality.shadowsize, FAST_SHADOW_MAP)
            visual.global_.offwidth = visual.global_.offheight = self._size
            if self.task_name in ROBOT_TASKS:
                # Its meshes are drawn twice for a shadow, which takes more than half of the time.
                self.physics.model.light_castshadow[:] = False
        else:
            visual.global_.offwidth = max(visual.global_.offwidth, self._size)
            visual.global_.offheight = max(visual.global_.offheight, self._size)

    def _open_camera(self) -> Camera:
        """The GL context is made at the first reset, not before, so that an unused environment can be forked."""
        if self._camera is None:
            _claim_gl()
            try:
                effect = self._effect
                self._camera = Camera(
                    self.physics, self._size, self._size, CAMERA, effect.max_geom, effect.draw
                )
            except (mujoco.FatalError, RuntimeError) as error:
                raise UserError(
                    f"The OpenGL back end {BACKEND!r} cannot render ({error}); run `python -m softaug.envs.gl` to "
                    "see which works, and import softaug before dm_control or set MUJOCO_GL to it."
                ) from error
        return self._camera

    def _draw_color(self) -> ColorSetting:
        if self._colors is None:
            color = draw_color(self.np_random, STD[str(self.mode.level)], default_colors(self.task_name))
        elif self.mode.screen:  # GB2 shows its settings in order
            color = self._colors[(first_setting(self._made_seed) + self._episode) % len(self._colors)]
        else:
            color = self._colors[self.np_random.integers(len(self._colors))]
        self._show_color(color)
        return {key: rgb.copy() for key, rgb in color.items()}

    def _show_color(self, color: ColorSetting) -> None:
        self._open_camera()
        self._painter.set_colors(color)
        self._color = color

    def _perturb(self, drawn: Perturbation) -> None:
        self._open_camera()
        self._perturber.show(drawn, self._color)
        self._perturbation = drawn

    def _open_video(self) -> str:
        index = self._episode % len(self._videos)
        self._video = self._videos.open(index, self._size, self._size)
        self._video_position = 0
        return self._videos.name(index)

    def _env_step(self, control: np.ndarray) -> EnvStep:
        time_step = self._env.step(control)
        self._effect.frame_passed(self.np_random)
        # dm_control ends an episode with discount 1 at its time limit, and 0 when the task itself is over.
        terminated = bool(time_step.last() and time_step.discount == 0.0)
        return None, float(time_step.reward or 0.0), terminated, bool(time_step.last() and not terminated)

    def _rendered(self) -> np.ndarray:
        """What the camera sees now, uint8 (H, W, 3)."""
        camera = self._open_camera()
        self._effect.show()
        frame = np.ascontiguousarray(
            camera.render()
        )  # a copy: dm_control's is a view, upside down, of its buffer
        if self._video is not None:
            replace_green(frame, self._background())
        return frame

    def _background(self) -> np.ndarray:
        return self._video.frame(self._video_position)


def _load(domain: str, task: str, seed: int, assets: str = "") -> Environment:
    """dm_control's environment: a task of its suite, or robot push, which is made like one.

    assets: MJCF of textures and materials to add to its model.
    """
    if domain == "robot":
        from softaug.envs import robot_push

        return robot_push.load(ROBOT_TASKS[f"robot_{task}"], random=seed, assets=assets)
    with more_assets(assets), _without_deprecations():
        env = suite.load(domain, task, task_kwargs={"random": seed})
    if np.isinf(env._step_limit):  # lqr: dm_control lets its episodes run for ever
        env._step_limit = UNLIMITED_TASK_FRAMES
    return env


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """MuJoCo warns of attributes in the suite's own files (cheetah), which no user of them can change."""

    def keep(record: logging.LogRecord) -> bool:
        return "is deprecated and will be removed" not in record.getMessage()

    logger = logging.getLogger("absl")  # dm_control's
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise UserError(f"{name} must be a whole number from {low} to {high}, not {value!r}.")


def _check_seed(seed: Any) -> int:
    _check_whole("seed", seed, 0, 2**32 - 1)
    return int(seed)
