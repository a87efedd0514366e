"""Ctrl-C while the command line is being imported. Imported before everything else, so it imports next to nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130


def is_command_line() -> bool:
    """Whether this process was started as ``softaug ...`` or ``python -m softaug.cli ...``, not by somebody's script."""
    words = sys.orig_argv[1:]
    script = next((word for word in words if not word.startswith("-")), "")
    return script.replace("\\", "/").rsplit("/", 1)[-1] in ("softaug", "softaug.exe") or (
        "-m" in words and words[words.index("-m") + 1 :][:1] == ["softaug.cli"]
    )


def end_at_ctrl_c() -> None:
    """From now on Ctrl-C ends the process at once, until `imports_end_at_ctrl_c` was left."""
    if _may_take_ctrl_c():
        signal.signal(signal.SIGINT, _end)


@contextmanager
def imports_end_at_ctrl_c() -> Iterator[None]:
    """In the block Ctrl-C ends the process at once.

    For imports: nothing has been done yet that would need cleaning up, and a KeyboardInterrupt in the middle of a C
    extension's import can come out as another exception or as a traceback from a callback.
    """
    if not _may_take_ctrl_c():
        yield
        return
    end_at_ctrl_c()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _may_take_ctrl_c() -> bool:
    """Not where the caller handles Ctrl-C or ignores it, nor where Python does not allow it."""
    free = (signal.default_int_handler, _end)
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in free


def _end(number: int, frame: Any) -> None:
    os.write(2, b"softaug: interrupted\n")
    os._exit(INTERRUPTED)
