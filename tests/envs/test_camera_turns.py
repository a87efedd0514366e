"""DMControl-GB2's rotate, shift and rotate_shift modes: the camera is turned, and nothing else happens."""

import numpy as np
import pytest
from test_env_interface import assert_same, roll
from test_env_state import json_round_trip

from softaug.envs.camera_turns import SHIFT_DEGREES, CameraTurns, about, edge_points, rotate_angles
from softaug.envs.modes import GB2_MODES, Mode

SMALL = {"image_size": 32, "render": "aliased"}
TURNS = [mode.name for mode in GB2_MODES if mode.turned]
GB2_TASKS = ["walker_walk", "cheetah_run", "cartpole_swingup", "finger_spin", "ball_in_cup_catch"]


def turned_by(env, **turn):
    """The first image of an episode whose camera is turned by `turn`."""
    env.reset(seed=3)
    inner = env.unwrapped
    inner.physics.forward()
    inner._effect.set_state({"turn": turn, "order": range(100)})
    return inner._rendered().astype(int)


def test_the_hundred_angles():
    hard, easy = rotate_angles("hard"), rotate_angles("easy")
    assert (hard[0], easy[0]) == (-180, -90) and len(hard) == len(easy) == 100
    assert hard[-1] == pytest.approx(176.4) and easy[-1] == pytest.approx(88.2)
    np.testing.assert_allclose(np.diff(hard), 3.6)
    np.testing.assert_allclose(np.diff(easy), 1.8)
    assert 0.0 in hard.round(9) and 0.0 in easy.round(9)


@pytest.mark.parametrize("rectangle", [*SHIFT_DEGREES.values(), (-1.0, 2.0, -3.0, 5.0)])
def test_the_edge_points_go_round_the_rectangle_once(rectangle):
    left, right, low, high = rectangle
    points = edge_points(rectangle)
    assert points.shape == (100, 2) and len({tuple(p) for p in points.round(9)}) == 100
    on_side = np.isclose(points[:, 0], left) | np.isclose(points[:, 0], right)
    on_end = np.isclose(points[:, 1], low) | np.isclose(points[:, 1], high)
    assert (on_side | on_end).all() and (on_side & on_end).sum() == 4
    steps = np.abs(np.diff(np.concatenate([points, points[:1]]), axis=0)).sum(axis=1)
    np.testing.assert_allclose(steps[:25], (right - left) / 25)
    np.testing.assert_allclose(steps[25:50], (high - low) / 25)
    assert steps.sum() == pytest.approx(2 * (right - left + high - low))


def test_rotations_are_right_handed():
    for axis in range(3):
        matrix = about(axis, 90.0)
        unit = np.eye(3)
        np.testing.assert_allclose(matrix @ unit[axis], unit[axis], atol=1e-12)
        np.testing.assert_allclose(matrix @ unit[(axis + 1) % 3], unit[(axis + 2) % 3], atol=1e-12)
    np.testing.assert_allclose(about(2, 30) @ about(2, 60), about(2, 90), atol=1e-12)


@pytest.mark.parametrize("task", ["walker_walk", "cartpole_swingup", "robot_push"])
def test_a_camera_turned_by_90_degrees_shows_the_rotated_image(make, task):
    """Within the renderer's rounding at edges: nearly all pixels are equal."""
    upright = turned_by(make(task, "rotate_hard", image_size=64), rotate=0.0)
    for degrees, turns in ((90.0, -1), (180.0, 2), (-90.0, 1)):
        shown = turned_by(make(task, "rotate_hard", image_size=64), rotate=degrees)
        difference = np.abs(shown - np.rot90(upright, turns))
        assert difference.mean() < 3 and np.median(difference) <= 1, (degrees, difference.mean())
        assert difference.mean() < 0.2 * np.abs(shown - upright).mean()


def test_no_turn_is_the_training_image(make):
    plain = make("walker_walk").reset(seed=3)[0]
    env = make("walker_walk", "rotate_shift_hard")
    np.testing.assert_array_equal(turned_by(env, rotate=0.0, shift=[0.0, 0.0]), plain[-3:].transpose(1, 2, 0))


def test_a_shift_moves_the_subject_by_its_angle(make):
    """A camera of 45 degrees that looks 10 degrees further to the left moves what was ahead to the right."""
    env = make("cartpole_swingup", "shift_hard", image_size=64)
    inner = env.unwrapped
    turned_by(env, shift=[0.0, 0.0])
    ahead = -inner.physics.data.cam_xmat[0].reshape(3, 3)[:, 2].copy()
    turned_by(env, shift=[10.0, 0.0])
    axes = inner.physics.data.cam_xmat[0].reshape(3, 3)
    right, up, depth = ahead @ axes[:, 0], ahead @ axes[:, 1], -ahead @ axes[:, 2]
    assert np.degrees(np.arctan2(right, depth)) == pytest.approx(10.0) and up == pytest.approx(0.0)
    turned_by(env, shift=[0.0, 10.0])
    axes = inner.physics.data.cam_xmat[0].reshape(3, 3)
    up, depth = ahead @ axes[:, 1], -ahead @ axes[:, 2]
    assert np.degrees(np.arctan2(up, depth)) == pytest.approx(-10.0)


def test_rotate_shift_is_shift_times_rotate(make):
    env = make("walker_walk", "rotate_shift_easy")
    env.reset(seed=0)
    effect = env.unwrapped._effect
    effect.set_state({"turn": {"rotate": 30.0, "shift": [4.0, -5.0]}, "order": range(100)})
    np.testing.assert_allclose(effect._matrix(), about(1, 4.0) @ about(0, -5.0) @ about(2, 30.0))


@pytest.mark.parametrize("task", [*GB2_TASKS, "humanoid_walk", "robot_push"])
def test_same_physics_and_reward_as_train(make, task):
    plain = make(task, action_repeat=2)
    first = roll(plain, 3, seed=5)
    for mode in TURNS:
        env = make(task, mode, action_repeat=2)
        other = roll(env, 3, seed=5)
        assert [step[1] for step in first[1:]] == [step[1] for step in other[1:]]
        np.testing.assert_array_equal(plain.unwrapped.physics.get_state(), env.unwrapped.physics.get_state())
        assert (first[-1][0] != other[-1][0]).any()
        env.close()


def test_hundred_episodes_show_the_hundred_settings(make):
    """Also as evaluation plays them, each with a seed of its own; the order is the original's for `seed`."""
    order = np.random.RandomState(7).permutation(100)
    shifts = edge_points(SHIFT_DEGREES["cartpole"])
    env = make("cartpole_swingup", "rotate_shift_hard", 7, image_size=16)
    infos = [env.reset(seed=1000 + e, options={"episode": e})[1] for e in range(100)]
    np.testing.assert_allclose([info["rotate"] for info in infos], rotate_angles("hard")[order])
    np.testing.assert_allclose([info["shift"] for info in infos], shifts[order])
    in_turn = make("cartpole_swingup", "rotate_shift_hard", 7, image_size=16)
    assert [in_turn.reset()[1]["rotate"] for _ in range(3)] == [info["rotate"] for info in infos[:3]]
    assert make("cartpole_swingup", "rotate_shift_hard", 8).reset()[1]["rotate"] != infos[0]["rotate"]


def test_easy_shifts_are_two_thirds():
    class Model:
        cam_fovy = (45.0,)

    class Physics:
        model = Model

    points = {}
    for level in ("easy", "hard"):
        effect = CameraTurns(Mode.parse(f"shift_{level}"), "finger_spin", 0)
        effect.attach(Physics, None)
        points[level] = np.array([effect.begin(e, None)["shift"] for e in range(100)])
    np.testing.assert_allclose(points["easy"] * 1.5, points["hard"])
    assert points["hard"].min(axis=0).tolist() == [-6, -6] and points["hard"].max(axis=0).tolist() == [6, 12]


@pytest.mark.parametrize("mode", TURNS)
def test_restore_in_the_middle_of_an_episode(make, mode):
    original = make("walker_walk", mode, 2)
    roll(original, 2)
    state = json_round_trip(original.get_state())
    action = np.ones(6, np.float32)
    expected = [original.step(action), original.reset(), original.step(action)]
    for env in (make("walker_walk", mode, 9), original):
        env.set_state(state)
        assert_same([env.step(action), env.reset(), env.step(action)], expected)


def test_nothing_stays_for_the_next_environment(make):
    before = roll(make("walker_walk"), 2, seed=1)
    roll(make("walker_walk", "rotate_shift_hard"), 2, seed=1)
    assert_same(before, roll(make("walker_walk"), 2, seed=1))
