"""Presets: numbers of a config that belong together, over the paper's defaults (`config.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.errors import UserError, unknown
from softaug.files import read_object

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # Sized for two CPU cores by measurement (docs/small_preset.md): same code path, smaller images, networks and batches.
    "small": {
        "decisions": 30_000,
        "image_size": 56,
        "crop_size": 50,
        "render": "fast",
        "filters": (16, 32, 32),
        "strides": (2, 2, 1),
        # With strides of 4 in all, centre taps alone would see one pixel in sixteen at first.
        "conv_init": "orthogonal",
        "pad_own_layers": 1,
        "masker_filters": 8,
        "projection_dim": 50,
        "hidden_dim": 256,
        "batch_size": 64,
        "n_step": 3,
        "critic_tau": 0.03,
        "replay_capacity": 100_000,
        "aux_batch_size": 64,
        "aux_lr": 1e-3,
        "eval_every": 5_000,
        "eval_episodes": 5,
        "checkpoint_every": 2_500,
        # The other core steps the environment; two torch threads were no faster, and far slower on a busy machine.
        "threads": 1,
    },
    # DMControl-GB2's (and SADA's) own: 1,000,000 frames. Methods that crop render at 100 pixels, others at 84.
    "gb2": {
        "decisions": 500_000,
        "action_repeat": 2,
        "crop_size": 84,
        "filters": (32,) * 4,
        "strides": (2, 1, 1, 1),
        "conv_init": "orthogonal",
        "pixel_offset": 0.5,
        "final_relu": True,
        "share_features": True,
        "projection_dim": 50,
        "hidden_dim": 1024,
        "batch_size": 256,
        "random_decisions": 2_000,
        "initial_updates": 0,
        "update_every": 2,
        "actor_lr": 5e-4,
        "critic_lr": 5e-4,
        "alpha_lr": 5e-4,
        "alpha_beta": 0.9,
        "actor_every": 1,
        "target_every": 1,
        "critic_tau": 0.01,
        "encoder_tau": 0.01,
        "eval_modes": ("train", "color_hard", "rotate_hard"),
    },
}  # fmt: skip

# With the paper's discount of 0.99 not even a SAC that sees positions learned to push, and without many random pushes
# to learn from before it acts one that sees images keeps away from the cube (docs/robot_push.md).
_SMALL_ROBOT_PUSH = {
    "decisions": 80_000,
    "discount": 0.95,
    "initial_temperature": 0.02,
    "random_decisions": 20_000,
    "initial_updates": 10_000,
    "batch_size": 128,
    "critic_tau": 0.02,
}

# (preset, task) -> what that task needs otherwise, by measurement (docs/small_preset.md).
TASK_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # With LayerNorm in the critic and these numbers SODA reached 712 in 100,000 frames, without them 394 in 120,000. On
    # walker_stand and ball_in_cup_catch they slow it down.
    ("small", "cartpole_swingup"): {
        "decisions": 12_500,
        "render": "coarse",
        "strides": (2, 2, 2),
        "share_features": True,
        "critic_norm": True,
        "batch_size": 128,
        "critic_tau": 0.01,
        "mean_reward": True,
        "initial_temperature": 0.05,
        "aux_batch_size": 128,
        "aux_lr": 3e-4,
    },
    # A random policy hardly ever spins the finger: unless the temperature is low at first, it stays random.
    ("small", "finger_spin"): {
        "decisions": 50_000,
        "update_every": 2,
        "initial_temperature": 0.01,
        "alpha_lr": 1e-3,
    },
    # With the slow temperature SAC gave up exploring before it could catch the ball.
    ("small", "ball_in_cup_catch"): {"decisions": 25_000, "render": "coarse", "alpha_lr": 1e-3},
    ("small", "robot_push"): _SMALL_ROBOT_PUSH,
    ("small", "robot_push_3d"): _SMALL_ROBOT_PUSH,
}

# (preset, task, method) -> what that method needs otherwise on it, by measurement (docs/small_preset.md).
METHOD_TASK_PRESETS: dict[tuple[str, str, str], dict[str, Any]] = {
    # SAC reached 764 and 476 in 100,000 frames (two seeds), without it 339. SODA learned less with it, and kept less.
    ("small", "cartpole_swingup", "sac"): {"frame_differences": 3.0},
    # SODA reached more with the paper's slow temperature than with SAC's (above).
    ("small", "ball_in_cup_catch", "soda_overlay"): {"alpha_lr": 1e-4},
    # SODA learned no less with this, and a run takes three quarters of the time. SAC learned less, and DrQ did not get up.
    ("small", "walker_stand", "soda_overlay"): {
        "image_size": 52,
        "crop_size": 46,
        "render": "coarse",
        "strides": (2, 2, 2),
        "share_features": True,
    },
}

PRESET_FORMAT = 1
LABEL = re.compile(rf"(?:{'|'.join(PRESETS)})\+[A-Za-z0-9][\w.-]*")
"""What a config made with a preset file has as its `preset`: the base preset and the file's name, `small+tuned`."""


@dataclass(frozen=True)
class Preset:
    """A base preset, and values that win over it and over its task's numbers."""

    label: str
    base: str
    values: Mapping[str, Any]


def get_preset(name: str) -> Preset:
    """The preset called `name`, or the one in the JSON file `name` (`softaug tune` writes them)."""
    if name in PRESETS:
        return Preset(name, name, {})
    if name.endswith(".json") or Path(name).is_file():
        return read_preset(Path(name))
    raise unknown("preset", name, PRESETS, others=", or give a preset file (.json)")


def read_preset(path: Path) -> Preset:
    """Read what `preset_content` made: plain JSON, from which nothing is executed."""
    content = read_object(path, "give a preset file, as `softaug tune` writes them")
    if content.get("softaug_preset") != PRESET_FORMAT:
        raise UserError(f"{path} is no preset file of this version of softaug; `softaug tune` writes them")
    base, values = content.get("base"), content.get("values")
    if not isinstance(base, str) or base not in PRESETS or not isinstance(values, dict):
        raise UserError(
            f"the preset file {path} needs a base ({' or '.join(PRESETS)}) and values; write it again"
        )
    label = f"{base}+{path.stem}"
    if not LABEL.fullmatch(label):
        raise UserError(
            f"a preset file cannot be called {path.name!r}; use letters, digits, '_', '.' and '-' in its name"
        )
    # As tuples: JSON knows lists only.
    return Preset(label, base, {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def preset_content(base: str, values: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    """The text of a preset file; `origin` says where its values come from."""
    content = {"softaug_preset": PRESET_FORMAT, "base": base, "values": dict(values), "origin": dict(origin)}
    return json.dumps(content, indent=2) + "\n"
