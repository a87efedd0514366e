"""Learning curves over seeds: the numbers behind a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from softaug.results.reading import RunRecord
from softaug.results.reproduce.collect import most_common
from softaug.results.statistics import DDOF

Source = Literal["evaluations", "training episodes"]
BINS = 40
"""parts of a run over which training episodes are averaged"""


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over seeds at the points that all of them have; arrays are (points,)."""

    task: str
    mode: str
    method: str
    source: Source
    media: str | None
    seeds: tuple[int, ...]
    decisions: np.ndarray
    frames: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def make_curve(runs: Sequence[RunRecord], mode: str, media: str | None = None) -> Curve | None:
    """The curve of one task and method (all of `runs` are of it) in `mode`; None if no run has it.

    Periodic evaluations if the runs have them, only those on `media`; None takes the kind that most runs have. If
    there are none, the returns of the training episodes stand in for the training environment's; they were played
    with exploration, and domain randomisation plays them recoloured.
    """
    media = media or choose_curve_media(runs, mode)
    points, source = _evaluations(runs, mode, media), "evaluations"
    if mode == "train" and (not points or min(len(values) for _, values, _ in points) < 2):
        points, source = _episodes(runs), "training episodes"
    if not points:
        return None
    common = sorted(set.intersection(*(set(values) for _, values, _ in points)))
    if not common:
        return None
    table = np.array([[values[at][1] for at in common] for _, values, _ in points])  # (seeds, points)
    config = runs[0].config
    first = points[0][1]
    return Curve(
        task=config.task,
        mode=mode,
        method=config.method,
        source="evaluations" if source == "evaluations" else "training episodes",
        media=next((kind for *_, kind in points if kind is not None), None),
        seeds=tuple(seed for seed, _, _ in points),
        decisions=np.array(common),
        frames=np.array([first[at][0] for at in common]),
        mean=table.mean(axis=0),
        std=table.std(axis=0, ddof=DDOF),
    )


Points = tuple[int, dict[int, tuple[int, float]], str | None]
"""seed, decisions -> (frames, mean return), media"""


def choose_curve_media(runs: Iterable[RunRecord], mode: str) -> str | None:
    """The kind of media on which most runs were evaluated in `mode` during training; None if it needs none."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(
            {e.media for e in run.evals if e.mode == mode and not e.adapted and e.media is not None}
        )
    return next(iter(most_common(counts)), None)


def evaluated_seeds(runs: Iterable[RunRecord], mode: str, media: str | None) -> list[int]:
    """Which of the runs were evaluated in `mode` on `media` during training."""
    return [seed for seed, _, _ in _evaluations(runs, mode, media)]


def _evaluations(runs: Iterable[RunRecord], mode: str, media: str | None) -> list[Points]:
    found: list[Points] = []
    for run in runs:
        mine = [e for e in run.evals if e.mode == mode and not e.adapted and e.media in (None, media)]
        if mine:
            values = {e.decisions: (e.frames, e.mean) for e in mine}
            found.append((run.config.seed, values, mine[-1].media))
    return found


def _episodes(runs: Iterable[RunRecord]) -> list[Points]:
    """Training episodes averaged over `BINS` equal parts of the run; a part is named by its end."""
    found: list[Points] = []
    for run in runs:
        width = max(1, run.config.decisions // BINS)
        parts: dict[int, list[float]] = {}
        for episode in run.curve:
            parts.setdefault(-(-episode.decisions // width) * width, []).append(episode.total)
        if parts:
            repeat = run.curve[-1].frames / run.curve[-1].decisions
            values = {end: (round(end * repeat), float(np.mean(part))) for end, part in parts.items()}
            found.append((run.config.seed, values, None))
    return found


def curve_rows(curves: Iterable[Curve]) -> list[dict[str, Any]]:
    """One row a point, for CSV."""
    return [
        {
            "task": curve.task,
            "mode": curve.mode,
            "method": curve.method,
            "decisions": int(decisions),
            "frames": int(frames),
            "mean": round(float(mean), 3),
            "std": round(float(std), 3) if len(curve.seeds) > 1 else None,
            "seeds": len(curve.seeds),
            "source": curve.source,
            "media": curve.media or "none",
        }
        for curve in curves
        for decisions, frames, mean, std in zip(
            curve.decisions, curve.frames, curve.mean, curve.std, strict=True
        )
    ]
