"""The paper's own numbers (its three tables of returns), packaged: mean and standard deviation over 5 seeds."""

from __future__ import annotations

import csv
import importlib.resources
from functools import cache
from typing import NamedTuple

from softaug.methods import ALIASES, get_method


class PaperResult(NamedTuple):
    """Mean and standard deviation over the paper's 5 seeds."""

    mean: float
    std: float


@cache
def paper_results() -> dict[tuple[str, str, str], PaperResult]:
    """(mode, task, method) -> the paper's number; methods by their names here (`rad` is `sac`)."""
    file = importlib.resources.files("softaug") / "data" / "paper_results.csv"
    with file.open(encoding="utf-8") as lines:
        return {
            (row["mode"], row["task"], get_method(row["method"]).name): PaperResult(
                float(row["mean"]), float(row["std"])
            )
            for row in csv.DictReader(lines)
        }


def paper_result(mode: str, task: str, method: str) -> PaperResult | None:
    """The paper's number, or None where it has none."""
    return paper_results().get((mode, task, ALIASES.get(method, method)))
