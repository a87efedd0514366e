"""A table from runs: its numbers and those of others, the statistics over tasks, and what must be said about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from softaug.methods import FOREIGN, METHODS
from softaug.results import statistics
from softaug.results.comparability import gb2_differences
from softaug.results.model import ModeResult
from softaug.results.published import PAPER, PublishedResult, find_published
from softaug.results.reproduce.collect import (
    Selection,
    choose_media,
    count,
    describe_fewer,
    describe_runs,
    make_cell,
)
from softaug.results.reproduce.grids import Column, Panel, TableItem, TableRow

MISSING = "–"
BOOTSTRAP_SEED = 0
REFERENCE = "soda_overlay"
"""the method whose probability of improvement over each other one is given"""


@dataclass(frozen=True)
class Aggregate:
    """One mode over all tasks that every method has, scores divided by the highest return."""

    mode: str
    method: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    """per task"""
    iqm: statistics.BootstrapEstimate
    optimality_gap: statistics.BootstrapEstimate
    improvement: statistics.BootstrapEstimate | None
    """how likely a seed of `REFERENCE` beats one of this method; None for itself"""


@dataclass(frozen=True)
class Reference:
    """The numbers of one reporter for a row of a table: a line below ours."""

    label: str
    numbers: dict[str, PublishedResult]
    """by method"""


@dataclass(frozen=True)
class TableResult:
    """Everything a table's files are written from."""

    item: TableItem
    selection: Selection
    cells: dict[tuple[str, str, str], ModeResult | None]
    """(mode, task, method) -> its number"""
    aggregates: tuple[Aggregate, ...]
    about_runs: tuple[str, ...]
    about_numbers: tuple[str, ...]
    about_published: tuple[str, ...]
    about_media: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Every sentence that belongs below the table."""
        return self.about_runs + self.about_numbers + self.about_published + self.about_media

    def at(self, row: TableRow, column: Column) -> tuple[str, str, str]:
        return (row.mode or column.mode or "train", row.task, column.method)

    def best(self, panel: Panel, row: TableRow, group: str) -> set[str]:
        """The methods with the highest mean in a row of a group; none if nothing is there to compare with."""
        means = {
            column.method: round(cell.mean, self.item.digits)
            for column in panel.columns
            if column.group == group and (cell := self.cells[self.at(row, column)]) is not None
        }
        return {m for m, mean in means.items() if mean == max(means.values())} if len(means) > 1 else set()

    def references(self, panel: Panel, row: TableRow, group: str) -> list[Reference]:
        """What others report for a row of a group: the paper, or everybody who reports numbers for the benchmark."""
        found: dict[str, dict[str, PublishedResult]] = {}
        for column in panel.columns:
            if column.group == group:
                for number in self.published_for(self.at(row, column)):
                    found.setdefault(number.reported_by, {})[column.method] = number
        only_paper = self.item.references == "paper"
        return [
            Reference("paper" if only_paper else f"as reported by {reported_by}", numbers)
            for reported_by, numbers in found.items()
        ]

    def published_for(self, key: tuple[str, str, str]) -> list[PublishedResult]:
        """The published numbers of a cell that belong into this table."""
        wanted = self.item.references
        return [
            number
            for number in find_published(*key)
            if (number.reported_by == PAPER if wanted == "paper" else number.benchmark == wanted)
        ]

    def scores(self, mode: str) -> dict[str, dict[str, Sequence[float]]]:
        """method -> task -> normalized score of each seed, of what there is."""
        table: dict[str, dict[str, Sequence[float]]] = {}
        for (cell_mode, task, method), cell in self.cells.items():
            if cell_mode == mode and cell is not None:
                table.setdefault(method, {})[task] = [
                    score / self.item.scale for score in cell.scores.values()
                ]
        return table


def make_table(
    item: TableItem, selection: Selection, *, media: str | None = None, asked_seeds: int | None = None
) -> TableResult:
    """Collect the item's cells. media: the kind of test media to report; None: in each mode the most common."""
    modes = list(dict.fromkeys(mode for mode, _, _ in item.cells))
    kinds = {mode: choose_media(selection.runs or selection.policies, mode) for mode in modes}
    chosen = {mode: media or (kinds[mode][0] if kinds[mode] else None) for mode in modes}
    cells = {
        key: make_cell(selection, *key, media=chosen[key[0]]) if _has_results(key[2]) else None
        for key in item.cells
    }
    present = [cell for cell in cells.values() if cell is not None]
    have = {key: 0 if cell is None else len(cell.scores) for key, cell in cells.items()}
    table = TableResult(
        item,
        selection,
        cells,
        aggregates=(),
        about_runs=(
            *([item.remark] if item.remark else []),
            *describe_runs(selection, asked_seeds=asked_seeds),
        ),
        about_numbers=(*_number_notes(present), *_missing_notes(cells)),
        about_published=(),
        about_media=(*_media_notes(chosen, kinds, cells), *describe_fewer(selection, have, chosen)),
    )
    return replace(
        table,
        about_published=tuple(_published_notes(table)),
        aggregates=tuple(a for mode in modes for a in _aggregates(table, mode)),
    )


def _has_results(method: str) -> bool:
    """Whether runs or policies made elsewhere can have measured it; other names are only reported by others."""
    return method in METHODS or method.startswith(FOREIGN)


def _aggregates(table: TableResult, mode: str) -> Iterator[Aggregate]:
    scores = table.scores(mode)
    # A policy from elsewhere that lacks a task must not take it from the methods.
    methods = {name: by_task for name, by_task in scores.items() if not name.startswith(FOREIGN)}
    tasks = statistics.common_tasks(methods or scores)
    if not tasks:
        return
    scores = {name: by_task for name, by_task in scores.items() if by_task.keys() >= set(tasks)}
    arrays = {m: [np.array(by_task[t]) for t in tasks] for m, by_task in scores.items()}
    for method, own in arrays.items():
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        better = None
        if REFERENCE in arrays and method != REFERENCE:
            better = statistics.probability_of_improvement(arrays[REFERENCE], own, rng=rng)
        yield Aggregate(
            mode,
            method,
            tuple(tasks),
            tuple(map(len, own)),
            statistics.estimate(own, rng=rng),
            statistics.estimate(own, statistics.optimality_gap, rng=rng),
            better,
        )


def _number_notes(cells: Sequence[ModeResult]) -> Iterator[str]:
    if cells:
        episodes = count((number for cell in cells for number in cell.episodes), "episode")
        yield (
            f"mean ± standard deviation over seeds (population: ddof {statistics.DDOF}); each seed's number is its mean "
            f"return over {episodes}"
        )


def _media_notes(
    chosen: dict[str, str | None],
    kinds: dict[str, list[str]],
    cells: dict[tuple[str, str, str], ModeResult | None],
) -> Iterator[str]:
    parts = []
    for mode, kind in chosen.items():
        if kind is not None and mode != "train":
            others = [other for other in kinds[mode] if other != kind]
            also = f" (also there: {', '.join(others)}; see --media)" if others else ""
            parts.append(f"{mode} {kind}{also}")
    if parts:
        yield "test media: " + ", ".join(parts)
    reasons: dict[str, set[str]] = {}
    for (mode, _, method), cell in cells.items():
        for note in cell.notes if cell is not None else ():
            reasons.setdefault(note, set()).add(f"{method} in {mode}")
    present = {f"{method} in {mode}" for (mode, _, method), cell in cells.items() if cell is not None}
    for note, where in sorted(reasons.items()):
        yield note if where == present else f"{note} ({', '.join(sorted(where))})"


def _missing_notes(cells: dict[tuple[str, str, str], ModeResult | None]) -> Iterator[str]:
    ours = {key: cell for key, cell in cells.items() if _has_results(key[2])}
    if missing := sum(cell is None for cell in ours.values()):
        yield f"{MISSING}: {missing} of {len(ours)} numbers are missing"


def _published_notes(table: TableResult) -> Iterator[str]:
    """Where the numbers of others come from, and how they were made otherwise than the benchmark prescribes."""
    if table.item.references == "paper":
        if any(cell is not None for cell in table.cells.values()):
            yield "paper: mean ± standard deviation over its 5 seeds"
        return
    numbers = [number for key in table.cells for number in table.published_for(key)]
    if not numbers:
        return
    for reported_by in dict.fromkeys(number.reported_by for number in numbers):
        own = [number for number in numbers if number.reported_by == reported_by]
        sources = ", ".join(dict.fromkeys(number.source for number in own))
        others: dict[str, dict[str, None]] = {}
        for number in own:
            for difference in number.differences:
                others.setdefault(difference, {})[number.task] = None
        said = "".join(f"; {text} in {', '.join(tasks)}" for text, tasks in others.items())
        yield f"as reported by {reported_by}: {sources}{said}"
    if table.item.references == "dmcgb2":
        found = [
            (table.selection.of(task, method)[0].config, cell)
            for (_, task, method), cell in table.cells.items()
            if cell is not None
        ]
        reasons = dict.fromkeys(reason for pair in found for reason in gb2_differences(*pair))
        if reasons:
            yield f"ours are not comparable with DMControl-GB2's numbers: {', '.join(reasons)}"
    yield "reports of one method differ a lot between authors: compare numbers of one reporter"
    methods = dict.fromkeys(method for _, _, method in table.cells if not _has_results(method))
    if methods:
        yield f"without a row in the table of methods, so only as others report them: {', '.join(methods)}"
