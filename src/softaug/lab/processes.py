"""Processes of the lab: they never outlive it, and Ctrl-C is the server's."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from softaug.interrupt import ctrl_c_left_to_parent

PROCESS_NAME = "softaug-lab"


def start_process(target: Callable[..., None], *args: Any) -> tuple[Connection, SpawnProcess]:
    """Start ``target(their end, *args)``; returns our end of the connection, and the process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args), daemon=True, name=PROCESS_NAME)
    with ctrl_c_left_to_parent():
        process.start()
    theirs.close()
    return ours, process


def return_free_memory() -> None:
    """Return what was freed to the system, where the C library can (glibc).

    It would keep the memory of an environment or a video that is gone, tens of MB each, in pieces that the next one seldom fits
    into.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
