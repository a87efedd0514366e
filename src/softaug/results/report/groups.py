"""Runs as groups of seeds: what may be averaged, and what comes out.

A group holds the runs of one task and method that differ in nothing but their seed (and in what cannot change a
result). Seeds are the replicates: a run counts once, however many episodes it was tested with. Presets, training
media, test media and lengths of training are never mixed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from softaug.config import Config, experiment
from softaug.media.comparability import media_note
from softaug.results.reading import MEDIA_ORDER, RunRecord, overlay_images, preferred

EPISODES = "episodes"
"""The name of the curve of training episodes, beside those of the evaluation modes."""

MODE_ORDER = ("train", "color_easy", "color_hard", "video_easy", "video_hard")


@dataclass(frozen=True)
class Cell:
    """What a group reached in one mode on one kind of media."""

    mode: str
    media: str | None
    scores: dict[int, float]
    """seed -> mean return over its episodes"""
    episodes: tuple[int, int]
    """fewest and most episodes a seed was tested with"""
    decisions: int
    """of training, the same for every seed"""
    final: bool
    """after the end of training; else the last evaluation that the seeds have in common"""
    notes: tuple[str, ...]
    """why the number does not stand beside the paper's, as far as the media go"""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores.values())


@dataclass(frozen=True)
class Curve:
    """Returns over training on a common grid: values[seed][i] belongs to decisions[i], None where there is none."""

    decisions: tuple[int, ...]
    values: dict[int, tuple[float | None, ...]]
    media: str | None = None
    """the one kind that these evaluations were on; None for training episodes and modes that need none"""
    left_out: int = 0
    """seeds that were only evaluated on other media"""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, with or without adaptation at test time."""

    task: str
    method: str
    adapted: bool
    variant: str
    """what tells it from other groups of the task and method; empty if there is no other"""
    records: tuple[RunRecord, ...]
    cells: dict[str, tuple[Cell, ...]]
    """mode -> one cell a kind of media, the one to show first coming first"""
    curves: dict[str, Curve]
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

    def cell(self, mode: str) -> Cell | None:
        """The cell to show where there is room for one."""
        return self.cells[mode][0] if mode in self.cells else None


def make_groups(records: Sequence[RunRecord], points: int) -> tuple[list[Group], list[str]]:
    """The groups of `records`, and a sentence for each run that is not counted.

    points: upper bound of the points of a curve.
    """
    by_key: dict[tuple, dict[int, RunRecord]] = defaultdict(dict)
    left_out = []
    for record in records:
        same = by_key[_key(record)]
        seed = record.config.seed
        if seed not in same:
            same[seed] = record
            continue
        keep, drop = sorted((same[seed], record), key=lambda r: r.decisions, reverse=True)
        same[seed] = keep
        left_out.append(f"{drop.path} is not counted: {keep.path} has the same settings and seed.")
    groups = []
    variants = _variants(list(by_key))
    for key, by_seed in by_key.items():
        runs = tuple(by_seed[seed] for seed in sorted(by_seed))
        adapts = runs[0].config.row.adapts
        for adapted in (True, False) if adapts else (False,):
            group = _group(runs, adapted, variants[key], points)
            if group.cells or not (adapts and not adapted):
                groups.append(group)
    order = _method_order()
    groups.sort(key=lambda g: (g.task, order.get(g.method, len(order)), not g.adapted, g.variant))
    return groups, left_out


def modes_of(groups: Iterable[Group]) -> list[str]:
    """Every mode with a result or a curve, the benchmark's first and in its order."""
    seen = {mode for group in groups for mode in (*group.cells, *group.curves)} - {EPISODES}
    return [mode for mode in MODE_ORDER if mode in seen] + sorted(seen - set(MODE_ORDER))


def gaps(group: Group, mode: str) -> dict[int, float]:
    """seed -> return in training look minus return in `mode`, of the cells that are shown."""
    train, test = group.cell("train"), group.cell(mode)
    if train is None or test is None or train.decisions != test.decisions:
        return {}
    return {seed: train.scores[seed] - test.scores[seed] for seed in test.scores if seed in train.scores}


def kept(group: Group, mode: str) -> dict[int, float]:
    """seed -> share of the return in training look that is left in `mode`; empty where that return is not positive."""
    train = group.cell("train")
    if train is None or min(train.scores.values()) <= 0:
        return {}
    return {seed: 1 - gap / train.scores[seed] for seed, gap in gaps(group, mode).items()}


def _key(record: RunRecord) -> tuple:
    return (*experiment(record.config).items(), ("overlay images", overlay_images(record)))


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


def _group(runs: tuple[RunRecord, ...], adapted: bool, variant: str, points: int) -> Group:
    modes = {e.mode for run in runs for e in run.evaluations if e.adapted == adapted}
    modes |= {e.mode for run in runs for e in run.evals if e.adapted == adapted}
    cells = {mode: cells for mode in modes if (cells := _cells(runs, mode, adapted))}
    curves = {
        mode: curve for mode in modes if (curve := _eval_curve(runs, mode, adapted, points)) is not None
    }
    if (episodes := _episode_curve(runs, points)) is not None:
        curves[EPISODES] = episodes
    config = runs[0].config
    return Group(config.task, config.method, adapted, variant, runs, cells, curves)


def _cells(runs: Sequence[RunRecord], mode: str, adapted: bool) -> tuple[Cell, ...]:
    finished = [
        (run.config.seed, e)
        for run in runs
        for e in run.evaluations
        if run.finished and e.mode == mode and e.adapted == adapted
    ]
    cells = []
    for media in {e.media for _, e in finished}:
        seeds = {seed for seed, e in finished if e.media == media}
        chosen = {
            seed: best
            for seed in sorted(seeds)
            if (best := preferred(e for s, e in finished if s == seed and e.media == media)) is not None
        }
        counts = [e.episodes for e in chosen.values()]
        cells.append(
            Cell(
                mode=mode,
                media=media,
                scores={seed: e.mean for seed, e in chosen.items()},
                episodes=(min(counts), max(counts)),
                decisions=next(iter(chosen.values())).decisions,
                final=True,
                notes=tuple(sorted({e.note for e in chosen.values() if e.note})),
            )
        )
    cells = cells or _cells_so_far(runs, mode, adapted)
    return tuple(sorted(cells, key=lambda c: _media_rank(len(c.scores), c.media)))


def _media_rank(seeds: int, media: str | None) -> tuple[int, int, str]:
    """Sorts first what most seeds were tested on, then what is nearest to the paper's media."""
    place = MEDIA_ORDER.index(media) if media in MEDIA_ORDER else 0
    return -seeds, place, str(media)


def _cells_so_far(runs: Sequence[RunRecord], mode: str, adapted: bool) -> list[Cell]:
    """Of a group without a finished run: the latest evaluation that most of its seeds have."""
    at: dict[tuple[int, str | None], dict[int, tuple[float, ...]]] = defaultdict(dict)
    for run in runs:
        for e in run.evals:
            if e.mode == mode and e.adapted == adapted:
                at[e.decisions, e.media][run.config.seed] = e.returns
    if not at:
        return []
    decisions, media = max(at, key=lambda key: (len(at[key]), key[0]))
    returns = at[decisions, media]
    counts = [len(values) for values in returns.values()]
    note = media_note(mode, media, None)
    return [
        Cell(
            mode=mode,
            media=media,
            scores={seed: statistics.fmean(values) for seed, values in sorted(returns.items())},
            episodes=(min(counts), max(counts)),
            decisions=decisions,
            final=False,
            notes=(note,) if note else (),
        )
    ]


def _eval_curve(runs: Sequence[RunRecord], mode: str, adapted: bool, points: int) -> Curve | None:
    by_media: dict[str | None, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        for e in run.evals:
            if e.mode == mode and e.adapted == adapted:
                by_media[e.media][run.config.seed][e.decisions] = e.mean
    if not by_media:
        return None
    media = min(by_media, key=lambda kind: _media_rank(len(by_media[kind]), kind))
    values = by_media[media]
    others = {seed for by_seed in by_media.values() for seed in by_seed} - values.keys()
    grid = sorted({decisions for by_decisions in values.values() for decisions in by_decisions})
    step = -(-len(grid) // points)
    grid = grid[::-step][::-1]  # every step-th, the last one included
    on_grid = {seed: tuple(by_decisions.get(d) for d in grid) for seed, by_decisions in values.items()}
    return Curve(tuple(grid), on_grid, media, len(others))


def _episode_curve(runs: Sequence[RunRecord], points: int) -> Curve | None:
    """Training episodes, averaged over bins that are no narrower than an episode."""
    ends = {run.config.seed: [episode.decisions for episode in run.curve] for run in runs}
    longest = max((e[-1] for e in ends.values() if e), default=0)
    if not longest:
        return None
    lengths = [b - a for e in ends.values() for a, b in zip([0, *e], e, strict=False)]
    width = max(-(-longest // points), round(statistics.median(lengths)), 1)
    bins = -(-longest // width)
    values = {}
    for run in runs:
        content: list[list[float]] = [[] for _ in range(bins)]
        for episode in run.curve:
            content[(episode.decisions - 1) // width].append(episode.total)
        if run.curve:
            values[run.config.seed] = tuple(statistics.fmean(b) if b else None for b in content)
    return Curve(tuple(min((i + 1) * width, longest) for i in range(bins)), values)


def _method_order() -> dict[str, int]:
    from softaug.methods import METHODS

    return {name: i for i, name in enumerate(METHODS)}
