"""Training runs through the sweep's supervisor, a few at a time, each of which can be stopped by itself."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from softaug.sweep.plan import PlannedRun
from softaug.sweep.supervise import FAILED, FINISHED, INTERRUPTED, Orders, Outcome, log_tail, supervise


class Runner(Protocol):
    """Where runs train. A stopped run saves a checkpoint and can be started again."""

    workers: int | None
    """runs at a time; None: as many as the cluster has room for"""

    def start(self, run: PlannedRun) -> None: ...

    def stop(self, run: PlannedRun) -> None: ...

    def ended(self) -> list[Outcome]:
        """The runs that ended since the last call."""
        ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def new_orders(orders: Orders) -> Orders:
    """`orders` for one start: `supervise` counts attempts by the sweep's name, and to be stopped is no failure."""
    return replace(orders, sweep=uuid.uuid4().hex[:12])


class LocalRunner:
    """A thread for each run, which watches over its process."""

    def __init__(self, orders: Orders, workers: int):
        self.workers: int | None = workers
        self._orders = orders
        self._killed = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="softaug-tune")
        self._stops: dict[Path, threading.Event] = {}
        self._futures: dict[Future[Outcome], Path] = {}

    def start(self, run: PlannedRun) -> None:
        stop = self._stops[run.directory] = threading.Event()
        future = self._pool.submit(
            supervise, run, new_orders(self._orders), stop.is_set, lambda: self._killed
        )
        self._futures[future] = run.directory

    def stop(self, run: PlannedRun) -> None:
        self._stops[run.directory].set()

    def ended(self) -> list[Outcome]:
        done = [future for future in self._futures if future.done()]
        for future in done:
            del self._stops[self._futures.pop(future)]
        return [future.result() for future in done]

    def kill(self) -> None:
        for stop in self._stops.values():
            stop.set()
        self._killed = True

    def close(self) -> None:
        for stop in self._stops.values():
            stop.set()
        self._pool.shutdown()


class RayRunner:
    """A Ray task for each run; see `softaug.sweep.on_ray`, whose task and connection these are."""

    def __init__(self, orders: Orders, workers: int | None, *, address: str | None, gpus_per_run: float):
        from softaug.errors import UserError
        from softaug.sweep.on_ray import no_node_for, remote, session, train_one

        self._refs: dict[Any, PlannedRun] = {}
        self._orders = orders
        self._session = ExitStack()
        self._ray, _ = self._session.enter_context(session(address, cpus=orders.threads * (workers or 1)))
        if missing := no_node_for(self._ray, orders.threads, gpus_per_run):
            self.close()
            raise UserError(f"{missing}; ask for less, or give the --address of a larger cluster")
        # A study asks for a trial when there is room for one, so it must know how much room there is.
        room = int(self._ray.cluster_resources().get("CPU", 1) // orders.threads)
        self.workers: int | None = workers or max(1, room)
        resources = {"num_cpus": orders.threads, "num_gpus": gpus_per_run}
        self._task = remote(self._ray, train_one, retries=orders.retries, **resources)

    def start(self, run: PlannedRun) -> None:
        ref = self._task.remote(run.config.to_json(), str(run.directory), new_orders(self._orders))
        self._refs[ref] = run

    def stop(self, run: PlannedRun) -> None:
        for ref, other in self._refs.items():
            if other.directory == run.directory:
                self._ray.cancel(ref, force=False)

    def ended(self) -> list[Outcome]:
        if not self._refs:
            return []
        done, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        return [self._outcome(ref, self._refs.pop(ref)) for ref in done]

    def _outcome(self, ref: Any, run: PlannedRun) -> Outcome:
        try:
            return Outcome(run, **self._ray.get(ref))
        except self._ray.exceptions.TaskCancelledError:
            return Outcome(run, FINISHED if run.begun() == FINISHED else INTERRUPTED, 1)
        except self._ray.exceptions.RayError as error:
            if run.begun() == FINISHED:
                return Outcome(run, FINISHED, 1)
            text = f"{log_tail(run.directory)}\n({type(error).__name__}: {error})".strip()
            return Outcome(run, FAILED, 1, text)

    def kill(self) -> None:
        for ref in self._refs:
            self._ray.cancel(ref, force=True)

    def close(self) -> None:
        for ref in self._refs:
            self._ray.cancel(ref, force=False)
        self._session.close()
