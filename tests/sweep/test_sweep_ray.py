"""A real Ray cluster on this machine: workers are killed in the middle, and the sweep still ends complete and correct."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Node, free_port, ray_environment, ray_head, ray_node
from sweeping import flags, grid

from softaug.errors import UserError
from softaug.storage.checkpoint import find_checkpoint
from softaug.storage.run_files import RunFiles
from softaug.sweep import PlannedRun, on_ray, run_sweep
from softaug.training import log

SHORT = {"decisions": 200, "checkpoint_every": 50}
LONGER = {"decisions": 500, "checkpoint_every": 50}
"""Time enough to find a node's processes and kill them while its runs train."""


@pytest.fixture(scope="module")
def environment():
    with ray_environment() as environment:
        yield environment


@pytest.fixture(scope="module")
def cluster(environment):
    """The address of a cluster."""
    pytest.importorskip("ray")
    with ray_head(environment) as address:
        yield address


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> list[PlannedRun]:
    """Two seeds trained by a local sweep that nothing disturbs."""
    runs = grid(tmp_path_factory.mktemp("local"), 2, **SHORT)
    outcomes = run_sweep(runs, workers=2, cpus_per_run=1, quiet=True)
    assert [(o.state, o.attempts) for o in outcomes] == [("finished", 1)] * 2, outcomes
    return runs


def start_sweep(
    out: Path, environment: dict[str, str], *options: str, config: dict[str, Any] = SHORT
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "softaug.cli",
        "sweep",
        "--out",
        str(out),
        "--backend",
        "ray",
        "--cpus-per-run",
        "1",
        "--json",
    ]
    return subprocess.Popen(
        [*command, *flags(**config), *options],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_checkpoint(runs: list[PlannedRun], sweep: subprocess.Popen[str]) -> PlannedRun:
    """The first of `runs` that has saved one."""
    until = time.monotonic() + 300
    while sweep.poll() is None and time.monotonic() < until:
        for run in runs:
            if list((run.directory / "checkpoints").glob("0*")):
                return run
        time.sleep(0.05)
    sweep.kill()
    raise AssertionError(sweep.communicate())


def trainer(run: PlannedRun) -> int:
    """The process that trains `run` now: the one whose output is the run's log, and not its helper."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            output, command = (process / "fd/1").readlink(), (process / "cmdline").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if output == RunFiles(run.directory).log and b"softaug.sweep.worker" in command:
            return int(process.name)
    raise AssertionError(f"nobody trains {run.name}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def result_of(run: PlannedRun) -> dict[str, Any]:
    """Everything a run ends with, bit for bit, except the wall clock."""
    last = find_checkpoint(run.directory)
    metrics = log.read_metrics(run.directory / "metrics.jsonl")
    return {
        "decisions": last.name,
        "weights": (last / "tensors.safetensors").read_bytes(),
        "policy": (last / "policy.safetensors").read_bytes(),
        "final": json.loads((run.directory / "final_eval.json").read_text()),
        "metrics": [{k: v for k, v in line.items() if k not in log.WALL_CLOCK} for line in metrics],
    }


def assert_equal_runs(left: PlannedRun, right: PlannedRun) -> None:
    ours, theirs = result_of(left), result_of(right)
    for part in ours:
        assert ours[part] == theirs[part], part


@pytest.mark.slow
def test_killed_workers_and_a_complete_and_correct_sweep(cluster, environment, reference, tmp_path):
    runs = grid(tmp_path, 2, **SHORT)
    sweep = start_sweep(tmp_path, environment, "--address", cluster, "--seeds", "0-1")
    left = list(runs)
    while left:
        run = wait_for_checkpoint(left, sweep)
        left.remove(run)
        victim = trainer(run)
        if run is runs[0]:  # the Ray worker that watches over it: Ray begins its task anew
            victim = parent(victim)
            assert Path(f"/proc/{victim}/cmdline").read_bytes().startswith(b"ray::train_one")
        os.kill(victim, signal.SIGKILL)  # else the training itself: `supervise` tries again
    output, said = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, said
    answer = json.loads(output)
    assert answer["finished"] == 2 and [run["attempts"] for run in answer["runs"]] == [2, 2]
    for run, untouched in zip(runs, reference, strict=True):
        assert_equal_runs(run, untouched)


def trained_on(node: Node, runs: list[PlannedRun]) -> list[PlannedRun]:
    """Those of `runs` that are being trained on `node`."""
    processes = node.processes()
    found = []
    for run in runs:
        with contextlib.suppress(AssertionError):  # it waits, or is finished
            if trainer(run) in processes:
                found.append(run)
    return found


def wait_for_training(node: Node, runs: list[PlannedRun], sweep: subprocess.Popen[str]) -> None:
    """Until `node` trains one of `runs` that has saved a checkpoint."""
    until = time.monotonic() + 300
    while sweep.poll() is None and time.monotonic() < until:
        if any(list((run.directory / "checkpoints").glob("0*")) for run in trained_on(node, runs)):
            return
        time.sleep(0.05)
    sweep.kill()
    raise AssertionError(sweep.communicate())


@pytest.mark.slow
def test_a_node_dies_and_the_other_finishes_its_runs(environment, tmp_path):
    pytest.importorskip("ray")
    untouched = grid(tmp_path / "local", 4, **LONGER)
    outcomes = run_sweep(untouched, workers=2, cpus_per_run=1, quiet=True)
    assert [outcome.state for outcome in outcomes] == ["finished"] * 4, outcomes
    runs = grid(tmp_path / "ray", 4, **LONGER)
    with ray_head(environment) as address, ray_node(environment, address) as doomed:
        sweep = start_sweep(
            tmp_path / "ray", environment, "--address", address, "--seeds", "0-3", config=LONGER
        )
        try:
            wait_for_training(doomed, runs, sweep)
            lost = trained_on(doomed, runs)
            doomed.kill()
            lost = [run for run in lost if run.begun() != "finished"]
            assert lost and len(lost) < 4, "the sweep was to use both nodes"
            output, said = sweep.communicate(timeout=600)
        finally:
            sweep.kill()
    assert sweep.returncode == 0, said
    answer = json.loads(output)
    assert answer["finished"] == 4, answer
    attempts = [run["attempts"] for run in answer["runs"]]
    assert attempts == [2 if run in lost else 1 for run in runs]
    for run, other in zip(runs, untouched, strict=True):
        assert_equal_runs(run, other)


@pytest.mark.slow
def test_ctrl_c_saves_and_another_backend_goes_on(environment, reference, tmp_path):
    """On a Ray that the sweep starts by itself; what it leaves, a local sweep finishes."""
    pytest.importorskip("ray")
    run = grid(tmp_path, 1, **SHORT)[0]
    for _ in range(3):  # see `cluster`
        sweep = start_sweep(tmp_path, environment, "--seeds", "0", "--workers", "1")
        try:
            wait_for_checkpoint([run], sweep)
            break
        except AssertionError as failure:
            assert "Ray does not start on this machine" in str(failure), failure
    sweep.send_signal(signal.SIGINT)
    output, said = sweep.communicate(timeout=300)
    assert sweep.returncode == 130, said
    assert json.loads(output)["interrupted"] == 1
    assert run.begun() == "begun"
    assert "stopped after" in RunFiles(run.directory).log.read_text(), "it saved where it was, and said so"
    # Two threads were allowed now, but a continued run keeps the one it began with.
    (outcome,) = run_sweep([run], cpus_per_run=2, quiet=True)
    assert outcome.state == "finished", outcome.error
    assert_equal_runs(run, reference[0])


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{free}", "ray://127.0.0.1:{free}", "no-such-host.invalid:1", "h:x"]
)
def test_an_address_without_a_cluster_is_refused_at_once(address):
    address = address.format(free=free_port())
    with pytest.raises(UserError, match=rf"cannot connect to Ray at {address} .*ray start --head"):
        on_ray.check_reachable(address)


def test_missing_ray_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(on_ray, "TOKEN_FILE", tmp_path / "none")
    with pytest.raises(UserError, match=r"pip install 'softaug\[ray\]'"):
        run_sweep(grid(tmp_path), backend="ray", quiet=True)
