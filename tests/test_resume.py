"""A run killed with SIGKILL at any time and resumed ends like one never interrupted, bit for bit."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import DotFactory, FakeImages, tiny_config, train_dot
from run_outcome import assert_same, outcome

from softaug.errors import UserError
from softaug.storage import checkpoint
from softaug.training import log, preparation
from softaug.training.run import train

# A fresh process that has imported everything is forked for each run: it starts in milliseconds.
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["fakes", "softaug.training.run", "torch._dynamo"])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rng():
    """Other kills each time; pytest shows the seed of a test that failed."""
    seed = np.random.SeedSequence().entropy
    print(f"seed of the kills: {seed}")
    return np.random.default_rng(seed)


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
def test_killed_at_random_times(tmp_path: Path, name: str, rng: np.random.Generator):
    overrides, terminates = RUNS[name]
    config = tiny_config(**overrides)
    reference = in_process(config, tmp_path / "reference", terminates=terminates)
    reference.join()
    assert reference.exitcode == 0
    whole = (tmp_path / "reference" / "metrics.jsonl").stat().st_size

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
        ("softaug.learning.replay.Replay.__init__", 1),  # before anything
        ("softaug.learning.agent.Agent.update", 7),  # among the catch-up updates
        ("softaug.learning.agent.Agent.update", 60),
        ("softaug.learning.replay.Replay._append", 127),  # the decision's action is stored, its frame is not
        ("softaug.training.log.MetricsFile.write", 9),
        ("softaug.training.loop.evaluate", 1),  # decision 100: the checkpoint is there, the evaluation is not
        ("softaug.storage.checkpoint.save_best", 1),
        ("softaug.storage.checkpoint.save_arrays", 3),  # half a checkpoint
        ("pathlib.Path.rename", 4),  # all of a checkpoint but its name, or an old one being removed
        ("shutil.rmtree", 2),
        ("softaug.training.loop.write_atomically", 1),  # final_eval.json: everything is done but saying so
        ("softaug.storage.checkpoint.remove_directory", 12),
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
    from softaug.learning.agent import Agent

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
    assert f"continue with: softaug train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    last = checkpoint.find_checkpoint(tmp_path / "run")
    assert int(last.name) == result.decisions and result.decisions % config.checkpoint_every
    train(config, tmp_path / "run", env_factory=DotFactory(), images=FakeImages(), resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run"), expected)


def test_an_interrupted_evaluation_is_done_again(
    tmp_path: Path, short_reference, monkeypatch: pytest.MonkeyPatch
):
    import softaug.training.loop

    config, expected = short_reference

    def interrupted(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(softaug.training.loop, "evaluate", interrupted)
        result = train(config, tmp_path / "run", env_factory=DotFactory(), quiet=True)
    assert not result.finished and result.decisions == 100
    assert not log.read_metrics(tmp_path / "run" / "metrics.jsonl", "eval")
    train(config, tmp_path / "run", env_factory=DotFactory(), resume=True, quiet=True)
    assert_same(outcome(tmp_path / "run"), expected)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path, short_reference, capsys):
    config, expected = short_reference
    process = in_process(
        config, tmp_path / "run", kill_in="softaug.learning.agent.Agent.update", kill_call=75
    )
    process.join()
    newest = checkpoint.find_checkpoint(tmp_path / "run")
    path = newest / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    train(config, tmp_path / "run", env_factory=DotFactory(), resume=True)
    said = capsys.readouterr().err
    assert "tensors.safetensors is damaged" in said and "Continuing from" in said
    assert_same(outcome(tmp_path / "run"), expected)


def test_without_a_good_checkpoint_the_damaged_file_is_named(tmp_path: Path, short_reference):
    config, _ = short_reference
    process = in_process(config, tmp_path / "run", kill_in="softaug.learning.agent.Agent.update", kill_call=5)
    process.join()
    for directory in checkpoint.complete_checkpoints(tmp_path / "run" / "checkpoints"):
        (directory / "tree.json").write_text("{")
    with pytest.raises(UserError, match=r"tree\.json is damaged"):
        train(config, tmp_path / "run", env_factory=DotFactory(), resume=True, quiet=True)


@pytest.mark.parametrize(("begun", "resumed"), [("ram", "disk"), ("disk", "ram")])
def test_the_replay_stays_where_it_is(tmp_path: Path, begun: str, resumed: str):
    config = tiny_config(decisions=100, replay_memory=begun)
    process = in_process(config, tmp_path / "run", kill_in="softaug.learning.agent.Agent.update", kill_call=5)
    process.join()
    with pytest.raises(UserError, match=f"is in {begun}; resume it with --replay-memory {begun}"):
        train(
            tiny_config(decisions=100, replay_memory=resumed),
            tmp_path / "run",
            env_factory=DotFactory(),
            resume=True,
        )


def killed_run(config, out: Path, kill_call: int = 75) -> list[Path]:
    """Begin a run that is killed in an update; returns its checkpoints."""
    process = in_process(config, out, kill_in="softaug.learning.agent.Agent.update", kill_call=kill_call)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return checkpoint.complete_checkpoints(out / "checkpoints")


def resume(config, out: Path) -> None:
    train(config, out, env_factory=DotFactory(), resume=True)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def slot_bytes(run: Path, name: str, slot: int, slots: int) -> int:
    """Where in a replay file the slot of that number begins."""
    path = run / "replay" / f"{name}.bin"
    return path.stat().st_size // slots * (slot % slots)


def test_a_flipped_bit_of_the_replay_is_noticed(tmp_path: Path, short_reference):
    config, expected = short_reference
    run = tmp_path / "run"
    newest = checkpoint.load_tree(killed_run(config, run)[-1])["replay"]
    # In the middle of what can be sampled: both checkpoints that are kept need it.
    place = slot_bytes(run, "frames", newest["added"] - 40, newest["slots"])
    flip(run / "replay" / "frames.bin", place)
    with pytest.raises(
        UserError, match=r"the replay in .* is damaged .1 of 7\d slots changed.*start a new run"
    ):
        resume(config, run)
    flip(run / "replay" / "frames.bin", place)
    resume(config, run)
    assert_same(outcome(run), expected)


@pytest.mark.parametrize("age", [0, 5])
def test_damage_in_the_newest_slots_gives_way_to_the_checkpoint_before(
    tmp_path: Path, short_reference, capsys, age: int
):
    config, expected = short_reference
    run = tmp_path / "run"
    complete = killed_run(config, run)
    newest = checkpoint.load_tree(complete[-1])["replay"]
    flip(run / "replay/frames.bin", slot_bytes(run, "frames", newest["added"] - 1 - age, newest["slots"]) + 7)
    resume(config, run)
    assert f"newest part is damaged. Continuing from {complete[-2]}" in capsys.readouterr().err
    assert_same(outcome(run), expected)


def test_what_can_no_longer_be_sampled_may_change(tmp_path: Path, short_reference):
    config, expected = short_reference
    run = tmp_path / "run"
    newest = checkpoint.load_tree(killed_run(config, run)[-1])["replay"]
    flip(run / "replay/frames.bin", slot_bytes(run, "frames", newest["added"] + 3, newest["slots"]))
    resume(config, run)
    assert_same(outcome(run), expected)


def test_a_run_begun_before_there_were_checksums_is_resumed(
    tmp_path: Path, short_reference, capsys, monkeypatch
):
    from softaug.learning.replay import Replay

    config, expected = short_reference
    run, before = tmp_path / "run", Replay.state
    killed_run(config, run)
    for directory in checkpoint.complete_checkpoints(run / "checkpoints"):
        tree = checkpoint.load_tree(directory)
        del tree["replay"]["sum"]
        policy = checkpoint.load_weights(directory)
        checkpoint.save_tree(directory, tree, policy=policy)
    (run / "replay" / "checksums.bin").unlink()
    seen = []
    monkeypatch.setattr(Replay, "state", lambda self: seen.append(self.verify(before(self))) or before(self))
    resume(config, run)
    assert "without checksums: it is used unchecked" in capsys.readouterr().err
    assert seen  # the checkpoints after that have them, of every slot
    assert_same(outcome(run), expected)


def test_ctrl_c_during_catch_up_keeps_the_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from softaug.learning.agent import Agent

    # A checkpoint has just been made of these very decisions, without any update.
    config = tiny_config(decisions=100, random_decisions=60, checkpoint_every=30, eval_every=0)
    in_process(config, tmp_path / "reference").join()
    update = Agent.update

    def interrupting(self, replay):
        if self.updates == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, replay)

    with monkeypatch.context() as patched:
        patched.setattr(Agent, "update", interrupting)
        result = train(config, tmp_path / "run", env_factory=DotFactory(), images=FakeImages(), quiet=True)
    assert not result.finished and (result.decisions, result.updates) == (60, 13)
    first_updates = []
    with monkeypatch.context() as patched:
        patched.setattr(
            Agent,
            "update",
            lambda self, replay: (first_updates.append(self.updates), update(self, replay))[1],
        )
        resume(config, tmp_path / "run")
    assert first_updates[0] == 13
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "reference"))


# A full disk


def test_a_checkpoint_that_finds_the_disk_full_costs_nothing(
    tmp_path: Path, short_reference, monkeypatch: pytest.MonkeyPatch
):
    import resource

    config, expected = short_reference
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    save, calls = checkpoint.save_tree, 0

    def on_a_full_disk(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # no file may grow beyond this: what a full disk is to safetensors
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            save(*args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_tree", on_a_full_disk)
        with pytest.raises(
            UserError, match=rf"the disk is full .* continue with: softaug train --resume {run}"
        ):
            train(config, run, env_factory=DotFactory(), images=FakeImages(), quiet=True)
    assert not list((run / "checkpoints").glob(".writing-*"))  # half a checkpoint would take space
    resume(config, run)
    assert_same(outcome(run), expected)


@pytest.mark.parametrize(
    ("function", "call"),
    [("softaug.training.log.MetricsFile.write", 5), ("softaug.training.loop.write_atomically", 1)],
)
def test_a_disk_that_is_full_elsewhere(
    tmp_path: Path, short_reference, monkeypatch: pytest.MonkeyPatch, function: str, call: int
):
    import errno
    import pkgutil

    config, expected = short_reference
    original, calls = pkgutil.resolve_name(function), 0

    def full(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(function, full)
        with pytest.raises(UserError, match="the disk is full"):
            train(config, tmp_path / "run", env_factory=DotFactory(), images=FakeImages(), quiet=True)
    resume(config, tmp_path / "run")
    assert_same(outcome(tmp_path / "run"), expected)


# Processes that end


def test_a_killed_environment_is_one_true_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from softaug.learning.agent import Agent

    config = tiny_config(decisions=100, env_process=True, eval_every=0)
    in_process(config, tmp_path / "reference").join()
    update = Agent.update

    def killing(self, replay):
        if self.updates == 25:
            (child,) = (c for c in multiprocessing.active_children() if c.name == "softaug-environment")
            child.kill()
        return update(self, replay)

    with monkeypatch.context() as patched:
        patched.setattr(Agent, "update", killing)
        with pytest.raises(
            UserError, match=r"the environment's process .* \(killed by SIGKILL.*resume the run"
        ):
            train(config, tmp_path / "run", env_factory=DotFactory(), quiet=True)
    resume(config, tmp_path / "run")
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "reference"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"decisions": 130, "frames": "many"}'])
def test_a_damaged_last_evaluation_is_one_sentence(tmp_path: Path, content: str):
    config = tiny_config(decisions=20, random_decisions=20)
    run = tmp_path / "run"
    train(config, run, env_factory=DotFactory(), keep_replay=True, quiet=True)
    (run / "final_eval.json").write_text(content)
    with pytest.raises(UserError, match=r"final_eval\.json is damaged; .* softaug eval"):
        resume(config, run)
    assert (run / "replay").exists() and (run / "checkpoints").exists()


# The lock


def test_the_lock_is_waited_for_and_not_shared_with_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation, "LOCK_SECONDS", 0.1)
    first = preparation.RunDirectory(tmp_path)
    with pytest.raises(UserError, match="another process is training"):
        preparation.RunDirectory(tmp_path)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        first.close()
        preparation.RunDirectory(tmp_path).close()  # though the child lives
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    second = preparation.RunDirectory(tmp_path)
    monkeypatch.setattr(preparation, "LOCK_SECONDS", 60)
    threading.Timer(0.3, second.close).start()
    preparation.RunDirectory(tmp_path).close()


CLI_FLAGS = [
    "--task", "cartpole_swingup", "--method", "soda", "--preset", "small", "--decisions", "150", "--random-decisions", "60",
    "--initial-updates", "10", "--batch-size", "16", "--aux-batch-size", "16", "--image-size", "36", "--crop-size", "32",
    "--checkpoint-every", "25", "--eval-every", "0", "--eval-episodes", "1", "--eval-modes", "train,video_easy",
    "--images", "procedural", "--videos", "procedural", "--threads", "1", "--replay-capacity", "100", "--quiet",
]  # fmt: skip


@pytest.mark.slow
def test_the_command_killed_on_a_real_environment(tmp_path: Path, rng: np.random.Generator):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "softaug.cli", "train"]

    def start(*flags: str) -> subprocess.Popen:
        return subprocess.Popen([*command, *flags], env=environment, stdout=subprocess.PIPE, text=True)

    reference = start(*CLI_FLAGS, "--out", str(tmp_path / "reference"), "--json")
    printed, _ = reference.communicate()
    assert reference.returncode == 0
    assert json.loads(printed)["decisions"] == 150

    run, kills = tmp_path / "run", 0
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
