"""A sweep on this machine: a thread for each run at a time, which watches over its process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from softaug.interrupt import Interrupt
from softaug.sweep.display import SweepDisplay
from softaug.sweep.plan import PlannedRun
from softaug.sweep.supervise import POLL_SECONDS, Orders, Outcome, supervise

STOPPING = "Interrupted: the runs save their checkpoints. Ctrl-C again kills them."


def run_locally(
    runs: Sequence[PlannedRun], orders: Orders, workers: int, interrupt: Interrupt, display: SweepDisplay
) -> list[Outcome]:
    """Supervise `workers` runs at a time until none is left."""
    killed = False

    def stopping() -> bool:
        return interrupt.requested

    def killing() -> bool:
        return killed

    with ThreadPoolExecutor(workers, thread_name_prefix="softaug-sweep") as pool:
        futures = [pool.submit(supervise, run, orders, stopping, killing) for run in runs]
        try:
            while wait(futures, timeout=POLL_SECONDS).not_done:
                if interrupt.requested:
                    display.note(STOPPING)
                display.refresh()
        except KeyboardInterrupt:  # the second one
            killed = True
        return [future.result() for future in futures]
