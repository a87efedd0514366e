"""An environment of the suite (or robot push) whose appearance can be changed while an episode runs.

It is a `DMCEnv` in one of the benchmark's modes, on top of which the lab's settings are shown; with default settings its
images are the mode's own, bit for bit. Nothing here reaches the physics, except a push that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from softaug.envs.appearance import build_texture, rgb_text
from softaug.envs.camera_turns import about
from softaug.envs.chroma import replace_green
from softaug.envs.dmc import Camera, DMCEnv
from softaug.envs.perturb import CAMERA
from softaug.envs.state import load_task, save_task
from softaug.errors import UserError
from softaug.lab.backdrops import Backdrops
from softaug.lab.images import change_image, grow, halve, put_behind, rgb_of
from softaug.lab.settings import Settings

SCENE_SIZE = 320
"""Side of the large image, in pixels."""
PUSH_WEIGHTS = 4.0
"""Force of a drag over the whole height of the image, in units of the bodies' weight."""
POKE = 0.25
"""A click without a drag counts as a drag of this length."""
FLOOR_MATERIALS = ("grid", "table")
FLOOR_SHAPES = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_HFIELD))


@dataclass(frozen=True)
class Push:
    """A force on one body. Lengths are in units of the image's height; x to the right, y down."""

    x: float | None = None
    y: float | None = None
    """Where the pointer went down; (0, 0) is the upper left corner. None: on the heaviest part."""
    dx: float = 0.0
    dy: float = 0.0
    """How far it was dragged."""


class LiveEnv(DMCEnv):
    """Single frames, as of `DMCEnv`; see there for the arguments."""

    def __init__(
        self, *arguments: Any, backdrops: Backdrops, settings: Settings | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.backdrops = backdrops
        self.live = settings or Settings()
        self._scene_camera: Camera | None = None
        self._noise_seed = 0
        model = self.physics.model
        self._own_lights = [array.copy() for array in self._light_arrays()]
        self._mode_lights: list[np.ndarray] | None = None
        self._painted = False
        self._paint_due = False
        self._sky_prepared = self.mode.recolored
        materials = {model.id2name(index, "material"): index for index in range(model.nmat)}
        self._body_material = materials.get("self")
        floors = [materials[name] for name in FLOOR_MATERIALS if name in materials]
        floor = np.isin(model.geom_type, FLOOR_SHAPES) | np.isin(model.geom_matid, floors)
        self._floor_geoms = np.flatnonzero(floor)

    # Appearance.

    def show(self, settings: Settings) -> None:
        """From the next image on; the mode is fixed when the environment is made."""
        self.backdrops.check(settings)
        if _picked(settings) != _picked(self.live):
            self._paint_due = True
        self.live = settings

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        for array, own in zip(self._light_arrays(), self._own_lights, strict=True):
            array[:] = own
        self._mode_lights = None
        self._video_position = 0  # the decisions of this episode, in every mode
        self._paint_due = self._painted or any(_picked(self.live))
        if seed is not None:
            self._noise_seed = seed
        return super().reset(seed=seed, options=options)

    def frame(self) -> np.ndarray:
        """What the agent's camera sees now, uint8 (H, W, 3); the settings may have changed since the last step."""
        return self._rendered()

    def scene(self) -> np.ndarray:
        """The same, larger: uint8 (SCENE_SIZE, SCENE_SIZE, 3)."""
        factor = self._scene_factor()
        if self._scene_camera is None:
            self._open_camera()
            side, effect = factor * SCENE_SIZE, self._effect
            self._scene_camera = Camera(self.physics, side, side, CAMERA, effect.max_geom, effect.draw)
        return self._image(self._scene_camera, SCENE_SIZE, factor)

    def close(self) -> None:
        self._scene_camera = None
        super().close()

    # Physics.

    @property
    def decisions(self) -> int:
        """Of this episode."""
        return self._video_position

    def get_place(self) -> dict[str, Any]:
        """Where the episode is: what `set_place` needs on an environment that was reset alike, in any mode."""
        state = save_task(self._env, self._compiled)
        return {
            "decisions": self.decisions,
            **{name: state[name] for name in ("integration", "sensordata", "task")},
        }

    def set_place(self, place: Mapping[str, Any]) -> None:
        """Go there, right after a reset; appearances that change within an episode are those of that decision."""
        state = save_task(self._env, self._compiled)
        for name in ("integration", "sensordata"):
            if np.shape(place[name]) != np.shape(state[name]) or not np.isfinite(place[name]).all():
                raise UserError(
                    f"the state in this link is not one of {self.task_name}; open the link of another scene"
                )
        if not _alike(place["task"], state["task"]):
            raise UserError(
                f"the state in this link is not one of {self.task_name}; open the link of another scene"
            )
        decisions = int(place["decisions"])
        frames = decisions * self.action_repeat
        if not 0 <= frames < self._env._step_limit:
            raise UserError(
                f"an episode of {self.task_name} has no decision {decisions}; open the link of another scene"
            )
        moved = {name: place[name] for name in ("integration", "sensordata", "task")}
        load_task(self._env, self._compiled, {**state, **moved, "step_count": frames})
        for _ in range(decisions):
            for _ in range(self.action_repeat):
                self._effect.frame_passed(self.np_random)
            self._effect.decision_passed()
        self._video_position = decisions

    def body_at(self, x: float | None, y: float | None) -> int | None:
        """The movable body that is seen at a point of the scene; None for sky, floor and other fixed things."""
        if x is None or y is None:
            movable = self.physics.model.body_weldid != 0
            return int(np.argmax(np.where(movable, self.physics.model.body_mass, 0.0)))
        self.scene()
        assert self._scene_camera is not None
        labels = self._scene_camera.render(segmentation=True)
        row, column = (int(np.clip(value, 0, 0.9999) * len(labels)) for value in (y, x))
        number, kind = labels[row, column]
        if kind != int(mujoco.mjtObj.mjOBJ_GEOM):
            return None
        body = int(self.physics.model.geom_bodyid[number])
        return body if self.physics.model.body_weldid[body] != 0 else None

    def force(self, push: Push, body: int) -> np.ndarray:
        """Of a push on a body, in newtons (3,): within the image's plane."""
        self._arrange()
        axes = self.physics.data.cam_xmat[CAMERA].reshape(3, 3)
        drag = np.array([push.dx, -push.dy])
        if not drag.any() and push.x is not None:
            drag = POKE * self._towards_middle(push, body, axes)
        weight = float(self.physics.model.body_mass.sum()) * 9.81
        if (
            self.physics.model.body_subtreemass[body] < 1.0
        ):  # a small thing of its own, like robot push's cube
            weight = float(self.physics.model.body_subtreemass[body]) * 9.81
        return PUSH_WEIGHTS * weight * (drag[0] * axes[:, 0] + drag[1] * axes[:, 1])

    def set_force(self, body: int, force: np.ndarray | None) -> None:
        """On a body from now on; None ends all of them."""
        self.physics.data.xfrc_applied[:] = 0.0
        if force is not None:
            self.physics.data.xfrc_applied[body, :3] = force

    def _towards_middle(self, push: Push, body: int, axes: np.ndarray) -> np.ndarray:
        """A direction in the image: from the point to the body's middle, as a finger pokes it."""
        model, data = self.physics.model, self.physics.data
        place = axes.T @ (data.xipos[body] - data.cam_xpos[CAMERA])
        height = 2 * np.tan(np.radians(model.cam_fovy[CAMERA]) / 2)
        middle = 0.5 + np.array([place[0], -place[1]]) / (-place[2] * height)
        x, y = middle - [push.x, push.y]
        length = float(np.hypot(x, y))
        return np.array([1.0, 0.0]) if length < 1e-3 else np.array([x, -y]) / length

    # The parts of an image.

    def _rendered(self) -> np.ndarray:
        return self._image(self._open_camera(), self._size, 1)

    def _set_up_rendering(self, render: str) -> None:
        super()._set_up_rendering(render)
        visual, side = self.physics.model.vis, self._scene_factor() * SCENE_SIZE
        visual.global_.offwidth = max(visual.global_.offwidth, side)
        visual.global_.offheight = max(visual.global_.offheight, side)

    def _scene_factor(self) -> int:
        """Without multisampling the large image is rendered at twice its size, so that its edges are smooth."""
        return 2 if self._render_setting == "aliased" else 1

    def _image(self, camera: Camera, size: int, factor: int) -> np.ndarray:
        self._arrange()
        frame = np.array(camera.render())
        if self._video is not None:
            replace_green(frame, self._mode_background(factor * size))
        if factor == 2:
            frame = halve(frame)
        background = self.backdrops.frame(self.live, self._video_position, size)
        if background is not None and self.live.opacity > 0.0:
            mask = self._mask(camera, factor)
            if camera is self._scene_camera:  # for looks; what the agent sees stays exact
                mask = grow(mask)
            frame = put_behind(frame, mask, background, self.live.opacity)
        noise = np.random.default_rng([self._noise_seed, self._video_position, size])
        return change_image(frame, self.live, noise)

    def _mode_background(self, size: int) -> np.ndarray:
        """Of the mode's own video."""
        if size == self._size:
            return self._background()
        key = (self.mode.name, self._episode, size)
        opened = getattr(self, "_large_video", None)
        if opened is None or opened[0] != key:
            opened = self._large_video = (
                key,
                self._videos.open(self._episode % len(self._videos), size, size),
            )
        return opened[1].frame(self._video_position)

    def _mask(self, camera: Camera, factor: int) -> np.ndarray:
        """Bool (size, size): where the background is seen."""
        labels = camera.render(segmentation=True)[::factor, ::factor]
        numbers, kinds = labels[..., 0], labels[..., 1]
        mask = kinds == -1
        if self.live.hide_floor:
            is_geom = kinds == int(mujoco.mjtObj.mjOBJ_GEOM)
            mask = mask | (is_geom & np.isin(numbers, self._floor_geoms))
        return mask

    def _arrange(self) -> None:
        """Camera, lamps and colors as the mode and then the settings want them."""
        model, data = self.physics.model, self.physics.data
        self._open_camera()
        if self._paint_due:
            self._paint()
        mujoco.mj_camlight(model.ptr, data.ptr)  # the task's own, whatever the last image had
        self._effect.show()
        if self.live.body and self._body_material is not None:
            model.mat_rgba[self._body_material, :3] = rgb_of(self.live.body)
        self._move_camera(data)
        self._set_lights(data)

    def _move_camera(self, data: Any) -> None:
        live = self.live
        if (live.azimuth, live.elevation, live.distance, live.roll) == (0.0, 0.0, 1.0, 0.0):
            return
        eye, axes = data.cam_xpos[CAMERA].copy(), data.cam_xmat[CAMERA].reshape(3, 3).copy()
        target = self._target(data, eye, axes)
        turn = about(2, live.azimuth) @ axes @ about(0, -live.elevation) @ axes.T
        data.cam_xpos[CAMERA] = target + live.distance * (turn @ (eye - target))
        data.cam_xmat[CAMERA] = (turn @ axes @ about(2, live.roll)).ravel()

    def _set_lights(self, data: Any) -> None:
        arrays = self._light_arrays()
        if self._mode_lights is None:
            self._mode_lights = [array.copy() for array in arrays]
        for array, own in zip(arrays, self._mode_lights, strict=True):
            array[:] = np.clip(own * self.live.light, 0.0, 1.0)
        if self.live.light_angle:
            axes = data.cam_xmat[CAMERA].reshape(3, 3)
            turn = axes @ about(2, self.live.light_angle) @ axes.T
            target = self._target(data, data.cam_xpos[CAMERA], axes)
            data.light_xpos[:] = target + (data.light_xpos - target) @ turn.T
            data.light_xdir[:] = data.light_xdir @ turn.T

    def _target(self, data: Any, eye: np.ndarray, axes: np.ndarray) -> np.ndarray:
        """The point in the middle of the image that is as far away as the subject."""
        distance = np.linalg.norm(eye - data.subtree_com[1])
        return eye - distance * axes[:, 2]

    def _light_arrays(self) -> list[np.ndarray]:
        headlight = self.physics.model.vis.headlight
        return [self.physics.model.light_diffuse, headlight.ambient, headlight.diffuse]

    def _paint(self) -> None:
        """The mode's colors, and over them those that were picked."""
        self._paint_due = False
        picked = _colors(self.live)
        self._painted = bool(picked)
        colors = {**(self._color or {}), **picked}
        background = self.mode.distraction is not None and "background" in self.mode.distraction.parts
        if self.mode.family != "video" and not background:
            if "skybox_rgb" in picked and not self._sky_prepared:
                self._painter.prepare_colors()
                self._sky_prepared = True
            self._painter.set_colors(colors)
        elif self.mode.name != "video_hard":  # there the sky shows a video, here only the floor is free
            names = {"grid_rgb1": "rgb1", "grid_rgb2": "rgb2"}
            grid = {names[key]: rgb_text(colors[key]) for key in names if key in colors}
            size = self._painter.texture_size("grid")
            if size is not None:
                self._painter.show_texture("grid", build_texture("grid", grid).reshape(*size, 3))
        if self._perturbation:
            self._perturber.show(self._perturbation, colors)


def _picked(settings: Settings) -> tuple[str, str, str]:
    return settings.floor, settings.sky, settings.body


def _colors(settings: Settings) -> dict[str, np.ndarray]:
    """What was picked, by the benchmark's names; a floor's second color is a little lighter, as in the benchmark."""
    picked: dict[str, np.ndarray] = {}
    if settings.floor:
        picked["grid_rgb1"] = rgb_of(settings.floor)
        picked["grid_rgb2"] = np.clip(picked["grid_rgb1"] + 0.1, 0, 1)
    if settings.sky:
        picked["skybox_rgb"] = rgb_of(settings.sky)
    if settings.body:
        picked["self_rgb"] = rgb_of(settings.body)
    return picked


def _alike(given: Any, own: Mapping[str, Any]) -> bool:
    """Whether these are numbers of the same task: the same names, kinds and shapes."""
    if not isinstance(given, Mapping) or set(given) != set(own):
        return False
    return all(
        np.shape(given[name]) == np.shape(value)
        and isinstance(given[name], str) == isinstance(value, str)
        and (not isinstance(value, str) or given[name] == value)
        and (isinstance(value, str) or np.isfinite(np.asarray(given[name], np.float64)).all())
        for name, value in own.items()
    )
