"""A run killed with SIGKILL at any moment and resumed ends like one never interrupted, bit for bit."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import DotFactory, FakeImages, tiny_config, train_dot

from softaug import checkpoint, log
from softaug.errors import UserError
from softaug.training import train

# A fresh process that has imported everything is forked for each run: it starts in milliseconds.
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["fakes", "softaug.training", "torch._dynamo"])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcome(run: Path) -> dict[str, Any]:
    """Everything a run ends with, except the wall clock."""
    tree = checkpoint.load_tree(checkpoint.find_checkpoint(run))
    for name in ("seconds", "metrics_bytes"):  # the wall clock, and how many digits it has
        del tree["counters"][name]
    metrics = log.read_metrics(run / "metrics.jsonl")
    for line in metrics:
        for name in log.WALL_CLOCK:
            line.pop(name, None)
    return {
        "tree": tree,
        "policy": checkpoint.load_weights(checkpoint.find_checkpoint(run)),
        "best": checkpoint.load_weights(checkpoint.find_checkpoint(run, "best")),
        "metrics": metrics,
        "final": json.loads((run / "final_eval.json").read_text()),
    }


def assert_same(left: Any, right: Any, path: str = "") -> None:
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    elif isinstance(left, np.ndarray):
        assert np.array_equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}/{i}")
    else:
        assert left == right, path


def in_process(config, out, **options):
    process = FORK_SERVER.Process(target=train_dot, args=(config, out), kwargs=options)
    process.start()
    return process


RUNS = {
    "plain": ({}, False),
    # It comes round more than once; episodes of irregular length.
    "wrapping": ({"replay_capacity": 70, "checkpoint_every": 20, "decisions": 200}, True),
    "wrapping in ram": ({"replay_capacity": 70, "replay_memory": "ram", "method": "soda_overlay"}, True),
    "own process": ({"env_process": True, "method": "curl", "n_step": 3, "replay_capacity": 90}, False),
}


@pytest.mark.parametrize(
    "name", ["wrapping", *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS if name != "wrapping")]
)
def test_killed_at_random_moments(tmp_path: Path, name: str):
    overrides, terminates = RUNS[name]
    config = tiny_config(**overrides)
    reference = in_process(config, tmp_path / "reference", terminates=terminates)
    reference.join()
    assert reference.exitcode == 0
    whole = (tmp_path / "reference" / "metrics.jsonl").stat().st_size

    rng = np.random.default_rng()
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(4):
        process = in_process(config, tmp_path / "run", terminates=terminates)
        written = metrics.stat().st_size if metrics.exists() else 0
        goal = rng.uniform(written, max(written, 0.9 * whole))
        while process.exitcode is None and (not metrics.exists() or metrics.stat().st_size < goal):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.join()
    process = in_process(config, tmp_path / "run", terminates=terminates)
    process.join()
    assert process.exitcode == 0
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "reference"))


@pytest.fixture(scope="module")
def short_reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("short") / "reference"
    config = tiny_config(decisions=130, checkpoint_every=25, replay_capacity=70)
    process = in_process(config, out)
    process.join()
    assert process.exitcode == 0
    return config, outcome(out)


@pytest.mark.parametrize(
    ("kill_in", "kill_call"),
    [
        ("softaug.replay.Replay.__init__", 1),  # before anything
        ("softaug.agent.Agent.update", 7),  # among the catch-up updates
        ("softaug.agent.Agent.update", 60),
        ("softaug.replay.Replay._append", 127),  # the decision's action is stored, its frame is not
        ("softaug.log.MetricsFile.write", 9),
        ("softaug.training_loop.evaluate", 1),  # decision 100: the checkpoint is there, the evaluation is not
        ("softaug.checkpoint.save_best", 1),
        ("softaug.checkpoint.save_arrays", 3),  # half a checkpoint
        ("pathlib.Path.rename", 4),  # all of a checkpoint but its name, or an old one being removed
        ("shutil.rmtree", 2),
        ("softaug.training_loop.write_atomically", 1),  # final_eval.json: everything is done but saying so
        ("softaug.checkpoint.remove_directory", 12),
    ],
)
def test_killed_in_the_middle_of(tmp_path: Path, short_reference, kill_in: str, kill_call: int):
    config, expected = short_reference
    process = in_process(config, tmp_path / "run", kill_in=kill_in, kill_call=kill_call)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process = in_process(config, tmp_path / "run")
    process.join()
    assert process.exitcode == 0
    assert_same(outcome(tmp_path / "run"), expected)
    assert not (tmp_path / "run" / "replay").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


@pytest.mark.parametrize("at_update", [5, 40])
def test_an_interrupted_run_saves_says_how_to_go_on_and_ends_the_same(
    tmp_path: Path, short_reference, monkeypatch: pytest.MonkeyPatch, capsys, at_update: int
):
    from softaug.agent import Agent

    config, expected = short_reference
    update = Agent.update

    def interrupting(self, replay):
        if self.updates == at_update:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, replay)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(Agent, "update", interrupting)
        result = train(config, tmp_path / "run", env_factory=DotFactory(), images=FakeImages())
    assert not result.finished and result.updates == at_update + 1
    assert signal.getsignal(signal.SIGINT) is before
    assert f"go on with: softaug train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    last = checkpoint.find_checkpoint(tmp_path / "run")
    assert int(last.name) == result.decisions and result.decisions % config.checkpoint_every
    train(config, tmp_path / "run", env_factory=DotFactory(), images=FakeImages(), resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run"), expected)


def test_an_interrupted_evaluation_is_done_again(
    tmp_path: Path, short_reference, monkeypatch: pytest.MonkeyPatch
):
    import softaug.training_loop

    config, expected = short_reference

    def interrupted(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(softaug.training_loop, "evaluate", interrupted)
        result = train(config, tmp_path / "run", env_factory=DotFactory(), quiet=True)
    assert not result.finished and result.decisions == 100
    assert not log.read_metrics(tmp_path / "run" / "metrics.jsonl", "eval")
    train(config, tmp_path / "run", env_factory=DotFactory(), resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run"), expected)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path, short_reference, capsys):
    config, expected = short_reference
    process = in_process(config, tmp_path / "run", kill_in="softaug.agent.Agent.update", kill_call=75)
    process.join()
    newest = checkpoint.find_checkpoint(tmp_path / "run")
    path = newest / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    train(config, tmp_path / "run", env_factory=DotFactory(), resume=True)
    said = capsys.readouterr().err
    assert "tensors.safetensors is damaged" in said and "Going on from" in said
    assert_same(outcome(tmp_path / "run"), expected)


def test_without_a_good_checkpoint_the_damaged_file_is_named(tmp_path: Path, short_reference):
    config, _ = short_reference
    process = in_process(config, tmp_path / "run", kill_in="softaug.agent.Agent.update", kill_call=5)
    process.join()
    for directory in checkpoint.complete_checkpoints(tmp_path / "run" / "checkpoints"):
        (directory / "tree.json").write_text("{")
    with pytest.raises(UserError, match=r"tree\.json is damaged"):
        train(config, tmp_path / "run", env_factory=DotFactory(), resume=True, quiet=True)


@pytest.mark.parametrize(("begun", "resumed"), [("ram", "disk"), ("disk", "ram")])
def test_the_replay_stays_where_it_is(tmp_path: Path, begun: str, resumed: str):
    config = tiny_config(decisions=100, replay_memory=begun)
    process = in_process(config, tmp_path / "run", kill_in="softaug.agent.Agent.update", kill_call=5)
    process.join()
    with pytest.raises(UserError, match=f"is in {begun}; resume it with --replay-memory {begun}"):
        train(
            tiny_config(decisions=100, replay_memory=resumed),
            tmp_path / "run",
            env_factory=DotFactory(),
            resume=True,
        )


CLI_FLAGS = [
    "--task", "cartpole_swingup", "--method", "soda", "--preset", "small", "--decisions", "150", "--random-decisions", "60",
    "--initial-updates", "10", "--batch-size", "16", "--aux-batch-size", "16", "--image-size", "36", "--crop-size", "32",
    "--checkpoint-every", "25", "--eval-every", "0", "--eval-episodes", "1", "--eval-modes", "train,video_easy",
    "--images", "procedural", "--videos", "procedural", "--threads", "1", "--replay-capacity", "100", "--quiet",
]  # fmt: skip


@pytest.mark.slow
def test_the_command_killed_on_a_real_environment(tmp_path: Path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "softaug.cli", "train"]

    def start(*flags: str) -> subprocess.Popen:
        return subprocess.Popen([*command, *flags], env=environment, stdout=subprocess.PIPE, text=True)

    reference = start(*CLI_FLAGS, "--out", str(tmp_path / "reference"), "--json")
    printed, _ = reference.communicate()
    assert reference.returncode == 0
    assert json.loads(printed)["decisions"] == 150

    run, rng, kills = tmp_path / "run", np.random.default_rng(), 0
    seen = 0
    process = start(*CLI_FLAGS, "--out", str(run))
    while process.poll() is None:
        complete = checkpoint.complete_checkpoints(run / "checkpoints")
        newest = int(complete[-1].name) if complete else 0
        if newest > seen and kills < 3 and newest < 150:
            time.sleep(rng.uniform(0, 0.2))  # somewhere between two checkpoints
            process.kill()
            process.wait()
            kills, seen = kills + 1, newest
            process = start("--resume", str(run), "--quiet")
        time.sleep(0.005)
    assert process.returncode == 0
    assert kills >= 1
    assert_same(outcome(run), outcome(tmp_path / "reference"))
