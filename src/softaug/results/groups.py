"""Groups of seeds, as the report shows them: runs that belong together, what they reached and how they learned."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from softaug.config import Config
from softaug.envs.modes import ordered_modes
from softaug.methods import METHODS
from softaug.results.model import (
    LearningCurve,
    ModeResult,
    by_prevalence,
    curve_media,
    episode_points,
    evaluation_points,
    experiment_of,
    make_curve,
    mode_result,
    result_so_far,
)
from softaug.results.records import RunRecord

EPISODES = "episodes"
"""The name of a group's curve of training episodes, next to those of the evaluation modes."""


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
