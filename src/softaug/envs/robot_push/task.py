"""Robot push (docs/robot_push.md): move the hand in the table's plane, push the yellow cube onto the red disc.

A dm_control task like those of the suite, so that everything that works for them works here.
"""

from __future__ import annotations

import collections

import numpy as np
from dm_control import mujoco as dm_mujoco
from dm_control.suite import base
from dm_env import specs

from softaug.envs.robot_push.kinematics import ArmKinematics
from softaug.envs.robot_push.scene import ARM_JOINTS, CUBE_HALF_SIZE, GOAL_RADIUS, TIP_SITE

EPISODE_DECISIONS = 50
DECISION_SECONDS = 0.3
MAX_DISPLACEMENT = 0.04  # meters per decision and axis: 13 cm/s, what a Jaco really does
DISTANCE_PENALTY = 0.5
"""Per meter and decision. A cube left alone costs about 4 an episode, as the paper's failing agents show."""

# Where the tip may go, x, y, z in meters. Everywhere in it the arm is away from its singularities.
WORKSPACE_LOW = np.array([0.34, -0.22, 0.022])
WORKSPACE_HIGH = np.array([0.62, 0.22, 0.16])
HOME = np.array([0.36, 0.0, WORKSPACE_LOW[2]])
HOME_JOINTS = np.array([-0.238467, 2.301449, 5.334813, 3.110314, 0.124991, -0.269745])

# Where cube and goal start: the hand fits between the cube and the workspace's edge on every side, so that each goal
# can be pushed to.
CUBE_LOW, CUBE_HIGH = np.array([0.42, -0.14]), np.array([0.54, 0.14])
GOAL_LOW, GOAL_HIGH = np.array([0.40, -0.16]), np.array([0.56, 0.16])
MIN_CUBE_GOAL_DISTANCE = 0.12  # twice the disc's radius
MIN_CUBE_HOME_DISTANCE = 0.10


class Physics(dm_mujoco.Physics):
    """Positions by name, meters."""

    def tip(self) -> np.ndarray:
        """Between the closed fingers' ends, (3,)."""
        return self.named.data.site_xpos[TIP_SITE].copy()

    def cube(self) -> np.ndarray:
        """The cube's center, (3,)."""
        return self.named.data.xpos["cube"].copy()

    def goal(self) -> np.ndarray:
        """The disc's center in the table's plane, (2,)."""
        return self.data.mocap_pos[0, :2].copy()

    def distance(self) -> float:
        """From the cube's center to the disc's, in the table's plane."""
        return float(np.linalg.norm(self.cube()[:2] - self.goal()))


class RobotPush(base.Task):
    """action: displacement of the hand, (2,) or (3,) in [-1, 1], in units of `MAX_DISPLACEMENT`."""

    def __init__(self, action_dims: int, random: int | np.random.RandomState) -> None:
        super().__init__(random=random)
        self.action_dims = action_dims
        self.target = HOME.copy()  # of the tip; saved and restored with the task's other numbers
        self._kinematics: ArmKinematics | None = None

    def action_spec(self, physics: Physics) -> specs.BoundedArray:
        return specs.BoundedArray((self.action_dims,), np.float64, -1.0, 1.0)

    def initialize_episode(self, physics: Physics) -> None:
        cube, goal = self._draw_start()
        self.target = HOME.copy()
        data = physics.named.data
        data.qpos[list(ARM_JOINTS)] = HOME_JOINTS
        physics.data.act[:] = HOME_JOINTS
        yaw = self.random.uniform(-np.pi, np.pi)
        data.qpos["cube"] = [*cube, CUBE_HALF_SIZE, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]
        physics.data.mocap_pos[0] = [*goal, 0.0]
        super().initialize_episode(physics)

    def _draw_start(self) -> tuple[np.ndarray, np.ndarray]:
        """Cube and goal, (2,) each: uniform in their boxes, apart from each other and clear of the hand."""
        while True:
            cube = self.random.uniform(CUBE_LOW, CUBE_HIGH)
            goal = self.random.uniform(GOAL_LOW, GOAL_HIGH)
            if (
                np.linalg.norm(cube - goal) >= MIN_CUBE_GOAL_DISTANCE
                and np.linalg.norm(cube - HOME[:2]) >= MIN_CUBE_HOME_DISTANCE
            ):
                return cube, goal

    def before_step(self, action: np.ndarray, physics: Physics) -> None:
        """Command the joint velocities that take the tip to its new place within the decision."""
        displacement = np.zeros(3)
        displacement[: self.action_dims] = np.clip(action, -1.0, 1.0) * MAX_DISPLACEMENT
        # Where something holds the hand back, the target waits instead of running away from it.
        tip = physics.tip()
        ahead = np.clip(self.target + displacement - tip, -1.25 * MAX_DISPLACEMENT, 1.25 * MAX_DISPLACEMENT)
        self.target = np.clip(tip + ahead, WORKSPACE_LOW, WORKSPACE_HIGH)
        if self.action_dims == 2:
            self.target[2] = HOME[2]
        joints = physics.data.act.copy()
        if self._kinematics is None:
            self._kinematics = ArmKinematics(physics.model.ptr)
        new_joints = self._kinematics.joints_for(self.target, joints)
        physics.set_control((new_joints - joints) / DECISION_SECONDS)

    def get_observation(self, physics: Physics) -> dict[str, np.ndarray]:
        """The state, for scripted controllers; agents get pixels."""
        observation = collections.OrderedDict()
        observation["tip"] = physics.tip()
        observation["cube"] = physics.cube()
        observation["goal"] = physics.goal()
        return observation

    def get_reward(self, physics: Physics) -> float:
        """1 while the cube is at the goal (its center above the disc), minus a penalty for the distance."""
        distance = physics.distance()
        return float(distance <= GOAL_RADIUS) - DISTANCE_PENALTY * distance
