"""Sweeps: a grid of runs on this machine or on a Ray cluster.

    runs = plan_grid(["walker_walk"], ["sac", "soda"], range(5), "runs/sweep", preset="small")
    outcomes = run_sweep(runs, workers=2)

Each run is a process with its output in ``log.txt`` of its directory. Finished runs are skipped, interrupted ones
continue from their checkpoint, failed ones are tried again a bounded number of times while the others continue.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from softaug.interrupt import Interrupt
from softaug.sweep.backend import Backend
from softaug.sweep.display import SweepDisplay
from softaug.sweep.local import run_locally
from softaug.sweep.plan import PlannedRun, check_media, parse_seeds, plan_grid
from softaug.sweep.supervise import Orders, Outcome

__all__ = ["Backend", "Outcome", "PlannedRun", "parse_seeds", "plan_grid", "run_sweep"]


def run_sweep(
    runs: Sequence[PlannedRun],
    *,
    backend: str = "local",
    address: str | None = None,
    workers: int | None = None,
    retries: int = 2,
    cpus_per_run: int | None = None,
    gpus_per_run: float = 0,
    quiet: bool = False,
) -> list[Outcome]:
    """Train every run that is not finished; one outcome a run, in their order. Ctrl-C leaves the rest interrupted.

    backend: `local` processes or `ray` tasks. address: of the Ray cluster (`auto`, host:port, ray://host:port);
        None starts a Ray of its own on this machine.
    workers: runs at a time; None: one locally, as many as the cluster has room for with Ray.
    retries: how often a failed run is tried again.
    cpus_per_run: torch threads of a run that begins, and what Ray reserves for it; None: this machine's cores
        divided by `workers`, on a cluster two. A continued run keeps the threads it began with.
    gpus_per_run: what Ray reserves for a run; may be a fraction.
    """
    where = Backend(backend, address, workers, retries, cpus_per_run, gpus_per_run)
    unfinished = [run for run in runs if run.begun() != "finished"]
    if backend == "local":
        check_media(unfinished)
    orders = Orders(sweep=uuid.uuid4().hex[:12], retries=retries, threads=where.threads, cwd=str(Path.cwd()))
    interrupt = Interrupt()
    with closing(SweepDisplay(runs, orders.sweep, quiet=quiet)) as display, interrupt.handled():
        if not unfinished:
            made = []
        elif backend == "local":
            made = run_locally(unfinished, orders, workers or 1, interrupt, display)
        else:
            from softaug.sweep.on_ray import run_on_ray  # the only file that imports ray

            made = run_on_ray(unfinished, orders, where, interrupt, display)
    outcomes = {outcome.run.directory: outcome for outcome in made}
    return [outcomes.get(run.directory, Outcome(run, "finished", 0)) for run in runs]
