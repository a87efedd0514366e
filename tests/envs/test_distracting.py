"""The Distracting Control Suite: ranges, random walks against naive loops, exact restore."""

import numpy as np
import pytest
from test_env_interface import assert_same, roll
from test_env_state import json_round_trip

from softaug.envs.distracting import CameraWalk, cartesian, floor_alpha, look_at, spherical
from softaug.envs.modes import DISTRACTING_MODES, Distraction, Mode, split_modes
from softaug.errors import UserError
from softaug.media.davis import VALIDATION, background_videos
from softaug.media.registry import register

SMALL = {"image_size": 32, "render": "aliased"}
MODES = [mode.name for mode in DISTRACTING_MODES]


def test_names():
    assert [mode.distraction.scale for mode in DISTRACTING_MODES] == [0.1, 0.2, 0.3]
    mode = Mode.parse("distracting(scale=.25, dynamic=False, parts=color+camera)")
    assert mode.distraction == Distraction(0.25, False, ("camera", "color"))
    assert mode.name == "distracting(scale=0.25,dynamic=False,parts=camera+color)"
    assert Mode.parse(mode.name) == mode and mode.split == "test"
    assert split_modes(f"train, {mode.name},video_hard") == ["train", mode.name, "video_hard"]
    scales = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
    assert [Distraction(scale).videos for scale in scales] == [2, 2, 4, 6, 8, 60, 60, 60]


@pytest.mark.parametrize(
    "inside", ["", "scale=2", "scale=nan", "scale=-1", "scale=0.1,parts=", "scale=0.1,parts=sky", "scale=.1,dynamic=1", "s=1"]
)  # fmt: skip
def test_wrong_names_are_refused(inside):
    with pytest.raises(UserError, match=r"write distracting\(scale=0\.2"):
        Mode.parse(f"distracting({inside})")


def test_spherical_coordinates_and_back():
    rng = np.random.default_rng(0)
    for position in rng.normal(size=(50, 3)):
        np.testing.assert_allclose(cartesian(spherical(position)), position)
    np.testing.assert_allclose(spherical(np.array([0.0, -4.0, 0.0])), [4, -np.pi / 2, np.pi / 2])


@pytest.mark.parametrize("overhead", [False, True])
def test_a_camera_looks_at_its_target(overhead):
    rng = np.random.default_rng(1)
    for _ in range(50):
        target, eye = rng.normal(size=3), rng.normal(size=3) + np.array([0, 0, 5])
        axes = look_at(target, eye, overhead)
        np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
        assert np.linalg.det(axes) == pytest.approx(1)
        np.testing.assert_allclose(-axes[:, 2], (target - eye) / np.linalg.norm(target - eye), atol=1e-12)
        if not overhead:
            assert axes[2, 0] == pytest.approx(0) and axes[2, 1] >= 0  # upright


def test_no_distraction_is_the_own_camera(make):
    for task in ("walker_walk", "cartpole_swingup", "finger_spin", "reacher_easy"):
        plain = make(task)
        expected = plain.reset(seed=3)[0]
        env = make(task, "distracting(scale=0,parts=camera+color)")
        difference = np.abs(env.reset(seed=3)[0].astype(int) - expected)
        assert difference.mean() < 0.5, task


def test_ranges_and_bounds_of_the_walk(make):
    env = make("walker_walk", "distracting_hard", action_repeat=50)
    env.reset(seed=0)
    inner = env.unwrapped
    own = spherical(inner._env.physics.model.cam_poscom0[0])
    low, high = CameraWalk(Distraction(0.3)).ranges(np.array([4.0, -np.pi / 2, 1.2]))
    np.testing.assert_allclose(low, [4 * 0.85, -np.pi / 2 - 0.15 * np.pi, 1.2 - 0.15 * np.pi])
    np.testing.assert_allclose(high, [4 * 1.45, -np.pi / 2 + 0.15 * np.pi, np.pi / 2])
    assert own[0] > 0
    colors = inner._effect._parts["color"]
    for _ in range(10):
        env.step(np.zeros(6, np.float32))
        camera, rgb = inner._effect._parts["camera"].state, colors.state["rgb"]
        assert (camera["position"] >= camera["low"]).all() and (camera["position"] <= camera["high"]).all()
        assert abs(camera["roll"]) <= np.pi / 2 * 0.3
        assert (
            (rgb >= colors.low).all()
            and (rgb <= colors.high).all()
            and (colors.high - colors.low < 0.6001).all()
        )
        assert np.linalg.norm(camera["velocity"]) <= 0.4 * 0.3 * camera["speed"] * 1.5


def naive_walk(own, scale, frames, rng):
    """Where one camera ends and how far it went, written out from the suite's description."""
    path = 0.0
    angle, r0 = np.pi / 2 * scale, own[0]
    lows = [r0 * (1 - 0.5 * scale), max(own[1] - angle, -np.pi), max(own[2] - angle, 0)]
    highs = [r0 * (1 + 1.5 * scale), min(own[1] + angle, 0), min(own[2] + angle, np.pi / 2)]
    r, h, v = (rng.uniform(a, b) for a, b in zip(lows, highs, strict=True))
    velocity = rng.normal(size=3)
    velocity *= rng.uniform(0, 0.4 * scale) / np.sqrt((velocity**2).sum())
    for _ in range(frames):
        velocity += rng.normal(size=3) * 0.1 * scale * r0 / 4
        velocity *= min(1, 0.4 * scale * r0 / 4 / np.sqrt((velocity**2).sum()))
        x, y, z = r * np.sin(v) * np.cos(h), r * np.sin(v) * np.sin(h), r * np.cos(v)
        nx, ny, nz = x + velocity[0], y + velocity[1], z + velocity[2]
        r = min(max(np.sqrt(nx**2 + ny**2 + nz**2), lows[0]), highs[0])
        h = min(max(np.arctan2(ny, nx), lows[1]), highs[1])
        v = min(max(np.arctan2(np.sqrt(nx**2 + ny**2), nz), lows[2]), highs[2])
        velocity = np.array([r * np.sin(v) * np.cos(h) - x, r * np.sin(v) * np.sin(h) - y, r * np.cos(v) - z])
        path += np.sqrt((velocity**2).sum())
    return r, h, v, path


def test_the_walk_is_distributed_like_a_naive_one():
    class Model:
        cam_mode = (0,)

    class Data:
        cam_xpos = np.array([[0.0, -4.0, 1.0]])
        cam_xmat = np.eye(3).reshape(1, 9)
        subtree_com = np.zeros((2, 3))

    class Physics:
        model, data = Model, Data

    count, frames, rng = 1500, 12, np.random.default_rng(5)
    ours = []
    for _ in range(count):
        walk = CameraWalk(Distraction(0.2))
        walk.begin(Physics, rng)  # the first update belongs to the reset
        path = np.linalg.norm(walk.state["velocity"])
        for _ in range(frames - 1):
            walk.advance(rng)
            path += np.linalg.norm(walk.state["velocity"])
        ours.append([*walk.state["position"], path])
    own = spherical(Data.cam_xpos[0])
    naive = np.array([naive_walk(own, 0.2, frames, rng) for _ in range(count)])
    ours = np.array(ours)
    for column in range(4):  # quantiles agree within their sampling error
        mine, other = (np.quantile(x[:, column], np.linspace(0.1, 0.9, 9)) for x in (ours, naive))
        assert np.abs(mine - other).max() < 0.12 * np.ptp(naive[:, column]), column
    # The length of the way alone tells the walk's speed.
    assert ours[:, 3].mean() == pytest.approx(naive[:, 3].mean(), rel=0.05)


@pytest.mark.parametrize("repeat", [1, 3, 4])
def test_everything_moves_with_every_env_step(make, repeat):
    """n frames change it in the same way whatever the action repeat."""
    env, single = (make("walker_walk", "distracting_medium", action_repeat=r) for r in (repeat, 1))
    env.reset(seed=4), single.reset(seed=4)
    env.step(np.zeros(6, np.float32))
    for _ in range(repeat):
        single.step(np.zeros(6, np.float32))
    assert_same(env.unwrapped._effect.get_state(), single.unwrapped._effect.get_state())
    np.testing.assert_array_equal(env.render(), single.render())


def test_the_video_runs_back_and_forth(make):
    env = make("cartpole_swingup", "distracting(scale=0.1,parts=background)", action_repeat=1)
    env.reset(seed=0)
    walk = env.unwrapped._effect._parts["background"]
    length = len(walk._video())
    walk.state |= {"position": length - 2, "direction": 1}
    seen = []
    for _ in range(4):
        walk.advance(None)
        seen.append(walk.state["position"])
    assert seen == [length - 1, length - 1, length - 2, length - 3]
    walk.state |= {"position": 1, "direction": -1}
    walk.advance(None)
    assert (walk.state["position"], walk.state["direction"]) == (0, 1)
    videos = {env.reset()[1]["video"] for _ in range(40)}
    assert len(videos) == 4 and all(name.startswith("procedural/") for name in videos)


def test_static_stays(make):
    env = make("walker_walk", "distracting(scale=0.3,dynamic=False)")
    env.reset(seed=0)
    before = env.unwrapped._effect.get_state()
    env.step(np.ones(6, np.float32))
    assert_same(before, env.unwrapped._effect.get_state())


@pytest.mark.parametrize("task", ["walker_walk", "cheetah_run", "quadruped_walk", "robot_push"])
def test_same_physics_and_reward_as_train(make, task):
    plain, env = make(task), make(task, "distracting_hard")
    first, other = roll(plain, 3, seed=5), roll(env, 3, seed=5)
    assert [step[1] for step in first[1:]] == [step[1] for step in other[1:]]
    np.testing.assert_array_equal(plain.unwrapped.physics.get_state(), env.unwrapped.physics.get_state())
    assert (first[-1][0] != other[-1][0]).any()


@pytest.mark.parametrize("mode", MODES)
def test_restore_in_the_middle_of_an_episode(make, mode):
    original = make("walker_walk", mode, 2, action_repeat=3)
    roll(original, 2)
    state = json_round_trip(original.get_state())
    action = np.ones(6, np.float32)
    expected = [original.step(action), original.step(action), original.reset(), original.step(action)]
    for env in (make("walker_walk", mode, 7, action_repeat=3), original):
        env.set_state(state)
        assert_same([env.step(action), env.step(action), env.reset(), env.step(action)], expected)


def test_floors_are_the_originals(make):
    alphas = {
        "walker_walk": 1,
        "cheetah_run": 1,
        "cartpole_swingup": 0.3,
        "finger_spin": 0.3,
        "reacher_easy": 0,
    }
    for task, alpha in {**alphas, "ball_in_cup_catch": 0.3}.items():
        assert floor_alpha(make(task).unwrapped.physics) == alpha, task


def test_registered_davis_is_used_and_named(make, tmp_path):
    from PIL import Image

    for name in ("bear", "boat", "camel", "dog", "swing"):
        folder = tmp_path / "davis" / name
        folder.mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 10), (200, 10 * number, 0)).save(folder / f"{number:05d}.jpg")
    register("davis", tmp_path / "davis")
    assert [path.name for path in background_videos().paths] == ["bear", "boat", "swing"]
    assert len(VALIDATION) == 30
    info = make("cartpole_swingup", "distracting_easy").reset(seed=0)[1]
    assert info["media"] == "davis" and info["video"].startswith(str(tmp_path))


def test_nothing_stays_for_the_next_environment(make):
    before = roll(make("walker_walk"), 2, seed=1)
    roll(make("walker_walk", "distracting_hard"), 2, seed=1)
    assert_same(before, roll(make("walker_walk"), 2, seed=1))
