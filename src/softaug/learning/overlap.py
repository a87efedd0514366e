"""A second thread for work that the main one need not wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Beside:
    """`start` a function and ask for its result later; functions started run one after the other.

    Where torch computes on one CPU thread, they run on a second thread, beside the caller's work. Everywhere else (a
    GPU, or torch's own threads on all cores) a second thread would only be in the way, and `start` runs the function
    at once. Results are the same to the last bit, if caller and function change nothing that the other one uses.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="softaug-beside"
        )  # begins with the first function

    def start(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self.device.type == "cpu" and torch.get_num_threads() == 1:
            return self._thread.submit(function, *args, **kwargs)
        done: Future[T] = Future()
        done.set_result(function(*args, **kwargs))
        return done
