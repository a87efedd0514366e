"""The one model of results that `report` and `reproduce` share: what runs reached and how they learned.

A run counts once for its seed, however many episodes it was tested with: seeds are the replicates. Settings, overlay
images, test media and lengths of training are never mixed: `experiment_of` says which runs are seeds of one
experiment, `ModeResult` is a number of theirs on one kind of media, `LearningCurve` how it came about. What to do with
runs that do not belong together is up to the caller: the report shows them in groups of their own (`groups`),
`reproduce` refuses them.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from softaug.config import Config, make_config
from softaug.config.comparing import experiment
from softaug.media.comparability import PROCEDURAL_NOTE, media_note
from softaug.results.records import MEDIA_ORDER, RunRecord, overlay_images, overlay_media, preferred
from softaug.results.statistics import DDOF, mean_std

CHOSEN_BY = frozenset(("task", "method", "preset", "decisions"))
"""Settings that runs are chosen by; the others are compared with the preset's."""

Source = Literal["evaluations", "training episodes"]
CurvePoints = dict[int, dict[int, tuple[int, float]]]
"""seed -> decisions -> (frames, mean return)"""


# ---- what a run is ---------------------------------------------------------------------------------------------------


def experiment_of(record: RunRecord) -> tuple[tuple[str, Any], ...]:
    """Everything that runs must share to be seeds of one experiment, as (name, value)."""
    return (*experiment(record.config).items(), ("overlay images", overlay_images(record)))


def departures(config: Config) -> dict[str, tuple[object, object]]:
    """Where a run departs from its preset: field -> (its value, the preset's)."""
    if config.row.foreign:
        return {}
    usual = experiment(make_config(config.task, config.method, config.preset))
    return {
        name: (value, usual[name])
        for name, value in experiment(config).items()
        if name not in CHOSEN_BY and value != usual[name]
    }


def by_prevalence(counts: Mapping[Any, int]) -> list[Any]:
    """Kinds of media by how many runs have them; among equals, those nearer to the paper's first."""

    def rank(kind: str | None) -> tuple[int, int, str]:
        place = MEDIA_ORDER.index(kind) if kind in MEDIA_ORDER else len(MEDIA_ORDER)
        return -counts[kind], place, str(kind)

    return sorted(counts, key=rank)


# ---- what runs reached -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModeResult:
    """What the seeds of one task and method reached in one mode on one kind of media."""

    mode: str
    task: str
    method: str
    media: str | None
    scores: dict[int, float]
    """seed -> mean return over its episodes"""
    episodes: tuple[int, ...]
    """how many, per seed"""
    decisions: int
    """of training, the same for every seed"""
    frames: int
    notes: tuple[str, ...]
    """why it is not comparable with the paper's number, as far as the media go"""
    final: bool = True
    """after the end of training; else the last evaluation that most seeds have in common"""

    @property
    def mean(self) -> float:
        return mean_std([*self.scores.values()])[0]

    @property
    def std(self) -> float | None:
        """Over seeds; None for one."""
        return mean_std([*self.scores.values()])[1]


def mode_result(
    runs: Sequence[RunRecord], mode: str, *, adapted: bool, media: Collection[str | None] | None = None
) -> ModeResult | None:
    """The final result of `runs` (seeds of one experiment) in `mode`; None if no finished run has it.

    media: only evaluations on these kinds; None: each run's preferred one, whatever it is.
    """
    found = [
        (run, best)
        for run in sorted(runs, key=lambda run: run.config.seed)
        if run.finished
        and (
            best := preferred(
                e
                for e in run.evaluations
                if e.mode == mode and e.adapted == adapted and (media is None or e.media in media)
            )
        )
    ]
    if not found:
        return None
    run, first = found[0]
    notes = {evaluation.note for _, evaluation in found}
    if any(overlay_media(record) == "procedural" for record, _ in found):
        notes.add(PROCEDURAL_NOTE)
    return ModeResult(
        mode=mode,
        task=run.config.task,
        method=run.config.method,
        media=first.media,
        scores={record.config.seed: evaluation.mean for record, evaluation in found},
        episodes=tuple(evaluation.episodes for _, evaluation in found),
        decisions=first.decisions,
        frames=run.frames,
        notes=tuple(sorted(notes - {""})),
    )


def result_so_far(runs: Sequence[RunRecord], mode: str, *, adapted: bool) -> ModeResult | None:
    """Of runs of which none is finished: the latest evaluation that most of the seeds have."""
    at: dict[tuple[int, str | None], dict[int, tuple[int, tuple[float, ...]]]] = defaultdict(dict)
    for run in runs:
        for e in run.evals:
            if e.mode == mode and e.adapted == adapted:
                at[e.decisions, e.media][run.config.seed] = (e.frames, e.returns)
    if not at:
        return None
    decisions, media = max(at, key=lambda key: (len(at[key]), key[0]))
    found = dict(sorted(at[decisions, media].items()))
    note = media_note(mode, media, None)
    return ModeResult(
        mode=mode,
        task=runs[0].config.task,
        method=runs[0].config.method,
        media=media,
        scores={seed: statistics.fmean(returns) for seed, (_, returns) in found.items()},
        episodes=tuple(len(returns) for _, returns in found.values()),
        decisions=decisions,
        frames=next(iter(found.values()))[0],
        notes=(note,) if note else (),
        final=False,
    )


# ---- how they learned ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearningCurve:
    """Returns over training: values[seed][i] belongs to decisions[i], None where the seed has none."""

    task: str
    mode: str
    method: str
    source: Source
    media: str | None
    """the one kind that the evaluations were on; None for training episodes and modes that need none"""
    decisions: tuple[int, ...]
    frames: tuple[int, ...]
    values: dict[int, tuple[float | None, ...]]
    left_out: int = 0
    """seeds that were only evaluated on other media"""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.values)

    @property
    def mean(self) -> np.ndarray:
        """(points,) over seeds, where every seed has every point (see `shared`)."""
        return np.array([*self.values.values()], dtype=float).mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        return np.array([*self.values.values()], dtype=float).std(axis=0, ddof=DDOF)

    def shared(self) -> LearningCurve | None:
        """Only the points that all seeds have; None if there are none."""
        columns = zip(*self.values.values(), strict=True)
        return self._at([i for i, column in enumerate(columns) if None not in column])

    def thinned(self, points: int) -> LearningCurve | None:
        """At most so many points, at equal steps, the last one included."""
        step = -(-len(self.decisions) // points)
        return self._at(range(len(self.decisions))[::-step][::-1])

    def _at(self, indices: Sequence[int]) -> LearningCurve | None:
        if not indices:
            return None
        return replace(
            self,
            decisions=tuple(self.decisions[i] for i in indices),
            frames=tuple(self.frames[i] for i in indices),
            values={seed: tuple(values[i] for i in indices) for seed, values in self.values.items()},
        )


def evaluation_points(
    runs: Iterable[RunRecord], mode: str, *, adapted: bool = False, media: Collection[str | None]
) -> CurvePoints:
    """The evaluations during training in `mode` on these kinds of media, of the runs that have some."""
    found: CurvePoints = {}
    for run in runs:
        for e in run.evals:
            if e.mode == mode and e.adapted == adapted and e.media in media:
                found.setdefault(run.config.seed, {})[e.decisions] = (e.frames, e.mean)
    return found


def curve_media(runs: Iterable[RunRecord], mode: str, *, adapted: bool = False) -> list[str | None]:
    """The kinds of media that `mode` was evaluated on during training, the one that most runs have first."""
    counts: Counter[str | None] = Counter()
    for run in runs:
        counts.update({e.media for e in run.evals if e.mode == mode and e.adapted == adapted})
    return by_prevalence(counts)


def episode_points(runs: Iterable[RunRecord], width: int) -> CurvePoints:
    """Training episodes, averaged over parts of `width` decisions; a part is named by its end."""
    found: CurvePoints = {}
    for run in runs:
        parts: dict[int, list[float]] = {}
        for episode in run.curve:
            parts.setdefault(-(-episode.decisions // width) * width, []).append(episode.total)
        if parts:
            repeat = run.curve[-1].frames / run.curve[-1].decisions
            found[run.config.seed] = {
                end: (round(end * repeat), statistics.fmean(part)) for end, part in parts.items()
            }
    return found


def make_curve(
    config: Config,
    mode: str,
    points: CurvePoints,
    source: Source,
    media: str | None = None,
    left_out: int = 0,
) -> LearningCurve | None:
    """The points of every seed on one grid. config: of any of the runs."""
    frames = {at: n for by_decisions in reversed(points.values()) for at, (n, _) in by_decisions.items()}
    if not frames:
        return None
    grid = tuple(sorted(frames))
    return LearningCurve(
        task=config.task,
        mode=mode,
        method=config.method,
        source=source,
        media=media,
        decisions=grid,
        frames=tuple(frames[at] for at in grid),
        values={
            seed: tuple(by_decisions[at][1] if at in by_decisions else None for at in grid)
            for seed, by_decisions in points.items()
        },
        left_out=left_out,
    )
