"""The Distracting Control Suite: camera, colors and background wander while an episode runs (docs/benchmarks.md).

Each part draws a start for the episode and then moves with every env step, not every decision, so that it is right for
every action repeat. All draws come from the environment's own generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from softaug.envs.appearance import Painter
from softaug.envs.camera_turns import about
from softaug.envs.effects import Effect
from softaug.envs.modes import Distraction, Mode
from softaug.envs.perturb import CAMERA
from softaug.media.davis import background_videos

SKY_TEXELS = 256
"""Side of the sky's faces; the original has 800, of which an image of 100 pixels shows no more."""
OVERHEAD = 0.1  # radians from straight above, within which a camera has no side that is up (reacher)


def spherical(position: np.ndarray) -> np.ndarray:
    """x, y, z -> radius, angle in the horizontal plane, angle from the zenith."""
    flat = np.hypot(position[0], position[1])
    return np.array(
        [np.linalg.norm(position), np.arctan2(position[1], position[0]), np.arctan2(flat, position[2])]
    )


def cartesian(position: np.ndarray) -> np.ndarray:
    """The reverse of `spherical`."""
    radius, around, down = position
    return radius * np.array([np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down)])


def look_at(target: np.ndarray, eye: np.ndarray, overhead: bool) -> np.ndarray:
    """Axes of a camera, in columns: to the right, up, and back from what it sees. It stands upright, or if `overhead`
    is turned the shortest way from looking straight down."""
    x, y, z = (target - eye) / np.linalg.norm(target - eye)
    if overhead:
        cross = np.array([[0, 0, -x], [0, 0, -y], [x, y, 0]])  # of (0, 0, -1) and the line of sight
        return np.eye(3) + cross + cross @ cross / (1 - z)
    yaw, pitch = np.arctan2(x, y), np.arctan2(z, np.hypot(x, y))
    return about(2, -np.degrees(yaw)) @ about(0, np.degrees(pitch) + 90.0)


class CameraWalk:
    """Where the camera is, relative to the subject if the task's own camera follows it, else to the world's origin."""

    def __init__(self, distraction: Distraction) -> None:
        scale, moving = distraction.scale, float(distraction.dynamic)
        self._scale = scale
        self._most_angle = np.pi / 2 * scale
        self._std, self._most = 0.1 * scale * moving, 0.4 * scale * moving
        self._roll_std, self._most_roll = np.pi / 300 * scale * moving, np.pi / 50 * scale * moving
        self.state: dict[str, Any] = {}

    def begin(self, physics: Any, rng: np.random.Generator) -> None:
        follows = int(physics.model.cam_mode[CAMERA]) != int(mujoco.mjtCamLight.mjCAMLIGHT_FIXED)
        own = spherical(physics.data.cam_xpos[CAMERA] - (physics.data.subtree_com[1] if follows else 0.0))
        low, high = self.ranges(own)
        direction = rng.normal(size=3)
        self.state = {
            "low": low,
            "high": high,
            "position": rng.uniform(low, high),
            "velocity": direction / np.linalg.norm(direction) * rng.uniform(0.0, self._most),
            "roll": rng.uniform(-self._most_angle, self._most_angle),
            "roll_velocity": rng.uniform(-self._most_roll, self._most_roll),
            "speed": own[0] / 4,
            "follows": follows,
            "overhead": bool(own[2] < OVERHEAD),
            "target": _looked_at(physics),
        }
        self.advance(rng)

    def ranges(self, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest radius and angles, for the task's own camera at `own`."""
        angle = self._most_angle
        low = own - np.array([0.5 * self._scale * own[0], angle, angle])
        high = own + np.array([1.5 * self._scale * own[0], angle, angle])
        low[0] = max(low[0], 0.0)
        if own[2] >= OVERHEAD:
            # Above the floor and on the near side; of no use to a camera that some other task has elsewhere.
            cut_low, cut_high = (
                np.maximum(low, [0.0, -np.pi, 0.0]),
                np.minimum(high, [np.inf, 0.0, np.pi / 2]),
            )
            keeps = cut_low <= cut_high
            low, high = np.where(keeps, cut_low, low), np.where(keeps, cut_high, high)
        return low, high

    def advance(self, rng: np.random.Generator) -> None:
        state = self.state
        speed, position = state["speed"], np.asarray(state["position"])
        velocity = state["velocity"] + rng.normal(size=3) * self._std * speed
        norm = np.linalg.norm(velocity)
        if norm > self._most * speed:
            velocity = velocity * (self._most * speed / norm)
        place = cartesian(position)
        moved = spherical(place + velocity)
        middle = (state["low"][1] + state["high"][1]) / 2
        moved[1] = (
            middle + (moved[1] - middle + np.pi) % (2 * np.pi) - np.pi
        )  # no jump where the angle goes round
        moved = np.clip(moved, state["low"], state["high"])
        roll_velocity = state["roll_velocity"] + rng.normal() * self._roll_std
        roll_velocity = np.clip(roll_velocity, -self._most_roll, self._most_roll)
        roll = np.clip(state["roll"] + roll_velocity, -self._most_angle, self._most_angle)
        state |= {
            "position": moved,
            "velocity": cartesian(moved) - place,
            "roll_velocity": float(roll - state["roll"]),
            "roll": float(roll),
        }

    def show(self, physics: Any) -> None:
        state = self.state
        eye, target = cartesian(state["position"]), np.asarray(state["target"])
        if state["follows"]:
            eye, target = eye + physics.data.subtree_com[1], _looked_at(physics)
        axes = look_at(target, eye, state["overhead"]) @ about(2, np.degrees(state["roll"]))
        physics.data.cam_xpos[CAMERA], physics.data.cam_xmat[CAMERA] = eye, axes.ravel()


def _looked_at(physics: Any) -> np.ndarray:
    """The point on the own camera's line of sight that is as far away as the subject."""
    eye = physics.data.cam_xpos[CAMERA]
    distance = np.linalg.norm(eye - physics.data.subtree_com[1])
    return eye - distance * physics.data.cam_xmat[CAMERA].reshape(3, 3)[:, 2]


class ColorWalk:
    """The colors of all materials."""

    def __init__(self, distraction: Distraction, physics: Any) -> None:
        own = physics.model.mat_rgba[:, :3].astype(np.float64)
        self.low, self.high = np.clip(own - distraction.scale, 0, 1), np.clip(own + distraction.scale, 0, 1)
        self._std = 0.03 * distraction.scale
        self.state: dict[str, Any] = {}

    def begin(self, physics: Any, rng: np.random.Generator) -> None:
        self.state = {"rgb": rng.uniform(self.low, self.high)}

    def advance(self, rng: np.random.Generator) -> None:
        rgb = self.state["rgb"]
        self.state = {"rgb": np.clip(rgb + rng.normal(0.0, self._std, rgb.shape), self.low, self.high)}

    def show(self, physics: Any) -> None:
        physics.model.mat_rgba[:, :3] = self.state["rgb"]


class BackgroundWalk:
    """A video on the sky, one image on each of its faces, that runs back and forth from a random frame."""

    def __init__(self, distraction: Distraction, videos: Any, physics: Any, painter: Painter) -> None:
        self._videos, self._painter = videos, painter
        self.count = min(distraction.videos, len(videos))
        painter.set_alpha("grid", floor_alpha(physics))
        self.state: dict[str, Any] = {}
        self._opened: tuple[int, Any] | None = None

    def begin(self, physics: Any, rng: np.random.Generator) -> None:
        index = int(rng.integers(self.count))
        self.state = {"video": index, "position": 0, "direction": 1}
        self.state["position"] = int(rng.integers(len(self._video())))
        self.state["direction"] = int(rng.choice([-1, 1]))

    def advance(self, rng: np.random.Generator) -> None:
        position, last = self.state["position"] + self.state["direction"], len(self._video()) - 1
        if position <= 0:
            self.state |= {"position": 0, "direction": 1}
        elif position > last:
            self.state |= {"position": last, "direction": -1}
        else:
            self.state["position"] = position

    def show(self, physics: Any) -> None:
        self._painter.show_on_cube("skybox", self._video().frame(self.state["position"]))

    def name(self) -> str:
        return str(self._videos.name(self.state["video"]))

    def _video(self) -> Any:
        index = self.state["video"]
        if self._opened is None or self._opened[0] != index:
            self._opened = index, self._videos.open(index, SKY_TEXELS, SKY_TEXELS)
        return self._opened[1]


def floor_alpha(physics: Any) -> float:
    """The original's for its tasks: 1 where the camera follows (walker, cheetah), 0.3 where it stands (cartpole,
    ball_in_cup, finger), 0 where it looks straight down on the floor (reacher)."""
    model = physics.model
    if int(model.cam_mode[CAMERA]) != int(mujoco.mjtCamLight.mjCAMLIGHT_FIXED):
        return 1.0
    return 0.0 if spherical(model.cam_pos0[CAMERA])[2] < OVERHEAD else 0.3


class Distracting(Effect):
    """`distracting_*` and `distracting(...)`."""

    def __init__(self, mode: Mode, videos: str | Path | Sequence[str | Path] | None) -> None:
        assert mode.distraction is not None
        self._distraction = mode.distraction
        self._videos = background_videos(videos) if "background" in mode.distraction.parts else None
        self.media = None if self._videos is None else self._videos.kind
        self._parts: dict[str, CameraWalk | ColorWalk | BackgroundWalk] = {}

    def attach(self, physics: Any, painter: Painter) -> None:
        super().attach(physics, painter)
        for part in self._distraction.parts:
            if part == "camera":
                self._parts[part] = CameraWalk(self._distraction)
            elif part == "color":
                self._parts[part] = ColorWalk(self._distraction, physics)
            else:
                self._parts[part] = BackgroundWalk(self._distraction, self._videos, physics, painter)

    def begin(self, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        for part in self._parts.values():
            part.begin(self._physics, rng)
        background = self._parts.get("background")
        return {"video": background.name()} if isinstance(background, BackgroundWalk) else {}

    def frame_passed(self, rng: np.random.Generator) -> None:
        if self._distraction.dynamic:
            for part in self._parts.values():
                part.advance(rng)

    def show(self) -> None:
        for part in self._parts.values():
            part.show(self._physics)

    def get_state(self) -> dict[str, Any]:
        return {name: dict(part.state) for name, part in self._parts.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts.items():
            part.state = dict(state[name])
