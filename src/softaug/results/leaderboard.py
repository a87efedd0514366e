"""Every number for a task and mode next to every other: measured with softaug, or reported by others.

An entry says where its number comes from and why it may not be compared with the others, if so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from softaug.envs.modes import ordered_modes
from softaug.methods import FOREIGN, METHODS
from softaug.results.comparability import differences
from softaug.results.groups import Group
from softaug.results.model import ModeResult
from softaug.results.published import PublishedResult, find_published
from softaug.results.records import RunRecord
from softaug.results.statistics import RETURN_SCALE, BootstrapEstimate, iqm_over_tasks
from softaug.storage.run_files import RunFiles
from softaug.tasks import SUITE_TASKS

Origin = Literal["run", "zoo", "policy", "published"]

ORIGINS: dict[Origin, str] = {
    "run": "measured: runs",
    "zoo": "measured: zoo",
    "policy": "measured: policies made elsewhere",
    "published": "reported by others",
}
MOST_SETS = 4
"""Sets of tasks that a mode is averaged over."""


@dataclass(frozen=True)
class Entry:
    """One number."""

    task: str
    mode: str
    method: str
    label: str
    variant: str
    """what tells it from other entries of the method: settings, media"""
    mean: float
    std: float | None
    scores: tuple[float, ...]
    """of each seed; of a published number only its mean"""
    seeds: int | None
    """None: not stated"""
    origin: Origin
    source: str
    """who reports it where, or which run it is"""
    differences: tuple[str, ...]
    """why it may not be compared with the benchmark's numbers; empty: it may"""
    reported_by: str = ""
    note: str = ""
    hue: str = "ink"
    dash: str = "solid"

    @property
    def who(self) -> tuple[str, str, str, str]:
        """The same on every task."""
        return self.label, self.variant, self.origin, self.reported_by

    @property
    def origin_text(self) -> str:
        if self.origin == "published":
            return f"reported by {self.reported_by}"
        return {"run": "measured here", "zoo": "zoo", "policy": "measured here, trained elsewhere"}[
            self.origin
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task, "mode": self.mode, "method": self.method, "label": self.label,
            "variant": self.variant, "mean": self.mean, "std": self.std, "seeds": self.seeds,
            "origin": self.origin, "reported_by": self.reported_by or None, "source": self.source,
            "comparable": not self.differences, "differences": list(self.differences),
        }  # fmt: skip


@dataclass(frozen=True)
class OverTasks:
    """Interquartile means over a set of tasks, of everybody who has a number for each of them."""

    mode: str
    tasks: tuple[str, ...]
    rows: tuple[tuple[tuple[Entry, ...], BootstrapEstimate], ...]
    """an entry for each task, and the mean over them; the highest first"""


@dataclass(frozen=True)
class Leaderboard:
    entries: tuple[Entry, ...]
    """by mode, task and return, the highest first"""

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(entry.task for entry in sorted(self.entries, key=lambda e: e.task)))

    @cached_property
    def modes(self) -> list[str]:
        return ordered_modes({entry.mode for entry in self.entries})

    @cached_property
    def main_mode(self) -> str:
        """The test mode with the most numbers: what to show first. The later of two, which is the harder."""
        counts = Counter(entry.mode for entry in self.entries if entry.mode != "train")
        return max(reversed(self.modes), key=lambda mode: counts[mode])

    @cached_property
    def origins(self) -> list[tuple[str, str]]:
        present = {entry.origin for entry in self.entries}
        return [(origin, text) for origin, text in ORIGINS.items() if origin in present]

    @cached_property
    def over_tasks(self) -> list[OverTasks]:
        return [block for mode in self.modes for block in _over_tasks(self.entries, mode)]


def make_leaderboard(
    groups: Sequence[Group], name: Callable[[RunRecord], str] = lambda record: str(record.path)
) -> Leaderboard:
    """What the groups reached, and what others report for the same tasks and modes. name: of a run, as its source."""
    entries = [
        _measured(group, cell, name) for group in groups for cells in group.cells.values() for cell in cells
    ]
    asked = dict.fromkeys((entry.mode, entry.task) for entry in entries)
    entries += [_published(found) for mode, task in asked for found in find_published(mode, task)]
    place = {mode: number for number, mode in enumerate(ordered_modes({mode for mode, _ in asked}))}
    entries.sort(key=lambda entry: (place[entry.mode], entry.task, -entry.mean))
    return Leaderboard(tuple(entries))


def _measured(group: Group, cell: ModeResult, name: Callable[[RunRecord], str]) -> Entry:
    records = [record for record in group.records if record.config.seed in cell.scores]
    details = [group.variant] if group.variant else []
    details += [f"{cell.media} media"] if cell.media not in (None, "official") else []
    row = group.config.row
    return Entry(
        task=group.task,
        mode=cell.mode,
        method=group.method,
        label=group.title,
        variant=", ".join(details),
        mean=cell.mean,
        std=cell.std,
        scores=tuple(cell.scores.values()),
        seeds=len(cell.scores),
        origin=origin_of(records),
        source=name(records[0]) + (f" and {len(records) - 1} more" if len(records) > 1 else ""),
        differences=tuple(differences(records, cell)),
        hue=row.hue,
        dash="dashed" if row.strong == "conv" else "solid",
    )


def origin_of(records: Sequence[RunRecord]) -> Origin:
    if records[0].config.method.startswith(FOREIGN):
        return "policy"
    return "zoo" if all(RunFiles(record.path).published for record in records) else "run"


def _published(found: PublishedResult) -> Entry:
    row = METHODS.get(found.method)
    return Entry(
        task=found.task,
        mode=found.mode,
        method=found.method,
        label=found.label if row is None else row.title,
        variant="",
        mean=found.mean,
        std=found.std,
        scores=(found.mean,),
        seeds=found.seeds,
        origin="published",
        source=found.source,
        differences=found.differences,
        reported_by=found.reported_by,
        note=found.note,
        hue="ink" if row is None else row.hue,
        dash="dashed" if row is not None and row.strong == "conv" else "solid",
    )


def _over_tasks(entries: Iterable[Entry], mode: str) -> list[OverTasks]:
    """The sets of two tasks or more that somebody has, the largest first, with everybody who has all of a set."""
    found: dict[tuple[str, str, str, str], dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        if entry.mode == mode and entry.task in SUITE_TASKS:  # whose returns have one scale
            found[entry.who][entry.task] = entry
    sets = {tuple(sorted(by_task)) for by_task in found.values() if len(by_task) > 1}
    blocks = []
    for tasks in sets:
        having = [[by_task[t] for t in tasks] for by_task in found.values() if by_task.keys() >= set(tasks)]
        if len(having) > 1:
            rows = [(tuple(chosen), _iqm(chosen)) for chosen in having]
            blocks.append(
                OverTasks(mode, tasks, tuple(sorted(rows, key=lambda row: row[1].value, reverse=True)))
            )
    return sorted(blocks, key=lambda block: (-len(block.tasks), -len(block.rows), block.tasks))[:MOST_SETS]


def _iqm(chosen: Sequence[Entry]) -> BootstrapEstimate:
    scores = [np.array(entry.scores) / RETURN_SCALE for entry in chosen]
    return iqm_over_tasks(scores, rng=np.random.default_rng(0), replications=2000)
