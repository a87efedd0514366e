"""DMControl-GB2's geometric tests: the camera is turned for an episode, not the image (docs/benchmarks.md).

Camera 0 keeps its place; its axes are multiplied by a rotation before each rendering. An episode takes the next of 100
angles (`rotate`) or of 100 points on the edge of a rectangle of angles (`shift`), in an order shuffled once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from softaug.envs.appearance import Painter
from softaug.envs.effects import Effect
from softaug.envs.modes import Mode
from softaug.envs.perturb import CAMERA
from softaug.tasks import domain_and_task

SETTINGS = 100
ROTATE_DEGREES = {"easy": 90.0, "hard": 180.0}
EASY_SHIFT = 1 / 1.5
# Degrees about the camera's y axis (to the sides) and its x axis (up and down), lowest and highest.
Rectangle = tuple[float, float, float, float]
SHIFT_DEGREES: dict[str, Rectangle] = {
    "walker": (-10, 10, -10, 10),
    "cheetah": (-10, 10, -10, 10),
    "cartpole": (-8, 8, -10, 10),
    "finger": (-6, 6, -6, 12),
    "ball_in_cup": (-6, 6, -6, 12),
}
# Ours, for all other tasks: walker's share of the image, whatever the camera's field of view (walker's is 45 degrees).
OTHER_SHIFT_PER_FOVY = 10 / 45


def rotate_angles(level: str) -> np.ndarray:
    """100 angles in degrees, evenly spaced from -90 (easy) or -180 (hard); the end is left out."""
    most = ROTATE_DEGREES[level]
    return -most + 2 * most / SETTINGS * np.arange(SETTINGS)


def edge_points(rectangle: Rectangle) -> np.ndarray:
    """(100, 2): 25 points on each side of a rectangle, round from its lowest corner, each side without its end."""
    left, right, low, high = rectangle
    corners = np.array([(left, low), (right, low), (right, high), (left, high)], float)
    along = np.arange(SETTINGS // 4)[:, None] / (SETTINGS // 4)
    sides = zip(corners, np.roll(corners, -1, axis=0), strict=True)
    return np.concatenate([start + along * (end - start) for start, end in sides])


def about(axis: int, degrees: float) -> np.ndarray:
    """Rotation matrix (3, 3) about the x (0), y (1) or z (2) axis."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    first, second = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[[first, second], [first, second]] = cos
    matrix[first, second], matrix[second, first] = -sin, sin
    return matrix


class CameraTurns(Effect):
    """`rotate_*`, `shift_*` and `rotate_shift_*`."""

    def __init__(self, mode: Mode, task: str, seed: int) -> None:
        self._mode, self._domain = mode, domain_and_task(task)[0]
        # By the environment's own seed, which no reset(seed=...) changes: evaluation seeds each episode anew, and its
        # episode e is to show setting e of one order. Both lists are shuffled alike, as in the original.
        self._order = np.random.RandomState(seed).permutation(SETTINGS)
        self._turn: dict[str, Any] = {}

    def attach(self, physics: Any, painter: Painter) -> None:
        super().attach(physics, painter)
        level = str(self._mode.level)
        other = OTHER_SHIFT_PER_FOVY * float(physics.model.cam_fovy[CAMERA])
        rectangle = np.array(SHIFT_DEGREES.get(self._domain, (-other, other, -other, other)))
        self._shifts = edge_points(tuple(rectangle * (EASY_SHIFT if level == "easy" else 1.0)))
        self._angles = rotate_angles(level)

    def begin(self, episode: int, rng: np.random.Generator) -> dict[str, Any]:
        index = self._order[episode % SETTINGS]
        settings = {"rotate": float(self._angles[index]), "shift": self._shifts[index].tolist()}
        self._turn = {name: settings[name] for name in self._mode.turned}
        return dict(self._turn)

    def show(self) -> None:
        axes = self._physics.data.cam_xmat[CAMERA].reshape(3, 3)
        self._physics.data.cam_xmat[CAMERA] = (axes @ self._matrix()).ravel()

    def _matrix(self) -> np.ndarray:
        matrix = np.eye(3)
        if "shift" in self._turn:
            sideways, upwards = self._turn["shift"]
            matrix = about(1, sideways) @ about(0, upwards)
        return matrix @ about(2, self._turn["rotate"]) if "rotate" in self._turn else matrix

    def get_state(self) -> dict[str, Any]:
        return {"turn": dict(self._turn), "order": self._order.tolist()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._turn = dict(state["turn"])
        self._order = np.asarray(state["order"])
