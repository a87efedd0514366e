"""Images equal those of the edited, recompiled XML rendered with dm_control, pixel by pixel.

Both have the floor where the benchmark had it (`test_golden_images.py`)."""

import os
from pathlib import Path

import numpy as np
import pytest
from xml_reference import naive_chroma_key, reference_env, to_hwc

from softaug.envs import PAPER_TASKS, make_env
from softaug.envs.color import color_settings
from softaug.envs.modes import Mode
from softaug.envs.state import model_arrays
from softaug.media import video_source

DATA = Path(os.environ.get("SOFTAUG_TEST_DATA", Path(__file__).parents[3] / "shared/data/dmcgb"))
# One task in the quick run, all five in the whole one.
EACH_TASK = [
    pytest.param(task, marks=[] if task == "cartpole_swingup" else pytest.mark.slow) for task in PAPER_TASKS
]
SEED = 11
DECISIONS = 3


def actions_for(environment):
    rng = np.random.default_rng(SEED)
    return [rng.uniform(-1, 1, environment.action_space.shape).astype(np.float32) for _ in range(DECISIONS)]


def assert_same_model(ours, theirs):
    """Every array of the model in place of recompiling: textures, materials and all the rest."""
    ours, theirs = ours.model.ptr, theirs.model.ptr
    np.testing.assert_array_equal(ours.tex_data, theirs.tex_data)
    expected = model_arrays(theirs)
    for name, array in model_arrays(ours).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def assert_follows(env, reference, key_frame):
    """Both from their reset on, frame by frame. key_frame(frame, decision) -> what the agent should see."""
    observation = env.reset(seed=SEED)[0]
    reference.reset()
    frames = [key_frame(reference.physics.render(100, 100, camera_id=0), 0)]
    np.testing.assert_array_equal(to_hwc(observation[-3:]), frames[0])
    for decision, action in enumerate(actions_for(env), start=1):
        observation, reward, *_ = env.step(action)
        expected_reward = sum(reference.step(action).reward for _ in range(env.unwrapped.action_repeat))
        frames.append(key_frame(reference.physics.render(100, 100, camera_id=0), decision))
        np.testing.assert_array_equal(to_hwc(observation[-3:]), frames[-1], err_msg=f"decision {decision}")
        assert reward == pytest.approx(expected_reward, abs=0)
    assert any((frame != frames[0]).any() for frame in frames[1:])
    assert_same_model(env.unwrapped.physics, reference.physics)


@pytest.mark.parametrize("task", EACH_TASK)
def test_train(task):
    env, reference = make_env(task, "train"), reference_env(task, SEED)
    assert_follows(env, reference, lambda frame, decision: frame.copy())
    env.close()


@pytest.mark.parametrize("mode", ["color_easy", "color_hard"])
@pytest.mark.parametrize("task", EACH_TASK)
def test_color(task, mode):
    env = make_env(task, mode)
    env.reset(seed=3)  # another setting first: nothing of it may stay
    env.reset()
    color = env.reset(seed=SEED)[1]["color"]
    reference = reference_env(task, SEED, color=color)
    assert_follows(env, reference, lambda frame, decision: frame.copy())
    settings, _ = color_settings(Mode.parse(mode))
    assert any(all(np.array_equal(color[key], setting[key]) for key in color) for setting in settings)
    env.close()


def test_random_color():
    env = make_env("finger_spin", "color_random")
    color = env.reset(seed=SEED)[1]["color"]
    reference = reference_env("finger_spin", SEED, color=color)
    assert_follows(env, reference, lambda frame, decision: frame.copy())
    env.close()


@pytest.mark.parametrize("mode", ["video_easy", "video_hard"])
@pytest.mark.parametrize("task", EACH_TASK)
def test_video(task, mode):
    env = make_env(task, mode)
    reference = reference_env(task, SEED, green_sky=True, green_floor=mode == "video_hard")
    video = video_source(mode.removeprefix("video_")).open(0, 100, 100)
    assert_follows(env, reference, lambda frame, decision: naive_chroma_key(frame, video.frame(decision)))
    env.close()


@pytest.mark.skipif(not (DATA / "video_easy").is_dir(), reason="official DMControl-GB files not present")
def test_official_video_on_real_frames():
    """Decoded video behind the walker, from the file's frames resized to the observation."""
    env = make_env("walker_walk", "video_easy", videos=DATA)
    info = env.reset(seed=SEED)[1]
    assert info["media"] == "official" and info["video"].endswith("video0.mp4")
    reference = reference_env("walker_walk", SEED, green_sky=True)
    video = video_source("easy", DATA).open(0, 100, 100)
    assert_follows(env, reference, lambda frame, decision: naive_chroma_key(frame, video.frame(decision)))
    env.close()


def test_partial_setting_leaves_the_rest_alone():
    settings = [{"self_rgb": [0.9, 0.1, 0.2]}, {"skybox_rgb": [0.1, 0.1, 0.9], "grid_rgb1": [0.5, 0.5, 0.5]}]
    env = make_env("walker_walk", "color_hard", colors=settings, image_size=32)
    seen = set()
    for seed in range(8):
        color = env.reset(seed=seed)[1]["color"]
        seen.add(tuple(color))
        reference = reference_env("walker_walk", seed, color=color)
        assert_same_model(env.unwrapped.physics, reference.physics)
        if len(seen) == 2:
            break
    assert len(seen) == 2
    env.close()


@pytest.mark.parametrize("size", [84, 500])
def test_other_image_sizes(size):
    """Also larger than dm_control's framebuffer is high (480)."""
    env, reference = make_env("cartpole_swingup", image_size=size), reference_env("cartpole_swingup", SEED)
    observation = env.reset(seed=SEED)[0]
    reference.reset()
    reference.physics.model.vis.global_.offheight = 600
    expected = reference.physics.render(size, size, camera_id=0)
    np.testing.assert_array_equal(to_hwc(observation[-3:]), expected)
    env.close()


def test_fast_rendering_is_close():
    exact, fast = make_env("walker_walk"), make_env("walker_walk", render="fast")
    difference = exact.reset(seed=1)[0].astype(int) - fast.reset(seed=1)[0]
    assert 0 < np.abs(difference).mean() < 0.2
    exact.close(), fast.close()


def test_coarse_rendering_has_fewer_triangles_and_nearly_the_same_image():
    exact, coarse = make_env("walker_walk"), make_env("walker_walk", render="coarse")
    difference = np.abs(exact.reset(seed=1)[0].astype(int) - coarse.reset(seed=1)[0])
    assert 0 < difference.mean() < 0.6
    assert (difference > 8).mean() < 0.02  # at the edges of round bodies
    qualities = [env.unwrapped.physics.model.vis.quality for env in (exact, coarse)]
    exact_triangles, coarse_triangles = (quality.numslices * quality.numstacks for quality in qualities)
    assert coarse_triangles < 0.3 * exact_triangles
    exact.close(), coarse.close()


def test_aliased_rendering_differs_at_edges_only():
    """Without multisampling a pixel is either body or floor: inside of areas it is the exact one."""
    exact, aliased = make_env("cartpole_swingup"), make_env("cartpole_swingup", render="aliased")
    difference = np.abs(exact.reset(seed=1)[0][-3:].astype(int) - aliased.reset(seed=1)[0][-3:]).max(axis=0)
    assert 0.005 < (difference > 8).mean() < 0.1
    assert np.median(difference) <= 1
    exact.close(), aliased.close()


def test_a_texture_that_differs_from_the_known_gradient_is_compiled(monkeypatch):
    """Should another MuJoCo build its gradient otherwise, the compiler is used and images stay exact."""
    from softaug.envs import appearance

    monkeypatch.setattr(appearance.SkyGradient, "matches", lambda *_: False)
    monkeypatch.setattr(appearance.SkyGradient, "fill", lambda *_: pytest.fail("the gradient was used"))
    env = make_env("walker_walk", "color_hard", image_size=32)
    color = env.reset(seed=2)[1]["color"]
    assert_same_model(env.unwrapped.physics, reference_env("walker_walk", 2, color=color).physics)
    env.close()
