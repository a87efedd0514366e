"""The one model of results that `report` and `reproduce` share: what runs reached and how they learned.

A run counts once for its seed, however many episodes it was tested with: seeds are the replicates. Settings, overlay
images, test media and lengths of training are never mixed: `experiment_of` says which runs are seeds of one
experiment, `ModeResult` is a number of theirs on one kind of media, `LearningCurve` how it came about. What to do with
runs that do not belong together is up to the caller: the report shows them in groups of their own (`make_groups`),
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
from softaug.envs.modes import ordered_modes
from softaug.media.comparability import PROCEDURAL_NOTE, media_note
from softaug.methods import METHODS
from softaug.results.reading import MEDIA_ORDER, RunRecord, overlay_images, overlay_media, preferred
from softaug.results.statistics import DDOF, mean_std

EPISODES = "episodes"
"""The name of a group's curve of training episodes, next to those of the evaluation modes."""

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


# ---- groups of seeds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, with or without adaptation at test time."""

    task: str
    method: str
    adapted: bool
    variant: str
    """what tells it from other groups of the task and method; empty if there is no other"""
    records: tuple[RunRecord, ...]
    cells: dict[str, tuple[ModeResult, ...]]
    """mode -> one result a kind of media, the one to show first coming first"""
    curves: dict[str, LearningCurve]
    """`EPISODES` and the modes of periodic evaluations"""

    @property
    def config(self) -> Config:
        return self.records[0].config

    @property
    def title(self) -> str:
        row = self.config.row
        return f"{row.title}, not adapting" if row.adapts and not self.adapted else row.title

    @property
    def label(self) -> str:
        return f"{self.title} · {self.variant}" if self.variant else self.title

    @property
    def frames_per_decision(self) -> float:
        done = [record for record in self.records if record.decisions]
        return done[0].frames / done[0].decisions if done else float("nan")

    @property
    def unfinished(self) -> int:
        return sum(not record.finished for record in self.records)

    def cell(self, mode: str) -> ModeResult | None:
        """The result to show where there is room for one."""
        return self.cells[mode][0] if mode in self.cells else None

    def gaps(self, mode: str) -> dict[int, float]:
        """seed -> return in the training appearance minus return in `mode`, of the results that are shown."""
        train, test = self.cell("train"), self.cell(mode)
        if train is None or test is None or train.decisions != test.decisions:
            return {}
        return {seed: train.scores[seed] - test.scores[seed] for seed in test.scores if seed in train.scores}

    def kept(self, mode: str) -> dict[int, float]:
        """seed -> share of the training return that is left in `mode`; empty where that return is not positive."""
        train = self.cell("train")
        if train is None or min(train.scores.values()) <= 0:
            return {}
        return {seed: 1 - gap / train.scores[seed] for seed, gap in self.gaps(mode).items()}


def make_groups(records: Sequence[RunRecord], points: int) -> tuple[list[Group], list[str]]:
    """The groups of `records`, and a sentence for each run that is not counted.

    points: upper bound of the points of a curve.
    """
    by_experiment: dict[tuple, dict[int, RunRecord]] = defaultdict(dict)
    left_out = []
    for record in records:
        same = by_experiment[experiment_of(record)]
        seed = record.config.seed
        if seed not in same:
            same[seed] = record
            continue
        keep, drop = sorted((same[seed], record), key=lambda r: r.decisions, reverse=True)
        same[seed] = keep
        left_out.append(f"{drop.path} is not counted: {keep.path} has the same settings and seed.")
    groups = []
    variants = _variants(list(by_experiment))
    for key, by_seed in by_experiment.items():
        runs = tuple(by_seed[seed] for seed in sorted(by_seed))
        adapts = runs[0].config.row.adapts
        for adapted in (True, False) if adapts else (False,):
            group = _group(runs, adapted, variants[key], points)
            if group.cells or not (adapts and not adapted):
                groups.append(group)
    order = {name: i for i, name in enumerate(METHODS)}
    groups.sort(key=lambda g: (g.task, order.get(g.method, len(order)), not g.adapted, g.variant))
    return groups, left_out


def modes_of(groups: Iterable[Group]) -> list[str]:
    """Every mode with a result or a curve, by benchmark and in its order."""
    return ordered_modes({m for group in groups for m in (*group.cells, *group.curves)} - {EPISODES})


def _group(runs: tuple[RunRecord, ...], adapted: bool, variant: str, points: int) -> Group:
    tested = {e.mode for run in runs for e in run.evaluations if e.adapted == adapted}
    tested |= {e.mode for run in runs for e in run.evals if e.adapted == adapted}
    modes = ordered_modes(tested)
    cells = {mode: cells for mode in modes if (cells := _results(runs, mode, adapted))}
    curves = {mode: curve for mode in modes if (curve := _evaluation_curve(runs, mode, adapted, points))}
    if (episodes := _episode_curve(runs, points)) is not None:
        curves[EPISODES] = episodes
    config = runs[0].config
    return Group(config.task, config.method, adapted, variant, runs, cells, curves)


def _results(runs: Sequence[RunRecord], mode: str, adapted: bool) -> tuple[ModeResult, ...]:
    kinds = {e.media for run in runs for e in run.evaluations if e.mode == mode and e.adapted == adapted}
    found = {
        media: result
        for media in kinds
        if (result := mode_result(runs, mode, adapted=adapted, media=[media]))
    }
    if not found:
        so_far = result_so_far(runs, mode, adapted=adapted)
        return (so_far,) if so_far is not None else ()
    counts = {media: len(result.scores) for media, result in found.items()}
    return tuple(found[media] for media in by_prevalence(counts))


def _evaluation_curve(
    runs: Sequence[RunRecord], mode: str, adapted: bool, points: int
) -> LearningCurve | None:
    kinds = curve_media(runs, mode, adapted=adapted)
    if not kinds:
        return None
    found = evaluation_points(runs, mode, adapted=adapted, media=kinds[:1])
    others = evaluation_points(runs, mode, adapted=adapted, media=kinds[1:]).keys() - found.keys()
    curve = make_curve(runs[0].config, mode, found, "evaluations", kinds[0], len(others))
    return curve and curve.thinned(points)


def _episode_curve(runs: Sequence[RunRecord], points: int) -> LearningCurve | None:
    """Training episodes, averaged over parts that are no shorter than an episode."""
    ends = [[episode.decisions for episode in run.curve] for run in runs]
    longest = max((e[-1] for e in ends if e), default=0)
    if not longest:
        return None
    lengths = [b - a for e in ends for a, b in zip([0, *e], e, strict=False)]
    width = max(-(-longest // points), round(statistics.median(lengths)), 1)
    curve = make_curve(runs[0].config, EPISODES, episode_points(runs, width), "training episodes")
    assert curve is not None
    return replace(curve, decisions=tuple(min(end, longest) for end in curve.decisions))


def _variants(keys: Sequence[tuple]) -> dict[tuple, str]:
    """What tells each group from the others of its task and method, in few words."""
    names: dict[tuple, str] = {}
    families: dict[tuple[Any, Any], list[tuple]] = defaultdict(list)
    for key in keys:
        families[dict(key)["task"], dict(key)["method"]].append(key)
    for family in families.values():
        settings = [dict(key) for key in family]
        differing = [name for name in settings[0] if len({s[name] for s in settings}) > 1]
        presets = {s["preset"] for s in settings}
        if len(presets) > 1:  # it says what goes with it
            free = [n for n in differing if len({(s["preset"], s[n]) for s in settings}) > len(presets)]
            differing = ["preset", *free]
        telling = _telling(differing, settings)
        for key, values in zip(family, settings, strict=True):
            parts = [_said(name, values[name]) for name in telling]
            parts += ["…"] if len(telling) < len(differing) else []
            names[key] = ", ".join(parts)
    return names


def _telling(differing: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """A few of the `differing` settings that together tell every group from every other; two if there are two."""

    def told_apart(names: Sequence[str]) -> int:
        return len({tuple(s[name] for name in names) for s in settings})

    telling: list[str] = []
    for name in differing:
        if told_apart([*telling, name]) > told_apart(telling):
            telling.append(name)
    for name in differing:
        if len(telling) < 2 and name not in telling:
            telling.append(name)
    return telling


def _said(name: str, value: Any) -> str:
    if name == "preset":
        return f"preset {value}"
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
    if name == "decisions":
        return f"{shown} decisions"
    return f"{name.replace('_', ' ')} {','.join(map(str, value)) if isinstance(value, tuple) else shown}"
