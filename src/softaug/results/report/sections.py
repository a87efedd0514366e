"""Everything the page shows, and which of its sections have something to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from softaug.envs.modes import mode_group
from softaug.results.comparability import training_differences
from softaug.results.groups import EPISODES, Group, modes_of
from softaug.results.leaderboard import Leaderboard, make_leaderboard
from softaug.results.records import RunRecord, overlay_media
from softaug.results.report.invariance import Diagnosed, diagnosed_at
from softaug.results.report.media import Videos
from softaug.results.report.samples import Sample
from softaug.results.report.tables import duration, few
from softaug.storage.run_files import RunFiles
from softaug.tasks import ROBOT_TASKS
from softaug.zoo.places import shown


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
    problems: Sequence[str] = ()
    """what could not be read or is not counted, a sentence each"""

    @property
    def modes(self) -> list[str]:
        return modes_of(self.groups)

    @property
    def result_modes(self) -> list[str]:
        return [mode for mode in self.modes if any(mode in group.cells for group in self.groups)]

    @property
    def gap_modes(self) -> list[str]:
        """Test modes in which some group's return can be compared with its training return."""
        return [m for m in self.modes if m != "train" and any(group.gaps(m) for group in self.groups)]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(group.task for group in self.groups))

    @property
    def task_options(self) -> list[tuple[str, str]]:
        return [(task, task) for task in self.tasks]

    @property
    def curve_options(self) -> list[tuple[str, str]]:
        """(name, what it is called) of every curve that some group has."""
        titles = {EPISODES: "training episodes"}
        names = [n for n in (EPISODES, *self.modes) if any(n in group.curves for group in self.groups)]
        return [(name, titles.get(name, name)) for name in names]

    @cached_property
    def leaderboard(self) -> Leaderboard:
        return make_leaderboard(self.groups, self.shown_path)

    @property
    def heading(self) -> str:
        tasks, runs = self.tasks, len(self.records)
        what = ", ".join(tasks) if len(tasks) <= 2 else f"{len(tasks)} tasks"
        return f"{what}: {runs} run{'s' if runs > 1 else ''}"

    def sections(self) -> list[tuple[str, str]]:
        """(id, title) of each section that has something to show; its macro in sections.html is called like the id."""
        final = any(cell.final for group in self.groups for found in group.cells.values() for cell in found)
        shown = [
            ("results", "Results", True),
            ("board", "Leaderboard", self.result_modes),
            ("curves", "Learning curves", self.curve_options),
            ("gap", "Generalization gap", self.gap_modes),
            ("profile", "Performance profile", final),
            ("videos", "Videos", self.videos or self.videos_left_out),
            ("observations", "Observations", self.samples is not None),
            ("invariance", "Invariance", self.diagnoses),
            ("runs", "Runs", True),
            ("settings", "Settings", True),
        ]
        return [(name, title) for name, title, something in shown if something]

    def summary(self) -> list[tuple[str, str]]:
        """The head's few facts."""
        records, groups = self.records, self.groups
        unfinished = sum(not record.finished for record in records)
        state = f"{len(records)}" + (f", {unfinished} not finished" if unfinished else "")
        decisions, frames = sum(r.decisions for r in records), sum(r.frames for r in records)
        return [
            ("Runs", state),
            ("Tasks", few(sorted({group.task for group in groups}))),
            ("Methods", few(dict.fromkeys(group.config.row.title for group in groups))),
            ("Training", f"{decisions:,} decisions ({frames:,} frames)"),
            ("Wall-clock", duration(sum(record.seconds for record in records))),
        ]

    def diagnosis_notes(self) -> Iterator[str]:
        """What the diagnoses say themselves, and which are of earlier weights."""
        yield from sorted({note for found in self.diagnoses for note in found.notes})
        for found in self.diagnoses:
            measured, now = diagnosed_at(found.values), found.record.decisions
            if measured is not None and measured != now:
                path = self.shown_path(found.record)
                yield f"{path} was measured after {measured:,} decisions; the run has {now:,} now."

    def shown_path(self, record: RunRecord) -> str:
        """The path below the folder that all runs share."""
        if len(self.records) == 1 or RunFiles(record.path).published:
            return shown(record.path)
        parts = [r.path.absolute().parts for r in self.records if not RunFiles(r.path).published]
        shared = 0
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
        return str(record.path if shared <= 1 else Path(*record.path.absolute().parts[shared:]))


def by_benchmark(modes: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Modes under the benchmark that they belong to."""
    found: dict[str, list[str]] = {}
    for mode in modes:
        found.setdefault(mode_group(mode), []).append(mode)
    return list(found.items())


def comparability(content: Content) -> str:
    """One sentence on what keeps these numbers from standing next to the paper's; empty if nothing does."""
    configs = [record.config for record in content.records]
    reasons = [*training_differences(configs)]
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
