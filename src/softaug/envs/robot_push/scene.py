"""The scene of robot push as one MuJoCo model: dm_control's Kinova Jaco arm and hand at a table.

Lengths are in meters. The table's top is z = 0, the arm stands at the origin and faces +x, the camera looks back
at it. dm_control's sky, floor grid and `self` material are used under their own names, so that the color and video
modes find here what they recolor in any task of the suite.
"""

from __future__ import annotations

from pathlib import Path

import dm_control
import mujoco
import numpy as np
from dm_control.suite import common

from softaug.envs.appearance import with_assets
from softaug.envs.color import ROBOT_COLORS

TIMESTEP = 0.004
CUBE_HALF_SIZE = 0.03
GOAL_RADIUS = 0.06
PUSHER_RADIUS = 0.03
FINGER_ANGLE = 1.35  # radians: the joints' upper limit, fingers closed
TABLE_LOW, TABLE_HIGH = np.array([-0.18, -0.65]), np.array([0.94, 0.65])  # its top's corners, x and y
ARM_JOINTS = tuple(f"arm/joint_{i}" for i in range(1, 7))
TIP_SITE = "tip"

# Names, armature (kg m²) and torque limit (N m) of the joints' servos. dm_control's armatures, four times these, are
# too much for Kinova's torques: the servos would saturate in every fast move and swing. These never do in free moves,
# and are weak enough that pressing on the cube (3-D) leaves it on the table.
_SERVOS = (("joint_1", "joint_2", "joint_3"), 1.0, 60.0), (("joint_4", "joint_5", "joint_6"), 0.5, 30.0)
_SERVO_FREQUENCY = 60.0  # radians per second; critically damped
_MAX_JOINT_SPEED = np.deg2rad(90.0)

_SCENE = f"""
<mujoco model="robot_push">
  <include file="./common/skybox.xml"/>
  <include file="./common/materials.xml"/>
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast"/>
  <visual>
    <headlight ambient=".35 .35 .35" diffuse=".3 .3 .3" specular="0 0 0"/>
    <map znear=".02" zfar="30"/>
    <quality shadowsize="1024"/>
    <global offwidth="640" offheight="480"/>
  </visual>
  <asset>
    <texture name="table" type="2d" builtin="flat" rgb1="1 1 1" width="256" height="256"/>
    <material name="table" texture="table" specular=".1"/>
    <material name="rings" rgba=".75 .75 .78 1"/>
    <material name="cube" rgba=".95 .80 .05 1" specular=".2"/>
    <material name="goal" rgba=".85 .08 .08 1" specular="0"/>
  </asset>
  <worldbody>
    <light name="light" pos=".7 -.5 1.7" dir="-.15 .3 -1" diffuse=".55 .55 .55" specular=".15 .15 .15"/>
    <camera name="front" pos="1.37 0 .80" xyaxes="0 1 0 -0.576 0 0.817" fovy="35"/>
    <geom name="floor" type="plane" pos="0 0 -.75" size="2.2 2.2 .1" material="grid" contype="0" conaffinity="0"/>
    <body name="table">
      <geom name="table" type="box" pos=".38 0 -.02" size=".56 .65 .02" material="table" friction=".5 .005 .0001"/>
      <geom type="box" pos="-.1 .55 -.395" size=".03 .03 .355" material="table" contype="0" conaffinity="0"/>
      <geom type="box" pos="-.1 -.55 -.395" size=".03 .03 .355" material="table" contype="0" conaffinity="0"/>
      <geom type="box" pos=".85 .55 -.395" size=".03 .03 .355" material="table" contype="0" conaffinity="0"/>
      <geom type="box" pos=".85 -.55 -.395" size=".03 .03 .355" material="table" contype="0" conaffinity="0"/>
    </body>
    <body name="goal" mocap="true">
      <geom name="goal" type="cylinder" size="{GOAL_RADIUS} .001" pos="0 0 .001" material="goal" contype="0"
            conaffinity="0" mass="0"/>
    </body>
    <body name="cube" pos=".45 0 {CUBE_HALF_SIZE}">
      <freejoint name="cube"/>
      <geom name="cube" type="box" size="{CUBE_HALF_SIZE} {CUBE_HALF_SIZE} {CUBE_HALF_SIZE}" mass=".1" material="cube"
            friction=".5 .005 .0001" condim="4" solref=".01 1"/>
    </body>
    <frame name="mount"/>
  </worldbody>
</mujoco>
"""


def compile_model(assets: str = "") -> mujoco.MjModel:
    """Arm, hand, table, cube and goal; `assets`: MJCF of further textures and materials."""
    spec = mujoco.MjSpec.from_string(with_assets(_SCENE, assets), include=common.ASSETS)
    spec.attach(_arm_with_hand(), frame=spec.frame("mount"), prefix="arm/")
    for name in ("grid", "self"):
        spec.material(name).reflectance = 0.0  # a mirror image would be a second rendering of the scene
    for name in ("self", "table"):
        spec.material(name).rgba = [*ROBOT_COLORS[f"{name}_rgb"], 1.0]
    for geom in spec.geoms:
        if geom.name.startswith("arm/"):
            # The meshes are only drawn. What touches the cube is one capsule around the closed fingers: a single
            # convex shape with an analytic collision, so that contacts are cheap and never jitter.
            geom.contype = geom.conaffinity = 0
            geom.material = "rings" if geom.material.endswith("light_gray") else "self"
    hand = spec.body("arm/hand/hand")
    pinch = spec.site("arm/hand/pinchsite")
    hand.add_site(name=TIP_SITE, pos=pinch.pos, quat=pinch.quat, group=4)
    # It begins a little below the tip and reaches the palm. Its end may dip into the table, which it does not touch:
    # so it meets the cube's sides below their middle and does not tip it over.
    x, y, z = pinch.pos
    hand.add_geom(
        name="pusher",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[x, y, z, x, y, z + 0.12],
        size=[PUSHER_RADIUS, 0, 0],
        mass=0.0,
        contype=4,
        conaffinity=4,
        condim=3,
        friction=[0.2, 0.005, 0.0001],
        priority=1,  # its friction counts, not the larger of both
        solref=[0.01, 1.0],
        group=3,  # not drawn
    )
    spec.geom("cube").contype = spec.geom("cube").conaffinity = 5
    _add_servos(spec)
    return spec.compile()


def _arm_with_hand() -> mujoco.MjSpec:
    """dm_control's arm and hand, the fingers closed for good: the robot pushes and never grasps."""
    folder = Path(dm_control.__file__).parent / "third_party" / "kinova"
    arm = mujoco.MjSpec.from_file(str(folder / "jaco_arm.xml"))
    hand = mujoco.MjSpec.from_file(str(folder / "jaco_hand.xml"))
    about_z = np.array([np.cos(FINGER_ANGLE / 2), 0.0, 0.0, np.sin(FINGER_ANGLE / 2)])
    for joint in list(hand.joints):
        closed = np.empty(4)
        mujoco.mju_mulQuat(closed, np.array(joint.parent.quat), about_z)
        joint.parent.quat = closed
        hand.delete(joint)
    arm.attach(hand, site=arm.site("wristsite"), prefix="hand/")
    return arm


def _add_servos(spec: mujoco.MjSpec) -> None:
    """Joint servos whose set point moves with the commanded velocity (MuJoCo's `intvelocity`).

    The set point is part of MuJoCo's state, so a decision needs one command and resumes exactly.
    """
    for body in spec.bodies:
        if body.name.startswith("arm/"):
            body.gravcomp = 1.0
    for name in ARM_JOINTS:
        spec.joint(name).frictionloss = 0.0  # six constraints that a servo overcomes anyhow
    for names, armature, torque in _SERVOS:
        for name in names:
            spec.joint(f"arm/{name}").armature = armature
            stiffness = armature * _SERVO_FREQUENCY**2
            actuator = spec.add_actuator(
                name=f"arm/{name}",
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                target=f"arm/{name}",
                ctrllimited=True,
                ctrlrange=[-_MAX_JOINT_SPEED, _MAX_JOINT_SPEED],
                forcelimited=True,
                forcerange=[-torque, torque],
            )
            actuator.set_to_intvelocity(kp=stiffness, kv=2 * armature * _SERVO_FREQUENCY)
            actuator.actlimited = True
            actuator.actrange = [-2 * np.pi, 4 * np.pi]
