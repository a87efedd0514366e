"""What the page's templates show of a group: its mark, its numbers as text, and which of them are the best."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import numpy as np
from markupsafe import Markup

from softaug.results import statistics
from softaug.results.groups import Group
from softaug.results.model import ModeResult
from softaug.results.paper import PaperResult, paper_result
from softaug.results.published import PublishedResult, find_published
from softaug.results.records import RunRecord

MOST_NAMED = 8
"""Of a list of things left out, so many are named; the rest are counted."""


def dash(group: Group) -> str:
    """A family of methods has one hue; convolution and overlay differ by dash, so that color is never the only sign."""
    return "dashed" if group.config.row.strong == "conv" else "solid"


def number(value: float) -> str:
    """Returns: whole above 100, else one decimal."""
    text = f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def commas(value: int) -> str:
    return f"{value:,}"


def span(values: Sequence[int]) -> str:
    """`5`, or `2–5`"""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def breakable(name: str) -> Markup:
    """A task's name or a path that may be broken after ``_`` and ``/``, nowhere else."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/])", name))


def few(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    names = list(names)
    shown = ", ".join(names[:MOST_NAMED])
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def which_runs(having: Sequence[RunRecord], records: Sequence[RunRecord]) -> str:
    """How many of `records` these are, and of which methods if not of all."""
    runs = "all runs" if len(having) == len(records) else f"{len(having)} of {len(records)} runs"
    methods = sorted({record.config.method for record in having})
    every = {record.config.method for record in records}
    return f"{runs} ({', '.join(methods)})" if len(methods) < len(every) else runs


def mean_std(by_seed: Mapping[int, float]) -> tuple[float, float | None] | None:
    """Over seeds; None if there are none."""
    return statistics.mean_std([*by_seed.values()]) if by_seed else None


def iqm(found: ModeResult) -> statistics.BootstrapEstimate:
    scores = np.array([*found.scores.values()])
    return statistics.estimate([scores], rng=np.random.default_rng(0), replications=2000)


def paper_of(group: Group, mode: str) -> PaperResult | None:
    """The paper's number for the method as it is meant: PAD adapting."""
    return paper_result(mode, group.task, group.method) if group.adapted == group.config.row.adapts else None


def published_of(group: Group, mode: str) -> list[PublishedResult]:
    """What anybody reports for the method as it is meant, the paper first."""
    if group.adapted != group.config.row.adapts:
        return []
    return find_published(mode, group.task, group.method)


def who_columns(groups: Sequence[Group]) -> list[str]:
    """The columns that say which group a row is: no task where there is only one."""
    return ["Task", "Method"] if len({group.task for group in groups}) > 1 else ["Method"]


def best_results(groups: Sequence[Group]) -> set[tuple[str, str, str]]:
    """(task, label, mode) of the highest mean among groups that may be compared: same preset, media and training.

    Equal means are all the best; of single seeds none is called that.
    """
    rivals: dict[tuple, list[tuple[float, tuple[str, str, str]]]] = defaultdict(list)
    for group in groups:
        for mode, cells in group.cells.items():
            found = cells[0]
            if len(found.scores) > 1:
                key = (group.task, mode, found.media, group.config.preset, found.decisions)
                rivals[key].append((found.mean, (group.task, group.label, mode)))
    return {
        place
        for entries in rivals.values()
        for mean, place in entries
        if len(entries) > 1 and mean == max(entries)[0]
    }
