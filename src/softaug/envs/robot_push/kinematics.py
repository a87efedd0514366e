"""Differential inverse kinematics of the arm."""

from __future__ import annotations

import mujoco
import numpy as np

from softaug.envs.robot_push.scene import ARM_JOINTS, TIP_SITE

# The hand's axes in the world (columns): its fingers, along the site's z axis, point straight down.
HAND_DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
STEPS = 4
DAMPING = 1e-4


class ArmKinematics:
    """Solves on data of its own; the simulation's are left alone."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._tip = model.site(TIP_SITE).id
        joints = [model.joint(name) for name in ARM_JOINTS]
        self._qpos = [int(joint.qposadr[0]) for joint in joints]
        self._columns = [int(joint.dofadr[0]) for joint in joints]
        self._jacobian = np.empty((6, model.nv))

    def joints_for(self, tip: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """Joint angles (6,) with the fingers' tip at `tip` (3,) and the hand upright, starting from `joints`.

        Damped least squares on position and orientation: joints += J' (J J' + damping)^-1 error, a few times.
        """
        joints = joints.copy()
        for _ in range(STEPS):
            error = self._error(tip, joints)
            jacobian = self._jacobian[:, self._columns]
            joints += jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + DAMPING * np.eye(6), error)
        return joints

    def _error(self, tip: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """What is missing in position (3) and rotation vector (3); also updates the Jacobian."""
        model, data = self._model, self._data
        data.qpos[self._qpos] = joints
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._tip)
        error, turn = np.empty(6), np.empty(4)
        error[:3] = tip - data.site_xpos[self._tip]
        mujoco.mju_mat2Quat(turn, (HAND_DOWN @ data.site_xmat[self._tip].reshape(3, 3).T).ravel())
        mujoco.mju_quat2Vel(error[3:], turn, 1.0)
        return error
