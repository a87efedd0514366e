"""One run of a sweep, in a process of its own: ``python -m softaug.sweep.worker``.

What to do is one line of JSON on standard input (`supervise.request`). The pipe then stays open for as long as the
supervisor lives. When it closes, this process saves a checkpoint and ends, so a killed supervisor leaves no
training behind that nobody waits for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from softaug.config import Config
from softaug.errors import UserError
from softaug.files import read_object
from softaug.storage.run_files import RunFiles
from softaug.sweep.supervise import EXIT_DIVERGED, EXIT_FAILED, EXIT_INTERRUPTED

LOCK_SECONDS = 120.0
"""How long the process of an attempt before this one may take to save and go."""


def main() -> int:
    """Begin the run or continue it; the exit status says how it ended."""
    if hasattr(signal, "pthread_sigmask"):
        # A Ray started by the sweep blocks it in all its processes; `kill -INT` is to stop a run there too.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    values = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    config, directory = Config.from_json(values["config"]), Path(values["directory"])
    from softaug.training.loop import Diverged

    try:
        return _train(config, directory, values["threads"])
    except Diverged as error:
        print(f"softaug: error: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    except UserError as error:
        print(f"softaug: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _train(config: Config, directory: Path, threads: int) -> int:
    import torch

    from softaug.training.run import train

    _wait_for_lock(directory)
    begun = RunFiles(directory).exist
    if not config.threads:
        # Sums depend on the number of threads: a continued run keeps the one it began with, however many
        # runs share the machine now.
        torch.set_num_threads(_threads_before(directory) or threads)
    result = train(config, directory, resume=begun)
    return 0 if result.finished else EXIT_INTERRUPTED


def _threads_before(directory: Path) -> int | None:
    files = RunFiles(directory)
    remedy = "restore it or start a new run"
    facts = read_object(files.facts, remedy) if files.facts.is_file() else {}
    threads = facts.get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def _wait_for_lock(directory: Path) -> None:
    """Wait until nobody trains in `directory`; after `LOCK_SECONDS` leave it to `train` to refuse."""
    from softaug.training.preparation import RunDirectory

    until = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < until:
        try:
            RunDirectory(directory).close()
        except UserError:
            time.sleep(0.5)
        else:
            return


def _end_with_supervisor() -> None:
    # Not sys.stdin: its lock, held by this thread, would make the interpreter's exit fail.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # training takes it as Ctrl-C: it saves and ends


if __name__ == "__main__":
    sys.exit(main())
