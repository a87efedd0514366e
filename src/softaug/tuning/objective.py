"""What is maximized: the area under the training curve, read from ``metrics.jsonl`` while a run trains.

The curve is the return of training episodes. Over a budget B (decisions or seconds) with the episodes that ended at
0 < x_1 < ... < x_n <= B with returns R_1 ... R_n, and x_0 = 0, the area is

    A(B) = [ sum_i R_i (x_i - x_{i-1}) + R_n (B - x_n) ] / B ,

the mean return over the budget: an episode counts for the time it took, and the last one until the budget's end. It
depends on nothing after B, so that a run gives the same value at a rung whenever it is read.

Per task it is normalized to (A - low) / (high - low), and a trial's score is the mean over tasks and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from softaug.errors import UserError
from softaug.sweep.progress import parsed
from softaug.tasks import ROBOT_TASKS

Axis = Literal["decisions", "seconds"]

SUITE_RANGE = (0.0, 1000.0)
"""Rewards of the suite lie between 0 and 1, and an episode has 1,000 frames."""
ROBOT_RANGE = (0.0, 50.0)
"""robot_push: at most 1 for each of 50 decisions; a cube left alone costs a few points below 0."""
RAW = (0.0, 1.0)


@dataclass(frozen=True)
class Curve:
    """Training episodes of a run so far, and where it is."""

    decisions: tuple[int, ...] = ()
    """at the end of each episode"""
    seconds: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    last_decisions: int = 0
    """at the last line of any kind"""
    last_seconds: float = 0.0
    rate: float | None = None
    """decisions per second at the last line of losses"""

    def reached(self, budget: float, axis: Axis) -> bool:
        return (self.last_decisions if axis == "decisions" else self.last_seconds) >= budget

    def area(self, budget: float, axis: Axis) -> float | None:
        """Mean return over the budget, as above; None if no episode ended in it."""
        return area(self.decisions if axis == "decisions" else self.seconds, self.returns, budget)


def area(ends: Sequence[float], returns: Sequence[float], budget: float) -> float | None:
    """The area of episodes that ended at `ends` with `returns`, divided by `budget`."""
    total = begun = 0.0
    last: float | None = None
    for end, value in zip(ends, returns, strict=True):
        if end > budget:
            break
        total += value * (end - begun)
        begun, last = end, value
    return None if last is None else (total + last * (budget - begun)) / budget


def read_curve(path: Path) -> Curve:
    """The curve of a run that may be writing to `path` now; empty before its first line."""
    try:
        content = path.read_bytes()
    except OSError:  # not there yet, or on storage that is away for a while
        return Curve()
    lines = parsed(content.split(b"\n")[:-1])
    if not lines:
        return Curve()
    episodes = [line for line in lines if line["kind"] == "episode"]
    rates = [line["decisions_per_second"] for line in lines if "decisions_per_second" in line]
    return Curve(
        tuple(line["decisions"] for line in episodes),
        tuple(line["seconds"] for line in episodes),
        tuple(line["return"] for line in episodes),
        lines[-1]["decisions"],
        lines[-1]["seconds"],
        rates[-1] if rates else None,
    )


def normalized(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return (value - low) / (high - low)


def return_ranges(tasks: Sequence[str], given: Sequence[str]) -> dict[str, tuple[float, float]]:
    """task -> (low, high) that become 0 and 1.

    given: ``LOW,HIGH`` for all tasks or ``TASK=LOW,HIGH`` for one. The tasks of softaug have ranges of their own. One
    environment of the user's alone needs none: its score is the plain area.
    """
    asked = dict(_parse_range(text) for text in given)
    if unknown := sorted(set(asked) - {*tasks, ""}):
        raise UserError(f"--return-range names {unknown[0]}, which is not among the tasks; correct it")
    ranges = {}
    for task in tasks:
        bounds = asked.get(task, asked.get(""))
        if bounds is None and ":" not in task:
            bounds = ROBOT_RANGE if task in ROBOT_TASKS else SUITE_RANGE
        if bounds is None and len(tasks) > 1:
            raise UserError(
                f"returns of {task} must be normalized to be averaged with other tasks; give --return-range "
                f"{task}=LOW,HIGH (a poor and a very good return)"
            )
        ranges[task] = bounds or RAW
    return ranges


def _parse_range(text: str) -> tuple[str, tuple[float, float]]:
    task, _, numbers = text.rpartition("=")
    try:
        low, high = (float(part) for part in numbers.split(","))
    except ValueError:
        low = high = 0.0
    if not low < high < float("inf") or low == float("-inf"):
        raise UserError(f"--return-range {text} is no range; give LOW,HIGH or TASK=LOW,HIGH, such as 0,1000")
    return task, (low, high)
