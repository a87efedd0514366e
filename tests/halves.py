"""The whole suite as two pytest processes at once: `python tests/halves.py [options of pytest]`.

One has the tests in the folders, the other those in the files next to them, which take about as long. On a single core they
run one after the other. Lines are shown as they come and kept in `build/tests`; the tests that failed are named at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LOGS = TESTS.parent / "build" / "tests"
FOLDERS = [f"tests/{path.name}" for path in sorted(TESTS.iterdir()) if any(path.rglob("test_*.py"))]
# Every test is in one of them: the second half leaves out what the first is given.
HALVES = {"folders": FOLDERS, "files": ["tests", *(f"--ignore={folder}" for folder in FOLDERS)]}
NO_TESTS = 5  # pytest's exit status if its options leave no test

running: list[subprocess.Popen[str]] = []
interrupts: list[int] = []


def run(half: str, options: list[str]) -> int:
    """The exit status of pytest, whose lines go to the screen and to a file."""
    # In a session of its own, so that Ctrl-C reaches it once: through `interrupt`.
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *HALVES[half], *options], cwd=TESTS.parent, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip
    running.append(process)
    if interrupts:
        process.send_signal(signal.SIGINT)
    with process, log_of(half).open("w", encoding="utf-8") as log:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            print(f"{half:>7} | {line}", end="", flush=True)
    return process.returncode


def interrupt(number: int, frame: object) -> None:
    """Lets both halves clean up; the second time it ends them and all that they have started in their sessions."""
    interrupts.append(number)
    for process in running:
        if process.poll() is None and len(interrupts) == 1:
            process.send_signal(signal.SIGINT)
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def log_of(half: str) -> Path:
    return LOGS / f"{half}.log"


def main(options: list[str]) -> int:
    sys.stdout.reconfigure(errors="replace")
    LOGS.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=min(2, cores)) as pool:
        statuses = dict(zip(HALVES, pool.map(run, HALVES, [options] * len(HALVES)), strict=True))
    for half, status in statuses.items():
        lines = log_of(half).read_text(encoding="utf-8").splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        print(f"{half}: {lines[-1] if lines else 'no output'} (exit status {status})", *failed, sep="\n")
    if interrupts:
        return 128 + interrupts[0]
    return int(0 not in statuses.values() or not set(statuses.values()) <= {0, NO_TESTS})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
