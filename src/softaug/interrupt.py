"""Ctrl-C and SIGTERM while a run trains."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
