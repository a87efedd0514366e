"""A sweep on a Ray cluster: one task a run. The only file that imports ray.

Ray decides where and when a run trains and begins its task anew when the worker process or its node dies. The
runs' directory is shared storage: a task begun anew finds the checkpoint there, and progress is read from it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from softaug.config import Config
from softaug.errors import UserError
from softaug.interrupt import Interrupt
from softaug.machine import available_cores
from softaug.sweep.backend import Backend
from softaug.sweep.display import SweepDisplay
from softaug.sweep.plan import PlannedRun
from softaug.sweep.supervise import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    POLL_SECONDS,
    Orders,
    Outcome,
    attempts_made,
    log_tail,
    supervise,
)

STOPPING = "Interrupted: the runs save their checkpoints. Ctrl-C again does not wait for them."
CONNECT_SECONDS = 10.0
TOKEN_FILE = Path.home() / ".ray" / "auth_token"
"""where Ray keeps the token of clusters that ask for one, unless its environment variables say otherwise"""
PASSED_ON = ("SOFTAUG_HOME",)
"""Environment variables that tasks see as the driver does, apart from what their node sets."""


def run_on_ray(
    runs: Sequence[PlannedRun], orders: Orders, where: Backend, interrupt: Interrupt, display: SweepDisplay
) -> list[Outcome]:
    """Supervise every run in a task of its own, at most `where.workers` at a time."""
    cpus, gpus = orders.threads, where.gpus_per_run
    # Ray prints what happens to its workers on standard output, which is for the result.
    with (
        contextlib.redirect_stdout(sys.stderr),
        session(where.address, cpus=cpus * (where.workers or 1)) as (ray, ours),
    ):
        if missing := no_node_for(ray, cpus, gpus):
            if where.address is None and ours:
                raise UserError(f"{missing}; ask for less, or give the --address of a larger cluster")
            display.note(f"Waiting: {missing}.")  # a cluster that grows by itself may get one
        return _Tasks(ray, runs, orders, gpus).follow(where.workers or len(runs), interrupt, display)


@contextlib.contextmanager
def session(address: str | None, *, cpus: int) -> Iterator[tuple[Any, bool]]:
    """Ray, connected as in `connect` unless the program is already, and whether it was done here: then it ends here too."""
    ray = import_ray()
    ours = not ray.is_initialized()
    if ours:
        connect(ray, address, cpus=cpus)
    try:
        yield ray, ours
    finally:
        if ours:
            ray.shutdown()


def remote(ray: Any, function: Callable, *, retries: int, **resources: float) -> Any:
    """`function` as a Ray task on any node. retries: for the death of its worker or node."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return ray.remote(function).options(
        max_retries=retries,
        retry_exceptions=False,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": passed} if passed else None,
        **resources,
    )


def import_ray() -> Any:
    """The module ray, which reads its settings from the environment when it is imported."""
    token = ("RAY_AUTH_TOKEN" in os.environ, "RAY_AUTH_TOKEN_PATH" in os.environ, TOKEN_FILE.is_file())
    if any(token):
        # As `ray start` does: a cluster started where there is a token asks every driver for it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise UserError("--backend ray needs Ray; install it with: pip install 'softaug[ray]'") from None
    return ray


def connect(ray: Any, address: str | None, *, cpus: int) -> None:
    """Join the cluster at `address`, or start a Ray of our own with at least `cpus`."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        # Nothing about a private Ray leaves the machine.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options.update(address="local", include_dashboard=False, num_cpus=max(available_cores(), cpus))
    else:
        check_reachable(address)
        options.update(address=address)
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many kinds, a plain Exception among them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if address is None:
            raise UserError(
                f"Ray does not start on this machine ({reason}); try again when it is less busy, or use --backend local"
            ) from None
        raise UserError(
            f"cannot connect to Ray at {address} ({reason}); check --address and, if the cluster asks for a token, "
            "RAY_AUTH_TOKEN_PATH; a cluster is started with: ray start --head"
        ) from None


def check_reachable(address: str) -> None:
    """Refuse host:port or ray://host:port where nobody listens; Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # `auto` or `local`, which Ray knows about
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"cannot connect to Ray at {address} ({error}); check --address, or start a cluster with: ray start --head"
        ) from None


def no_node_for(ray: Any, cpus: int, gpus: float) -> str:
    """A sentence part if no node can hold a run, else nothing."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return ""
    have = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
    return f"no node has {cpus} CPUs and {gpus:g} GPUs for a run (there are: {have})"


def train_one(config: dict[str, Any], directory: str, orders: Orders) -> dict[str, Any]:
    """The task: what `supervise` does, with `ray.cancel` as Ctrl-C. Plain values in and out."""
    interrupt = Interrupt()
    with interrupt.handled():
        run = PlannedRun(Config.from_json(config), Path(directory))
        outcome = supervise(run, orders, stopping=lambda: interrupt.requested)
    return {"state": outcome.state, "attempts": outcome.attempts, "error": outcome.error}


class _Tasks:
    """The tasks of a sweep, by the number of their run."""

    def __init__(self, ray: Any, runs: Sequence[PlannedRun], orders: Orders, gpus_per_run: float):
        self.ray, self.runs, self.orders = ray, runs, orders
        self.refs: dict[Any, int] = {}
        self.outcomes: dict[int, Outcome] = {}
        # A run that fails is tried again by `supervise`, and both kinds of attempts count.
        resources = {"num_cpus": orders.threads, "num_gpus": gpus_per_run}
        self.task = remote(ray, train_one, retries=orders.retries, **resources)

    def follow(self, workers: int, interrupt: Interrupt, display: SweepDisplay) -> list[Outcome]:
        """Start tasks, wait for them and show the runs' progress until none is left."""
        waiting = list(range(len(self.runs)))
        stopped = False
        try:
            while self.refs or (waiting and not stopped):
                while waiting and len(self.refs) < workers and not stopped:
                    self.start(waiting.pop(0))
                if interrupt.requested and not stopped:
                    stopped = True
                    display.note(STOPPING)
                    for ref in self.refs:
                        self.ray.cancel(ref, force=False)
                done, _ = self.ray.wait(list(self.refs), timeout=POLL_SECONDS)
                for ref in done:
                    number = self.refs.pop(ref)
                    self.outcomes[number] = self.ended(number, ref, stopped)
                display.refresh()
        except KeyboardInterrupt:  # the second one
            for ref in self.refs:
                self.ray.cancel(ref, force=True)
        return [
            self.outcomes.get(number) or self.outcome(run, INTERRUPTED)
            for number, run in enumerate(self.runs)
        ]

    def start(self, number: int) -> None:
        run = self.runs[number]
        ref = self.task.remote(run.config.to_json(), str(run.directory), self.orders)
        self.refs[ref] = number

    def ended(self, number: int, ref: Any, stopped: bool) -> Outcome:
        run = self.runs[number]
        try:
            return Outcome(run, **self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            if run.begun() == FINISHED:
                return self.outcome(run, FINISHED)
            if stopped:
                return self.outcome(run, INTERRUPTED)
            text = f"{log_tail(run.directory)}\n({type(error).__name__}: {error})".strip()
            return self.outcome(run, FAILED, text)

    def outcome(self, run: PlannedRun, state: str, error: str = "") -> Outcome:
        return Outcome(run, state, attempts_made(run, self.orders.sweep), error)
