"""Where runs train, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass

from softaug.errors import UserError, unknown
from softaug.machine import available_cores

BACKENDS = ("local", "ray")
RAY_CPUS_PER_RUN = 2
"""the learner, and the environment in its own process"""


@dataclass(frozen=True)
class Backend:
    """The options of `run_sweep`, of the same names; what cannot be is refused."""

    backend: str = "local"
    address: str | None = None
    workers: int | None = None
    retries: int = 2
    cpus_per_run: int | None = None
    gpus_per_run: float = 0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        for name in ("workers", "cpus_per_run"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.retries < 0 or self.gpus_per_run < 0:
            raise UserError(
                f"retries and gpus_per_run must not be negative, but are {self.retries} and {self.gpus_per_run}"
            )
        if self.backend == "local" and (self.address is not None or self.gpus_per_run):
            raise UserError(
                "an address and gpus_per_run are for the ray backend, which also runs on one machine; add --backend ray"
            )

    @property
    def threads(self) -> int:
        """Cores of one run."""
        cores = available_cores()
        if self.cpus_per_run is not None:
            return self.cpus_per_run
        if self.backend == "local":
            return max(1, cores // (self.workers or 1))
        if self.address is not None:
            return RAY_CPUS_PER_RUN
        return max(1, cores // self.workers) if self.workers else min(RAY_CPUS_PER_RUN, cores)
