"""Robot push: its physics and rules on the state, then what an agent sees of it."""

import warnings

import gymnasium
import numpy as np
import pytest
from fakes import tiny_config
from gymnasium.utils.env_checker import check_env
from push_controller import controller_action
from push_episodes import check_episodes
from test_env_interface import assert_same
from test_env_state import json_round_trip

from softaug.envs import MODE_NAMES, action_repeat, make_env, register, robot_push
from softaug.envs.color import ROBOT_COLORS, color_settings
from softaug.envs.modes import Mode
from softaug.envs.robot_push.kinematics import HAND_DOWN, ArmKinematics
from softaug.envs.robot_push.scene import ARM_JOINTS, CUBE_HALF_SIZE, GOAL_RADIUS, PUSHER_RADIUS
from softaug.envs.robot_push.task import (
    DISTANCE_PENALTY,
    HOME,
    HOME_JOINTS,
    MAX_DISPLACEMENT,
    MIN_CUBE_GOAL_DISTANCE,
    MIN_CUBE_HOME_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from softaug.errors import UserError
from softaug.tasks import frame_stack
from softaug.training.run import train

SMALL = {"image_size": 32, "render": "fast"}


@pytest.fixture(scope="module")
def plain():
    """dm_control's environment: states, nothing rendered."""
    return robot_push.load(2, random=0)


def play_out(env, seed, policy):
    """The return of one episode; `policy` gets the state."""
    env.task._random = np.random.RandomState(seed)
    step, total = env.reset(), 0.0
    while not step.last():
        step = env.step(policy(step.observation))
        total += step.reward
    return total


# The task


def test_a_scripted_controller_solves_it(plain):
    returns = [
        play_out(plain, seed, lambda state: controller_action(state["tip"], state["cube"], state["goal"]))
        for seed in range(50)
    ]
    assert np.mean(returns) >= 25
    assert min(returns) > 10  # from every start, not only on average


def test_random_and_idle_policies_stay_below_zero(plain):
    rng = np.random.default_rng(0)
    assert np.mean([play_out(plain, seed, lambda _: rng.uniform(-1, 1, 2)) for seed in range(20)]) < 0
    assert play_out(plain, 0, lambda _: np.zeros(2)) < 0


def test_starts_are_reachable_and_apart(plain):
    # Behind the cube, whatever the side, the hand must find room: a pusher's radius and half a cube's diagonal away.
    room = PUSHER_RADIUS + CUBE_HALF_SIZE
    task, starts = plain.task, []
    for _ in range(2000):
        cube, goal = task._draw_start()
        starts.append([*cube, *goal])
        assert np.linalg.norm(cube - goal) >= MIN_CUBE_GOAL_DISTANCE > GOAL_RADIUS
        assert (
            np.linalg.norm(cube - HOME[:2]) >= MIN_CUBE_HOME_DISTANCE > PUSHER_RADIUS + 1.42 * CUBE_HALF_SIZE
        )
        assert np.all(cube - room >= WORKSPACE_LOW[:2]) and np.all(cube + room <= WORKSPACE_HIGH[:2])
        # At the end of a push the hand is next to the goal, on the cube's side of it.
        way = (goal - cube) / np.linalg.norm(goal - cube)
        last = goal - way * room
        assert np.all(last >= WORKSPACE_LOW[:2]) and np.all(last <= WORKSPACE_HIGH[:2])
    assert np.all(np.ptp(starts, axis=0) > [0.11, 0.27, 0.15, 0.31])  # and really all over the place


def test_reward_is_one_at_the_goal_minus_the_distance(plain):
    plain.reset()
    physics = plain.physics
    goal = physics.goal()
    for offset, at_goal in (([0.0, 0.0], 1), ([0.0, 0.055], 1), ([0.065, 0.0], 0), ([-0.1, 0.1], 0)):
        with physics.reset_context():
            physics.named.data.qpos["cube"][:2] = goal + offset
            physics.data.mocap_pos[0, :2] = goal
        expected = at_goal - DISTANCE_PENALTY * np.linalg.norm(offset)
        assert plain.task.get_reward(physics) == pytest.approx(expected)


# Hand and arm


def test_inverse_kinematics_is_exact_all_over_the_workspace(plain):
    """One decision's move from anywhere, in any direction: position and direction of the hand."""
    plain.reset()
    physics, rng = plain.physics, np.random.default_rng(1)
    kinematics = ArmKinematics(physics.model.ptr)
    joints, tip = HOME_JOINTS, HOME
    for _ in range(200):
        tip = np.clip(tip + rng.uniform(-1, 1, 3) * MAX_DISPLACEMENT, WORKSPACE_LOW, WORKSPACE_HIGH)
        joints = kinematics.joints_for(tip, joints)
        with physics.reset_context():
            physics.named.data.qpos[list(ARM_JOINTS)] = joints
        np.testing.assert_allclose(physics.tip(), tip, atol=2e-4)
        np.testing.assert_allclose(
            physics.named.data.site_xmat["tip"].reshape(3, 3), HAND_DOWN, atol=2e-3, rtol=0
        )


def test_an_action_moves_the_hand_by_that_much(plain):
    plain.reset()
    for action in ([1, 0], [0.5, -0.5], [0, -1], [0, 0]):
        before = plain.physics.tip()
        plain.step(np.array(action, float))
        plain.step(np.zeros(2))  # the servos' lag of some milliseconds
        moved = plain.physics.tip() - before
        np.testing.assert_allclose(moved, [*np.array(action) * MAX_DISPLACEMENT, 0], atol=1e-3)


@pytest.mark.parametrize("corner", [(-1, -1), (-1, 1), (1, -1), (1, 1)])
def test_the_hand_stops_at_the_workspace(plain, corner):
    plain.reset()
    for _ in range(12):
        plain.step(np.array(corner, float))
    tip = plain.physics.tip()
    edge = np.where(np.array(corner) > 0, WORKSPACE_HIGH[:2], WORKSPACE_LOW[:2])
    np.testing.assert_allclose(tip[:2], edge, atol=2e-3)
    plain.step(-np.array(corner, float))  # and comes back at once: nothing was wound up
    assert np.all(np.abs(plain.physics.tip()[:2] - edge) > 0.8 * MAX_DISPLACEMENT)


def test_random_episodes_leave_the_cube_on_the_table():
    for dims in (2, 3):
        found = check_episodes(6, seed=3, action_dims=dims)
        assert found["flying"] == found["off_table"] == 0
        assert found["moved"] > 0
        assert found["outside_workspace"] < (0.002 if dims == 2 else 0.03)


@pytest.mark.slow
def test_many_random_episodes_leave_the_cube_on_the_table():
    found = check_episodes(60, seed=4)
    assert found["flying"] == found["off_table"] == found["toppled"] == 0
    assert found["moved"] > 20 and found["outside_workspace"] < 0.002
    found = check_episodes(30, seed=5, action_dims=3)
    assert found["flying"] == found["off_table"] == 0


# As an environment of pixels


def test_interface(make):
    assert (action_repeat("robot_push"), frame_stack("robot_push"), frame_stack("walker_walk")) == (1, 1, 3)
    env = make("robot_push", image_size=100)
    assert env.observation_space.shape == (3, 100, 100) and env.action_space.shape == (2,)
    assert env.unwrapped.episode_decisions == 50
    env.reset(seed=0)
    ends = []
    for _ in range(50):
        *_, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        assert not terminated and info == {"frames": 1}
        ends.append(truncated)
    assert ends == [False] * 49 + [True]
    assert make("robot_push_3d").action_space.shape == (3,)
    with pytest.raises(UserError, match=r"unknown task 'robot_pull'.*robot_push"):
        make_env("robot_pull")


def test_environment_checker():
    register()
    env = gymnasium.make("softaug/robot_push-random_colors-v0", **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


def test_cube_and_goal_are_seen_wherever_they_start(make):
    """In the middle of the image, which is what an agent gets at test time (84 of 100 pixels)."""
    env = make("robot_push", image_size=100)
    env.reset(seed=0)
    physics = env.unwrapped.physics
    for x, y in ((0.40, -0.16), (0.40, 0.16), (0.56, -0.16), (0.56, 0.16)):
        for cube, other in (((x, y), (0.48, -y)), ((0.48, -y), (x, y))):
            with physics.reset_context():
                physics.named.data.qpos["cube"][:2] = cube
                physics.data.mocap_pos[0, :2] = other
            image = env.unwrapped._rendered()[8:-8, 8:-8].astype(int)
            red, green, blue = image.transpose(2, 0, 1)
            yellow = (red > 90) & (green > 0.7 * red) & (blue < 0.4 * red)
            reddish = (red > 90) & (green < 0.4 * red) & (blue < 0.4 * red)
            assert yellow.sum() > 60 and reddish.sum() > 60


def test_every_mode_looks_different_and_moves_alike(make):
    actions = np.random.default_rng(2).uniform(-1, 1, (3, 2)).astype(np.float32)
    seen = {}
    for mode in MODE_NAMES:
        env = make("robot_push", mode)
        first = env.reset(seed=6)[0]
        steps = [env.step(action) for action in actions]
        state = env.unwrapped.physics.get_state().copy(), env.unwrapped.physics.data.act.copy()
        seen[mode] = first, [step[1] for step in steps], state
    _, rewards, state = seen["train"]
    for mode in MODE_NAMES:
        assert_same(seen[mode][1:], (rewards, state))
        others = [seen[other][0] for other in MODE_NAMES if other != mode]
        assert all((seen[mode][0] != other).any() for other in others), mode


@pytest.mark.parametrize("mode", ["train", "random_colors", "video_background", "video_hard", "color_random"])
def test_restore_in_the_middle_of_a_push(make, mode):
    original = make("robot_push", mode, 1)
    original.reset()
    physics = original.unwrapped.physics

    def push(env):
        state = env.unwrapped.physics
        return env.step(controller_action(state.tip(), state.cube(), state.goal()).astype(np.float32))

    start = physics.cube()
    for _ in range(25):
        push(original)
        if np.linalg.norm(physics.cube() - start) > 0.01:
            break
    assert np.linalg.norm(physics.named.data.qvel["cube"][:2]) > 0.01  # it slides
    state = json_round_trip(original.get_state())
    expected = [push(original), push(original), original.reset(), push(original)]
    fresh = make("robot_push", mode, 1)
    fresh.set_state(state)
    assert_same([push(fresh), push(fresh), fresh.reset(), push(fresh)], expected)
    original.set_state(state)
    assert_same([push(original), push(original), original.reset(), push(original)], expected)


# Colors


def test_colors_recolor_arm_floor_sky_and_table(make):
    env = make("robot_push", "color_hard")
    color = env.reset(seed=1)[1]["color"]
    assert set(color) == {"grid_rgb1", "grid_rgb2", "self_rgb", "skybox_rgb", "table_rgb"}
    materials = env.unwrapped.physics.named.model.mat_rgba
    np.testing.assert_allclose(materials["self"][:3], color["self_rgb"], atol=1e-6)
    np.testing.assert_allclose(materials["table"][:3], color["table_rgb"], atol=1e-6)
    for name, rgb in (
        ("cube", [0.95, 0.8, 0.05]),
        ("goal", [0.85, 0.08, 0.08]),
    ):  # what the task is about stays
        np.testing.assert_allclose(materials[name][:3], rgb, atol=1e-6)


def test_training_colors_are_not_the_test_colors(make):
    """sac_dr draws from the distribution, about the robot's own colors."""
    env = make("robot_push", "color_random", image_size=16)
    drawn = [env.reset(seed=seed)[1]["color"] for seed in range(40)]
    settings, kind = color_settings(Mode.parse("color_hard"), None, "robot_push")
    assert kind == "procedural" and len(settings) == 100
    tables = np.array([setting["table_rgb"] for setting in settings])
    for color in drawn:
        assert np.abs(tables - color["table_rgb"]).max(axis=1).min() > 1e-6
    mean = np.mean([color["table_rgb"] for color in drawn], axis=0)
    assert np.all(np.abs(mean - ROBOT_COLORS["table_rgb"]) < 0.15)


# Training


def test_trains_and_evaluates(tmp_path):
    config = tiny_config(
        method="soda_overlay",
        task="robot_push",
        image_size=24,
        crop_size=20,
        frame_stack=frame_stack("robot_push"),
        decisions=70,
        eval_every=0,
        eval_episodes=1,
        eval_modes=("train", "random_colors", "video_background"),
    )
    result = train(config, tmp_path / "run", quiet=True)
    assert result.finished and result.updates > 0 and result.frames == 70
    assert {mode: summary["decisions"] for mode, summary in result.evaluation.items()} == {
        "train": 50,
        "random_colors": 50,
        "video_background": 50,
    }
    assert result.evaluation["video_background"]["media"] == "procedural"
