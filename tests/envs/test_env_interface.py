"""The environment as Gymnasium users meet it: spaces, episodes, seeds, mistakes."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from softaug import envs
from softaug.envs import MODE_NAMES, PAPER_TASKS, SUITE_TASKS, Mode, make_env
from softaug.errors import UserError

SMALL = {"image_size": 24, "render": "fast"}


def roll(env, decisions, seed=None):
    """Observations, rewards, ends and infos of a reset and some random decisions."""
    rng = np.random.default_rng(99)
    trace = [env.reset(seed=seed)]
    for _ in range(decisions):
        trace.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)))
    return trace


def assert_same(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, np.ndarray):
        np.testing.assert_array_equal(first, second)
    else:
        assert first == second


# Gymnasium


@pytest.mark.parametrize("mode", ["train", "color_hard", "video_hard", "color_random"])
def test_environment_checker(mode):
    envs.register()
    env = gymnasium.make(f"softaug/cartpole_swingup-{mode}-v0", **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)  # single frames
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version")
        check_env(env, skip_render_check=True)  # stacks
    env.close()


def test_registration_covers_tasks_and_modes_and_may_be_repeated():
    envs.register()
    envs.register()
    for task in SUITE_TASKS:
        for mode in MODE_NAMES:
            assert f"softaug/{task}-{mode}-v0" in gymnasium.registry


def test_gymnasium_make_gives_the_same(make):
    envs.register()
    env = gymnasium.make("softaug/walker_walk-video_hard-v0", **SMALL)
    assert_same(roll(env, 2, seed=4), roll(make("walker_walk", "video_hard"), 2, seed=4))
    assert env.render().shape == (24, 24, 3)
    env.close()


def test_importing_and_registering_leave_mujoco_alone():
    code = (
        "import sys, softaug.envs; softaug.envs.register(); softaug.envs.action_repeat('walker_walk');"
        "sys.exit(any(name in sys.modules for name in ('mujoco', 'dm_control', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments(make, vector):
    def factory(mode):
        return lambda: make_env("cartpole_swingup", mode, **SMALL)

    # The workers of an AsyncVectorEnv may not be forked from a process that has rendered, as this one has.
    options = {"context": "forkserver"} if vector is AsyncVectorEnv else {}
    modes = ["video_easy", "color_easy"]
    together = vector([factory(mode) for mode in modes], **options)
    observations, _ = together.reset(seed=[3, 4])
    stepped = together.step(np.full((2, 1), 0.5, np.float32))[0]
    together.close()
    for i, mode in enumerate(modes):
        alone = make("cartpole_swingup", mode)
        np.testing.assert_array_equal(observations[i], alone.reset(seed=3 + i)[0])
        np.testing.assert_array_equal(stepped[i], alone.step(np.array([0.5], np.float32))[0])


FORK_SCRIPT = """
import multiprocessing, sys
from softaug.envs import make_env
from softaug.errors import UserError

def work(queue):
    try:
        queue.put(make_env("cartpole_swingup", image_size=24).reset()[0].shape)
    except UserError as error:
        queue.put(str(error))

env = make_env("cartpole_swingup", image_size=24)
if sys.argv[1] == "rendered":
    env.reset()
context = multiprocessing.get_context("fork")
queue = context.Queue()
worker = context.Process(target=work, args=(queue,))
worker.start()
print(queue.get(timeout=60))
worker.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.parametrize(("parent", "expected"), [("made", "(9, 24, 24)"), ("rendered", "spawn")])
def test_fork(parent, expected):
    """A fork before the first frame works; after it, a clear sentence instead of a worker that hangs."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK_SCRIPT, parent],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert expected in done.stdout, done.stderr


# Observations and episodes


def test_spaces_and_frame_stack(make):
    env = make("walker_walk", frame_stack=4)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (12, 24, 24), np.uint8)
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    first = env.reset(seed=1)[0]
    for i in range(4):
        np.testing.assert_array_equal(first[3 * i : 3 * i + 3], first[:3])
    second = env.step(np.ones(6, np.float32))[0]
    third = env.step(-np.ones(6, np.float32))[0]
    np.testing.assert_array_equal(second[:9], first[3:])
    np.testing.assert_array_equal(third[:9], second[3:])
    assert (second[9:] != first[9:]).any() and (third[9:] != second[9:]).any()
    np.testing.assert_array_equal(env.render(), third[9:].transpose(1, 2, 0))


def test_returned_observations_are_the_callers(make):
    env = make("cartpole_swingup")
    first = env.reset(seed=0)[0]
    kept = first.copy()
    env.step(np.ones(1, np.float32))
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    assert env.step(np.ones(1, np.float32))[0].any()


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[] if task == "cartpole_swingup" else pytest.mark.slow)
        for task in PAPER_TASKS
    ],
)
def test_time_limit_is_a_truncation(make, task):
    env = make(task, action_repeat=100 if task != "cartpole_swingup" else 300)
    assert env.unwrapped.action_repeat == (300 if task == "cartpole_swingup" else 100)
    env.reset(seed=0)
    frames = []
    while True:
        _, _, terminated, truncated, info = env.step(np.zeros(env.action_space.shape, np.float32))
        frames.append(info["frames"])
        assert not terminated
        if truncated:
            break
    assert sum(frames) == 1000
    assert len(frames) == env.unwrapped.episode_decisions
    # 1000 = 3 * 300 + 100: the last decision is cut short.
    assert frames == ([300, 300, 300, 100] if task == "cartpole_swingup" else [100] * 10)
    with pytest.raises(UserError, match="reset"):
        env.step(np.zeros(env.action_space.shape, np.float32))
    env.reset()
    env.step(np.zeros(env.action_space.shape, np.float32))


def test_termination_is_discount_zero(make, monkeypatch):
    env = make("cartpole_swingup", action_repeat=5)
    env.reset(seed=0)
    calls = []
    monkeypatch.setattr(
        env.unwrapped._env.task,
        "get_termination",
        lambda physics: calls.append(1) or (0.0 if len(calls) == 3 else None),
    )
    _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert terminated and not truncated and info["frames"] == 3


@pytest.mark.parametrize(
    ("task", "repeat"),
    [
        ("cartpole_swingup", 8),
        ("finger_spin", 2),
        ("walker_walk", 4),
        ("ball_in_cup_catch", 4),
        ("reacher_easy", 4),
    ],
)
def test_action_repeat(make, task, repeat):
    assert envs.action_repeat(task) == repeat
    env = make(task)
    env.reset(seed=0)
    before = env.unwrapped.physics.time()
    assert env.step(env.action_space.sample())[4]["frames"] == repeat
    elapsed = env.unwrapped.physics.time() - before
    assert elapsed == pytest.approx(repeat * env.unwrapped._env.control_timestep())


def test_suite_tasks_are_dm_controls():
    from dm_control import suite

    assert {f"{domain}_{task}" for domain, task in suite.ALL_TASKS} == set(SUITE_TASKS)


def test_task_with_other_action_range(make):
    """quadruped's motors reach from -1 to 1.1: -1 and 1 are mapped to the ends."""
    env = make("quadruped_walk")
    spec = env.unwrapped._env.action_spec()
    np.testing.assert_allclose(env.unwrapped.actions.control(np.ones(12)), spec.maximum)
    np.testing.assert_allclose(env.unwrapped.actions.control(-np.ones(12)), spec.minimum)


# Seeds


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_same_seed_same_episode(make, mode):
    first, second = make("cartpole_swingup", mode, 7), make("cartpole_swingup", mode, 7)
    trace = roll(first, 4) + roll(first, 1)
    assert_same(trace, roll(second, 4) + roll(second, 1))
    assert_same(trace, roll(first, 4, seed=7) + roll(first, 1))
    assert (roll(first, 0, seed=8)[0][0] != trace[0][0]).any()


@pytest.mark.parametrize("mode", ["train", "color_random", "video_easy"])
def test_environments_are_independent(make, mode):
    expected = roll(make("finger_spin", mode, 1), 4) + roll(make("finger_spin", mode, 2), 2)
    first, second = make("finger_spin", mode, 1), make("finger_spin", mode, 2)
    np.random.seed(0)  # noqa: NPY002 - the global generator must have no influence
    first.reset()
    interleaved = second.reset()
    rng = np.random.default_rng(99)
    trace = []
    for decision in range(4):
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        trace.append(first.step(action))
        if decision < 2:
            second.step(action)
        np.random.seed(decision)  # noqa: NPY002
        second.render()
    assert_same(trace, expected[1:5])
    assert_same(interleaved, expected[5])


def test_global_generator_is_untouched(make):
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    roll(make("cartpole_swingup", "color_random"), 2)
    np.testing.assert_array_equal(before, np.random.get_state(legacy=False)["state"]["key"])  # noqa: NPY002


def test_task_draws_are_dm_controls(make):
    from dm_control import suite

    reference = suite.load("walker", "walk", task_kwargs={"random": 12})
    env = make("walker_walk", "color_hard", 12)
    for _ in range(2):
        env.reset()
        reference.reset()
        np.testing.assert_array_equal(env.unwrapped.physics.state(), reference.physics.state())


# Modes


def test_info_and_video_order(make):
    env = make("cartpole_swingup", "video_easy")
    names = [env.reset()[1] for _ in range(11)]
    assert [info["episode"] for info in names] == list(range(11))
    videos = [info["video"] for info in names]
    assert len(set(videos)) == 10 and videos[10] == videos[0]
    assert names[0]["media"] == "procedural"
    assert env.reset(options={"episode": 23})[1]["video"] == videos[3]
    assert env.reset()[1]["video"] == videos[4]
    assert env.reset(seed=0)[1]["video"] == videos[0]
    assert env.reset(seed=0, options={"episode": 2})[1]["video"] == videos[2]


def test_video_advances_by_one_frame_a_decision(make):
    from softaug.media import video_source

    env = make("cartpole_swingup", "video_hard", image_size=32)
    video = video_source("hard").open(0, 32, 32)
    observation = env.reset(seed=0)[0]
    for position in range(4):
        background = observation[-3:, 0, :]  # the sky's first row shows the video and nothing else
        np.testing.assert_array_equal(background.T, video.frame(position)[0])
        observation = env.step(np.zeros(1, np.float32))[0]


def test_train_info_names_no_media(make):
    assert make("cartpole_swingup").reset()[1] == {"episode": 0}


def test_sources_a_mode_has_no_use_for_are_ignored(make):
    obs, _ = make("cartpole_swingup", "train", videos="/nonexistent", colors="/nonexistent").reset(seed=0)
    np.testing.assert_array_equal(obs, make("cartpole_swingup", "train").reset(seed=0)[0])


def test_modes_are_values():
    assert Mode.parse("video_hard") == Mode("video", "hard", "test")
    assert Mode.parse(Mode.parse("color_random")).split == "train"
    assert [Mode.parse(name).name for name in MODE_NAMES] == list(MODE_NAMES)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("walker_fly",), {}, "unknown task 'walker_fly'.*walker_walk"),
        ((None,), {}, "unknown task None"),
        (("walker_walk", "video"), {}, "unknown mode 'video'.*color_easy"),
        (("walker_walk", "train", -1), {}, "seed must be a whole number"),
        (("walker_walk", "train", 1.5), {}, "seed must be a whole number"),
        (("walker_walk",), {"image_size": 8}, "image_size must be a whole number from 16"),
        (("walker_walk",), {"image_size": 100.0}, "image_size must be a whole number"),
        (("walker_walk",), {"frame_stack": 0}, "frame_stack must be"),
        (("walker_walk",), {"action_repeat": 0}, "action_repeat must be"),
        (("walker_walk",), {"render": "best"}, "unknown render setting 'best'.*exact, fast"),
        (("walker_walk",), {"render_mode": "human"}, "render_mode"),
        (("walker_walk", "color_easy"), {"colors": []}, "colors= is empty"),
        (("walker_walk", "color_easy"), {"colors": [{"sky": [0, 0, 0]}]}, "unknown key 'sky'.*skybox_rgb"),
        (("walker_walk", "color_easy"), {"colors": [{"self_rgb": [0, 0]}]}, "self_rgb must be three numbers"),
        (("walker_walk", "color_easy"), {"colors": [{"self_rgb": [0, 2, 0]}]}, "between 0 and 1"),
        (("walker_walk", "color_easy"), {"colors": [{"self_rgb": "red"}]}, "self_rgb must be three numbers"),
        (("walker_walk", "color_easy"), {"colors": "/nonexistent.pt"}, "nonexistent"),
        (("walker_walk", "video_easy"), {"videos": "/nonexistent"}, "nonexistent"),
    ],
)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(UserError, match=message):
        make_env(*arguments, **options)


def test_bad_actions(make):
    env = make("walker_walk")
    with pytest.raises(UserError, match="reset"):
        env.step(np.zeros(6))
    env.reset(seed=0)
    with pytest.raises(UserError, match=r"shape \(5,\).*\(6,\)"):
        env.step(np.zeros(5))
    with pytest.raises(UserError, match="NaN"):
        env.step(np.array([0, 0, np.nan, 0, 0, 0]))
    # The refused actions changed nothing, and values outside [-1, 1] are clipped.
    clipped = env.step(np.array([5, -5, 0, 0, 0, np.inf]))
    env.reset(seed=0)
    assert_same(clipped, env.step(np.array([1, -1, 0, 0, 0, 1])))


def test_bad_reset(make):
    env = make("walker_walk")
    with pytest.raises(UserError, match="seed"):
        env.reset(seed=-1)
    with pytest.raises(UserError, match="episode"):
        env.reset(options={"episode": "first"})


def test_close_twice_then_use(make):
    env = make("cartpole_swingup")
    env.reset()
    env.close()
    env.close()
    with pytest.raises(UserError, match="closed"):
        env.reset()
