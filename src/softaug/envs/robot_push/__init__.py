"""Robot push (docs/robot_push.md): dm_control's Kinova Jaco arm pushes a yellow cube onto a red disc."""

from __future__ import annotations

import numpy as np

from softaug.envs import gl

gl.choose_backend()  # before dm_control is imported, which loads the back end

from dm_control.mujoco import wrapper  # noqa: E402
from dm_control.rl import control  # noqa: E402

from softaug.envs.robot_push.scene import TIMESTEP, compile_model  # noqa: E402
from softaug.envs.robot_push.task import DECISION_SECONDS, EPISODE_DECISIONS, Physics, RobotPush  # noqa: E402


def load(
    action_dims: int = 2, random: int | np.random.RandomState = 0, assets: str = ""
) -> control.Environment:
    """The environment as dm_control has it: states, no pixels. One of its steps is one decision (0.3 s).

    action_dims: 2 moves the hand in the table's plane, 3 also up and down. assets: MJCF of further textures and
    materials.
    """
    physics = Physics.from_model(wrapper.MjModel(compile_model(assets)))
    return control.Environment(
        physics,
        RobotPush(action_dims, random),
        n_sub_steps=round(DECISION_SECONDS / TIMESTEP),
        time_limit=EPISODE_DECISIONS * DECISION_SECONDS,
    )
