"""DMControl-GB environments. Importing this imports neither MuJoCo nor dm_control; making one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from softaug.envs.modes import MODE_NAMES, MODES, Mode
from softaug.envs.observations import StackedFrames
from softaug.tasks import ALL_TASKS, PAPER_TASKS, ROBOT_TASKS, SUITE_TASKS, action_repeat
from softaug.tasks import frame_stack as default_frame_stack

__all__ = [
    "ALL_TASKS",
    "MODES",
    "MODE_NAMES",
    "PAPER_TASKS",
    "ROBOT_TASKS",
    "SUITE_TASKS",
    "Mode",
    "action_repeat",
    "adapt",
    "make_env",
    "register",
    "wrap",
]


def make_env(
    task: str,
    mode: str | Mode = "train",
    seed: int = 0,
    *,
    image_size: int = 100,
    frame_stack: int | None = None,
    action_repeat: int | None = None,
    videos: str | Path | Sequence[str | Path] | None = None,
    colors: str | Path | Sequence[Mapping] | None = None,
    render: str = "exact",
    render_mode: str = "rgb_array",
) -> StackedFrames:
    """A task of the dm_control suite, or robot push, seen through camera 0 in one of the visual modes.

    task: `walker_walk`, ...: any `domain_task` of the suite; `robot_push`, `robot_push_3d` (the hand also moves up and
        down).
    mode: the benchmark's `train`, `color_easy`, `color_hard`, `video_easy`, `video_hard`, `color_random`; one axis
        alone: `camera_easy`, `camera_hard`, `light_easy`, `light_hard`, `texture_easy`, `texture_hard`; colors or
        video with all three axes: `random_colors`, `video_background`; DMControl-GB2's `rotate_*`, `shift_*`,
        `rotate_shift_*`, `screen_video_*`, `screen_color_video_*` (`easy`, `hard`); the Distracting Control Suite's
        `distracting_easy`, `distracting_medium`, `distracting_hard`, or
        `distracting(scale=0.2,dynamic=True,parts=camera+color+background)` (docs/benchmarks.md).
    seed: of the first episode on; `reset(seed=...)` restarts it. The task's own draws are those of dm_control
        with `random=seed`. The seed given here also fixes the order of DMControl-GB2's settings.
    image_size: H = W in pixels. frame_stack: frames per observation, uint8 (3 * frame_stack, H, W); None takes the
        paper's: 3, for the robot 1.
    action_repeat: env steps per decision; None takes the paper's. Episodes end at the task's own time limit; the `lqr`
        tasks have none, so theirs end after 1,000 frames, in training and evaluation alike.
    videos: for the video modes, a folder or a list of files; None takes the registered official files (distracting:
        DAVIS), else procedural videos. colors: for color_easy and color_hard, an official `.pt` file or a list of settings;
        None as above. A mode ignores the source it has no use for.
    render: `exact` gives dm_control's pixels. `fast` has a shadow map of 512 instead of 2048 and a framebuffer no
        larger than the image (so `physics.render` is limited to that size): with software GL 1.3 to 2.6 times
        the speed, and pixels that differ by 0.003 to 0.04 of 255 on average in the paper's tasks
        (`softaug bench env`). Robot push has no shadows then, at 2.5 times the speed. `coarse` is `fast` with capsules,
        spheres and cylinders of a third of the triangles: by software GL 0.28 to 0.72 of the time of `fast`, and pixels
        that differ from the exact ones by 0.06 to 0.33 of 255 on average. `aliased` is `fast` without
        multisampling, so edges are not smooth: at 56 pixels by software GL 0.56 to 0.69 of the time of `fast`, and pixels
        that differ from the exact ones by 1.0 to 1.6 of 255 on average.
    render_mode: for `gymnasium.make`; `rgb_array` only.
    """
    from softaug.envs.dmc import DMCEnv

    env = DMCEnv(
        task,
        mode,
        seed,
        image_size=image_size,
        action_repeat=action_repeat,
        videos=videos,
        colors=colors,
        render=render,
        render_mode=render_mode,
    )
    return StackedFrames(env, default_frame_stack(task) if frame_stack is None else frame_stack)


def wrap(
    env: gymnasium.Env,
    mode: str | Mode = "train",
    seed: int = 0,
    *,
    mask: Callable[[np.ndarray], np.ndarray] | np.ndarray | None = None,
    chroma: str | Sequence[Any] | None = None,
    tolerance: int = 30,
    videos: str | Path | Sequence[str | Path] | None = None,
    colors: Sequence[Mapping[str, Any]] | None = None,
    image_key: str = "",
) -> gymnasium.Wrapper:
    """Any Gymnasium environment with the benchmark's color and video distractors, to test your own agent in.

    What is changed: RGB images in observations (uint8 (H, W, 3) or (3, H, W), or `image_key` of a dict) and what
    `render()` returns. Spaces, rewards and dynamics stay.

    mode: `train` (nothing is changed), `video_easy`, `video_hard`, `color_easy`, `color_hard`, `color_random`,
        or `distracting(scale=0.2,parts=color+background)`. The other modes change the camera or the scene, which belong
        to your environment.
    seed: of colors and videos; `reset(seed=...)` restarts them. `reset(options={"episode": e})` takes video e.
    mask, chroma: what the background is. mask: a function of an image (H, W, 3), or a fixed array: bool (H, W).
        chroma: its color (r, g, b) in 0..255 or a list of colors, from which a pixel's channels may be up to
        `tolerance` away, or "green", the benchmark's own key. Gymnasium's MuJoCo environments need neither: there
        `video_easy` replaces the sky, `video_hard` also the floor (planes and height fields).
    videos: as in `make_env`. The two levels differ by their videos, and for MuJoCo by the floor.
    colors: a list of {"sky": rgb, "floor": rgb, "body": rgb}, changes in -1..1, of which each episode shows one. By
        default 100 fixed draws of N(0, 0.1) (easy) or N(0, 0.2) (hard) per group and channel; `color_random`: fresh
        draws like the hard ones. MuJoCo: added to the texels and colors of sky, floor and all the rest in the
        environment's model, which keeps them. Elsewhere: added to the image, `sky` to the background if mask or
        chroma is given, `body` to the rest, else `body` to the whole image.
    """
    from softaug.envs.custom.wandering import Wandering
    from softaug.envs.custom.wrapper import Distracted, wrapped_mode

    made = Wandering if wrapped_mode(mode).distraction is not None else Distracted
    return made(
        env,
        mode,
        seed,
        mask=mask,
        chroma=chroma,
        tolerance=tolerance,
        videos=videos,
        colors=colors,
        image_key=image_key,
    )


def adapt(
    env: gymnasium.Env,
    *,
    image_size: int = 100,
    frame_stack: int = 3,
    action_repeat: int = 1,
    image_key: str = "",
    episode_decisions: int = 0,
    name: str = "the environment",
) -> StackedFrames:
    """Your own environment as `softaug train --env` sees it: stacked pixels, actions in [-1, 1].

    image_size: H = W of a frame. frame_stack: frames per observation, uint8 (3 * frame_stack, H, W).
    action_repeat: env steps per decision. image_key: the image's entry in a dict observation.
    episode_decisions: cut episodes off after so many decisions; 0: at the environment's own time limit.
    name: what messages call it.
    """
    from softaug.envs.custom.pixels import PixelEnv

    frames = PixelEnv(
        env,
        image_size=image_size,
        action_repeat=action_repeat,
        image_key=image_key,
        episode_decisions=episode_decisions,
        name=name,
    )
    return StackedFrames(frames, frame_stack)


def register() -> None:
    """Register `softaug/{task}-{mode}-v0` with Gymnasium for every task and mode; may be repeated."""
    for task in ALL_TASKS:
        for mode in MODE_NAMES:
            identifier = f"softaug/{task}-{mode}-v0"
            if identifier not in gymnasium.registry:
                gymnasium.register(
                    identifier, entry_point="softaug.envs:make_env", kwargs={"task": task, "mode": mode}
                )
