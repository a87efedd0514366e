"""The state of a MuJoCo simulation as named numbers."""

from __future__ import annotations

import mujoco
import numpy as np


def physics_state(model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, float]:
    """qpos and qvel by joint, JOINT.part, and the places of bodies that a task moves (robot push's goal).

    Angles as sine and cosine, orientations as the first two columns of the rotation matrix: both without jumps.
    """
    positions: dict[str, float] = {}
    velocities: dict[str, float] = {}
    for joint in range(model.njnt):
        name, kind = model.joint(joint).name or f"joint{joint}", mujoco.mjtJoint(int(model.jnt_type[joint]))
        qpos, qvel = data.qpos[model.jnt_qposadr[joint] :], data.qvel[model.jnt_dofadr[joint] :]
        if kind == mujoco.mjtJoint.mjJNT_SLIDE:
            positions[f"{name}.pos"], velocities[f"{name}.vel"] = qpos[0], qvel[0]
        elif kind == mujoco.mjtJoint.mjJNT_HINGE:
            positions |= {f"{name}.sin": np.sin(qpos[0]), f"{name}.cos": np.cos(qpos[0])}
            velocities[f"{name}.vel"] = qvel[0]
        else:
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                positions |= _vector(name, qpos[:3])
                velocities |= _vector(f"{name}.vel", qvel[:3])
                qpos, qvel = qpos[3:], qvel[3:]
            rotation = np.empty(9)
            mujoco.mju_quat2Mat(rotation, qpos[:4])
            positions |= _vector(f"{name}.front", rotation[0::3]) | _vector(f"{name}.left", rotation[1::3])
            velocities |= _vector(f"{name}.turn", qvel[:3])
    for body in np.flatnonzero(model.body_mocapid >= 0):
        positions |= _vector(model.body(body).name or f"body{body}", data.mocap_pos[model.body_mocapid[body]])
    return {name: float(value) for name, value in (positions | velocities).items()}


def _vector(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}.{axis}": value for axis, value in zip("xyz", values, strict=True)}
