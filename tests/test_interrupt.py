"""Ctrl-C while a helper process is being started."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import softaug
from softaug.interrupt import ctrl_c_left_to_parent, how_it_ended

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs POSIX signals")


@pytest.fixture
def another_thread():
    """A thread that may take the process's signals, as torch's do."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.usefixtures("another_thread")
def test_ctrl_c_waits_for_the_end_of_the_block_though_another_thread_takes_it() -> None:
    reached_the_end = False
    with pytest.raises(KeyboardInterrupt), ctrl_c_left_to_parent():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        reached_the_end = True
    assert reached_the_end


@pytest.mark.usefixtures("another_thread")
def test_a_handler_of_the_callers_gets_it_once_and_stays() -> None:
    calls = []

    def handler(number: int, frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with ctrl_c_left_to_parent():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            assert calls == []
        assert calls == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_child_never_sees_it_and_the_parent_does_again_afterwards() -> None:
    with ctrl_c_left_to_parent():
        child = subprocess.Popen([sys.executable, "-c", "input(); print('unharmed')"], stdin=-1, stdout=-1)
    child.send_signal(signal.SIGINT)
    assert child.communicate(b"\n", timeout=60)[0].strip() == b"unharmed"
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


@pytest.mark.parametrize("package", ["gymnasium", "rich", "torch"])
def test_ctrl_c_during_an_import_is_one_line_and_status_130(tmp_path: Path, package: str) -> None:
    # Imported in place of the real one: Ctrl-C arrives in the middle of the import.
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(softaug.__file__).parents[1])])
    flags = ["train", "--task", "walker_walk", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "softaug.cli", *flags],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "softaug: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_script_that_imports_softaug_keeps_its_own_ctrl_c() -> None:
    code = "import softaug, signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_how_a_process_ended_in_words() -> None:
    assert how_it_ended(7) == "exit code 7"
    assert how_it_ended(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert "memory" in how_it_ended(-signal.SIGKILL)
