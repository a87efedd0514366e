"""What the page's script draws: curves, returns and gaps by mode, performance profiles, videos, as one JSON value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from softaug.results.groups import EPISODES, Group
from softaug.results.model import LearningCurve, ModeResult
from softaug.results.published import published_curves
from softaug.results.report.media import Videos
from softaug.results.report.tables import dash, paper_of
from softaug.results.statistics import RETURN_SCALE, common_tasks, mean_std, performance_profile
from softaug.tasks import SUITE_TASKS

POINTS_IN_ALL, POINTS = 60_000, (24, 200)
"""Of all curves together; and the fewest and most points of one curve."""

THRESHOLDS = np.linspace(0, 1, 101)


def points_of_a_curve(runs: int) -> int:
    """So few that a page of hundreds of runs stays small."""
    fewest, most = POINTS
    return max(fewest, min(most, POINTS_IN_ALL // (max(runs, 1) * 5)))


def make_payload(groups: Sequence[Group], modes: Sequence[str], videos: Sequence[Videos]) -> dict[str, Any]:
    """JSON for the page's script."""
    numbers = {id(group): number for number, group in enumerate(groups)}
    return {
        "tasks": list(dict.fromkeys(group.task for group in groups)),
        "modes": list(modes),
        "groups": [_group(group, modes) for group in groups],
        "references": [
            {"task": c.task, "label": c.label, "by": c.reported_by, "x": list(c.frames), "y": list(c.returns)}
            for c in published_curves()
            if any(group.task == c.task for group in groups)
        ],
        "profiles": {mode: profile for mode in modes if (profile := make_profile(groups, mode))},
        "videos": [
            {"group": numbers[id(v.group)], "seed": v.record.config.seed, "modes": v.by_mode} for v in videos
        ],
    }


def make_profile(groups: Sequence[Group], mode: str) -> list[dict[str, Any]]:
    """Performance profiles in one mode: a block for each preset, kind of media and length of training.

    Only tasks with returns up to 1,000, which every method of the block was run on.
    """
    blocks: dict[tuple, dict[str, dict[str, Group]]] = defaultdict(lambda: defaultdict(dict))
    for group in groups:
        cell = group.cell(mode)
        if cell is not None and cell.final and group.task in SUITE_TASKS:
            blocks[group.config.preset, cell.media, cell.decisions][group.label][group.task] = group
    return [
        {"preset": preset, "media": media, "decisions": decisions, **block}
        for (preset, media, decisions), by_label in blocks.items()
        if (block := _profile_block(by_label, mode)) is not None
    ]


def _profile_block(by_label: dict[str, dict[str, Group]], mode: str) -> dict[str, Any] | None:
    scores = {
        label: {task: _scores(group, mode) for task, group in by_task.items()}
        for label, by_task in by_label.items()
    }
    tasks = common_tasks(scores)
    if not tasks:
        return None
    lines = []
    for label, by_task in by_label.items():
        arrays = [np.array(scores[label][task]) / RETURN_SCALE for task in tasks]
        profile = performance_profile(arrays, THRESHOLDS, rng=np.random.default_rng(0), replications=500)
        group = by_task[tasks[0]]
        band = profile.low is not None and profile.high is not None
        lines.append(
            {
                **_look(group),
                "runs": sum(map(len, arrays)),
                "y": _rounded(profile.fraction, 3),
                "low": _rounded(profile.low, 3) if band else None,
                "high": _rounded(profile.high, 3) if band else None,
            }
        )
    return {
        "tasks": tasks,
        "left_out": sorted({task for by_task in by_label.values() for task in by_task} - set(tasks)),
        "x": _rounded(THRESHOLDS, 2),
        "lines": lines,
    }


def _scores(group: Group, mode: str) -> list[float]:
    cell = group.cell(mode)
    return [*cell.scores.values()] if cell is not None else []


def _look(group: Group) -> dict[str, Any]:
    return {
        "label": group.title,
        "variant": group.variant,
        "method": group.method,
        "hue": group.config.row.hue,
        "dash": dash(group),
    }


def _group(group: Group, modes: Sequence[str]) -> dict[str, Any]:
    repeat = group.frames_per_decision
    return {
        **_look(group),
        "task": group.task,
        "framesPerDecision": round(repeat, 4) if np.isfinite(repeat) else None,
        "curves": {name: _curve(group.curves[name]) for name in (EPISODES, *modes) if name in group.curves},
        "returns": {mode: _summary(cells[0]) for mode, cells in group.cells.items()},
        "gap": {
            mode: _mean_std(values) for mode in modes if mode != "train" and (values := group.gaps(mode))
        },
        "kept": {
            mode: _mean_std(values) for mode in modes if mode != "train" and (values := group.kept(mode))
        },
        "paper": {mode: list(found) for mode in modes if (found := paper_of(group, mode)) is not None},
    }


def _curve(curve: LearningCurve) -> dict[str, Any]:
    by_point = [[v for v in column if v is not None] for column in zip(*curve.values.values(), strict=True)]
    statistics = [mean_std(values) if values else (None, None) for values in by_point]
    seeds = {str(seed): _rounded(values, 1) for seed, values in curve.values.items()}
    return {
        "x": list(curve.decisions),
        "mean": _rounded([mean for mean, _ in statistics], 1),
        "std": _rounded([std for _, std in statistics], 1),
        "n": [len(values) for values in by_point],
        "seeds": seeds if len(seeds) > 1 else {},  # of one seed the mean says it already
        "media": curve.media,
        "leftOut": curve.left_out,
    }


def _summary(cell: ModeResult) -> dict[str, Any]:
    return {**_mean_std(cell.scores), "media": cell.media, "final": cell.final, "decisions": cell.decisions}


def _mean_std(values: dict[int, float]) -> dict[str, Any]:
    mean, std = mean_std([*values.values()])
    return {"mean": round(mean, 4), "std": None if std is None else round(std, 4), "n": len(values)}


def _rounded(values: Any, digits: int) -> list[float | None]:
    return [None if value is None else round(float(value), digits) for value in values]
