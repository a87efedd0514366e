"""Ctrl-C and SIGTERM: as a flag while a run trains, and kept away from its helper processes; how those ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any


class Interrupt:
    """Ctrl-C or SIGTERM as a flag, so that a decision is never cut in two. A second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._may_raise = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Take the signals over while the block runs (Python allows that only in the main thread)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """In the block a signal raises KeyboardInterrupt: for what can be thrown away and done again."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: Any) -> None:
        again, self.requested = self.requested, True
        if again or self._may_raise:
            raise KeyboardInterrupt


@contextmanager
def ctrl_c_left_to_parent() -> Iterator[None]:
    """A process started inside never sees Ctrl-C, which reaches the whole group: the parent decides.

    The child inherits the blocked signal. One that arrives meanwhile is handled at the end of the block, not in the
    middle of starting a process: blocking it is not enough for that, as another thread (torch has some) may take it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it unblocks the signal
    with _handled_at_the_end(signal.SIGINT):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _handled_at_the_end(number: signal.Signals) -> Iterator[None]:
    """Put a signal's Python handler off until the block has ended (Python runs it in the main thread only)."""
    previous = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    arrived: list[int] = []
    signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(number, previous)
        if arrived:
            signal.raise_signal(number)


def how_it_ended(exitcode: int | None) -> str:
    """A process's end in words."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
    hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
