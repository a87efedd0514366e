"""A real Ray cluster on this machine: workers are killed in the middle, and the sweep still ends complete and correct."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from sweeping import flags, grid

from softaug import log
from softaug.checkpoint import find_checkpoint
from softaug.errors import UserError
from softaug.sweep import PlannedRun, on_ray, run_sweep
from softaug.sweep.supervise import log_path

SHORT = {"decisions": 200, "checkpoint_every": 50}
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def environment():
    """Of clusters and drivers: a token of their own, and nothing sent anywhere."""
    folder = Path(tempfile.mkdtemp(prefix="softaug-ray-"))  # short: Ray puts sockets into it
    (folder / "token").write_text(uuid.uuid4().hex * 2)
    yield {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
    }
    shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_head(environment: dict[str, str], port: int) -> tuple[subprocess.Popen[str], str, bool]:
    """`ray start --head` with two CPUs: the process, what it said, and whether it came up."""
    options = ("--head", "--block", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats")
    ports = (f"--port={port}", f"--ray-client-server-port={free_port()}")
    head = subprocess.Popen(
        [str(BIN / "ray"), "start", *options, *ports],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert head.stdout is not None
    said = ""
    for line in head.stdout:
        said += line
        if "block forever" in line:
            return head, said, True
    head.wait()
    return head, said, False


@pytest.fixture(scope="module")
def cluster(environment):
    """The address of a cluster."""
    pytest.importorskip("ray")
    for _ in range(3):  # Ray gives its processes 30 seconds, which a busy machine may not keep
        port = free_port()
        head, said, up = start_head(environment, port)
        if up:
            break
    else:
        raise AssertionError(f"ray start failed:\n{said}")
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.communicate(timeout=60)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> list[PlannedRun]:
    """Two seeds trained by a local sweep that nothing disturbs."""
    runs = grid(tmp_path_factory.mktemp("local"), 2, **SHORT)
    outcomes = run_sweep(runs, workers=2, cpus_per_run=1, quiet=True)
    assert [(o.state, o.attempts) for o in outcomes] == [("finished", 1)] * 2, outcomes
    return runs


def start_sweep(out: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [
        str(BIN / "softaug"),
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
        [*command, *flags(**SHORT), *options],
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
        if output == log_path(run.directory) and b"softaug.sweep.worker" in command:
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
    assert "stopped after" in log_path(run.directory).read_text(), "it saved where it was, and said so"
    # Two threads were allowed now, but a run that goes on keeps the one it began with.
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
