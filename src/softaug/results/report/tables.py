"""The page's tables, as HTML that reads without a script; the script makes them sortable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from softaug.results.model import Group, ModeResult
from softaug.results.paper import paper_result
from softaug.results.reading import RunRecord
from softaug.results.report.markup import Markup, breakable, element, join
from softaug.results.statistics import estimate, mean_std


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers stand right, and `hint` explains them."""

    title: str
    number: bool = False
    hint: str = ""


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Markup | None]], caption: str, sortable: bool = True
) -> Markup:
    """A table that scrolls sideways by itself where the page is narrow. `rows` hold cells (`cell`, `name`)."""
    heads = [
        element("th", c.title, scope="col", class_="number" if c.number else None, title=c.hint or None)
        for c in columns
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", heads)),
            element("tbody", [element("tr", row) for row in rows]),
            class_="sortable" if sortable else None,
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def cell(*content: Any, sort: float | str | None = None, **attributes: Any) -> Markup:
    """`sort`: what the column sorts by, if not by the text; a number makes the cell a number's."""
    if isinstance(sort, float | int):
        attributes.setdefault("class_", "number")
    return element("td", *content, data_sort=sort, **attributes)


def empty() -> Markup:
    return cell("–", class_="number none", data_empty=True)


def name(*content: Any) -> Markup:
    return element("th", *content, scope="row")


def method_name(group: Group) -> Markup:
    """The method's mark and title, and what else tells the group apart."""
    return join(
        (
            swatch(group),
            element("span", group.title),
            element("small", group.variant, class_="variant") if group.variant else None,
        )
    )


def who(groups: Sequence[Group]) -> list[Column]:
    """The columns that say which group a row is: no task where there is only one."""
    tasks = [Column("Task")] if len({group.task for group in groups}) > 1 else []
    return [*tasks, Column("Method")]


def who_cells(group: Group, columns: Sequence[Column]) -> list[Markup]:
    """A row's first cells, under `columns`."""
    if len(columns) == 1:
        return [element("th", method_name(group), scope="row", class_="method", data_sort=group.label)]
    task = element("th", breakable(group.task), scope="row", data_task=group.task)
    return [task, cell(method_name(group), sort=group.label, class_="method")]


def swatch(group: Group) -> Markup:
    return element("span", class_=f"swatch hue-{hue(group.method)} {dash(group.method)}", aria_hidden="true")


HUES = {"sac": "ink", "sac_dr": "gold", "sac_conv": "orange", "sac_overlay": "orange", "curl": "green", "pad": "pink",
        "soda_conv": "blue", "soda_overlay": "blue", "soda_both_conv": "sky", "soda_both_overlay": "sky",
        "drq": "brown", "svea_conv": "teal", "svea_overlay": "teal"}  # fmt: skip
"""One hue a family of methods; convolution and overlay differ by dash, so that colour is never the only sign."""


def hue(method: str) -> str:
    return HUES.get(method, "ink")


def dash(method: str) -> str:
    return "dashed" if method.endswith("_conv") else "solid"


def number(value: float) -> str:
    """Returns: whole above 100, else one decimal."""
    text = f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def spread(mean: float, std: float | None) -> Markup:
    """mean ± std; without the latter for one seed."""
    rest = element("span", f" ± {number(std)}", class_="pm") if std is not None else None
    return join((element("span", number(mean), class_="value"), rest))


def span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def paper_of(group: Group, mode: str) -> tuple[float, float] | None:
    """The paper's number for the method as it is meant: PAD adapting."""
    return paper_result(mode, group.task, group.method) if group.adapted == group.config.row.adapts else None


def results_table(groups: Sequence[Group], modes: Sequence[str]) -> Markup:
    """Every task and method over the modes."""
    best, first = _best(groups), who(groups)
    rows: list[list[Markup]] = []
    for group in groups:
        row = who_cells(group, first)
        row.append(_seeds(group))
        for mode in modes:
            found = group.cell(mode)
            printed = paper_of(group, mode)
            beside = element("small", f"paper {printed[0]:g} ± {printed[1]:g}") if printed else None
            if found is None:
                row.append(cell("–", beside, class_="number none", data_empty=True))
                continue
            mean, std = found.mean, found.std
            others = [_other_media(other, group) for other in group.cells[mode][1:]]
            mark = "number best" if (id(group), mode) in best else "number"
            fewer = element("small", said) if (said := _fewer_seeds(found, group)) else None
            row.append(cell(spread(mean, std), fewer, _so_far(found), others, beside, sort=mean, class_=mark))
        rows.append(row)
    columns = [*first, Column("Seeds", True, "of the group; a number that fewer of them have says so")]
    columns += [Column(mode, True, "mean return over the seeds ± their standard deviation") for mode in modes]
    return table(columns, rows, "Return in every mode")


def mode_table(groups: Sequence[Group], mode: str) -> Markup | None:
    """One mode in detail: a row for each group and kind of media."""
    first = who(groups)
    rows: list[list[Markup]] = []
    for group in groups:
        for found in group.cells.get(mode, ()):
            mean, std = found.mean, found.std
            printed = paper_of(group, mode)
            seeds = len(found.scores)
            row = who_cells(group, first)
            row += [cell(str(seeds), sort=seeds), cell(spread(mean, std), _so_far(found), sort=mean)]
            row.append(_iqm(found))
            row.append(cell(span(min(found.episodes), max(found.episodes)), sort=min(found.episodes)))
            row.append(cell(f"{found.decisions:,}", sort=found.decisions))
            row.append(cell(found.media or "none needed"))
            if printed:
                row.append(
                    cell(
                        f"{printed[0]:g}", element("span", f" ± {printed[1]:g}", class_="pm"), sort=printed[0]
                    )
                )
                difference = mean - printed[0]
                sign = "+" if difference > 0 else ""
                row.append(cell(sign + number(difference), sort=difference))
            else:
                row += [empty(), empty()]
            rows.append(row)
    if not rows:
        return None
    columns = [
        *first, Column("Seeds", True),
        Column("Return", True, "mean over the seeds ± their standard deviation"),
        Column("IQM, 95 %", True, "interquartile mean over the seeds, with a bootstrap interval"),
        Column("Episodes", True, "per seed"), Column("Decisions", True, "of training"), Column("Media"),
        Column("Paper", True, "Hansen & Wang 2021, five seeds"), Column("Ours − paper", True),
    ]  # fmt: skip
    return table(columns, rows, f"{mode}: return, seed by seed averaged")


def gap_table(groups: Sequence[Group], modes: Sequence[str]) -> Markup | None:
    """What each method loses from the training look to each test mode."""
    tests = [mode for mode in modes if mode != "train" and any(group.gaps(mode) for group in groups)]
    if not tests:
        return None
    first = who(groups)
    rows: list[list[Markup]] = []
    for group in groups:
        row = who_cells(group, first)
        for mode in tests:
            lost, share = group.gaps(mode), group.kept(mode)
            if not lost:
                row.append(empty())
                continue
            mean, std = mean_std([*lost.values()])
            percent = (
                element("small", f"keeps {mean_std([*share.values()])[0] * 100:.0f} %") if share else None
            )
            row.append(cell(spread(mean, std), percent, sort=mean))
        rows.append(row)
    columns = [*first]
    columns += [
        Column(mode, True, "return in train minus return in this mode, seed by seed") for mode in tests
    ]
    return table(columns, rows, "Generalization gap: return lost compared with the training mode")


def runs_table(records: Sequence[RunRecord], shown_path: Callable[[RunRecord], str]) -> Markup:
    """Every run, with its speed."""
    rows = []
    for record in records:
        config, rate = record.config, record.decisions_per_second
        share = f"{100 * record.decisions / config.decisions:.0f} %"
        state = "finished" if record.finished else f"not finished ({share})"
        rows.append(
            [
                name(breakable(shown_path(record))),
                cell(config.task),
                cell(config.method),
                cell(str(config.seed), sort=config.seed),
                cell(config.preset),
                cell(state),
                cell(f"{record.decisions:,}", sort=record.decisions),
                cell(f"{record.frames:,}", sort=record.frames),
                cell(duration(record.seconds), sort=record.seconds),
                cell(f"{rate:.1f}", sort=rate) if rate is not None else empty(),
            ]
        )
    columns = [
        Column("Run"), Column("Task"), Column("Method"), Column("Seed", True), Column("Preset"), Column("State"),
        Column("Decisions", True), Column("Frames", True), Column("Wall-clock", True),
        Column("Decisions/s", True, "median while training, evaluations not counted"),
    ]  # fmt: skip
    return table(columns, rows, "Runs and their speed")


def value_table(
    title: str,
    heading: str,
    values: Mapping[str, Mapping[str, Sequence[RunRecord]]],
    records: Sequence[RunRecord],
) -> Markup:
    """name -> value -> the runs that have it; the name stands once, beside all its values."""
    methods = {record.config.method for record in records}
    rows = []
    for key, by_value in values.items():
        for position, (value, having) in enumerate(sorted(by_value.items(), key=lambda item: -len(item[1]))):
            mine = sorted({record.config.method for record in having})
            runs = "all runs" if len(having) == len(records) else f"{len(having)} of {len(records)} runs"
            if len(mine) < len(methods):
                runs += f" ({', '.join(mine)})"
            head = element("th", key, scope="rowgroup", rowspan=len(by_value)) if position == 0 else None
            rows.append([head, cell(element("span", value, class_="setting")), cell(runs, class_="pm")])
    return table([Column(heading), Column("Value"), Column("Runs")], rows, title, sortable=False)


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _iqm(found: ModeResult) -> Markup:
    scores = np.array([*found.scores.values()])
    middle = estimate([scores], rng=np.random.default_rng(0), replications=2000)
    if middle.low is None or middle.high is None:
        return empty()
    interval = element("span", f" [{number(middle.low)}, {number(middle.high)}]", class_="pm")
    return cell(element("span", number(middle.value), class_="value"), interval, sort=middle.value)


def _seeds(group: Group) -> Markup:
    waiting = element("small", f"{group.unfinished} not finished") if group.unfinished else None
    return cell(str(len(group.records)), waiting, sort=len(group.records))


def _so_far(found: ModeResult) -> Markup | None:
    return None if found.final else element("small", f"so far, at {found.decisions:,}", class_="so-far")


def _fewer_seeds(found: ModeResult, group: Group) -> str:
    """`2 of 5 seeds`; empty if the number comes from every seed of the group."""
    seeds, every = len(found.scores), len(group.records)
    return f"{seeds} of {every} seeds" if seeds < every else ""


def _other_media(found: ModeResult, group: Group) -> Markup:
    mean, std = found.mean, found.std
    fewer = _fewer_seeds(found, group)
    return element(
        "small", spread(mean, std), f" on {found.media or 'no'} media", f" ({fewer})" if fewer else None
    )


def _best(groups: Sequence[Group]) -> set[tuple[int, str]]:
    """(group, mode) of the highest mean among groups that may be compared: same preset, media and training.

    Of single seeds none is called the best.
    """
    rivals: dict[tuple, list[tuple[float, int, str]]] = defaultdict(list)
    for group in groups:
        for mode, cells in group.cells.items():
            found = cells[0]
            if len(found.scores) < 2:
                continue
            key = (group.task, mode, found.media, group.config.preset, found.decisions)
            rivals[key].append((found.mean, id(group), mode))
    return {max(entries)[1:] for entries in rivals.values() if len(entries) > 1}
