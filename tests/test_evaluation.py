"""Evaluation: every episode is a function of (seed, mode, episode) alone, whichever worker plays it; videos; `eval`, `play`."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from fakes import SIZE, DotEnv, DotFactory, tiny_config

import softaug.envs
from softaug.cli import main
from softaug.config import Config, make_config, write_config
from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError
from softaug.evaluation.evaluate import Episode, Task, evaluate, play_episodes, summarize
from softaug.evaluation.recording import Recorder
from softaug.evaluation.runs import RunPolicy
from softaug.learning.agent import make_agent
from softaug.media.comparability import media_note
from softaug.storage.checkpoint import save_checkpoint

MODES = ["train", "color_hard"]


def run_policy(adapt: bool = False, **overrides: Any) -> RunPolicy:
    config = tiny_config(**overrides)
    shape = (3 * config.frame_stack, config.image_size, config.image_size)
    return RunPolicy(config, make_agent(config, shape, 2).policy_weights(), adapt)


def save_run(directory: Path, config: Config, action_dim: int = 2) -> Path:
    """A run directory with the weights of an untrained agent."""
    shape = (3 * config.frame_stack, config.image_size, config.image_size)
    directory.mkdir()
    write_config(config, directory / "config.json")
    weights = make_agent(config, shape, action_dim).policy_weights()
    save_checkpoint(directory / "checkpoints", 240, {}, weights, keep=1)
    return directory


# Environments that misbehave; at module level, so that workers can import them.


class DrawingEnv(DotEnv):
    """Draws from every global generator, as a careless environment may."""

    def step(self, action: np.ndarray) -> Any:
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(1)
        return super().step(action)


class ThreadsEnv(DotEnv):
    """Its reward shows the number of torch threads."""

    def step(self, action: np.ndarray) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + 100 * (torch.get_num_threads() - 1), *rest


class FailingEnv(DotEnv):
    failure = "raise"

    def step(self, action: np.ndarray) -> Any:
        if self.mode == "color_hard":
            if self.failure == "exit":
                os._exit(3)
            if self.failure == "user_error":
                raise UserError("the camera is unplugged; plug it in")
            raise ValueError("the camera fell off")
        return super().step(action)


@dataclass(frozen=True)
class Factory:
    kind: str

    def __call__(self, mode: str, seed: int) -> DotEnv:
        if self.kind == "draws":
            return DrawingEnv(mode, seed)
        if self.kind == "threads":
            return ThreadsEnv(mode, seed)
        env = FailingEnv(mode, seed)
        env.failure = self.kind
        return env


# Every episode is a function of (seed, mode, episode).


def test_equals_a_plain_loop() -> None:
    make = run_policy()
    results = evaluate(make, DotFactory(), ["train"], 3, seed=5)
    policy, expected = make(), []
    for episode in range(3):
        env = DotEnv("train", 0)
        obs, _ = env.reset(seed=Task("train", episode).seeds(5)[0])
        total = 0.0
        for _ in range(20):
            obs, reward, *_ = env.step(policy.act(obs))
            total += reward
        expected.append(total)
    assert results["train"]["returns"] == expected
    assert results["train"]["mean"] == pytest.approx(sum(expected) / 3)
    assert results["train"]["std"] == pytest.approx(np.std(expected))
    assert (results["train"]["episodes"], results["train"]["decisions"]) == (3, 60)
    assert results["train"]["frames"] == 120
    assert results["train"]["media"] == "fake"
    json.dumps(results)


def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    """Not even for PAD, which learns and draws during an episode, and not when the caller has two torch threads."""
    make = run_policy(method="pad", adapt=True)
    heard: list[tuple[str, int, float]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        one = evaluate(make, Factory("threads"), MODES, 4, seed=0)
        three = evaluate(
            make,
            Factory("threads"),
            MODES,
            4,
            seed=0,
            workers=3,
            video_dir=tmp_path,
            progress=lambda *values: heard.append(values),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert one == three
    assert len(set(one["train"]["returns"])) == 4
    assert sorted(heard) == sorted((mode, e, one[mode]["returns"][e]) for mode in MODES for e in range(4))
    assert [len(decode(tmp_path / f"{mode}.mp4")) for mode in MODES] == [21, 21]


def test_an_episode_does_not_depend_on_the_others() -> None:
    make = run_policy(adapt=True, method="pad")
    every = evaluate(make, DotFactory(), MODES, 4, seed=0)
    fewer = evaluate(make, DotFactory(), ["color_hard"], 2, seed=0)
    assert fewer["color_hard"]["returns"] == every["color_hard"]["returns"][:2]
    (alone,) = play_episodes(make, DotFactory(), [Task("color_hard", 3)], 0)
    assert alone.total == every["color_hard"]["returns"][3]
    assert evaluate(make, DotFactory(), ["train"], 4, seed=1)["train"] != every["train"]


def test_seeds_are_the_same_on_every_machine_and_all_different() -> None:
    assert Task("train", 0).seeds(0) == (1550685491, 1070947487)
    seeds = [
        seed
        for mode in MODES
        for episode in range(50)
        for run in range(5)
        for seed in Task(mode, episode).seeds(run)
    ]
    assert len(set(seeds)) == len(seeds)


def test_the_policy_hears_of_every_episode_and_step() -> None:
    calls: list[tuple[str, Any]] = []

    class Listener:
        def begin_episode(self, seed: int = 0) -> None:
            calls.append(("begin", seed))

        def act(self, obs: np.ndarray) -> np.ndarray:
            calls.append(("act", obs.copy()))
            return np.array([0.1, -0.1], np.float32)

        def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
            calls.append(("observe", next_obs.copy()))
            np.testing.assert_array_equal(obs, calls[-2][1])

    evaluate(Listener, DotFactory(), ["train"], 2, seed=0)
    assert [name for name, _ in calls] == (["begin"] + ["act", "observe"] * 20) * 2
    assert calls[0][1] == Task("train", 0).seeds(0)[1] != calls[41][1]
    np.testing.assert_array_equal(calls[2][1], calls[3][1])


def test_the_callers_generators_and_threads_are_left_alone() -> None:
    make = run_policy()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy())  # type: ignore[index]  # noqa: NPY002
        evaluate(make, Factory("draws"), MODES, 1, seed=0)
        assert random.getstate() == before[0]
        assert torch.equal(torch.get_rng_state(), before[1])
        np.testing.assert_array_equal(np.random.get_state()[1], before[2])  # type: ignore[index]  # noqa: NPY002
        dots = evaluate(make, DotFactory(), MODES, 1, seed=0)
        assert evaluate(make, Factory("threads"), MODES, 1, seed=0) == dots  # one thread at each decision
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_threads_are_restored_after_a_failure() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="fell off"):
        evaluate(run_policy(), Factory("raise"), MODES, 1, seed=0)
    assert torch.get_num_threads() == threads


def test_adaptation_changes_returns_and_can_be_repeated() -> None:
    config = tiny_config(method="pad")
    weights = make_agent(config, (6, SIZE, SIZE), 2).policy_weights()
    plain, adapted, again = (
        evaluate(RunPolicy(config, weights, adapt), DotFactory(), MODES, 2, seed=0)
        for adapt in (False, True, True)
    )
    assert adapted == again
    for mode in MODES:
        assert plain[mode]["returns"] != adapted[mode]["returns"]


def test_only_methods_that_adapt_do() -> None:
    with pytest.raises(UserError, match="does not adapt"):
        evaluate(run_policy(adapt=True), DotFactory(), ["train"], 1, seed=0)


def test_summarise_sorts_by_episode() -> None:
    played = [Episode("train", e, float(e), 1, 4, None, {"video": str(e)}) for e in (2, 0, 1)]
    result = summarize(played, ["train"])["train"]
    assert result["returns"] == [0.0, 1.0, 2.0]
    assert [info["video"] for info in result["episode_info"]] == ["0", "1", "2"]
    assert (result["mean"], result["frames"]) == (1.0, 12)


def test_run_policy_survives_pickling() -> None:
    make = run_policy(method="pad", adapt=True)
    copy = pickle.loads(pickle.dumps(make))
    obs = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
    np.testing.assert_array_equal(make().act(obs), copy().act(obs))
    assert copy.adapt and copy.config == make.config


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"episodes": 0}, "episodes"),
        ({"workers": 0}, "workers"),
        ({"modes": []}, "mode"),
        ({"modes": ["train", "train"]}, "once"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], match: str) -> None:
    values: dict[str, Any] = {"modes": ["train"], "episodes": 1, "seed": 0, **arguments}
    with pytest.raises(UserError, match=match):
        evaluate(run_policy(), DotFactory(), **values)


# Workers that fail.


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        pytest.param(
            "raise",
            RuntimeError,
            r"color_hard, episode 0:\n(.|\n)*ValueError: the camera fell off",
            marks=pytest.mark.slow,
        ),
        pytest.param("user_error", UserError, "plug it in", marks=pytest.mark.slow),
        ("exit", UserError, r"ended unexpectedly \(exit code 3\) while .*color_hard 0"),
    ],
)
def test_a_failing_worker_is_reported(kind: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        evaluate(run_policy(), Factory(kind), MODES, 1, seed=0, workers=2)
    assert not multiprocessing.active_children()


CTRL_C = """
import sys
sys.path.insert(0, {tests!r})
from fakes import DotFactory
from test_evaluation import run_policy
from softaug.evaluation.evaluate import evaluate
if __name__ == "__main__":
    try:
        evaluate(run_policy(), DotFactory(), ["train"], 100_000, 0, workers=2, progress=lambda *_: print("one", flush=True))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="process groups")
@pytest.mark.parametrize("wait_for_episode", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ctrl_c_ends_everything_cleanly(tmp_path: Path, wait_for_episode: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if wait_for_episode:
        assert process.stdout.readline() == "one\n"
    else:  # while the workers are still importing torch
        while len(_group(process.pid)) < 3:
            time.sleep(0.01)
            assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.endswith("interrupted\n")
    assert err == ""
    assert process.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C.format(tests=str(Path(__file__).parent)))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "one\n"
    assert len(_group(process.pid)) > 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while left := _group(process.pid):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)
    process.stdout.close()


def _group(leader: int) -> list[int]:
    """The Python processes of a process group (the leader, multiprocessing's helper, workers)."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    processes = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, group, state in processes if int(group) == leader and state[0] != "Z"]


# Videos.


def decode(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_videos_of_the_first_episodes(tmp_path: Path) -> None:
    make = run_policy()
    silent = evaluate(make, DotFactory(), MODES, 2, seed=0)
    filmed = evaluate(make, DotFactory(), MODES, 2, seed=0, video_dir=tmp_path / "videos")
    assert filmed == silent
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["color_hard.mp4", "train.mp4"]
    frames = decode(tmp_path / "videos" / "train.mp4")
    assert len(frames) == 21  # the first observation and 20 decisions
    env = DotEnv("train", 0)
    obs, _ = env.reset(seed=Task("train", 0).seeds(0)[0])
    factor = len(frames[0]) // SIZE
    original = obs[-3:].transpose(1, 2, 0).repeat(factor, 0).repeat(factor, 1)
    assert np.abs(frames[0].astype(int) - original).mean() < 6  # H.264 is lossy


def test_a_failed_recording_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path / "x.mp4") as recorder:
        recorder.add(np.zeros((SIZE, SIZE, 3), np.uint8))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_recording_without_frames_fails_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path / "x.mp4"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to"):
        Recorder(tmp_path / "file" / "x.mp4")


# The commands, on the dot.


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """`make_env` makes dots; the list fills with (mode, image size) of each environment made."""
    made: list[tuple[str, int]] = []

    def make_env(task: str, mode: str, seed: int, *, image_size: int, frame_stack: int, **_: Any) -> DotEnv:
        made.append((mode, image_size))
        return DotEnv(mode, seed, frame_stack=frame_stack, size=image_size)

    monkeypatch.setattr(softaug.envs, "make_env", make_env)
    return made


def test_eval_writes_and_prints_results(
    tmp_path: Path, dots: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    arguments = ["eval", str(run), "--modes", "train,color_hard", "--episodes", "2", "--workers", "1"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    (file,) = (run / "eval").glob("*.json")
    report = json.loads(file.read_text())
    config = tiny_config()
    make = RunPolicy(config, make_agent(config, (6, SIZE, SIZE), 2).policy_weights())
    expected = evaluate(make, DotFactory(), MODES, 2, seed=0)
    for row in report["results"]:
        assert row["returns"] == expected[row["mode"]]["returns"]
        assert row["adapt"] is False
        mean_and_std = f"{row['mean']:.1f} ± {row['std']:.1f}"
        assert mean_and_std in shown
    assert [row["mode"] for row in report["results"]] == MODES
    assert report["decisions"] == 240
    assert report["versions"]["torch"] == torch.__version__ and "mujoco" in report["versions"]
    assert report["gl_renderers"] == []  # the fake environment renders nothing by GL
    assert "not comparable with the paper" in shown

    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_eval_says_when_media_are_procedural(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Procedural(DotEnv):
        def reset(self, **arguments: Any) -> Any:
            return super().reset(**arguments)[0], {"media": None if self.mode == "train" else "procedural"}

    monkeypatch.setattr(softaug.envs, "make_env", lambda task, mode, seed, **_: Procedural(mode, seed))
    run = save_run(tmp_path / "run", tiny_config())
    arguments = ["eval", str(run), "--episodes", "1", "--workers", "1"]
    assert main([*arguments, "--modes", "train"]) == 0
    assert "comparable" not in capsys.readouterr().out
    assert main([*arguments, "--modes", "train,video_easy"]) == 0
    assert "procedural media: not comparable with the paper" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "kind", "videos", "comparable"),
    [
        ("train", None, 0, True),
        ("color_hard", "official", 0, True),
        ("video_easy", "official", 10, True),
        ("video_hard", "official", 99, False),
        ("video_hard", "folder", 100, False),
        ("color_hard", "procedural", 0, False),
    ],
)
def test_only_the_whole_official_media_are_comparable(
    mode: str, kind: str | None, videos: int, comparable: bool
) -> None:
    facts = {"kind": kind, "videos": videos} if videos else None
    assert (media_note(mode, kind, facts) == "") is comparable


def test_an_interrupted_eval_goes_on(
    tmp_path: Path,
    dots: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    out = tmp_path / "results.json"
    arguments = [
        "eval",
        str(run),
        "--modes",
        "train,color_hard",
        "--episodes",
        "3",
        "--workers",
        "1",
        "--json",
    ]
    assert main([*arguments, "--out", str(tmp_path / "whole.json")]) == 0
    whole = json.loads(capsys.readouterr().out)["results"]

    resets: list[tuple[str, int]] = []
    original = DotEnv.reset

    def interrupted_reset(self: DotEnv, *, seed: int | None = None, options: Any = None) -> Any:
        if len(resets) == 4:
            raise KeyboardInterrupt
        resets.append((self.mode, options["episode"]))
        return original(self, seed=seed, options=options)

    monkeypatch.setattr(DotEnv, "reset", interrupted_reset)
    assert main([*arguments, "--out", str(out)]) == 130
    assert "4 of 6 episodes are kept" in capsys.readouterr().err.replace("\n", " ")
    assert not out.exists()

    with (tmp_path / "results.episodes.jsonl").open("a") as journal:
        journal.write('{"key": "half a li')  # what a kill may leave
    resets.clear()
    assert main([*arguments, "--out", str(out)]) == 0
    assert resets == [("color_hard", 1), ("color_hard", 2)]
    assert json.loads(capsys.readouterr().out)["results"] == whole
    # Another seed shares nothing.
    resets.clear()
    assert main([*arguments, "--out", str(out), "--seed", "1"]) == 130
    assert len(resets) == 4


def test_pad_is_evaluated_with_and_without_adaptation(
    tmp_path: Path, dots: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run", tiny_config(method="pad"))
    arguments = [
        "eval",
        str(run),
        "--modes",
        "train,color_hard",
        "--episodes",
        "1",
        "--workers",
        "1",
        "--json",
    ]

    def rows(*more: str) -> dict[tuple[str, bool], list[float]]:
        assert main([*arguments, *more]) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        return {(row["mode"], row["adapt"]): row["returns"] for row in results}

    both = rows()
    assert set(both) == {(mode, adapt) for mode in MODES for adapt in (False, True)}
    assert both["train", False] != both["train", True]
    for flag, adapt in (("--adapt", True), ("--no-adapt", False)):
        assert rows(flag) == {key: returns for key, returns in both.items() if key[1] is adapt}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--modes", "night"], "night.*video_hard"),
        (["--adapt"], "does not adapt"),
        (["--episodes", "0"], "episodes"),
        (["--checkpoint", "99"], "last"),
        (["--out", "."], "directory"),
    ],
)
def test_eval_refuses(
    tmp_path: Path,
    dots: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    match: str,
) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    assert main(["eval", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("softaug: error:") and error.count("\n") == 1
    assert re.search(match, error)
    assert dots == []


def test_play_writes_a_video_of_what_eval_measures(
    tmp_path: Path, dots: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    out = tmp_path / "film.mp4"
    arguments = [
        "play",
        str(run),
        "--mode",
        "color_hard",
        "--out",
        str(out),
        "--size",
        "64",
        "--episodes",
        "2",
    ]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    config = tiny_config()
    make = RunPolicy(config, make_agent(config, (6, SIZE, SIZE), 2).policy_weights())
    expected = evaluate(make, DotFactory(), ["color_hard"], 2, seed=0)["color_hard"]["returns"]
    assert [episode["total"] for episode in facts["episodes"]] == expected
    frames = decode(out)
    assert len(frames) == 2 * 21
    assert frames[0].shape == (64, 64 + 4 + 64, 3)
    assert dots == [("color_hard", 64), ("color_hard", SIZE)]
    assert (
        frames[0][:, 65:67].mean() < 60 < frames[0][:, :60].mean()
    )  # the gap is dark, the agent's view is not

    assert main([*arguments, "--no-large"]) == 0
    assert decode(out)[0].shape == (64, 64, 3)
    assert f"return {expected[0]:.1f} in 20 decisions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--out", "film.avi"], ["--out", "x.mp4", "--size", "15"], ["--out", "x.mp4", "--fps", "0"]]
)
def test_play_refuses(
    tmp_path: Path, dots: list[tuple[str, int]], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    run = save_run(tmp_path / "run", tiny_config())
    assert main(["play", str(run), *arguments]) == 2
    assert arguments[-1] in capsys.readouterr().err


# The real thing.


@pytest.mark.slow
def test_dm_control_gives_the_same_returns_in_one_and_two_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 100 frames a decision: whole episodes of ten decisions.
    config = make_config("walker_walk", "pad", "small", image_size=32, crop_size=28, action_repeat=100)
    run = save_run(tmp_path / "run", config, action_dim=6)
    make = RunPolicy(config, make_agent(config, (9, 32, 32), 6).policy_weights(), adapt=True)
    modes = ["train", "color_hard", "video_easy", "video_hard"]
    one, two = (evaluate(make, ConfigEnvs(config), modes, 2, seed=0, workers=n) for n in (1, 2))
    assert one == two
    assert one["train"]["frames"] == 2000
    for mode in modes:
        assert len(set(one[mode]["returns"])) == 2
    assert one["video_easy"]["episode_info"][0]["video"] != one["video_easy"]["episode_info"][1]["video"]
    assert len(one["color_hard"]["episode_info"][0]["color"]["self_rgb"]) == 3

    out = tmp_path / "film.mp4"
    assert main(["play", str(run), "--mode", "video_hard", "--out", str(out), "--size", "96", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"][0]["total"] == one["video_hard"]["returns"][0]
    frames = decode(out)
    assert len(frames) == 11
    # Both halves show the same scene: the right one, shrunk and cropped, is close to what the agent saw.
    left, right = frames[5][:, :96].astype(float), frames[5][:, 100:].astype(float)
    assert np.corrcoef(_blocks(left, 4).ravel(), _blocks(right, 4).ravel())[0, 1] > 0.5


def _blocks(image: np.ndarray, count: int) -> np.ndarray:
    """Means of count x count blocks."""
    size = len(image) // count
    return image.reshape(count, size, count, size, 3).mean((1, 3))
