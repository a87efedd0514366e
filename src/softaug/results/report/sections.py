"""The sections of the page, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softaug.config import Config
from softaug.results.model import EPISODES, Group, departures, modes_of
from softaug.results.reading import RunRecord, overlay_media
from softaug.results.report import tables
from softaug.results.report.invariance import Diagnosed, invariance
from softaug.results.report.markup import Markup, element, join
from softaug.results.report.media import VIDEO_BYTES, Videos, picture_uri
from softaug.results.report.samples import Sample
from softaug.results.report.settings import settings
from softaug.tasks import ROBOT_TASKS

MOST_NAMED = 8
"""Of a list of things left out, so many are named; the rest are counted."""


@dataclass(frozen=True)
class Content:
    """Everything the page shows."""

    records: Sequence[RunRecord]
    groups: Sequence[Group]
    videos: Sequence[Videos] = ()
    videos_left_out: Sequence[RunRecord] = ()
    samples: Sequence[Sample] | None = None
    samples_left_out: Sequence[str] = ()
    diagnoses: Sequence[Diagnosed] = ()
    problems: Sequence[str] = field(default_factory=tuple)
    """what could not be read or is not counted, a sentence each"""

    @property
    def modes(self) -> list[str]:
        return modes_of(self.groups)

    def shown_path(self, record: RunRecord) -> str:
        """The path below the folder that all runs share."""
        if len(self.records) == 1:
            return str(record.path)
        parts = [r.path.absolute().parts for r in self.records]
        shared = 0
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        return str(record.path if shared <= 1 else Path(*record.path.absolute().parts[shared:]))


def make_sections(content: Content) -> list[tuple[str, str, Markup]]:
    """(id, title, HTML) of each section that has something to show."""
    made = [
        ("results", "Results", results(content)),
        ("curves", "Learning curves", curves(content)),
        ("gap", "Generalization gap", gap(content)),
        ("profile", "Performance profile", profile(content)),
        ("videos", "Videos", videos(content)),
        ("observations", "Observations", observations(content)),
        ("invariance", "Invariance", invariance(content.diagnoses, content.shown_path)),
        ("runs", "Runs", runs(content)),
        ("settings", "Settings", settings(content.records)),
    ]
    return [(identifier, title, html) for identifier, title, html in made if html is not None]


def summary(content: Content) -> Markup:
    """The head's few facts."""
    records, groups = content.records, content.groups
    unfinished = sum(not record.finished for record in records)
    state = f"{len(records)}" + (f", {unfinished} not finished" if unfinished else "")
    decisions, frames = sum(r.decisions for r in records), sum(r.frames for r in records)
    facts = [
        ("Runs", state),
        ("Tasks", _few(sorted({group.task for group in groups}))),
        ("Methods", _few(list(dict.fromkeys(group.config.row.title for group in groups)))),
        ("Training", f"{decisions:,} decisions ({frames:,} frames)"),
        ("Wall-clock", tables.duration(sum(record.seconds for record in records))),
    ]
    return element(
        "dl", [element("div", element("dt", k), element("dd", v)) for k, v in facts], class_="facts"
    )


def comparability(content: Content) -> str:
    """One sentence on what keeps these numbers from standing beside the paper's; empty if nothing does."""
    configs = [record.config for record in content.records]
    reasons = [f"preset {p}" for p in sorted({config.preset for config in configs} - {"paper"})]
    reasons += _departures([config for config in configs if config.preset == "paper" and not config.own_env])
    if any(overlay_media(record) == "procedural" for record in content.records):
        reasons.append("procedural overlay images in training")
    reasons += [
        f"{task} is a reconstruction"
        for task in sorted({config.task for config in configs})
        if task in ROBOT_TASKS  # the paper's was never released
    ]
    cells = [cell for group in content.groups for found in group.cells.values() for cell in found]
    kinds = sorted({cell.media for cell in cells if cell.media not in (None, "official")} - {None})
    reasons += [f"{kind} media" for kind in kinds]
    reasons += sorted(
        {note.split(": not comparable")[0] for c in cells for note in c.notes if "only" in note}
    )
    seeds = {len(cell.scores) for cell in cells}
    if seeds and min(seeds) < 5:
        fewest, most = min(seeds), max(seeds)
        count = str(most) if fewest == most else f"{fewest} to {most}"
        reasons.append(f"{count} seed{'s' if most > 1 else ''} instead of 5")
    if any(not cell.final for cell in cells):
        reasons.append("training not finished")
    return f"Not directly comparable with the paper: {', '.join(reasons)}." if reasons else ""


def _departures(configs: Sequence[Config]) -> list[str]:
    """Where runs of preset paper trained otherwise than the paper."""
    reasons = []
    if lengths := sorted({config.decisions for config in configs} - {Config.decisions}):
        shown = " and ".join(f"{decisions:,}" for decisions in lengths)
        reasons.append(f"{shown} instead of {Config.decisions:,} decisions")
    if changed := sorted({name for config in configs for name in departures(config)}):
        reasons.append(f"other settings than the paper’s ({_few(changed)})")
    return reasons


def results(content: Content) -> Markup:
    if not any(group.cells for group in content.groups):
        return element("p", "No evaluation yet. Returns appear here with the first one.", class_="note")
    parts: list[Any] = [
        element(
            "p",
            "Mean return over seeds ± their standard deviation; a seed’s score is its mean over test episodes. "
            "Small print: the paper’s number (five seeds, 500,000 decisions). Bold: the best of the methods with several "
            "seeds and the same preset, media and length of training.",
        )
    ]
    if sentence := comparability(content):
        parts.append(element("p", sentence, class_="note"))
    if len(tasks := _tasks(content)) > 1:
        parts.append(
            element("div", _select("results-task", "Task", [("", "all tasks"), *tasks]), class_="controls")
        )
    panels = [("all modes", tables.results_table(content.groups, content.modes))]
    for mode in content.modes:
        if (made := tables.mode_table(content.groups, mode)) is not None:
            panels.append((mode, made))
    parts.append(
        element(
            "div",
            [element("section", html, data_tab=title, aria_label=title) for title, html in panels],
            class_="tabs",
            data_label="Mode",
        )
    )
    return join(parts)


def curves(content: Content) -> Markup | None:
    names = [n for n in (EPISODES, *content.modes) if any(n in group.curves for group in content.groups)]
    if not names:
        return None
    titles = {EPISODES: "training episodes"}
    return join(
        (
            element(
                "p",
                "Line: mean over seeds. Band: ± one standard deviation. Point at the chart, or focus it and use "
                "the arrow keys, to read values.",
            ),
            element(
                "div",
                _select("curves-task", "Task", _tasks(content)),
                _select("curves-what", "Return in", [(n, titles.get(n, n)) for n in names]),
                _select("curves-unit", "Over", [("decisions", "decisions"), ("frames", "frames")]),
                element("label", element("input", type="checkbox", id="curves-seeds"), " single seeds"),
                class_="controls",
            ),
            _chart("curves-chart", "Learning curves"),
            element("p", id="curves-note", class_="remark", hidden=True),
            element(
                "details",
                element("summary", "These curves as a table"),
                element(
                    "div",
                    id="curves-table",
                    class_="scroll",
                    tabindex="0",
                    role="region",
                    aria_label="Learning curves as a table",
                ),
            ),
        )
    )


def gap(content: Content) -> Markup | None:
    made = tables.gap_table(content.groups, content.modes)
    if made is None:
        return None
    return join(
        (
            element(
                "p",
                "What is lost when the world looks different: return in the training mode minus return in the "
                "test mode, seed by seed. Whiskers: ± one standard deviation over seeds.",
            ),
            element(
                "div",
                _select("gap-task", "Task", _tasks(content)),
                _select(
                    "gap-what",
                    "Show",
                    [("kept", "share of training return kept"), ("gap", "gap"), ("returns", "return")],
                ),
                class_="controls",
            ),
            _chart("gap-chart", "Generalization by mode"),
            made,
        )
    )


def profile(content: Content) -> Markup | None:
    if not any(cell.final for group in content.groups for found in group.cells.values() for cell in found):
        return None
    return join(
        (
            element(
                "p",
                "The share of runs (seeds of all tasks) whose return, divided by 1,000, is above a threshold: "
                "higher is better everywhere. Band: 95 % bootstrap interval, where every task has several seeds.",
            ),
            element(
                "div",
                _select("profile-mode", "Mode", []),
                _select("profile-block", "Runs", []),
                class_="controls",
            ),
            _chart("profile-chart", "Performance profile"),
            element("p", id="profile-note", class_="remark", hidden=True),
        )
    )


def videos(content: Content) -> Markup | None:
    if not content.videos and not content.videos_left_out:
        return None
    count = sum(len(v.by_mode) for v in content.videos)
    parts: list[Any] = [
        element(
            "p",
            f"The first test episode of each mode, side by side. {count} videos of {len(content.videos)} runs.",
        )
    ]
    if left := content.videos_left_out:
        names = _few([content.shown_path(record) for record in left])
        parts.append(
            element(
                "p",
                f"A page holds at most {VIDEO_BYTES / 1e6:.0f} MB of videos, so those of {len(left)} runs are left out: "
                f"{names}. A report of fewer runs shows them.",
                class_="note",
            )
        )
    options = [
        (number, f"{v.group.task}, {v.group.label}, seed {v.record.config.seed}")
        for number, v in enumerate(content.videos)
    ]
    parts.append(
        element(
            "div",
            _select("videos-run", "Run", options),
            element("button", "Play all", type="button", id="videos-play"),
            element(
                "label",
                "Time ",
                element("input", type="range", id="videos-time", min=0, max=1, step="any", value=0),
            ),
            class_="controls",
        )
    )
    parts.append(element("div", id="videos-row", class_="tiles"))
    return join(parts)


def observations(content: Content) -> Markup | None:
    if content.samples is None:
        return None
    parts: list[Any] = [
        element(
            "p",
            "One state of each task as the agent sees it, rendered for this page with the run’s settings.",
        )
    ]
    if left := content.samples_left_out:
        parts.append(
            element(
                "p", f"Only {len(content.samples)} tasks are shown; left out: {_few(left)}.", class_="note"
            )
        )
    for sample in content.samples:
        parts.append(element("h3", sample.task))
        if sample.problem:
            parts.append(element("p", sample.problem, class_="note"))
        tiles = [_tile(p.image, p.name, p.detail, f"{sample.task} in {p.name}") for p in sample.pictures]
        parts.append(element("div", tiles, class_="tiles"))
        for view in sample.views:
            title = f"{view.name} ({view.detail})" if view.detail else view.name
            tiles = [
                element(
                    "img",
                    src=picture_uri(image),
                    alt=f"{sample.task}, {view.name}, draw {i + 1}",
                )
                for i, image in enumerate(view.images)
            ]
            parts.append(
                element("figure", element("figcaption", title), element("div", tiles, class_="views"))
            )
    return join(parts)


def runs(content: Content) -> Markup:
    parts: list[Any] = [tables.runs_table(content.records, content.shown_path)]
    if content.problems:
        parts.insert(
            0, element("ul", [element("li", sentence) for sentence in content.problems], class_="note")
        )
    return join(parts)


def _tasks(content: Content) -> list[tuple[str, str]]:
    return [(task, task) for task in dict.fromkeys(group.task for group in content.groups)]


def _select(identifier: str, label: str, options: Iterable[tuple[Any, str]]) -> Markup:
    made = [element("option", text, value=value) for value, text in options]
    return element("label", f"{label} ", element("select", made, id=identifier))


def _chart(identifier: str, label: str) -> Markup:
    return element("figure", element("div", id=identifier, class_="chart", data_label=label))


def _tile(image: Any, title: str, detail: str, alt: str) -> Markup:
    return element(
        "figure",
        element("img", src=picture_uri(image), alt=alt),
        element("figcaption", title, element("small", detail) if detail else None),
    )


def _few(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMED])
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
