"""Color settings of the `color_*` modes: the distribution, the 100 test settings, checking a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from softaug.envs.modes import Mode
from softaug.errors import UserError
from softaug.media.official import COLOR_KEYS, check_colors, load_colors, registered_colors
from softaug.tasks import ROBOT_TASKS

ColorSetting = dict[str, np.ndarray]
"""What is recolored -> RGB in 0..1, float64 (3,)."""

DEFAULT_COLORS: ColorSetting = {
    "grid_rgb1": np.array([0.1, 0.2, 0.3]),
    "self_rgb": np.array([0.7, 0.5, 0.3]),
    "skybox_rgb": np.array([0.4, 0.6, 0.8]),
}
# The robot's scene also has a table; its arm is dark (`robot_push/scene.py` builds it from these).
ROBOT_COLORS: ColorSetting = {
    **DEFAULT_COLORS,
    "self_rgb": np.array([0.22, 0.23, 0.26]),
    "table_rgb": np.array([0.72, 0.70, 0.66]),
}
STD = {"easy": 0.1, "hard": 0.2, "random": 0.2}
SETTINGS_PER_LEVEL = 100
# Seeds of the embedded test settings; far from the small seeds that people train with, so that
# `color_random` never repeats them.
PROCEDURAL_SEED = {"easy": 20210101, "hard": 20210202}


def default_colors(task: str) -> ColorSetting:
    """What a color setting of the task changes, and from where."""
    return ROBOT_COLORS if task in ROBOT_TASKS else DEFAULT_COLORS


def draw_color(rng: np.random.Generator, std: float, defaults: ColorSetting = DEFAULT_COLORS) -> ColorSetting:
    """One draw: default + N(0, std) per channel, clipped to [0, 1]; grid_rgb2 = grid_rgb1 + 0.1.

    As in the official files, the 0.1 is added to the clipped grid_rgb1 (there, 0 becomes 0.1).
    """
    color = {key: np.clip(default + rng.normal(0.0, std, 3), 0, 1) for key, default in defaults.items()}
    color["grid_rgb2"] = np.clip(color["grid_rgb1"] + 0.1, 0, 1)
    return {key: color[key] for key in (*COLOR_KEYS, *(key for key in color if key not in COLOR_KEYS))}


def procedural_colors(level: str, defaults: ColorSetting = DEFAULT_COLORS) -> list[ColorSetting]:
    """The 100 embedded settings of `easy` or `hard`: always the same."""
    rng = np.random.default_rng(PROCEDURAL_SEED[level])
    return [draw_color(rng, STD[level], defaults) for _ in range(SETTINGS_PER_LEVEL)]


def color_settings(
    mode: Mode, colors: str | Path | Sequence[Mapping] | None = None, task: str = ""
) -> tuple[list[ColorSetting] | None, str]:
    """The settings an episode's color is drawn from, and where they come from.

    None instead of a list means fresh draws from the distribution (`color_random`). The source is
    `procedural`, `official` (a `.pt` file or the folder of both, given or registered) or `list` (the caller's own).
    The official files are of the suite's tasks: the robot takes them only if they are given.
    """
    if mode.level == "random":
        return None, "procedural"
    assert mode.level is not None
    if colors is None:
        colors = None if task in ROBOT_TASKS else registered_colors(mode.level)
        if colors is None:
            return procedural_colors(mode.level, default_colors(task)), "procedural"
    if isinstance(colors, str | Path):
        path = Path(colors).expanduser()
        # The benchmark's folder holds one file per level.
        return load_colors(path / f"color_{mode.level}.pt" if path.is_dir() else path), "official"
    if not colors:
        raise UserError("colors= is empty; give at least one color setting.")
    return check_colors(list(colors), "colors="), "list"
