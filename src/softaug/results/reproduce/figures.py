"""Figures with matplotlib: learning curves with shaded deviation, and performance profiles.

Colors and line styles come from the methods' rows.
No figure touches matplotlib's global state; all are made and saved within `style`.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from softaug.errors import UserError
from softaug.methods import METHODS, Line, get_method
from softaug.results import statistics
from softaug.results.model import LearningCurve
from softaug.results.published import PublishedCurve, published_curves
from softaug.results.records import RunRecord
from softaug.results.reproduce.collect import Selection, check_same_source, describe_fewer
from softaug.results.reproduce.curves import choose_curve_media, evaluated_seeds, make_curve
from softaug.results.reproduce.grids import FigureItem
from softaug.results.reproduce.tables import BOOTSTRAP_SEED, TableResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES: dict[Line, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1.5, 1.5)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
}
REFERENCE_LINES: dict[str, dict[str, Any]] = {
    "drqv2": {"linestyle": (0, (1.5, 1.5)), "marker": "s", "markersize": 2.5},
    "mrq": {"linestyle": (0, (5, 1.5, 1.2, 1.5)), "marker": "D", "markersize": 2.5},
}
"""Thin and gray: published training curves."""
INK, FAINT = "#1e2126", "#6e737a"
PANEL_WIDTH, PANEL_HEIGHT = 2.35, 1.95  # inches
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6e9",
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "softaug",  # the same runs give the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Our style, for as long as a figure is made or saved."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need matplotlib; install it with: pip install 'softaug[report]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's own style, until the end of this block
        matplotlib.rcParams.update(STYLE)
        yield


def learning_curves(
    records: Sequence[RunRecord],
    *,
    tasks: Sequence[str] | None = None,
    methods: Mapping[str, str] | None = None,
    modes: Mapping[str, str] | None = None,
    media: str | None = None,
    across: bool = False,
    title: str = "",
    notes: Sequence[str] = (),
    published: bool = False,
) -> Figure:
    """Mean return over seeds against decisions, shaded by ± one standard deviation; a panel for each task and mode.

    records: runs of one preset and one length of training per task (`collect.select` sees to that).
    tasks, methods (method -> label), modes (mode -> label): what to show; None shows what the records have.
    media: the kind of test media to show; None: in each mode what most of the records have.
    across: modes side by side instead of below each other.
    notes: what must be said, small below the figure; which seeds were left out is said by itself.
    published: add DrQ-v2's and MR.Q's published curves to the training mode's panels as thin lines, and draw
        everything over frames, as these are.
    """
    presets = dict.fromkeys(record.config.preset for record in records)
    if len(presets) > 1:
        raise UserError(
            f"the runs are of the presets {' and '.join(presets)}, which are never mixed; draw one"
        )
    labels = {record.config.method for record in records}
    item = FigureItem(
        "",
        title,
        tuple(tasks or dict.fromkeys(record.config.task for record in records)),
        dict(methods or {name: row.label for name, row in METHODS.items() if name in labels}),
        dict(modes or {mode: mode for mode in default_modes(records)}),
        across,
    )
    curves, references, said = collect_curves(item, Selection("", tuple(records), 0), media, published)
    return draw_curves(curves, item, (*notes, *said), references)


def reference_notes(references: Sequence[PublishedCurve]) -> list[str]:
    """Who reports the thin lines."""
    reporters = {reference.label: reference.reported_by for reference in references}
    if not reporters:
        return []
    who = ", ".join(f"{label} as reported by {reported_by}" for label, reported_by in reporters.items())
    return [f"thin lines: {who} (evaluations in the training environment, their own settings)"]


def default_modes(records: Sequence[RunRecord]) -> list[str]:
    """The training environment, and every mode in which some run was evaluated more than once."""
    found = Counter((record.path, e.mode) for record in records for e in record.evals if not e.adapted)
    return list(dict.fromkeys(["train", *(mode for (_, mode), times in found.items() if times > 1)]))


def collect_curves(
    item: FigureItem, selection: Selection, media: str | None, published: bool
) -> tuple[list[LearningCurve], list[PublishedCurve], list[str]]:
    """Every curve that there is, published ones if they are wanted, and what must be said about both.

    media: the one kind of test media that all curves show; None: in each mode what most of the runs have.
    """
    kinds = {mode: media or choose_curve_media(selection.runs, mode) for mode in item.modes}
    for task in item.tasks:
        for mode, kind in kinds.items():
            tested = [
                (run, kind, (run.facts.get("media") or {}).get(mode))
                for run in selection.runs
                if run.config.task == task and evaluated_seeds([run], mode, kind)
            ]
            check_same_source(mode, tested)
    made = {
        (mode, task, method): make_curve(selection.of(task, method), mode, kind)
        for task, method in item.grid
        for mode, kind in kinds.items()
    }
    curves = [curve for curve in made.values() if curve is not None]
    have = {
        (mode, task, method): len(
            evaluated_seeds(selection.of(task, method), mode, kind)
            if (curve := made[mode, task, method]) is None
            else curve.seeds
        )
        for mode, kind in kinds.items()
        for task, method in item.grid
    }
    references = references_for(curves) if published else []
    fewer = describe_fewer(selection, have, kinds, during="during training")
    return curves, references, [*reference_notes(references), *fewer]


def draw_curves(
    curves: Sequence[LearningCurve],
    item: FigureItem,
    notes: Sequence[str],
    references: Sequence[PublishedCurve],
) -> Figure:
    """The figure of `learning_curves` from its numbers. references: thin lines in the panels of the training mode;
    they are over frames, so with any the axes are.
    """
    tasks, methods, modes, across, title = item.tasks, item.methods, item.modes, item.across, item.title
    panels = [(task, mode) for task in tasks for mode in modes] if across else [
        (task, mode) for mode in modes for task in tasks
    ]  # fmt: skip
    rows, columns = (len(tasks), len(modes)) if across else (len(modes), len(tasks))
    with style():
        labels = [*methods.values(), *dict.fromkeys(curve.label for curve in references)]
        figure, axes = _grid(rows, columns, title, notes, labels)
        for axis, (task, mode) in zip(axes, panels, strict=True):
            here = [curve for curve in curves if (curve.task, curve.mode) == (task, mode)]
            for curve in here:
                _draw(axis, curve, curve.frames if references else curve.decisions)
            theirs = [r for r in references if here and r.task == task and mode == "train"]
            for reference in theirs:
                _draw_reference(axis, reference)
            if not here:
                axis.text(
                    0.5, 0.5, "no runs", ha="center", va="center", color=FAINT, transform=axis.transAxes
                )
                axis.set(xticks=[], yticks=[])
            else:
                # The whole run in every panel of a task, also where only its end was evaluated.
                ends = [
                    curve.frames if references else curve.decisions for curve in curves if curve.task == task
                ]
                firsts = [reference.frames[0] for reference in references if reference.task == task]
                axis.set_xlim(0, 1.02 * max([*(int(end[-1]) for end in ends), *firsts]))
                axis.xaxis.set_major_formatter(_thousands)
                if min(float(c.mean.min()) for c in here) >= 0:
                    axis.set_ylim(bottom=0)
            row, column = divmod(panels.index((task, mode)), columns)
            if across:
                axis.set_title(f"{task}: {modes[mode]}")
            elif row == 0:
                axis.set_title(task)
            if column == 0:
                axis.set_ylabel("return" if across else f"{modes[mode]}\nreturn")
            if row == rows - 1:
                axis.set_xlabel("frames" if references else "decisions")
        seen = {curve.method for curve in curves}
        named = {m: label if m in seen else f"{label} (no runs)" for m, label in methods.items()}
        _legend(figure, named, title, references)
    return figure


def references_for(curves: Sequence[LearningCurve]) -> list[PublishedCurve]:
    """The published training curves of these tasks, if ours get at least half as far as their first points."""
    ends: dict[str, int] = {}
    for curve in curves:
        if curve.mode == "train":
            ends[curve.task] = max(ends.get(curve.task, 0), int(curve.frames[-1]))
    return [found for found in published_curves() if ends.get(found.task, 0) >= found.frames[0] / 2]


def profile_figure(table: TableResult) -> Figure | None:
    """Performance profiles of a table, a panel for each mode; None if there is nothing to compare."""
    modes = list(dict.fromkeys(a.mode for a in table.aggregates))
    if not modes:
        return None
    methods = {a.method: table.item.label(a.method) for a in table.aggregates}
    thresholds = np.linspace(0, 1, 101)
    title = f"{table.item.title}: performance profiles"
    with style():
        figure, axes = _grid(
            1, len(modes), title, table.about_runs + table.about_media, [*methods.values()], scale=1.4
        )
        for axis, mode in zip(axes, modes, strict=True):
            scores = table.scores(mode)
            tasks = statistics.common_tasks(scores)
            for method, by_task in scores.items():
                arrays = [np.array(by_task[task]) for task in tasks]
                rng = np.random.default_rng(BOOTSTRAP_SEED)
                profile = statistics.performance_profile(arrays, thresholds, rng=rng)
                color, dashes = curve_style(method)
                axis.plot(thresholds, profile.fraction, color=color, linestyle=dashes, drawstyle="steps-post")
                if profile.low is not None and profile.high is not None:
                    axis.fill_between(
                        thresholds,
                        profile.low,
                        profile.high,
                        color=color,
                        alpha=0.12,
                        linewidth=0,
                        step="post",
                    )
            axis.set(title=mode, xlabel=f"return / {table.item.scale:,.0f} (τ)", xlim=(0, 1), ylim=(0, 1.02))
        axes[0].set_ylabel("fraction of runs above τ")
        _legend(figure, methods, title)
    return figure


def figure_files(figure: Figure) -> dict[str, bytes]:
    """The figure as ``png`` and ``svg``, the same bytes for the same figure."""
    files = {}
    with style():
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=200, metadata=metadata, facecolor="white")
            files[kind] = buffer.getvalue()
    return files


def curve_style(method: str) -> tuple[str, Any]:
    """Color and line style of the method's curve, as its row says and matplotlib takes them."""
    row = get_method(method)
    return row.color, LINES[row.line]


def _draw_reference(axis: Axes, reference: PublishedCurve) -> None:
    style = REFERENCE_LINES[reference.method]
    axis.plot(reference.frames, reference.returns, color=FAINT, linewidth=0.8, **style)


def _draw(axis: Axes, curve: LearningCurve, x: Sequence[int]) -> None:
    color, dashes = curve_style(curve.method)
    marker = "o" if len(curve.decisions) == 1 else None
    axis.plot(x, curve.mean, color=color, linestyle=dashes, marker=marker, markersize=4)
    if len(curve.seeds) > 1:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _grid(
    rows: int, columns: int, title: str, notes: Sequence[str], labels: Sequence[str], *, scale: float = 1.0
) -> tuple[Figure, list[Axes]]:
    """Panels with room above for title and legend and below for the notes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = max(PANEL_WIDTH * scale * columns + 0.6, 5.2)
    wrapped = textwrap.wrap("; ".join(notes), int(width * 20)) if notes else []
    below = 0.115 * len(wrapped) + (0.12 if wrapped else 0)
    above = 0.3 * bool(title) + 0.17 * _legend_rows(labels, width) + 0.08
    height = PANEL_HEIGHT * scale * rows + above + below + 0.25
    room = ConstrainedLayoutEngine(rect=(0, below / height, 1, 1 - (above + below) / height))
    figure = Figure(figsize=(width, height), layout=room)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=False)
    if title:
        figure.text(0.5, 1 - 0.08 / height, title, ha="center", va="top", fontsize=10.5, fontweight="bold")
    if wrapped:
        figure.text(0.08 / width, 0.06 / height, "\n".join(wrapped), fontsize=6.5, color=FAINT, va="bottom")
    return figure, list(axes.flat)


def _legend(
    figure: Figure, methods: Mapping[str, str], title: str, references: Sequence[PublishedCurve] = ()
) -> None:
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    lines = []
    for method, label in methods.items():
        color, dashes = curve_style(method)
        lines.append(Line2D([], [], color=color, linestyle=dashes, label=label))
    for method, label in {reference.method: reference.label for reference in references}.items():
        lines.append(Line2D([], [], color=FAINT, linewidth=0.8, label=label, **REFERENCE_LINES[method]))
    columns = -(-len(lines) // _legend_rows([str(line.get_label()) for line in lines], width))
    figure.legend(
        handles=lines,
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - (0.3 if title else 0.05) / height),
        ncols=columns,
        borderaxespad=0,
        handlelength=2.6,
        columnspacing=1.4,
    )


def _legend_rows(labels: Sequence[str], width: float) -> int:
    inches = sum(0.075 * len(label) + 0.62 for label in labels)
    return max(1, -(-int(inches * 100) // int(width * 100)))


def _thousands(value: float, _: float) -> str:
    """500,000 as 500k"""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"
