"""A table's forms: CSV and JSON for programs, Markdown for people. LaTeX has a file of its own."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from softaug.results import statistics
from softaug.results.model import ModeResult
from softaug.results.paper import paper_result
from softaug.results.published import PublishedResult
from softaug.results.reproduce.collect import span
from softaug.results.reproduce.grids import Panel
from softaug.results.reproduce.tables import BOOTSTRAP_SEED, MISSING, REFERENCE, TableResult

# Single numbers


def number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text


def cell_text(found: ModeResult | PublishedResult | None, digits: int) -> str:
    """``768 ± 38``; one seed has no deviation."""
    if found is None:
        return MISSING
    return number(found.mean, digits) + ("" if found.std is None else f" ± {number(found.std, digits)}")


def estimate_text(estimate: statistics.BootstrapEstimate | None) -> str:
    if estimate is None:
        return MISSING
    interval = "" if estimate.low is None else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.value:.2f}{interval}"


# CSV: one line a number, for programs


def cells_csv(table: TableResult) -> str:
    rows = []
    for key, cell in table.cells.items():
        mode, task, method = key
        paper = paper_result(*key)
        rows.append(
            {
                "mode": mode,
                "task": task,
                "method": method,
                "mean": None if cell is None else round(cell.mean, 3),
                "std": None if cell is None or cell.std is None else round(cell.std, 3),
                "seeds": 0 if cell is None else len(cell.scores),
                "episodes_per_seed": None if cell is None else span(cell.episodes),
                "preset": table.selection.preset,
                "decisions": None if cell is None else cell.decisions,
                "frames": None if cell is None else cell.frames,
                "media": None if cell is None else cell.media or "none",
                "paper_mean": None if paper is None else paper.mean,
                "paper_std": None if paper is None else paper.std,
                "note": None if cell is None else "; ".join(cell.notes),
            }
        )
    return write_csv(rows)


def published_csv(table: TableResult) -> str:
    """Every number of others in the table, with its source."""
    return write_csv([dataclasses.asdict(found) for key in table.cells for found in table.published_for(key)])


def aggregates_csv(table: TableResult) -> str:
    rows = []
    for a in table.aggregates:
        named = {
            "iqm": a.iqm,
            "optimality_gap": a.optimality_gap,
            f"probability_{REFERENCE}_improves": a.improvement,
        }
        for name, estimate in named.items():
            if estimate is not None:
                rows.append(
                    {
                        "mode": a.mode,
                        "method": a.method,
                        "statistic": name,
                        "value": round(estimate.value, 4),
                        "low": None if estimate.low is None else round(estimate.low, 4),
                        "high": None if estimate.high is None else round(estimate.high, 4),
                        "tasks": " ".join(a.tasks),
                        "seeds": " ".join(map(str, a.seeds)),
                    }
                )
    return write_csv(rows)


def write_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Lines with a heading; None is an empty field."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# Markdown: a table for each group of columns, ours and the paper's numbers below each other


def markdown(table: TableResult, *, images: Sequence[tuple[str, str]] = ()) -> str:
    """images: (what is on it, file) to show below."""
    parts = [f"# {table.item.title}\n"]
    for panel in table.item.panels:
        for group in panel.groups:
            if group:
                mode = next(column.mode for column in panel.columns if column.group == group)
                parts.append(f"## {group}" + (f" (`{mode}`)" if mode != group else "") + "\n")
            parts.append(markdown_table(*text_table(table, panel, group, bold="**{}**", others="*{}*")))
    if table.aggregates:
        parts.append("## Over tasks\n")
        parts.append(markdown_table(*aggregate_table(table)))
        parts.append(f"{aggregate_note(table)}\n")
    parts += [f"![{alt}]({file})\n" for alt, file in images]
    parts.append("\n".join(f"- {note}" for note in table.notes) + "\n")
    return "\n".join(parts)


def text_table(
    table: TableResult, panel: Panel, group: str, *, bold: str, others: str
) -> tuple[list[str], list[list[str]]]:
    """Heading and lines of a group; `bold` and `others` are how the best and the numbers of others are marked."""
    columns = [column for column in panel.columns if column.group == group]
    digits = table.item.digits
    lines = []
    for row in panel.rows:
        best = table.best(panel, row, group)
        ours = [cell_text(table.cells[table.at(row, column)], digits) for column in columns]
        marked = [bold.format(t) if c.method in best else t for t, c in zip(ours, columns, strict=True)]
        lines.append([row.label, *marked])
        for reference in table.references(panel, row, group):
            texts = [cell_text(reference.numbers.get(c.method), digits) for c in columns]
            lines.append([others.format(text) for text in (reference.label, *texts)])
    return ["", *(column.label for column in columns)], lines


def aggregate_table(table: TableResult) -> tuple[list[str], list[list[str]]]:
    """Heading and lines of the statistics over tasks."""
    head = ["mode", "method", "IQM", "optimality gap", "P(improvement)"]
    return head, [
        [
            a.mode,
            table.item.label(a.method),
            estimate_text(a.iqm),
            estimate_text(a.optimality_gap),
            estimate_text(a.improvement),
        ]
        for a in table.aggregates
    ]


def aggregate_note(table: TableResult) -> str:
    """What the statistics over tasks are."""
    tasks: dict[tuple[str, ...], list[str]] = {}
    for a in table.aggregates:
        modes = tasks.setdefault(a.tasks, [])
        if a.mode not in modes:
            modes.append(a.mode)
    over = "; ".join(
        ", ".join(names) + (f" ({', '.join(modes)})" if len(tasks) > 1 else "")
        for names, modes in tasks.items()
    )
    interval = (
        f"95 % stratified bootstrap intervals over seeds ({statistics.REPLICATIONS:,} replications, generator seed "
        f"{BOOTSTRAP_SEED})"
        if any(a.iqm.low is not None for a in table.aggregates)
        else "no intervals: they need at least two seeds of every task"
    )
    better = (
        f"; P(improvement): how likely a seed of {table.item.label(REFERENCE)} beats one of the method"
        if any(a.improvement is not None for a in table.aggregates)
        else ""
    )
    return f"Returns divided by {table.item.scale:,.0f}, over {over}; {interval}{better}."


def markdown_table(head: list[str], lines: list[list[str]]) -> str:
    """Padded, so that it can be read as it is."""
    escaped = [[text.replace("|", "\\|") for text in line] for line in (head, *lines)]
    widths = [max(3, *(len(line[i]) for line in escaped)) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [
            text.ljust(w) if i == 0 else text.rjust(w)
            for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in escaped
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in (padded[0], rule, *padded[1:]))


# JSON


def as_json(table: TableResult) -> dict[str, Any]:
    """All numbers and notes, as JSON values."""
    cells = []
    for key, cell in table.cells.items():
        mode, task, method = key
        paper = paper_result(*key)
        entry: dict[str, Any] = {"mode": mode, "task": task, "method": method}
        entry["paper"] = None if paper is None else paper._asdict()
        entry["published"] = [dataclasses.asdict(found) for found in table.published_for(key)]
        if cell is not None:
            entry |= {
                "mean": cell.mean,
                "std": cell.std,
                "seeds": list(cell.scores),
                "scores": list(cell.scores.values()),
                "episodes": list(cell.episodes),
                "media": cell.media,
                "decisions": cell.decisions,
                "frames": cell.frames,
                "notes": list(cell.notes),
            }
        cells.append(entry)
    aggregates = [
        {
            "mode": a.mode,
            "method": a.method,
            "tasks": list(a.tasks),
            "iqm": vars(a.iqm),
            "optimality_gap": vars(a.optimality_gap),
            f"probability_{REFERENCE}_improves": None if a.improvement is None else vars(a.improvement),
        }
        for a in table.aggregates
    ]
    return {
        "item": table.item.name,
        "preset": table.selection.preset,
        "cells": cells,
        "aggregates": aggregates,
        "notes": list(table.notes),
    }
