"""What a run directory says, weights and replay aside: as `reading` makes it and everything about results takes it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from softaug.config import Config
from softaug.media.comparability import OUTDATED

State = Literal["finished", "running or interrupted"]

MEDIA_ORDER = ("official", "davis", "folder", "list", "procedural", OUTDATED)
"""Of two evaluations with as many episodes, the one on media nearer to the paper's is taken."""


class TrainEpisode(NamedTuple):
    """A finished training episode. `decisions` and `frames` count from the start of the run; `total` is its return."""

    decisions: int
    total: float
    frames: int


class PeriodicEval(NamedTuple):
    """An evaluation during training: the returns of its episodes in one mode."""

    decisions: int
    mode: str
    returns: tuple[float, ...]
    media: str | None
    frames: int
    adapted: bool

    @property
    def mean(self) -> float:
        return statistics.fmean(self.returns)


class Rate(NamedTuple):
    """Decisions per second of training between two lines of losses; evaluations are not counted."""

    decisions: int
    decisions_per_second: float


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one mode, played with the weights after `decisions` decisions of training."""

    mode: str
    returns: tuple[float, ...]
    media: str | None
    """Where videos or colors came from, one of `MEDIA_ORDER`; None if the mode needs none."""
    decisions: int
    adapted: bool
    """Whether the policy adapted during the episodes (PAD)."""
    note: str
    """Why the number is not comparable with the paper's; empty if it is."""
    source: Mapping[str, Any] | None
    """Facts on the media: number of videos, hash of the colors."""
    file: Path

    @property
    def mean(self) -> float:
        return statistics.fmean(self.returns)

    @property
    def std(self) -> float:
        """Over the episodes of this one run (population): not the spread over seeds."""
        return statistics.pstdev(self.returns)

    @property
    def episodes(self) -> int:
        return len(self.returns)


@dataclass(frozen=True)
class RunRecord:
    """Everything a run directory says, weights and replay aside."""

    path: Path
    config: Config
    facts: dict[str, Any]
    """run.json: versions, git_commit, device, threads, media"""
    state: State
    decisions: int
    frames: int
    seconds: float
    """Wall-clock time of training and evaluation so far."""
    curve: tuple[TrainEpisode, ...]
    evals: tuple[PeriodicEval, ...]
    evaluations: tuple[Evaluation, ...]
    """Of the last weights: every one, whatever the media and number of episodes."""
    rates: tuple[Rate, ...]
    videos: dict[str, Path]
    """mode -> the newest video of an evaluation episode"""

    @cached_property
    def final(self) -> dict[str, Evaluation]:
        """mode -> the one of the evaluations to report, without adaptation"""
        return _best_by_mode(self.evaluations, adapted=False)

    @cached_property
    def adapted(self) -> dict[str, Evaluation]:
        """mode -> the same with adaptation during the episode (PAD; empty for other methods)"""
        return _best_by_mode(self.evaluations, adapted=True)

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def decisions_per_second(self) -> float | None:
        """The median over the run; None before the first line of losses."""
        return statistics.median(rate.decisions_per_second for rate in self.rates) if self.rates else None

    def evaluation(self, mode: str, *, media: str | None = None) -> Evaluation | None:
        """What the method reaches in `mode`, adapting if that is its way (PAD), on `media` if one is named."""
        return preferred(
            e
            for e in self.evaluations
            if e.mode == mode
            and e.adapted == self.config.row.adapts
            and (media is None or e.media in (None, media))
        )


def overlay_media(record: RunRecord) -> str | None:
    """Where the images of random overlay came from; None if the method uses none."""
    if not record.config.row.uses_images:
        return None
    return str(_overlay_facts(record).get("kind", "unknown"))


def overlay_images(record: RunRecord) -> str | None:
    """`procedural`, or `folder, 1,803,460 images`; None if the method uses none."""
    kind = overlay_media(record)
    return None if kind is None else shown_images(kind, _overlay_facts(record))


def shown_images(kind: str, facts: Mapping[str, Any]) -> str:
    """Without the path: on a cluster the same images may lie in another place on each machine."""
    count = facts.get("images")
    return f"{kind}, {count:,} images" if kind == "folder" and isinstance(count, int) else kind


def _overlay_facts(record: RunRecord) -> Mapping[str, Any]:
    return (record.facts.get("media") or {}).get("overlay") or {}


def preferred(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """The one with the most episodes; among equals, the one on media nearest to the paper's. Those on procedural videos that are
    not today's come last."""

    def rank(evaluation: Evaluation) -> tuple[bool, int, int]:
        known = evaluation.media in MEDIA_ORDER
        nearness = -MEDIA_ORDER.index(str(evaluation.media)) if known else 0
        return evaluation.media != OUTDATED, evaluation.episodes, nearness

    return max(evaluations, key=rank, default=None)


def _best_by_mode(evaluations: Iterable[Evaluation], *, adapted: bool) -> dict[str, Evaluation]:
    by_mode: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.adapted == adapted:
            by_mode.setdefault(evaluation.mode, []).append(evaluation)
    return {mode: best for mode, found in by_mode.items() if (best := preferred(found)) is not None}
