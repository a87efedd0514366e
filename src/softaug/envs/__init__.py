"""DMControl-GB environments. Importing this imports neither MuJoCo nor dm_control; making one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gymnasium

from softaug.envs.modes import MODE_NAMES, MODES, Mode
from softaug.envs.tasks import PAPER_TASKS, SUITE_TASKS, action_repeat

__all__ = [
    "MODES",
    "MODE_NAMES",
    "PAPER_TASKS",
    "SUITE_TASKS",
    "Mode",
    "action_repeat",
    "make_env",
    "register",
]


def make_env(
    task: str,
    mode: str | Mode = "train",
    seed: int = 0,
    *,
    image_size: int = 100,
    frame_stack: int = 3,
    action_repeat: int | None = None,
    videos: str | Path | Sequence[str | Path] | None = None,
    colors: str | Path | Sequence[Mapping] | None = None,
    render: str = "exact",
    render_mode: str = "rgb_array",
) -> gymnasium.Env:
    """A task of the dm_control suite seen through camera 0, in one of the benchmark's visual modes.

    task: `walker_walk`, ...: any `domain_task` of the suite.
    mode: `train`, `color_easy`, `color_hard`, `video_easy`, `video_hard`, `color_random`.
    seed: of the first episode on; `reset(seed=...)` restarts it. The task's own draws are those of dm_control
        with `random=seed`.
    image_size: H = W in pixels. frame_stack: frames per observation, uint8 (3 * frame_stack, H, W).
    action_repeat: env steps per decision; None takes the paper's (SPEC §3).
    videos: for the video modes, a folder or a list of files; None takes the registered official files, else
        procedural videos. colors: for color_easy and color_hard, an official `.pt` file or a list of settings;
        None likewise. A mode ignores the source it has no use for.
    render: `exact` gives dm_control's pixels. `fast` has a shadow map of 512 instead of 2048 and a framebuffer no
        larger than the image (so `physics.render` is limited to that size): with software GL 1.3 to 2.6 times
        the speed, and pixels that differ by 0.003 to 0.04 of 255 on average in the paper's tasks
        (`softaug bench env`).
    render_mode: for `gymnasium.make`; `rgb_array` only.
    """
    from softaug.envs.dmc import DMCEnv

    return DMCEnv(
        task,
        mode,
        seed,
        image_size=image_size,
        frame_stack=frame_stack,
        action_repeat=action_repeat,
        videos=videos,
        colors=colors,
        render=render,
        render_mode=render_mode,
    )


def register() -> None:
    """Register `softaug/{task}-{mode}-v0` with Gymnasium for every suite task and mode; may be repeated."""
    for task in SUITE_TASKS:
        for mode in MODE_NAMES:
            identifier = f"softaug/{task}-{mode}-v0"
            if identifier not in gymnasium.registry:
                gymnasium.register(
                    identifier, entry_point="softaug.envs:make_env", kwargs={"task": task, "mode": mode}
                )
