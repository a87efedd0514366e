"""What others report, packaged with its source: the paper's tables, later methods' tables, and training curves.

The same method has other numbers in other papers (SODA, walker_stand, video_hard: 771, 736 and 143), so a number is
never shown without who reports it. Modes have this package's names: DMControl-GB2 calls its screens `video_*`, which
are DMControl-GB's chroma-keyed videos here.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from softaug.methods import METHODS
from softaug.results.paper import paper_results
from softaug.tasks import PAPER_TASKS, ROBOT_TASKS

Benchmark = Literal["dmcgb", "dmcgb2", "robot"]

PAPER = "the SODA paper"
PAPER_SEEDS = 5
PAPER_SOURCE = "Hansen & Wang 2021, tables of returns"
GB2_NAMES = {"video": "screen_video", "color_video": "screen_color_video"}
"""DMControl-GB2's own names of its modes -> ours, without their level."""

LABELS = {
    "svea": "SVEA (view not stated)",
    "sada": "SADA",
    "simgrl": "SimGRL",
    "sgqn": "SGQN",
    "madi": "MaDi",
    "drqv2": "DrQ-v2",
    "mrq": "MR.Q",
}
"""Of methods that others report and that have no row in the table of methods (or not yet)."""


@dataclass(frozen=True)
class PublishedResult:
    """A number that others report."""

    mode: str
    task: str
    method: str
    """A row's name where there is one; `svea` is none of ours, since the tables do not say with which view."""
    mean: float
    std: float | None
    reported_by: str
    source: str
    benchmark: Benchmark
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.mode, self.task, self.method

    @property
    def label(self) -> str:
        return method_label(self.method)

    @property
    def seeds(self) -> int | None:
        """None: the table does not say."""
        return PAPER_SEEDS if self.reported_by == PAPER else None

    @property
    def differences(self) -> tuple[str, ...]:
        """How it was made otherwise than the benchmark of its mode prescribes."""
        found = []
        if self.benchmark == "dmcgb2" and self.mode.startswith("color_"):
            found.append("DMControl-GB2’s settings (84 px, action repeat 2, 1M frames)")
        if "action repeat 4" in self.note and (repeat := PAPER_TASKS.get(self.task, 4)) != 4:
            found.append(f"probably action repeat 4 instead of {repeat}")
        return tuple(found)


@dataclass(frozen=True)
class PublishedCurve:
    """Evaluation returns in the training environment, over frames."""

    task: str
    method: str
    reported_by: str
    source: str
    frames: tuple[int, ...]
    returns: tuple[float, ...]

    @property
    def label(self) -> str:
        return method_label(self.method)


def method_label(method: str) -> str:
    """The row's label where there is a row; `svea` is a name of ours only as an alias, which is not meant here."""
    return METHODS[method].label if method in METHODS else LABELS.get(method, method)


@cache
def published_results() -> tuple[PublishedResult, ...]:
    """Every number, the paper's first."""
    return (*_papers(), *_others())


def find_published(
    mode: str | None = None, task: str | None = None, method: str | None = None
) -> list[PublishedResult]:
    """The numbers of a mode, task and method (a row's name); None: of any."""
    return [
        found
        for found in published_results()
        if mode in (None, found.mode) and task in (None, found.task) and method in (None, found.method)
    ]


@cache
def published_curves() -> tuple[PublishedCurve, ...]:
    points: dict[tuple[str, str, str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in _rows("published_curves.csv"):
        key = (row["task"], row["method"], row["reported_by"], row["source"])
        points[key].append((int(row["frames"]), float(row["evaluation_return_in_train"])))
    return tuple(
        PublishedCurve(*key, *map(tuple, zip(*sorted(found), strict=True))) for key, found in points.items()
    )


def _papers() -> Iterator[PublishedResult]:
    for (mode, task, method), (mean, std) in paper_results().items():
        benchmark: Benchmark = "robot" if task in ROBOT_TASKS else "dmcgb"
        yield PublishedResult(mode, task, method, mean, std, PAPER, PAPER_SOURCE, benchmark)


def _others() -> Iterator[PublishedResult]:
    for row in _rows("published_results.csv"):
        benchmark: Benchmark = "dmcgb2" if row["benchmark"] == "dmcgb2" else "dmcgb"
        mode = row["mode"]
        if benchmark == "dmcgb2":
            family, level = mode.rsplit("_", 1)
            mode = f"{GB2_NAMES.get(family, family)}_{level}"
        yield PublishedResult(
            mode=mode,
            task=row["task"],
            method=row["method"],
            mean=float(row["mean"]),
            std=float(row["std"]) if row["std"] else None,
            reported_by=row["reported_by"],
            source=row["source"],
            benchmark=benchmark,
            note=row["note"],
        )


def _rows(name: str) -> list[dict[str, str]]:
    file = importlib.resources.files("softaug") / "data" / name
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
