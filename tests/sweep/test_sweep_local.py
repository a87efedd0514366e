"""Local sweeps: attempts, retries, interrupts, and runs that end like unsupervised ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from sweeping import grid, orders

from softaug.errors import UserError
from softaug.interrupt import Interrupt
from softaug.sweep import run_sweep, supervise
from softaug.sweep.display import SweepDisplay
from softaug.sweep.local import run_locally
from softaug.sweep.supervise import read_status


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(supervise, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(supervise, "POLL_SECONDS", 0.02)


def sweep(runs, does, *, workers=2, interrupt=None, **options):
    interrupt = interrupt or Interrupt()
    with closing(SweepDisplay(runs, "this", quiet=True)) as display:
        return run_locally(runs, orders(does, **options), workers, interrupt, display)


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(run) -> list[int]:
    return [int(line.split()[0]) for line in (run.directory / "worked.txt").read_text().splitlines()]


def test_failed_runs_are_tried_again_while_the_others_go_on(tmp_path):
    runs = grid(tmp_path, 4)
    outcomes = sweep(runs, {1: ["fail", "die", "finish"], 2: ["fail"] * 9, 3: ["diverge"] * 9})
    assert [(o.state, o.attempts) for o in outcomes] == [
        ("finished", 1),
        ("finished", 3),
        ("failed", 3),
        ("failed", 1),  # diverged: trying again would hide it
    ]
    assert [o.run for o in outcomes] == runs
    assert outcomes[0].error == outcomes[1].error == ""
    assert outcomes[2].error.splitlines() == ["seed 2 does fail", "the disk is full", "(exit status 1)"]
    log = (runs[1].directory / "log.txt").read_text()
    assert log.count("attempt") == 3 and "attempt 3 of 3" in log, "every attempt is in the log"
    assert read_status(runs[2], "this").state == "failed"
    assert read_status(runs[2], "another sweep") is None


def test_a_killed_process_is_named_as_such(tmp_path):
    (outcome,) = sweep(grid(tmp_path), {0: ["die"]}, retries=0)
    assert outcome.state == "failed" and "killed by SIGKILL" in outcome.error


def test_attempts_of_a_worker_that_died_count(tmp_path):
    run = grid(tmp_path)[0]
    supervise.write_status(run, supervise.Status("this", "running", 2))
    (outcome,) = sweep([run], {0: ["fail"] * 9})
    assert (outcome.state, outcome.attempts) == ("failed", 3)


def test_finished_runs_are_skipped_and_nothing_starts_for_them(tmp_path):
    runs = grid(tmp_path, 2)
    sweep(runs, {})
    before = pids(runs[0])
    outcomes = run_sweep(runs, quiet=True)  # the real worker, which must not be needed
    assert [(o.state, o.attempts) for o in outcomes] == [("finished", 0)] * 2
    assert pids(runs[0]) == before


def test_no_more_than_that_many_at_a_time(tmp_path):
    runs = grid(tmp_path, 3)
    interrupt = Interrupt()
    does = {seed: ["train"] for seed in range(3)}
    thread = threading.Thread(target=lambda: sweep(runs, does, workers=2, interrupt=interrupt))
    thread.start()
    for run in runs[:2]:
        wait_for(run.directory / "training")
    assert read_status(runs[2], "this") is None, "the third waits"
    interrupt.requested = True
    thread.join(30)
    assert not thread.is_alive()


def test_an_interrupt_lets_runs_save_and_starts_no_more(tmp_path):
    runs = grid(tmp_path, 3)
    interrupt, outcomes = Interrupt(), []
    does = {0: ["train"], 1: ["train"]}
    thread = threading.Thread(target=lambda: outcomes.extend(sweep(runs, does, interrupt=interrupt)))
    thread.start()
    for run in runs[:2]:
        wait_for(run.directory / "training")
    interrupt.requested = True
    thread.join(30)
    assert [(o.state, o.attempts) for o in outcomes] == [
        ("interrupted", 1),
        ("interrupted", 1),
        ("interrupted", 0),
    ]
    assert all((run.directory / "saved").exists() for run in runs[:2])
    assert not runs[2].directory.exists()
    assert sweep(runs, {})[0].state == "finished", "the same sweep again continues"


def test_a_second_interrupt_kills(tmp_path):
    run = grid(tmp_path)[0]
    trains = run.directory / "training"
    killed, outcomes = threading.Event(), []

    def work():
        stuck = orders({0: ["stuck"]})
        outcomes.append(supervise.supervise(run, stuck, stopping=trains.exists, killing=killed.is_set))

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(trains)
    thread.join(0.3)
    assert thread.is_alive(), "it ignores the first one"
    killed.set()
    thread.join(30)
    assert outcomes[0].state == "interrupted" and not alive(pids(run)[0])


def test_one_run_stopped_by_hand_is_left_interrupted(tmp_path):
    runs = grid(tmp_path, 2)
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.extend(sweep(runs, {0: ["train"]}, workers=1)))
    thread.start()
    wait_for(runs[0].directory / "training")
    os.kill(pids(runs[0])[0], signal.SIGINT)
    thread.join(30)
    assert [o.state for o in outcomes] == ["interrupted", "finished"]


def test_workers_end_when_the_sweep_is_killed(tmp_path):
    """A driver killed with SIGKILL leaves no training behind: it saves and ends."""
    run = grid(tmp_path)[0]
    script = (
        "from pathlib import Path\nfrom sweeping import grid, orders\nfrom softaug.sweep.supervise import supervise\n"
        f"supervise(grid(Path({str(tmp_path)!r}))[0], orders({{0: ['train']}}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    driver = subprocess.Popen([sys.executable, "-c", script], env=environment)
    wait_for(run.directory / "training")
    driver.kill()
    driver.wait()
    wait_for(run.directory / "saved")
    assert len(pids(run)) == 1, "nobody starts it again"


def test_a_directory_that_cannot_be_written_fails_only_its_run(tmp_path):
    runs = grid(tmp_path, 2)
    runs[0].directory.parent.mkdir(parents=True)
    runs[0].directory.touch()  # a file where its directory should be
    outcomes = sweep(runs, {})
    assert [o.state for o in outcomes] == ["failed", "finished"]
    assert "seed0" in outcomes[0].error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"backend": "slurm"}, "unknown backend 'slurm'; choose one of local, ray"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"cpus_per_run": 0}, "cpus_per_run must be at least 1"),
        ({"retries": -1}, "must not be negative"),
        ({"address": "auto"}, "are for the ray backend"),
        ({"gpus_per_run": 1}, "are for the ray backend"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        run_sweep(grid(tmp_path), **options)


def test_a_wrong_media_folder_is_refused_once_and_before_the_start(tmp_path):
    runs = grid(tmp_path, 2, videos="no/such/folder", eval_modes=("video_easy",))
    with pytest.raises(UserError, match="no/such/folder"):
        run_sweep(runs)
    assert not (tmp_path / "cartpole_balance").exists()
