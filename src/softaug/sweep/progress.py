"""How far a run is, read from the files in its directory, wherever it is trained."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.config import Config
from softaug.storage.run_files import RunFiles

TAIL_BYTES = 65_536
"""Of metrics.jsonl: some hundred lines, enough for a steady rate however long the run is."""


@dataclass(frozen=True)
class RunProgress:
    """Where a run's metrics end. Everything is 0 or None before the first line."""

    decisions: int = 0
    frames: int = 0
    seconds: float = 0.0
    """of training so far, all attempts together, evaluations included"""
    rate: float | None = None
    """decisions a second at the last line of losses, without evaluations"""
    overall_rate: float | None = None
    """decisions a second over the lines read, evaluations included: what is left is estimated from this"""
    last_return: float | None = None
    """of the last training episode"""

    def seconds_left(self, total: int) -> float | None:
        """Until `total` decisions are done and evaluated; None while the speed is not known."""
        return (total - self.decisions) / self.overall_rate if self.overall_rate else None


def read_progress(directory: Path, config: Config) -> RunProgress:
    """Read the end of ``metrics.jsonl``, and where the newest checkpoint is: a young run has no line yet."""
    lines, saved = metrics_tail(RunFiles(directory).metrics), newest_checkpoint(directory)
    last: dict[str, Any] = lines[-1] if lines else {"decisions": 0, "frames": 0, "seconds": 0.0}
    rates = [line["decisions_per_second"] for line in lines if "decisions_per_second" in line]
    returns = [line["return"] for line in lines if line["kind"] == "episode"]
    further = saved > last["decisions"]
    return RunProgress(
        decisions=saved if further else last["decisions"],
        frames=saved * config.frames_per_decision if further else last["frames"],
        seconds=last["seconds"],
        rate=rates[-1] if rates else None,
        overall_rate=_overall_rate(lines, config),
        last_return=returns[-1] if returns else None,
    )


def newest_checkpoint(directory: Path) -> int:
    """Decisions of the newest complete checkpoint, 0 if there is none; without `softaug.storage.checkpoint`'s torch."""
    found = RunFiles(directory).checkpoints.glob("[0-9]*")
    return max((int(path.name) for path in found if path.name.isdecimal()), default=0)


def metrics_tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a ``metrics.jsonl`` that may be written to right now."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            content = file.read()
    except OSError:  # not there yet, or on storage that is unavailable for a short time: read again later
        return []
    return parsed(content.split(b"\n")[(1 if start else 0) : -1])


def parsed(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Lines of a ``metrics.jsonl`` without those that are damaged: a run that is resumed right now cuts its file back."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _overall_rate(lines: list[dict[str, Any]], config: Config) -> float | None:
    # The random decisions at the start are quicker than those with an update.
    learning = [line for line in lines if line["decisions"] > config.random_decisions]
    if not learning:
        return None
    first, last = learning[0], learning[-1]
    decisions, seconds = last["decisions"] - first["decisions"], last["seconds"] - first["seconds"]
    return decisions / seconds if decisions > 0 and seconds > 0 else None
