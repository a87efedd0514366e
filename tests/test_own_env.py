"""The user's own environment: images, actions, time limits and ends; runs on it, killed, resumed and exported."""

import dataclasses
import json
import multiprocessing
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import own_fakes
import pytest
import torch
from fakes import tiny_config
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from own_fakes import CornerEnv, RestorableEnv, train_own
from test_resume import assert_same, outcome

import softaug
from softaug import cli
from softaug.config import Config, make_config, read_config
from softaug.envs import adapt, wrap
from softaug.envs.custom.frames import find_frame, resize
from softaug.envs.custom.given import choose
from softaug.envs.custom.loading import load_callable, source_facts, spec_of
from softaug.errors import UserError
from softaug.evaluation.runs import load_policy
from softaug.learning.replay import Replay
from softaug.training import log
from softaug.training.run import train

FORK_SERVER = multiprocessing.get_context("forkserver")


class Shown(gymnasium.Env):
    """Shows what it is told to; the reward is the action's sum; ends as it is told to."""

    def __init__(
        self,
        observation: Any = None,
        space: spaces.Space | None = None,
        *,
        actions: spaces.Space | None = None,
        ends_after: int = 10**9,
        render_mode: str | None = None,
        rendered: Any = None,
    ):
        self.observation = np.zeros((20, 20, 3), np.uint8) if observation is None else observation
        self.observation_space = space or spaces.Box(0, 255, np.shape(self.observation), np.uint8)
        self.action_space = actions or spaces.Box(-1, 1, (2,), np.float32)
        self.ends_after, self.render_mode, self.rendered = ends_after, render_mode, rendered
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
        self.taken: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return self.observation, {}

    def step(self, action):
        self.taken.append(action)
        return self.observation, np.sum(action), len(self.taken) >= self.ends_after, False, {}

    def render(self):
        return self.rendered


def image(height: int = 20, width: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def newest(obs: np.ndarray) -> np.ndarray:
    return obs[-3:].transpose(1, 2, 0)


# Images

RGB = image()
GREY = RGB[:, :, :1]
GREY_RGB = np.repeat(GREY, 3, axis=2)


def box(shape: tuple[int, ...], high: float = 255, dtype: Any = np.uint8, low: float = 0) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("observation", "space", "expected"),
    [
        (RGB, box(RGB.shape), RGB),
        (RGB.transpose(2, 0, 1), box((3, 20, 30)), RGB),
        (GREY, box((20, 30, 1)), GREY_RGB),
        (GREY.transpose(2, 0, 1), box((1, 20, 30)), GREY_RGB),
        (GREY[:, :, 0], box((20, 30)), GREY_RGB),
        (RGB / np.float32(255), box(RGB.shape, 1, np.float32), RGB),
        (RGB.astype(np.float64), box(RGB.shape, 255, np.float64), RGB),
        (
            {"eye": RGB, "joints": np.zeros(4)},
            spaces.Dict(eye=box(RGB.shape), joints=box((4,), 1, float)),
            RGB,
        ),
    ],
)
def test_every_layout_of_an_image_becomes_the_same_rgb(observation, space, expected):
    env = adapt(Shown(observation, space), image_size=20, frame_stack=1, episode_decisions=5)
    obs, _ = env.reset(seed=0)
    assert obs.dtype == np.uint8 and obs.shape == (3, 20, 20)
    assert np.array_equal(env.unwrapped.full_frame, expected)
    assert np.array_equal(newest(obs), resize(expected, 20))


def test_one_of_several_images_is_chosen_by_its_key():
    other = image(seed=1)
    space = spaces.Dict(left=box(RGB.shape), right=box(RGB.shape))
    env = Shown({"left": RGB, "right": other}, space)
    with pytest.raises(UserError, match=r"several images \(left, right\); choose one with image_key"):
        find_frame(env, "", "it")
    assert np.array_equal(find_frame(env, "right", "it").of(env.observation, env), other)
    with pytest.raises(UserError, match="no 'up'; choose one of left, right"):
        find_frame(env, "up", "it")


def test_without_an_image_in_the_observation_it_is_what_is_rendered():
    env = Shown(np.zeros(3), box((3,), 1, float), render_mode="rgb_array", rendered=RGB)
    obs, _ = adapt(env, image_size=16, frame_stack=2, episode_decisions=5).reset()
    assert np.array_equal(obs[:3], obs[3:]) and np.array_equal(newest(obs), resize(RGB, 16))


def test_an_image_is_squeezed_as_a_whole():
    """Also what is at the far edges of a wide image is seen; nothing is cut off."""
    wide = np.zeros((20, 80, 3), np.uint8)
    wide[:, :20], wide[:, -20:] = (200, 0, 0), (0, 0, 200)
    small = resize(wide, 16)
    assert (small[:, :3] == (200, 0, 0)).all() and (small[:, -3:] == (0, 0, 200)).all()
    assert abs(small.mean() - wide.mean()) < 1  # anti-aliased: every pixel counts
    assert resize(small, 16) is small


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Shown(np.zeros(3), box((3,), 1, float)), "no images .*; make it with render_mode='rgb_array'"),
        (Shown(np.zeros((9, 20, 20), np.uint8)), r"shape \(9, 20, 20\).*Frames are stacked by softaug"),
        (Shown(np.zeros((20, 20, 4), np.uint8)), r"3 channels \(RGB\) or 1 \(gray\)"),
        (
            Shown(np.zeros((20, 20, 3)), box((20, 20, 3), 1, float, -1)),
            "float64 from -1 to 1; images must be",
        ),
        (Shown(np.zeros((20, 20, 3)), box((20, 20, 3), np.inf, float)), "from 0 to inf; images must be"),
        (Shown(actions=spaces.Discrete(4)), r"actions Discrete\(4\), but SAC needs continuous ones"),
        (Shown(actions=spaces.Box(0, 5, (2,), np.int64)), "SAC needs continuous ones"),
        (
            Shown(actions=spaces.Box(-np.inf, np.inf, (2,))),
            "action bounds are infinite .*; give them finite ones",
        ),
        (
            Shown({"a": {"eye": RGB}}, spaces.Dict(a=spaces.Dict(eye=box(RGB.shape)))),
            "flatten it to one Dict",
        ),
        (Shown((RGB, 0), spaces.Tuple((box(RGB.shape), spaces.Discrete(2)))), "flatten it to one Dict"),
        (Shown(actions=spaces.Box(-1e10, 1e10, (2,))), "action bounds are infinite"),
        (Shown(), "no time limit; give one with episode_decisions .--episode-decisions N"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_the_reason(env: gymnasium.Env, message: str):
    with pytest.raises(UserError, match=message):
        adapt(env)


@pytest.mark.parametrize("argument", ["image_size", "frame_stack", "action_repeat"])
def test_sizes_begin_at_1(argument: str):
    with pytest.raises(
        UserError, match=rf"{argument} (\(0\) must be at least 1|must be a whole number from 1)"
    ):
        adapt(Shown(), **{"episode_decisions": 5, argument: 0})


def test_what_an_environment_returns_must_be_what_it_says():
    env = adapt(Shown(RGB, box((10, 10, 3))), episode_decisions=5)
    with pytest.raises(UserError, match=r"shape \(20, 30, 3\), but its observation_space says \(10, 10, 3\)"):
        env.reset()
    for wrong, space, message in (
        (RGB / np.float32(255), box(RGB.shape), "image of float32, but its observation_space says uint8"),
        (RGB, box(RGB.shape, 1, np.float32), "image of uint8, but its observation_space says float32"),
        (np.full(RGB.shape, np.nan), box(RGB.shape, 1, float), "NaN or infinite pixels"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(Shown(wrong, space), episode_decisions=5).reset()
    env = adapt(Shown(np.zeros(3), box((3,), 1, float), render_mode="rgb_array"), episode_decisions=5)
    with pytest.raises(UserError, match=r"render\(\) returned <class 'NoneType'> instead of uint8"):
        env.reset()
    env = adapt(Shown(), episode_decisions=5)
    env.reset()
    env.unwrapped.inner.step = lambda action: (
        env.unwrapped.inner.observation,
        float("nan"),
        False,
        False,
        {},
    )
    with pytest.raises(UserError, match="returned the reward nan after 0 decisions"):
        env.step(np.zeros(2, np.float32))


def test_frames_are_stacked_newest_last():
    env = adapt(own_fakes.make_corner(), image_size=18, frame_stack=3)
    obs, info = env.reset(seed=4)
    assert set(info) == {"start"}  # a whole map is no fact for a table
    frames = [resize(env.unwrapped.full_frame, 18)] * 3
    for _ in range(5):
        assert np.array_equal(obs, np.concatenate([frame.transpose(2, 0, 1) for frame in frames[-3:]]))
        obs, *_ = env.step(np.array([0.3, 0.1], np.float32))
        frames.append(resize(env.unwrapped.full_frame, 18))


def test_the_adapted_environment_passes_gymnasiums_checker():
    check_env(adapt(own_fakes.make_corner(), image_size=24), skip_render_check=True)


# Actions, ends


def test_actions_are_mapped_to_the_environments_bounds():
    low, high = (
        np.array([[-2.0, 0.1], [5.0, -1e-3]], np.float32),
        np.array([[2.0, 0.7], [9.0, 1e3]], np.float32),
    )
    inner = Shown(actions=spaces.Box(low, high))
    env = adapt(inner, episode_decisions=10)
    assert env.action_space == spaces.Box(-1, 1, (4,), np.float32)
    env.reset()
    for value, expected in ((-1, low), (1, high), (0, (low + high) / 2), (7, high), (-1.1, low)):
        env.step(np.full(4, value, np.float32))
        assert inner.taken[-1].dtype == np.float32 and inner.action_space.contains(inner.taken[-1])
        np.testing.assert_allclose(inner.taken[-1], expected, rtol=1e-6)
    with pytest.raises(UserError, match=r"shape \(2,\)"):
        env.step(np.zeros(2, np.float32))
    with pytest.raises(UserError, match="NaN"):
        env.step(np.full(4, np.nan, np.float32))


def test_repeated_actions_sum_their_rewards_and_stop_at_the_end():
    env = adapt(Shown(ends_after=5), action_repeat=3, episode_decisions=100)
    env.reset()
    step = np.array([0.5, 0.25], np.float32)
    assert env.step(step)[1:] == (2.25, False, False, {"frames": 3})
    assert env.step(step)[1:] == (1.5, True, False, {"frames": 2})
    with pytest.raises(UserError, match="episode is over"):
        env.step(step)


class Attribute(Shown):
    max_episode_steps = 7


@pytest.mark.parametrize(
    ("inner", "settings", "expected"),
    [
        (lambda: gymnasium.wrappers.TimeLimit(Shown(), 9), {}, 9),
        (lambda: gymnasium.wrappers.TimeLimit(Shown(), 9), {"action_repeat": 2}, 5),
        (lambda: gymnasium.wrappers.TimeLimit(Shown(), 9), {"episode_decisions": 4}, 4),
        (lambda: gymnasium.wrappers.TimeLimit(Shown(), 9), {"episode_decisions": 40}, 9),
        (Attribute, {}, 7),  # it only says so; that it is kept is seen to here
    ],
)
def test_a_time_limit_truncates_and_does_not_terminate(inner, settings: dict, expected: int):
    env = adapt(inner(), image_size=16, **settings)
    assert env.unwrapped.episode_decisions == expected
    env.reset(seed=0)
    ends = [env.step(np.zeros(env.action_space.shape, np.float32))[2:4] for _ in range(expected)]
    assert ends == [(False, False)] * (expected - 1) + [(False, True)]
    env.close()


# State


def test_state_goes_on_exactly_in_another_environment():
    def play(env, actions):
        return [env.step(action)[:4] for action in actions]

    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (30, 2)).astype(np.float32)

    def make():
        return adapt(wrap(own_fakes.make_restorable(), "video_easy", chroma=(40, 40, 40)), image_size=18)

    env = make()
    env.reset(seed=5)
    play(env, actions[:4])
    state = env.get_state()
    assert json.dumps(state, default=lambda array: array.tolist())
    other = make()
    other.set_state(state)
    for left, right in zip(play(env, actions[4:15]), play(other, actions[4:15]), strict=True):
        assert np.array_equal(left[0], right[0]) and left[1:] == right[1:]
    assert left[3], "the time limit of 15 is counted from the episode's start"
    left, right = env.reset()[0], other.reset()[0]  # the next episode too
    assert np.array_equal(left, right)


def test_without_the_two_methods_there_is_no_state():
    class MujocoLike(CornerEnv):
        def get_state(self):
            return {}

        def set_state(self, qpos, qvel):
            """Another method of the same name, as Gymnasium's MuJoCo environments have."""

    for inner in (CornerEnv(), MujocoLike()):
        env = adapt(inner, image_size=16, episode_decisions=5)
        env.reset(seed=0)
        assert env.get_state() is None


def test_a_state_that_no_checkpoint_can_hold_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RestorableEnv, "get_state", lambda self: {"deep": [1, {"er": object()}]})
    env = adapt(own_fakes.make_restorable(), image_size=16)
    env.reset(seed=0)
    with pytest.raises(
        UserError, match=r"get_state\(\)\['deep'\]\[1\]\['er'\] is a object; a state may hold"
    ):
        env.get_state()


# Names


def test_a_function_and_its_name():
    assert spec_of(own_fakes.make_corner) == "own_fakes:make_corner"
    assert load_callable("own_fakes:make_corner") is own_fakes.make_corner
    assert load_callable("own_fakes:CornerEnv") is CornerEnv
    assert spec_of(lambda: None).endswith(":<lambda>") and spec_of(Shown()).endswith(":<Shown>")
    with pytest.raises(UserError, match="cannot be imported by name; give it again"):
        load_callable("own_fakes:<lambda>")


def test_an_edited_module_is_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("edited_env.py").write_text("def make(): ...\n")
    before = source_facts("edited_env:make")
    assert before == source_facts("edited_env:make") and len(before["module_sha256"]) == 64
    Path("edited_env.py").write_text("def make(): pass\n")
    assert source_facts("edited_env:make") != before
    assert "edited_env" not in sys.modules  # found, not run
    assert source_facts("nowhere.at_all:make") == {"kind": "own", "env": "nowhere.at_all:make"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "no_such_module:make"], "there is no module 'no_such_module'.*run this in the directory"),
        (["--env", "own_fakes:make_corne"], "own_fakes has no 'make_corne'; its functions are .*make_corner"),
        (["--env", "own_fakes:HEIGHT"], "own_fakes:HEIGHT is no function, but 18"),
        (["--env", "own_fakes:not_an_environment"], r"returned builtins\.object, which is no gymnasium\.Env"),
        (["--env", "own_fakes"], "--env own_fakes is not of the form module:callable"),
        (["--env", "own_fakes:make_corner", "--task", "walker_walk"], "--task and --env exclude each other"),
        (["--env", "own fakes:make"], "'own fakes:make' is not an environment; give module:callable"),
        (["--env", "own_fakes:make_corner", "--eval-modes", "color_hard"], "no mode 'color_hard', only train; add one"),
        (["--env", "own_fakes:make_corner", "--test-env", "train=a:b"], "train, train are not all different"),
        (["--env", "own_fakes:make_corner", "--test-env", "a/b=a:b"], "cannot be called 'a/b'"),
        (["--env", "own_fakes:make_corner", "--image-key", "position"], "'position' is no image"),
        (["--env", "own_fakes:make_corner", "--method", "sac_dr"], "sac_dr trains in random colors"),
        (["--task", "walker_walk", "--test-env", "a:b"], "test_env is for your own environment"),
    ],
)  # fmt: skip
def test_a_wrong_command_says_what_is_wrong_and_begins_nothing(tmp_path: Path, capsys, flags, message: str):
    small = ["--preset", "small", "--no-env-process", "--out", str(tmp_path / "run")]
    assert cli.main(["train", *small, *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)
    assert not (tmp_path / "run").exists()


def test_the_config_of_an_own_environment():
    config = make_config("my_robot:make", "soda", "small", test_env=("my_robot:dark", "wet=my_robot:wet"))
    assert config.own_modes == {"train": "my_robot:make", "test": "my_robot:dark", "wet": "my_robot:wet"}
    assert config.eval_modes == ("train", "test", "wet")
    assert Config.from_json(config.to_json()) == config


def test_a_config_written_before_own_environments_still_reads():
    values = make_config("walker_walk", "soda").to_json()
    for name in ("test_env", "image_key", "episode_decisions"):
        del values[name]
    assert Config.from_json(values) == make_config("walker_walk", "soda")


# Runs


def own_config(**overrides: Any) -> Config:
    values = {
        "task": "own_fakes:make_corner",
        "test_env": ("dark=own_fakes:make_dark",),
        "eval_modes": ("train", "dark"),
        "decisions": 130,
        "random_decisions": 40,
        "initial_updates": 5,
        "eval_every": 0,
        "eval_episodes": 1,
        "checkpoint_every": 25,
        "replay_capacity": 70,
    }
    return tiny_config(**{**values, **overrides})


def in_process(config: Config, out: Path, **options: Any) -> int:
    process = FORK_SERVER.Process(target=train_own, args=(config, out), kwargs=options)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def read_replay(config: Config, out: Path, **sizes: Any) -> dict[str, np.ndarray]:
    names = {"rewards": np.float32, "terminated": np.bool_, "last": np.bool_, "starts": np.int64}
    return {name: np.fromfile(out / "replay" / f"{name}.bin", kind) for name, kind in names.items()}


def test_an_end_is_stored_and_never_bootstrapped(tmp_path: Path):
    """dm_control's tasks only ever stop at a time limit; here the replay must tell ends and limits apart."""
    config = own_config(decisions=150, replay_capacity=1000, discount=0.9, eval_modes=("train",))
    train(config, tmp_path / "run", quiet=True, keep_replay=True)
    arrays = read_replay(config, tmp_path / "run")
    episodes = log.read_metrics(tmp_path / "run" / "metrics.jsonl", "episode")
    assert episodes and {e["length"] for e in episodes} & set(range(1, 15)), "some episodes end early"
    slot = 0
    for episode in episodes:  # the environment pays 1 a decision, and 0 for the one that ends the episode
        length = episode["length"]
        rewards = arrays["rewards"][slot : slot + length]
        really = rewards[-1] == 0
        assert np.array_equal(arrays["terminated"][slot : slot + length], [False] * (length - 1) + [really])
        assert really or length == 15
        slot += length + 1

    replay = Replay(
        None, capacity=60, slack=0, episode_decisions=5, frame_shape=(4, 4, 3), frame_stack=1, action_dim=1, discount=0.9
    )  # fmt: skip
    for terminated in (True, False):
        replay.begin_episode(np.zeros((4, 4, 3), np.uint8))
        for step in range(2):
            replay.add(np.zeros(1), 1.0, terminated and step == 1, np.zeros((4, 4, 3), np.uint8))
    batch = replay.sample(200, np.random.default_rng(0), n_step=2)
    returns = sorted(
        {(round(float(r), 3), round(float(d), 3)) for r, d in zip(batch.reward, batch.discount, strict=True)}
    )
    # From the first step: an end is worth 1.9 and nothing more, a limit 1.9 and 0.81 times what would follow.
    assert returns == [(1.0, 0.0), (1.0, 0.9), (1.9, 0.0), (1.9, 0.81)]

    from tiny import tiny_agent

    agent = tiny_agent("sac")
    view = torch.randint(0, 256, (4, 6, 12, 12), dtype=torch.uint8)
    reward, discount = torch.ones(4, 1), torch.tensor([[0.0], [0.9], [0.0], [0.9]])
    target = agent.sac.bellman_target(view, reward, discount, agent.generator)
    assert torch.equal(target[::2], reward[::2]) and not torch.isclose(target[1::2], reward[1::2]).any()


def test_killed_and_resumed_with_state_the_run_is_the_same(tmp_path: Path):
    """Episodes of every length, and a replay that comes round."""
    config = own_config(task="own_fakes:make_restorable")
    train(config, tmp_path / "whole", quiet=True)
    killed = {"kill_in": "softaug.learning.agent.Agent.update", "kill_call": 60}
    assert in_process(config, tmp_path / "run", **killed) == -signal.SIGKILL
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_killed_and_resumed_without_state_a_new_episode_begins(tmp_path: Path, capsys):
    config = own_config()
    assert (
        in_process(config, tmp_path / "run", kill_in="softaug.learning.agent.Agent.update", kill_call=50)
        == -signal.SIGKILL
    )
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    result = train(config, tmp_path / "run", resume=True, keep_replay=True)
    assert "cannot save its state" in capsys.readouterr().err
    assert result.finished and result.decisions == 130
    arrays = read_replay(config, tmp_path / "run")
    # Where an episode begins, the slot before it has no transition: nothing leads from the old one to the new.
    slots = len(arrays["starts"])
    for start in set(arrays["starts"].tolist()) - {0}:
        if (start % slots) and arrays["starts"][start % slots] == start:
            assert arrays["last"][start % slots - 1]
    train(config, tmp_path / "again", resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run")["policy"], outcome(tmp_path / "again")["policy"])


def test_functions_in_python_and_the_commands_afterwards(tmp_path: Path, capsys):
    settings = {
        name: value
        for name, value in own_config(method="soda_conv").to_json().items()
        if name not in ("task", "test_env", "eval_modes", "filters", "strides", "images")
    }
    result = train(
        out=tmp_path / "run",
        env=own_fakes.make_corner,
        test_envs={"dark": own_fakes.make_dark},
        images="procedural",  # a field of the config, as all that follows
        filters=(8, 8),
        strides=(2, 1),
        quiet=True,
        **settings,
    )
    assert set(result.evaluation) == {"train", "dark"}
    config = read_config(tmp_path / "run" / "config.json")
    assert config.own_modes == {"train": "own_fakes:make_corner", "dark": "own_fakes:make_dark"}
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["media"]
    assert facts["dark"] == source_facts("own_fakes:make_dark")

    run = str(tmp_path / "run")
    further = ["--test-env", "late=own_fakes:make_restorable"]
    assert cli.main(["eval", run, "--episodes", "2", "--workers", "1", "--json", *further]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["mode"] for row in rows] == ["train", "dark", "late"]
    assert all(row["episode_info"][0].keys() == {"start"} for row in rows)
    assert cli.main(["eval", run, "--modes", "video_easy"]) == 2
    assert "has no mode 'video_easy', only train, dark" in capsys.readouterr().err
    assert cli.main(["play", run, "--mode", "dark", "--out", str(tmp_path / "x.mp4"), "--size", "36"]) == 0
    assert cli.main(["export", run, "--format", "torchscript", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out.split("x.mp4\n")[1])
    assert exported["max_difference"] < 1e-4 and exported["action_repeat"] == 1
    assert (exported["action_low"], exported["action_high"]) == ([-2, 0], [2, 4])

    env = adapt(own_fakes.make_corner(), image_size=config.image_size, frame_stack=config.frame_stack)
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(load_policy(run).act(obs))


def test_a_function_without_a_name_runs_here_and_says_so(tmp_path: Path, capsys):
    config = own_config(
        env_process=True, test_env=(), eval_modes=("train",), decisions=60, workers=2, eval_episodes=2
    )
    result = train(config, tmp_path / "run", env=lambda: own_fakes.make_corner())
    said = capsys.readouterr().err
    assert "cannot be imported by name" in said and "so it runs in this one" in said
    assert result.finished and result.out == tmp_path / "run"
    assert cli.main(["eval", str(tmp_path / "run")]) == 2
    assert "give it again" in capsys.readouterr().err


def test_contradictory_calls_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"give config or its fields \(seed\), not both"):
        train(own_config(), tmp_path / "run", seed=1)
    with pytest.raises(UserError, match="give env too"):
        train(out=tmp_path / "run", test_envs={"dark": own_fakes.make_dark})
    with pytest.raises(UserError, match="env or env_factory, not both"):
        train(
            own_config(),
            tmp_path / "run",
            env=own_fakes.make_corner,
            env_factory=lambda mode, seed: CornerEnv(),
        )
    with pytest.raises(UserError, match="another config: task 'own_fakes:make_dark'"):
        (tmp_path / "run").mkdir()
        softaug.config.write_config(own_config(), tmp_path / "run" / "config.json")
        train(
            out=tmp_path / "run",
            resume=True,
            env="own_fakes:make_dark",
            test_envs={"dark": own_fakes.make_dark},
        )


def test_a_run_is_resumed_by_the_call_that_began_it(tmp_path: Path):
    written = own_config(method="soda_overlay")
    softaug.config.write_config(written, tmp_path / "config.json")

    def again(**settings: Any) -> Config:
        return choose(None, tmp_path, None, None, resume=True, settings=settings)[0]

    assert again(method="soda", filters=list(written.filters), eval_modes=["train", "dark"]) == written
    assert again(decisions=999) == dataclasses.replace(written, decisions=999)
    with pytest.raises(UserError, match="unknown config field 'methd'; did you mean method"):
        again(methd="soda")
    with pytest.raises(UserError, match="unknown method 'sodaa'"):
        again(method="sodaa")


@pytest.mark.slow
@pytest.mark.parametrize(("function", "limit"), [("make_pendulum", 0), ("make_car", 30)])
def test_real_environments_train_are_killed_resumed_evaluated_and_exported(
    tmp_path: Path, capsys, function: str, limit: int
):
    if function == "make_car":
        pytest.importorskip("Box2D")
    pytest.importorskip("pygame")
    config = own_config(
        task=f"own_fakes:{function}", test_env=(), eval_modes=("train",), episode_decisions=limit, decisions=70,
        env_process=True, replay_capacity=1000,
    )  # fmt: skip
    assert (
        in_process(config, tmp_path / "run", kill_in="softaug.learning.agent.Agent.update", kill_call=20)
        == -signal.SIGKILL
    )
    assert in_process(config, tmp_path / "run") == 0
    run = str(tmp_path / "run")
    assert cli.main(["eval", run, "--episodes", "1", "--workers", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["decisions"] == (limit or 200)
    assert cli.main(["export", run, "--format", "torchscript"]) == 0
    trained = log.read_metrics(tmp_path / "run" / "metrics.jsonl", "train")
    assert trained and all(np.isfinite(line["critic_loss"]) for line in trained)


SCRIPT = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import gymnasium
import own_fakes
import softaug
from fakes import tiny_config

def make_env():
    return own_fakes.make_corner()

if __name__ == "__main__":
    config = tiny_config(decisions=30, random_decisions=20, initial_updates=1, eval_every=0, eval_episodes=1, env_process=True)
    softaug.train(config, "run", env=make_env, quiet=True)
"""


@pytest.mark.slow
def test_a_function_of_a_script_is_found_again_by_its_file(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "my_script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    subprocess.run([sys.executable, "my_script.py"], cwd=tmp_path, check=True)
    assert read_config(tmp_path / "run" / "config.json").task == "my_script:make_env"
    monkeypatch.chdir(tmp_path)
    assert cli.main(["eval", "run", "--episodes", "1", "--workers", "1"]) == 0
    sys.modules.pop("my_script")
