"""Seeing one run through: attempts in processes of their own, until it is finished, given up or interrupted.

Local threads and Ray tasks call the same `supervise`. What they know of a run is in its directory, which is all
that a driver elsewhere has to read: `log.txt` and `sweep.json` (`Status`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from softaug.errors import UserError
from softaug.files import write_atomically
from softaug.storage.run_files import RunFiles
from softaug.sweep.plan import PlannedRun

POLL_SECONDS = 0.2
RETRY_SECONDS = 2.0
TAIL_LINES = 12
HEADER = "--- "

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
WAITING, RUNNING = "waiting", "running"

# Exit statuses of a worker that did not finish its run.
EXIT_FAILED, EXIT_DIVERGED, EXIT_INTERRUPTED = 1, 3, 130
WORKER = (sys.executable, "-m", "softaug.sweep.worker")


@dataclass(frozen=True)
class Outcome:
    """How one run of a sweep ended."""

    run: PlannedRun
    state: str
    """finished, failed or interrupted"""
    attempts: int
    """processes that were started for it; 0 if it was finished before"""
    error: str = ""
    """the end of its log, if it failed"""


@dataclass(frozen=True)
class Orders:
    """What holds for every run of a sweep."""

    sweep: str
    """distinguishes this sweep's attempts from those of one before"""
    retries: int
    threads: int
    """torch threads of a run that begins"""
    cwd: str
    """where relative paths of media begin"""
    command: tuple[str, ...] = ()
    """what trains a run, given `request` on its standard input; empty: `softaug.sweep.worker`"""


@dataclass(frozen=True)
class Status:
    """``sweep.json``: how far a sweep is with one run."""

    sweep: str
    state: str
    attempts: int


def never() -> bool:
    return False


def supervise(
    run: PlannedRun,
    orders: Orders,
    stopping: Callable[[], bool] = never,
    killing: Callable[[], bool] = never,
) -> Outcome:
    """Train `run` to its end, trying again after a failure up to `orders.retries` times.

    stopping: asked several times a second; once true, the run saves its checkpoint and is left as interrupted.
    killing: once true, it is killed.
    """
    # Not always 0: this may be a Ray task begun anew, because the worker it ran in had died.
    attempts = attempts_made(run, orders.sweep)
    error = ""

    def ended(state: str) -> Outcome:
        if attempts:
            write_status(run, Status(orders.sweep, state, attempts))
        return Outcome(run, state, attempts, error if state == FAILED else "")

    try:
        while run.begun() != FINISHED:
            if stopping():
                return ended(INTERRUPTED)
            if attempts > orders.retries:
                error = error or log_tail(run.directory)
                return ended(FAILED)
            if attempts:
                time.sleep(RETRY_SECONDS)  # a full disk or a lost mount may be back
            attempts += 1
            write_status(run, Status(orders.sweep, RUNNING, attempts))
            status = attempt(run, orders, attempts, stopping, killing)
            if run.begun() == FINISHED:
                break
            if stopping() or status == EXIT_INTERRUPTED:
                return ended(INTERRUPTED)
            error = f"{log_tail(run.directory)}\n({describe(status)})".strip()
            if status == EXIT_DIVERGED:
                # Trying again would only hide that this seed diverges.
                return ended(FAILED)
        return ended(FINISHED)
    except (OSError, UserError) as failure:  # its directory cannot be written to; the other runs continue
        return Outcome(run, FAILED, attempts, f"{run.directory}: {failure}")


def attempt(
    run: PlannedRun,
    orders: Orders,
    number: int,
    stopping: Callable[[], bool],
    killing: Callable[[], bool],
) -> int:
    """One process from start to end; returns its exit status."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    with RunFiles(run.directory).log.open("ab") as log:
        log.write(f"{HEADER}{now}, attempt {number} of {orders.retries + 1}\n".encode())
        log.flush()
        process = subprocess.Popen(
            orders.command or WORKER,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Away from the terminal's process group: Ctrl-C reaches the sweep, which decides.
            start_new_session=True,
            cwd=orders.cwd if Path(orders.cwd).is_dir() else None,
        )
    assert process.stdin is not None
    told = False
    try:
        process.stdin.write(request(run, orders))
        process.stdin.flush()
        while (status := process.poll()) is None:
            if killing():
                process.kill()
            elif stopping() and not told:
                process.terminate()  # to training the same as Ctrl-C, but never blocked or ignored by inheritance
                told = True
            time.sleep(POLL_SECONDS)
        return status
    except BrokenPipeError:  # it died before it had read its orders
        return process.wait()
    finally:
        # Whatever ends this function early, the closed pipe tells the process to save and go.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def request(run: PlannedRun, orders: Orders) -> bytes:
    """The line that tells a worker what to train."""
    values = {"config": run.config.to_json(), "directory": str(run.directory), "threads": orders.threads}
    return json.dumps(values).encode() + b"\n"


def log_tail(directory: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of the last attempt's output."""
    try:
        with RunFiles(directory).log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    shown: list[str] = []
    for line in reversed(text.splitlines()):
        if line.startswith(HEADER) or len(shown) == lines:
            break
        shown.insert(0, line.rstrip())
    return "\n".join(shown).strip()


def describe(status: int) -> str:
    """An exit status for people."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def write_status(run: PlannedRun, status: Status) -> None:
    write_atomically(RunFiles(run.directory).sweep, json.dumps(asdict(status)) + "\n")


def read_status(run: PlannedRun, sweep: str) -> Status | None:
    """What this sweep has noted about `run`; None if nothing yet."""
    try:
        values = json.loads(RunFiles(run.directory).sweep.read_text())
        status = Status(str(values["sweep"]), str(values["state"]), int(values["attempts"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, another program's, or on storage that is unavailable for a short time: it says nothing about this sweep.
        return None
    return status if status.sweep == sweep else None


def attempts_made(run: PlannedRun, sweep: str) -> int:
    status = read_status(run, sweep)
    return status.attempts if status is not None else 0
