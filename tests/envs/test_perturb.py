"""Camera, light and texture as axes of variation, for every task alike."""

import numpy as np
import pytest
from test_env_interface import assert_same
from test_env_state import json_round_trip

from softaug.envs.chroma import is_green
from softaug.envs.modes import AXIS_MODES, BENCHMARK_MODES, MODE_NAMES, ROBOT_MODES, Mode
from softaug.envs.perturb import (
    CAMERA_ARRAYS,
    CAMERA_RANGE,
    LIGHT_ARRAYS,
    LIGHT_RANGE,
    PATTERNS,
    draw_perturbation,
    pattern,
    texture,
)

SMALL = {"image_size": 32, "render": "fast"}
AXIS_NAMES = [mode.name for mode in AXIS_MODES]
STILL = {"sideways": 0.0, "upwards": 0.0, "aim": [0.0, 0.0], "roll": 0.0, "zoom": 0.0}


def test_modes_say_by_their_fields_what_changes():
    assert Mode.parse("camera_hard") == Mode("camera", "hard", "test", camera="hard")
    colors = Mode.parse("random_colors")
    assert (colors.family, colors.level, colors.split) == ("color", "hard", "test")
    assert colors.camera and colors.light and colors.texture
    assert Mode.parse("video_background").family == "video"
    assert not any(mode.perturbed for mode in BENCHMARK_MODES)
    assert all(mode.perturbed for mode in (*AXIS_MODES, *ROBOT_MODES))
    assert len(set(MODE_NAMES)) == len(MODE_NAMES)


def test_draws_stay_in_their_ranges_and_fill_them():
    rng = np.random.default_rng(0)
    for level in ("easy", "hard"):
        mode = Mode("camera", level, "test", camera=level, light=level, texture=level)
        drawn = [draw_perturbation(rng, mode) for _ in range(500)]
        for name, most in CAMERA_RANGE[level]._asdict().items():
            values = np.abs([draws["camera"][name] for draws in drawn])
            assert 0.95 * most < values.max() <= most
        for name, most in LIGHT_RANGE[level]._asdict().items():
            values = np.abs([draws["light"][name] for draws in drawn])
            assert 0.95 * most < values.max() <= most
        assert {draws["texture"]["grid"]["pattern"] for draws in drawn} == set(PATTERNS)
    assert draw_perturbation(rng, Mode.parse("light_easy")).keys() == {"light"}


@pytest.mark.parametrize(
    "task", ["walker_walk", "cartpole_swingup"]
)  # a camera that follows, and one that stands
def test_each_axis_changes_the_image_and_nothing_else(make, task):
    action = np.ones(make(task).action_space.shape, np.float32)
    plain = make(task)
    first, stepped = plain.reset(seed=3)[0], plain.step(action)
    for mode in AXIS_NAMES:
        env = make(task, mode)
        obs, info = env.reset(seed=3)
        assert set(info) == {"episode", Mode.parse(mode).family}
        assert (obs != first).any()
        _, reward, *_ = env.step(action)
        assert reward == stepped[1]
        np.testing.assert_array_equal(env.unwrapped.physics.get_state(), plain.unwrapped.physics.get_state())
        # A mode of one axis leaves the other axes' part of the model alone.
        model, own = env.unwrapped.physics.model, plain.unwrapped.physics.model
        for family, arrays in (("camera", CAMERA_ARRAYS), ("light", LIGHT_ARRAYS)):
            same = all(np.array_equal(getattr(model, name), getattr(own, name)) for name in arrays)
            assert same == (Mode.parse(mode).family != family)
        assert np.array_equal(model.tex_data, own.tex_data) == (Mode.parse(mode).family != "texture")


def test_hard_is_further_off_than_easy(make):
    """Over some seeds, by the mean difference from the training image."""
    plain = make("walker_walk")
    for axis in ("camera", "light", "texture"):
        levels = {level: make("walker_walk", f"{axis}_{level}") for level in ("easy", "hard")}
        means = dict.fromkeys(levels, 0.0)
        for seed in range(6):
            expected = plain.reset(seed=seed)[0].astype(int)
            for level, env in levels.items():
                means[level] += np.abs(env.reset(seed=seed)[0] - expected).mean()
        assert means["hard"] > 1.2 * means["easy"] > 0, axis


@pytest.mark.parametrize("mode", ["camera_hard", "light_easy", "texture_hard", "random_colors"])
def test_seed_decides_and_episodes_differ(make, mode):
    first, second = make("walker_stand", mode, 5), make("walker_stand", mode, 5)
    episodes = [first.reset() for _ in range(2)]
    assert_same(episodes, [second.reset() for _ in range(2)])
    assert_same(episodes[0], first.reset(seed=5))
    axis = next(name for name in ("camera", "light", "texture") if name in episodes[0][1])
    assert episodes[0][1][axis] != episodes[1][1][axis]


@pytest.mark.parametrize("mode", ["camera_hard", "light_hard", "texture_hard", "video_background"])
def test_restore_shows_the_same_appearance(make, mode):
    original = make("cartpole_swingup", mode, 2)
    original.reset()
    state = json_round_trip(original.get_state())
    action = np.ones(1, np.float32)
    expected = [original.step(action), original.reset(), original.step(action)]
    for env in (make("cartpole_swingup", mode, 2), original):
        env.set_state(state)
        assert_same([env.step(action), env.reset(), env.step(action)], expected)


@pytest.mark.parametrize("task", ["walker_walk", "finger_spin", "manipulator_bring_ball", "robot_push"])
def test_a_moved_camera_keeps_its_subject_and_distance(make, task):
    """Going round: what was in the middle of the image stays there, as far away as before."""
    env = make(task, "camera_hard")
    env.reset(seed=0)
    unwrapped = env.unwrapped
    data, distance = unwrapped.physics.data, None

    def view(draw):
        unwrapped._perturb({"camera": draw})
        unwrapped.physics.forward()
        return data.cam_xpos[0].copy(), data.cam_xmat[0].reshape(3, 3).copy()

    place, axes = view(STILL)
    # The still draw is the task's own camera.
    plain = make(task)
    plain.reset(seed=0)
    np.testing.assert_allclose(place, plain.unwrapped.physics.data.cam_xpos[0], atol=1e-9)
    np.testing.assert_allclose(axes, plain.unwrapped.physics.data.cam_xmat[0].reshape(3, 3), atol=1e-9)
    for change in ({"sideways": 0.3}, {"upwards": 0.1}, {"sideways": -0.2, "upwards": -0.1, "roll": 5.0}):
        moved, turned = view({**STILL, **change})
        assert np.linalg.norm(moved - place) > 0
        # moved + distance * turned line of sight == place + distance * line of sight, for one distance
        gap, change_of_sight = moved - place, turned[:, 2] - axes[:, 2]
        found = gap @ change_of_sight / (change_of_sight @ change_of_sight)
        np.testing.assert_allclose(gap, found * change_of_sight, atol=1e-6)
        distance = found if distance is None else distance
        assert found == pytest.approx(distance, rel=1e-6) and found > 0
    side, _ = view({**STILL, "sideways": 0.3})
    assert (side - place) @ axes[:, 0] > 0.9 * np.linalg.norm(side - place)
    up, _ = view({**STILL, "upwards": 0.1})
    assert (up - place) @ axes[:, 1] > 0.9 * np.linalg.norm(up - place)


def test_patterns_fit_together_at_their_edges():
    for name in PATTERNS:
        for seed in range(5):
            image = pattern(name, np.random.default_rng(seed), (60, 80))
            assert image.shape == (60, 80) and image.min() >= 0 and image.max() <= 1
            assert np.ptp(image) > 0.3
            if name in ("clouds", "waves"):  # smooth ones: the step over the edge is like any other
                inside = np.abs(np.diff(image, axis=0)).max()
                assert np.abs(image[0] - image[-1]).max() <= 1.5 * inside + 1e-9


def test_easy_textures_have_the_surface_own_hue():
    """So that the chroma key of a video mode never takes them for the green screen."""
    rng = np.random.default_rng(3)
    for own in (np.array([0.15, 0.25, 0.35]), np.array([0.72, 0.70, 0.66])):
        for _ in range(8):
            draw = draw_perturbation(rng, Mode.parse("texture_easy"))["texture"]["grid"]
            texels = texture(draw, "easy", (40, 40), own)
            assert not is_green(texels).any()
            brightness = texels.astype(float).mean(axis=2)
            assert (
                0.6 < brightness.min() / (255 * own.mean()) < 1 < brightness.max() / (255 * own.mean()) < 1.4
            )


def test_textures_follow_the_drawn_colors(make):
    env = make("walker_walk", "random_colors", colors=[{"grid_rgb1": [0.8, 0.1, 0.1]}])
    env.reset(seed=0)
    model = env.unwrapped.physics.model
    index = model.name2id("grid", "texture")
    size = 3 * model.tex_height[index] * model.tex_width[index]
    texels = model.tex_data[model.tex_adr[index] : model.tex_adr[index] + size].reshape(-1, 3)
    mean = texels.mean(axis=0)
    assert mean[0] > 3 * mean[1] and mean[0] > 3 * mean[2]
