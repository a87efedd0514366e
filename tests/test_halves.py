"""`make test` in two processes: together they run every test once, and what happens to one of them is not lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = ("test_top.py", "envs/test_low.py", "envs/deep/test_lower.py", "new/test_low.py", "helpers/helper.py")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A small one with the same script."""
    for name in NAMES:
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def test_it():\n    print({name!r})\n")
    shutil.copy(HERE / "halves.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\n")
    return tmp_path


def start(suite: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "tests/halves.py", *options],
        cwd=suite, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def passed_in(log: str) -> list[str]:
    return sorted(line.split()[0] for line in log.splitlines() if "::" in line and "PASSED" in line)


def test_every_test_runs_once(suite: Path) -> None:
    process = start(suite, "-v")
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    folders, files = (
        passed_in((suite / f"build/tests/{half}.log").read_text()) for half in ("folders", "files")
    )
    together = subprocess.run(
        [sys.executable, "-m", "pytest", "-v"], cwd=suite, stdout=subprocess.PIPE, text=True, check=True
    )
    assert sorted(folders + files) == passed_in(together.stdout) and len(folders + files) == 4
    assert files == ["tests/test_top.py::test_it"]
    for test in folders + files:
        assert shown.count(f"{test} PASSED") == 1


@pytest.mark.parametrize("name", ["test_top.py", "new/test_low.py"])
def test_a_failure_of_either_half_is_named_at_the_end(suite: Path, name: str) -> None:
    (suite / "tests" / name).write_text("def test_it():\n    assert 1 == 2\n")
    process = start(suite)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    end = shown.splitlines()[-3:]
    assert f"FAILED tests/{name}::test_it - assert 1 == 2" in end, shown
    assert sum("exit status 0" in line for line in end) == sum("exit status 1" in line for line in end) == 1


def test_a_half_that_dies_fails(suite: Path) -> None:
    (suite / "tests/test_top.py").write_text("import os\ndef test_it():\n    os.abort()\n")
    process = start(suite)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and f"exit status {-signal.SIGABRT}" in shown


def test_options_that_leave_one_half_without_tests_do_not_fail_it(suite: Path) -> None:
    process = start(suite, "-k", "top")
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    process = start(suite, "-k", "nothing")
    assert process.communicate(timeout=120) and process.returncode == 1


@pytest.mark.skipif(
    hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < 2, reason="needs both halves at once"
)
def test_ctrl_c_lets_both_clean_up(suite: Path) -> None:
    waiting = "\n".join(
        [
            "import pathlib, time",
            "def test_it():",
            "    note = pathlib.Path(__file__).with_suffix('.note')",
            "    note.write_text('waits')",
            "    try:",
            "        time.sleep(300)",
            "    finally:",
            "        note.write_text('cleaned up')",
        ]
    )
    files = [suite / "tests" / name for name in ("test_top.py", "envs/test_low.py")]
    for file in files:
        file.write_text(waiting)
    notes = [file.with_suffix(".note") for file in files]
    process = start(suite)
    until = time.monotonic() + 120
    while not all(note.is_file() for note in notes) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, shown
    assert [note.read_text() for note in notes] == ["cleaned up"] * 2
