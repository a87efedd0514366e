"""Learning curves over seeds: the numbers behind a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from softaug.results import model
from softaug.results.model import LearningCurve, evaluation_points
from softaug.results.records import RunRecord

BINS = 40
"""parts of a run over which training episodes are averaged"""


def make_curve(runs: Sequence[RunRecord], mode: str, media: str | None = None) -> LearningCurve | None:
    """The curve of one task and method (all of `runs` are of it) in `mode`; None if no run has it.

    Periodic evaluations if the runs have them, only those on `media`; None takes the kind that most runs have. If
    there are none, the returns of the training episodes stand in for the training environment's; they were played
    with exploration, and domain randomization plays them recolored. Only points that every seed has are kept.
    """
    if not runs:
        return None
    media = media or choose_curve_media(runs, mode)
    points = evaluation_points(runs, mode, media=(None, media))
    kind = media if evaluation_points(runs, mode, media=(media,)) else None
    curve = model.make_curve(runs[0].config, mode, points, "evaluations", kind)
    if mode == "train" and (not points or min(map(len, points.values())) < 2):
        width = max(1, runs[0].config.decisions // BINS)
        curve = model.make_curve(runs[0].config, mode, model.episode_points(runs, width), "training episodes")
    return curve and curve.shared()


def choose_curve_media(runs: Iterable[RunRecord], mode: str) -> str | None:
    """The kind of media on which most runs were evaluated in `mode` during training; None if it needs none."""
    return next((kind for kind in model.curve_media(runs, mode) if kind is not None), None)


def evaluated_seeds(runs: Iterable[RunRecord], mode: str, media: str | None) -> list[int]:
    """Which of the runs were evaluated in `mode` on `media` during training."""
    return list(evaluation_points(runs, mode, media=(None, media)))


def curve_rows(curves: Iterable[LearningCurve]) -> list[dict[str, Any]]:
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
