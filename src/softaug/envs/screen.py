"""DMControl-GB2's video tests: a video on a screen in the scene, behind the robot (docs/benchmarks.md).

Unlike the chroma-keyed `video_*` modes, the screen is a box that is lit, mirrored in the floor and seen in perspective.
It is handed to MuJoCo's renderer with each image, so the model has nothing more than its texture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from softaug.envs.appearance import Painter
from softaug.envs.camera_turns import about
from softaug.envs.effects import Effect, first_setting
from softaug.envs.modes import Mode
from softaug.envs.perturb import CAMERA
from softaug.media import video_source
from softaug.tasks import domain_and_task

TEXELS = 256
NAME = "softaug_screen"


class Place(NamedTuple):
    """Where GB2 puts the screen: meters, and degrees about the x axis."""

    half_size: float
    """Of its width and height."""
    position: tuple[float, float, float]
    tilt: float = 0.0
    follows: tuple[float, float] | None = None
    """x and z relative to the torso's center of mass, if the screen goes along with it."""


LARGE, SMALL = 1.86, 0.66
HALF_THICKNESS = 0.1
PLACES = {
    "walker": Place(LARGE, (0.0, 1.96, -0.7), -30.0, follows=(0.0, -1.07)),
    "cheetah": Place(LARGE, (0.0, 1.6, -0.7), follows=(-0.05, 0.15)),
    "cartpole": Place(LARGE, (0.0, 0.5, 1.0)),
    "ball_in_cup": Place(SMALL, (0.0, 0.5, 0.05), -27.0),
    "finger": Place(SMALL, (0.0, 0.5, 0.05), -27.0),
}
# Ours, for all other tasks: square to the camera, behind what it looks at, and a little larger than the image.
OTHER_SHARE = 1.1
OTHER_DISTANCE = 1.6
"""Times the distance to the subject."""


class Screen(Effect):
    """`screen_video_*` and `screen_color_video_*`."""

    max_geom = 2000
    assets = (
        f'<texture name="{NAME}" type="2d" builtin="flat" mark="none" width="{TEXELS}" height="{TEXELS}"/>'
        f'<material name="{NAME}" texture="{NAME}" texuniform="false" specular="0" shininess="0" reflectance="0" '
        f'emission="0" rgba="1 1 1 1"/>'
    )

    def __init__(
        self, mode: Mode, task: str, seed: int, videos: str | Path | Sequence[str | Path] | None
    ) -> None:
        self._hides_floor = mode.name == "screen_video_hard"
        self._place = PLACES.get(domain_and_task(task)[0])
        self._videos = video_source(str(mode.level), videos)
        self.media = self._videos.kind
        self._first = first_setting(seed) + 1  # GB2 counts on before it shows the first one
        self._index: int | None = None
        self._position = 0

    def attach(self, physics: Any, painter: Painter) -> None:
        super().attach(physics, painter)
        self._material = physics.model.name2id(NAME, "material")
        if self._hides_floor:
            for material in ("grid", "table"):  # as in video_hard, what the robot stands on
                painter.set_alpha(material, 0.0)

    def begin(self, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        self._open((self._first + episode) % len(self._videos))
        self._position = 0
        return {"video": self._videos.name(self._first + episode)}

    def decision_passed(self) -> None:
        self._position += 1

    def show(self) -> None:
        self._painter.show_texture(NAME, self._video.frame(self._position))

    def draw(self, physics: Any, scene: Any) -> None:
        half, position, axes = self._pose(physics)
        half_size = np.array([half, half, HALF_THICKNESS])
        scene.ngeom += 1
        box = scene.geoms[scene.ngeom - 1]
        mujoco.mjv_initGeom(
            box, mujoco.mjtGeom.mjGEOM_BOX, half_size, position, axes.ravel(), np.ones(4, np.float32)
        )
        box.matid = self._material
        box.specular = box.shininess = 0.0
        box.category = mujoco.mjtCatBit.mjCAT_STATIC

    def _pose(self, physics: Any) -> tuple[float, np.ndarray, np.ndarray]:
        """Half of width and height, position, and axes in columns: to the right, up, and out of the screen."""
        place = self._place
        if place is None:
            return self._pose_before_camera(physics)
        position = np.array(place.position)
        if place.follows is not None:
            torso = physics.data.subtree_com[physics.model.name2id("torso", "body")]
            position[[0, 2]] = torso[[0, 2]] + place.follows
        return place.half_size, position, about(0, 90.0 + place.tilt)

    def _pose_before_camera(self, physics: Any) -> tuple[float, np.ndarray, np.ndarray]:
        axes = physics.data.cam_xmat[CAMERA].reshape(3, 3)
        eye = physics.data.cam_xpos[CAMERA]
        distance = OTHER_DISTANCE * float(np.linalg.norm(eye - physics.data.subtree_com[1]))
        half = OTHER_SHARE * distance * np.tan(np.radians(physics.model.cam_fovy[CAMERA]) / 2)
        return float(half), eye - distance * axes[:, 2], axes

    def _open(self, index: int) -> None:
        self._index = index
        self._video = self._videos.open(index, TEXELS, TEXELS)

    def get_state(self) -> dict[str, Any]:
        return {"first": self._first, "video": self._index, "position": self._position}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._first, self._position = int(state["first"]), int(state["position"])
        if state["video"] is not None:
            self._open(int(state["video"]))
