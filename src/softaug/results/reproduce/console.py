"""What people see in the terminal: tables, notes, and the plan of a dry run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from softaug.results.records import RunRecord
from softaug.results.reproduce import formats
from softaug.results.reproduce.collect import count
from softaug.results.reproduce.grids import Panel
from softaug.results.reproduce.missing_runs import Evaluating
from softaug.results.reproduce.tables import TableResult

if TYPE_CHECKING:
    from softaug.results.reproduce.writing import WrittenItem
    from softaug.sweep import PlannedRun


def show(written: WrittenItem, table: TableResult | None) -> None:
    """A table's numbers, what is said about them, and where everything was written."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(f"\n[bold]{written.title}[/bold]")
    if table is not None:
        for panel in table.item.panels:
            for group in panel.groups:
                console.print(_rich_table(table, panel, group))
        if table.aggregates:
            for mode in dict.fromkeys(a.mode for a in table.aggregates):
                console.print(_rich_aggregates(table, mode))
            console.print(formats.aggregate_note(table), markup=False)
    for note in written.notes:
        console.print(f"- {note}", markup=False)
    names = ", ".join(file.name for file in written.files)
    console.print(f"written to {written.files[0].parent}: {names}", markup=False, soft_wrap=True)


def _rich_aggregates(table: TableResult, mode: str) -> Table:
    head, lines = formats.aggregate_table(table)
    shown = Table(title=f"{mode}: statistics", title_justify="left", title_style="")
    for i, name in enumerate(head[1:]):
        shown.add_column(name, justify="right" if i else "left")
    for line in lines:
        if line[0] == mode:
            shown.add_row(*line[1:])
    return shown


def _rich_table(table: TableResult, panel: Panel, group: str) -> Table:
    """Methods below each other, tasks side by side: five tasks fit a terminal of 80 columns, eight methods do not."""
    columns = [column for column in panel.columns if column.group == group]
    digits = table.item.digits
    best = [table.best(panel, row, group) for row in panel.rows]
    references = [table.references(panel, row, group) for row in panel.rows]
    shown = Table(title=group or None, title_justify="left", title_style="", show_lines=False)
    shown.add_column("")
    for row in panel.rows:
        words = row.label.rsplit("_", 1) if row.label == row.task else [row.label]
        shown.add_column("\n".join(words), justify="right")
    for column in columns:
        ours = [formats.cell_text(table.cells[table.at(row, column)], digits) for row in panel.rows]
        marked = [f"[bold]{t}[/bold]" if column.method in b else t for t, b in zip(ours, best, strict=True)]
        shown.add_row(column.label, *marked)
        for label in dict.fromkeys(
            r.label for found in references for r in found if column.method in r.numbers
        ):
            numbers = [
                next((r.numbers.get(column.method) for r in found if r.label == label), None)
                for found in references
            ]
            texts = [formats.cell_text(number, digits) for number in numbers]
            by = "  " + label.removeprefix("as reported ").removesuffix("'s authors")
            shown.add_row(*(f"[dim]{text}[/dim]" for text in (by, *texts)))
    return shown


@dataclass(frozen=True)
class Plan:
    """What would be made."""

    preset: str
    folder: Path
    """of new runs"""
    there: Sequence[RunRecord]
    missing: Sequence[PlannedRun]
    lacking: Sequence[Evaluating]
    """what is there, but has too few test episodes"""
    episodes: int
    tables: bool
    """whether any number needs test episodes beyond the periodic evaluations"""

    def to_json(self) -> dict[str, Any]:
        return {
            "preset": self.preset,
            "episodes": self.episodes,
            "there": [str(record.path) for record in self.there],
            "missing": [
                {
                    "task": run.config.task,
                    "method": run.config.method,
                    "seed": run.config.seed,
                    "decisions": run.config.decisions,
                    "directory": str(run.directory),
                    "begun": run.begun() == "begun",
                }
                for run in self.missing
            ],
            "to_evaluate": [
                {"run": str(job.path), "modes": list(job.modes)} for job in self.lacking if not job.problem
            ],
            "cannot_evaluate": [
                {"run": str(job.path), "modes": list(job.modes), "problem": job.problem}
                for job in self.lacking
                if job.problem
            ],
        }


def show_plan(plan: Plan, title: str) -> None:
    """The plan by task and method."""
    console = Console(file=sys.stdout, highlight=False)
    table = Table(title=f"{title}, preset {plan.preset}", title_justify="left", title_style="bold")
    for name in ("task", "method"):
        table.add_column(name)
    for name in ("finished", "to resume", "to begin"):
        table.add_column(name, justify="right")
    there = Counter((record.config.task, record.config.method) for record in plan.there)
    begun = Counter((run.config.task, run.config.method, run.begun()) for run in plan.missing)
    keys = dict.fromkeys([*there, *((task, method) for task, method, _ in begun)])
    for task, method in keys:
        numbers = (there[task, method], begun[task, method, "begun"], begun[task, method, "new"])
        table.add_row(task, method, *map(str, numbers))
    console.print(table)
    decisions = sum(run.config.decisions for run in plan.missing)
    lines = [f"{count([len(plan.there)], 'run')} finished"]
    if plan.missing:
        lines.append(
            f"{count([len(plan.missing)], 'run')} to be trained in {plan.folder}: up to {decisions:,} decisions"
        )
        lines.append("(`softaug sweep --dry-run` estimates time and disk)")
    if plan.tables:
        of = [count([len(plan.missing)], "new run")] if plan.missing else []
        playing = {job.path for job in plan.lacking if not job.problem}
        of += [f"{len(playing)} of the finished"] if playing else []
        lines.append(f"{plan.episodes} test episodes per mode to be played by {' and '.join(of) or 'none'}")
    for job in plan.lacking:
        if job.problem:
            lines.append(f"{job.path} cannot be evaluated in {', '.join(job.modes)}: {job.problem}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
