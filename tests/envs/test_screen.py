"""DMControl-GB2's video screen: a textured box in the scene, and nothing in the physics."""

import numpy as np
import pytest
from test_env_interface import assert_same, roll
from test_env_state import json_round_trip

from softaug.envs.dmc import _load
from softaug.envs.modes import GB2_MODES
from softaug.envs.screen import NAME, PLACES, Screen
from softaug.envs.state import model_arrays
from softaug.media import video_source

SMALL = {"image_size": 32, "render": "fast"}
SCREENS = [mode.name for mode in GB2_MODES if mode.screen]


def image(observation):
    return observation[-3:].transpose(1, 2, 0).astype(int)


def test_the_screen_shows_the_video_upright(make):
    """The camera of cartpole looks straight at it; the light makes it darker or brighter, not another image."""
    env = make("cartpole_swingup", "screen_video_hard", image_size=64)
    shown = image(env.reset(seed=0, options={"episode": 4})[0])  # a mosaic, unlike its mirror image
    half = PLACES["cartpole"].half_size
    physics = env.unwrapped.physics
    eye, fovy = physics.data.cam_xpos[0], np.radians(physics.model.cam_fovy[0])
    seen = np.tan(fovy / 2) * (0.5 - 0.1 - eye[1])  # half the height of what is seen at the screen's front
    share, middle = seen / half, (1.0 - eye[2]) / half
    frame = env.unwrapped._effect._video.frame(0).astype(float)
    texel = np.linspace(-share, share, 64)
    columns = np.clip((texel + 1) / 2 * 255, 0, 255).astype(int)
    rows = np.clip((texel + middle + 1) / 2 * 255, 0, 255).astype(int)
    expected = frame[rows][:, columns]
    away = np.r_[0:20, 44:64]  # rows above and below cart, rail and pole

    def correlation(other):
        return np.corrcoef(shown[away].mean(2).ravel(), other[away].mean(2).ravel())[0, 1]

    assert correlation(expected) > 0.95
    assert max(correlation(expected[::-1]), correlation(expected[:, ::-1])) < 0.5


def test_the_video_advances_by_one_frame_a_decision_and_loops(make):
    env = make("cartpole_swingup", "screen_video_easy", 3)
    _, info = env.reset(seed=0)
    source = video_source("easy")
    index = (np.random.RandomState(3).randint(100) + 1) % 10
    assert info["video"] == source.name(index) and info["media"] == "procedural"
    video = source.open(index, 256, 256)
    model = env.unwrapped.physics.model
    start = model.tex_adr[model.name2id(NAME, "texture")]
    for position in range(3):
        texels = model.tex_data[start : start + 256 * 256 * 3]
        np.testing.assert_array_equal(texels, video.frame(position).ravel())
        env.step(np.zeros(1, np.float32))
    state = env.get_state()
    state["effect"]["position"] = len(video) - 1
    env.set_state(state)
    env.step(np.zeros(1, np.float32))
    np.testing.assert_array_equal(model.tex_data[start : start + 256 * 256 * 3], video.frame(0).ravel())


def test_hundred_episodes_show_every_video_and_color_in_order(make):
    env = make("cartpole_swingup", "screen_color_video_hard", 5, image_size=16)
    infos = [env.reset(seed=50 + e, options={"episode": e})[1] for e in (0, 1, 2, 99, 100)]
    first = np.random.RandomState(5).randint(100)
    source = video_source("hard")
    settings = env.unwrapped._colors
    for episode, info in zip((0, 1, 2, 99, 100), infos, strict=True):
        assert info["video"] == source.name(first + 1 + episode)
        assert_same(info["color"], settings[(first + episode) % 100])


def test_only_screen_video_hard_hides_the_floor(make):
    for mode in SCREENS:
        env = make("walker_walk", mode)
        env.reset(seed=0)
        alpha = env.unwrapped.physics.named.model.mat_rgba["grid", "a"]
        assert alpha == (0.0 if mode == "screen_video_hard" else 1.0)


@pytest.mark.parametrize("task", ["walker_walk", "cheetah_run"])
def test_the_screen_follows_the_torso(make, task):
    env = make(task, "screen_video_easy")
    roll(env, 4, seed=0)
    inner = env.unwrapped
    _, position, _ = inner._effect._pose(inner.physics)
    place = PLACES[task.split("_")[0]]
    torso = inner.physics.named.data.subtree_com["torso"]
    np.testing.assert_allclose(position[[0, 2]] - torso[[0, 2]], place.follows)
    assert position[1] == place.position[1]


@pytest.mark.parametrize(
    "task",
    ["walker_walk", "cheetah_run", "finger_turn_hard", "ball_in_cup_catch", "quadruped_escape", "robot_push"],
)
def test_same_physics_and_reward_as_train(make, task):
    plain = make(task, action_repeat=2)
    first = roll(plain, 3, seed=5)
    for mode in SCREENS:
        env = make(task, mode, action_repeat=2)
        other = roll(env, 3, seed=5)
        assert [step[1] for step in first[1:]] == [step[1] for step in other[1:]]
        np.testing.assert_array_equal(plain.unwrapped.physics.get_state(), env.unwrapped.physics.get_state())
        assert (first[-1][0] != other[-1][0]).any()


def test_the_model_gains_a_texture_and_a_material_alone():
    plain, more = _load("walker", "walk", 0), _load("walker", "walk", 0, Screen.assets)
    models = plain.physics.model, more.physics.model
    assert [model.ntex for model in models] == [2, 3] and models[1].nmat == models[0].nmat + 1
    arrays = [model_arrays(model.ptr) for model in models]
    for name, array in arrays[0].items():
        if not name.startswith("mat_"):
            np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    # The next environment has nothing of it.
    assert _load("walker", "walk", 0).physics.model.ntex == 2


@pytest.mark.parametrize("mode", SCREENS)
def test_restore_in_the_middle_of_an_episode(make, mode):
    original = make("walker_walk", mode, 2)
    roll(original, 2)
    state = json_round_trip(original.get_state())
    action = np.ones(6, np.float32)
    expected = [original.step(action), original.reset(), original.step(action)]
    for env in (make("walker_walk", mode, 2), original):
        env.set_state(state)
        assert_same([env.step(action), env.reset(), env.step(action)], expected)


def test_nothing_stays_for_the_next_environment(make):
    before = roll(make("walker_walk"), 2, seed=1)
    roll(make("walker_walk", "screen_video_hard"), 2, seed=1)
    assert_same(before, roll(make("walker_walk"), 2, seed=1))
