"""A second thread for the parts of an update that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

from softaug.machine import available_cores

P = ParamSpec("P")
T = TypeVar("T")


class Beside:
    """`start` a function and ask for its result later; functions that were started run one after the other.

    threaded: on a second thread, while the caller computes something else; otherwise at once, in the caller's thread.
    Results are the same to the last bit, as long as neither changes what the other one reads.
    """

    def __init__(self, threaded: bool):
        self.threaded = threaded
        # The thread starts when it is first needed. OpenMP counts threads per thread: unless told, convolutions there would
        # use all cores, whatever the main thread was told.
        self._thread = ThreadPoolExecutor(
            1, "softaug-beside", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )

    def start(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self.threaded:
            return self._thread.submit(function, *args, **kwargs)
        done: Future[T] = Future()
        done.set_result(function(*args, **kwargs))
        return done


def overlaps(choice: str, device: torch.device, threads: int) -> bool:
    """What ``--overlap`` means: "auto" says yes where torch computes on one CPU thread and there are more cores.

    On a CPU only: a GPU computes one after the other anyway, and autocast holds for one thread.
    """
    if device.type != "cpu" or choice == "off":
        return False
    return choice == "on" or (threads == 1 and available_cores() > 1)
