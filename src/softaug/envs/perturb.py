"""Camera, light and texture of a scene, drawn anew for each episode (docs/robot_push.md); works for every task alike.

A draw is a plain value: `Perturber.show` sets the scene's own appearance changed by it, whatever was shown before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mujoco
import numpy as np

from softaug.envs.appearance import Painter
from softaug.envs.color import DEFAULT_COLORS
from softaug.envs.modes import Mode

CAMERA = 0

Draw = dict[str, Any]
"""One axis: numbers and lists of numbers."""
Perturbation = dict[str, Draw]
"""`camera`, `light`, `texture` -> its draw; an axis that does not change is left out."""


class CameraRange(NamedTuple):
    """Every value is drawn uniformly from -range .. range.

    Lengths are fractions of the image's height at the subject's distance, so that they mean the same for a camera
    at one meter with 45 degrees and for one at 16 meters with 4.
    """

    sideways: float
    """The camera moves on a sphere round the subject and keeps facing it."""
    upwards: float
    aim: float
    """It then aims past the subject, in both directions of the image."""
    roll: float
    """Degrees."""
    zoom: float
    """Relative change of the field of view."""


class LightRange(NamedTuple):
    """Uniform, too."""

    shift: float
    """Sideways move of a light in both directions, as a fraction of its height; it keeps shining on the same place."""
    brightness: float
    """Relative change, of each light and of the light that comes from the camera."""
    tint: float
    """Relative change of each color channel of the lights."""


CAMERA_RANGE = {
    "easy": CameraRange(sideways=0.12, upwards=0.06, aim=0.02, roll=2.0, zoom=0.04),
    "hard": CameraRange(sideways=0.35, upwards=0.12, aim=0.05, roll=6.0, zoom=0.10),
}
LIGHT_RANGE = {
    "easy": LightRange(shift=0.25, brightness=0.2, tint=0.05),
    "hard": LightRange(shift=0.6, brightness=0.45, tint=0.2),
}
# Easy: the surface's own colors, lighter and darker. Hard: also two new colors, far from its own.
TEXTURE_CONTRAST = {"easy": 0.25, "hard": 0.6}
HARD_TEXTURE_STD = 0.25
PATTERNS = ("checker", "stripes", "clouds", "waves")
CAMERA_ARRAYS = ("cam_pos", "cam_quat", "cam_pos0", "cam_poscom0", "cam_mat0", "cam_fovy")
LIGHT_ARRAYS = ("light_pos", "light_pos0", "light_poscom0", "light_dir", "light_dir0", "light_diffuse")
SURFACES = ("grid", "table")
"""Names of the textures that change: the floor of every task, and the robot's table."""


def draw_perturbation(rng: np.random.Generator, mode: Mode) -> Perturbation:
    """One episode's draw of the axes that the mode changes."""
    drawn: Perturbation = {}
    if mode.camera is not None:
        far = CAMERA_RANGE[mode.camera]
        drawn["camera"] = {
            "sideways": rng.uniform(-far.sideways, far.sideways),
            "upwards": rng.uniform(-far.upwards, far.upwards),
            "aim": rng.uniform(-far.aim, far.aim, 2).tolist(),
            "roll": rng.uniform(-far.roll, far.roll),
            "zoom": rng.uniform(-far.zoom, far.zoom),
        }
    if mode.light is not None:
        most = LIGHT_RANGE[mode.light]
        drawn["light"] = {
            "shift": rng.uniform(-most.shift, most.shift, 2).tolist(),
            "brightness": rng.uniform(-most.brightness, most.brightness),
            "headlight": rng.uniform(-most.brightness, most.brightness),
            "tint": rng.uniform(-most.tint, most.tint, 3).tolist(),
        }
    if mode.texture is not None:
        drawn["texture"] = {"level": mode.texture} | {name: _draw_texture(rng) for name in SURFACES}
    return drawn


def _draw_texture(rng: np.random.Generator) -> Draw:
    return {
        "pattern": PATTERNS[rng.integers(len(PATTERNS))],
        "seed": int(rng.integers(2**31)),
        "colors": rng.normal(0.0, HARD_TEXTURE_STD, (2, 3)).tolist(),
    }


class Perturber:
    """Shows perturbations in the scene of one painter's physics."""

    def __init__(self, physics: Any, painter: Painter) -> None:
        self._physics, self._painter = physics, painter
        model = physics.model
        self._own = {name: getattr(model, name).copy() for name in (*CAMERA_ARRAYS, *LIGHT_ARRAYS)}
        headlight = model.vis.headlight
        self._headlight = {name: getattr(headlight, name).copy() for name in ("ambient", "diffuse")}

    def show(self, drawn: Perturbation, color: Mapping[str, np.ndarray] | None = None) -> None:
        """`color`: the color setting that is shown, whose floor the texture follows. Needs the GL context."""
        if "camera" in drawn:
            self._show_camera(drawn["camera"])
        if "light" in drawn:
            self._show_light(drawn["light"])
        if "texture" in drawn:
            self._show_texture(drawn["texture"], color or DEFAULT_COLORS)

    def _show_camera(self, draw: Draw) -> None:
        model = self._physics.model
        own = {name: self._own[name][CAMERA] for name in CAMERA_ARRAYS}
        axes = own["cam_mat0"].reshape(3, 3)  # columns: right, up, and back from what it sees
        distance = abs(float(own["cam_poscom0"] @ axes[:, 2]))  # to the subject, along the line of sight
        height = 2 * np.tan(np.radians(own["cam_fovy"]) / 2)  # of the image, for distance 1
        around = _rotation(-draw["upwards"] * height, draw["sideways"] * height, np.radians(draw["roll"]))
        aim = _rotation(draw["aim"][0] * height, draw["aim"][1] * height, 0.0)
        # Round the subject: the camera's own axes turn, and it goes back along the turned line of sight. MuJoCo takes a
        # camera that follows a body from `cam_*0`, in the world, and any other from `cam_pos` and `cam_quat`.
        turned = axes @ around
        for name in ("cam_pos0", "cam_poscom0"):
            getattr(model, name)[CAMERA] = own[name] + distance * (turned[:, 2] - axes[:, 2])
        model.cam_mat0[CAMERA] = (turned @ aim).ravel()
        axes_in_body = _matrix(own["cam_quat"])
        turned = axes_in_body @ around
        model.cam_pos[CAMERA] = own["cam_pos"] + distance * (turned[:, 2] - axes_in_body[:, 2])
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, (turned @ aim).ravel())
        model.cam_quat[CAMERA] = quat
        model.cam_fovy[CAMERA] = own["cam_fovy"] * (1 + draw["zoom"])

    def _show_light(self, draw: Draw) -> None:
        model, own = self._physics.model, self._own
        shift = np.array([*draw["shift"], 0.0])
        heights = np.linalg.norm(own["light_pos"], axis=1, keepdims=True)
        for name in ("light_pos", "light_pos0", "light_poscom0"):
            getattr(model, name)[:] = own[name] + heights * shift
        for name in ("light_dir", "light_dir0"):
            turned = own[name] - shift
            getattr(model, name)[:] = turned / np.linalg.norm(turned, axis=1, keepdims=True)
        tint = 1 + np.array(draw["tint"])
        model.light_diffuse[:] = np.clip(own["light_diffuse"] * (1 + draw["brightness"]) * tint, 0, 1)
        headlight = model.vis.headlight
        for name, value in self._headlight.items():
            getattr(headlight, name)[:] = np.clip(value * (1 + draw["headlight"]) * tint, 0, 1)

    def _show_texture(self, draw: Draw, color: Mapping[str, np.ndarray]) -> None:
        floor = (color.get("grid_rgb1", DEFAULT_COLORS["grid_rgb1"]) + 0.05).clip(0, 1)
        # The table's own color is its material's, which multiplies the texture.
        for name, own_rgb in (("grid", floor), ("table", np.array([0.8, 0.8, 0.8]))):
            size = self._painter.texture_size(name)
            if size is not None:
                self._painter.show_texture(name, texture(draw[name], draw["level"], size, own_rgb))


def texture(draw: Draw, level: str, size: tuple[int, int], own_rgb: np.ndarray) -> np.ndarray:
    """Texels, uint8 (height, width, 3), of a surface whose own color is `own_rgb`."""
    contrast = TEXTURE_CONTRAST[level]
    light_and_dark = np.stack([own_rgb * (1 - contrast), own_rgb * (1 + contrast)])
    if level == "hard":
        light_and_dark = light_and_dark + np.array(draw["colors"])
    light_and_dark = np.clip(light_and_dark, 0, 1)
    share = pattern(draw["pattern"], np.random.default_rng(draw["seed"]), size)[..., None]
    return np.rint(255 * (light_and_dark[0] * (1 - share) + light_and_dark[1] * share)).astype(np.uint8)


def pattern(name: str, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A gray image (height, width) in 0..1 that fits together with itself at its edges, as floors repeat it."""
    y, x = (np.arange(n) / n for n in size)
    if name == "checker":
        cells = 2 * rng.integers(1, 6, 2)
        return (np.floor(y * cells[0])[:, None] + np.floor(x * cells[1])) % 2
    across = rng.integers(-5, 6, 2)
    if not across.any():
        across[0] = 3
    phase = y[:, None] * across[0] + x * across[1] + rng.uniform()
    if name == "stripes":
        return (np.sin(2 * np.pi * phase) > rng.uniform(-0.5, 0.5)).astype(float)
    clouds = _clouds(rng, y, x)
    if name == "clouds":
        return (clouds - clouds.min()) / np.ptp(clouds)
    if name == "waves":  # marble, wood
        return 0.5 + 0.5 * np.sin(2 * np.pi * (phase + 0.3 * clouds))
    raise ValueError(f"unknown pattern {name!r}")


def _clouds(rng: np.random.Generator, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum of two dozen random waves, the longer the stronger, with standard deviation 1: (len(y), len(x))."""
    across = rng.integers(1, 7, (24, 2)) * rng.choice([-1, 1], (24, 2))
    strength = 1 / np.linalg.norm(across, axis=1)
    down = np.exp(2j * np.pi * (np.outer(y, across[:, 0]) + rng.uniform(size=24)))
    total = ((strength * down) @ np.exp(2j * np.pi * np.outer(across[:, 1], x))).real
    return total / total.std()


def _matrix(quat: np.ndarray) -> np.ndarray:
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)


def _rotation(right: float, up: float, back: float) -> np.ndarray:
    """Turn by these angles (radians) about the camera's three axes, one after the other."""
    matrix = np.eye(3)
    for axis, angle in ((1, up), (0, right), (2, back)):
        quat = np.zeros(4)
        mujoco.mju_axisAngle2Quat(quat, np.eye(3)[axis], angle)
        matrix = matrix @ _matrix(quat)
    return matrix
