"""Statistics over seeds, as Agarwal et al. (2021, "Deep RL at the edge of the statistical precipice") advise.

A seed's score on a task is its mean return over the test episodes: seeds are the replicates, episodes are not.
`Scores` are one array per task, each with one score per seed, and seeds may be missing. Divide returns by
`RETURN_SCALE` first where tasks are to be compared.

Small functions of our own rather than rliable: its interval code draws from NumPy's global generator, whatever
`random_state` it is given, and with pandas 3 its dependency arch does not import. What its metrics compute is
tested to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from softaug.errors import UserError

RETURN_SCALE = 1000.0
"""The highest return of a DMControl task: 1,000 frames with a reward of at most 1 each."""

DDOF = 0
"""Of every standard deviation over seeds: the population's, NumPy's default and so the habit of the field's code."""

REPLICATIONS = 10_000
CONFIDENCE = 0.95

Scores = Sequence[np.ndarray]
"""One array per task, (seeds,) each; tasks may differ in their number of seeds."""

Statistic = Callable[[np.ndarray], np.ndarray]
"""(..., N) pooled scores -> (...): one number for each row of N."""


@dataclass(frozen=True)
class BootstrapEstimate:
    """A number and its bootstrap interval; None where a task has one seed only, which says nothing of the spread."""

    value: float
    low: float | None
    high: float | None


def mean_std(scores: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds (`DDOF`); no deviation for one seed."""
    values = _checked([np.asarray(scores, dtype=float)])[0]
    return float(values.mean()), float(values.std(ddof=DDOF)) if len(values) > 1 else None


def interquartile_mean(pooled: np.ndarray) -> np.ndarray:
    """Mean of the middle half of (..., N): a quarter of the scores is cut from each end, rounded down."""
    ordered = np.sort(pooled, axis=-1)
    cut = pooled.shape[-1] // 4
    return ordered[..., cut : pooled.shape[-1] - cut].mean(axis=-1)


def optimality_gap(pooled: np.ndarray) -> np.ndarray:
    """By how much scores (..., N) fall short of 1 on average; more than 1 counts as 1."""
    return 1.0 - np.minimum(pooled, 1.0).mean(axis=-1)


def estimate(
    scores: Scores,
    statistic: Statistic = interquartile_mean,
    *,
    rng: np.random.Generator,
    replications: int = REPLICATIONS,
) -> BootstrapEstimate:
    """`statistic` of all scores together, with a percentile interval from the stratified bootstrap.

    Each replication draws as many seeds as there are, with replacement, within each task (the strata).
    """
    checked = _checked(scores)
    value = float(statistic(np.concatenate(checked)))
    return _with_interval(value, checked, lambda: statistic(resample(checked, replications, rng)))


def iqm_over_tasks(
    scores: Scores,
    *,
    rng: np.random.Generator,
    replications: int = REPLICATIONS,
) -> BootstrapEstimate:
    """Interquartile mean of the tasks' means, for comparison with tables that give means only.

    Every task counts once, however many seeds it has. The interval is that of `estimate`.
    """
    checked = _checked(scores)
    value = float(interquartile_mean(np.array([task.mean() for task in checked])))

    def resampled() -> np.ndarray:
        means = [task.mean(axis=1) for task in _resampled_tasks(checked, replications, rng)]
        return interquartile_mean(np.stack(means, axis=1))

    return _with_interval(value, checked, resampled)


def resample(scores: Scores, replications: int, rng: np.random.Generator) -> np.ndarray:
    """Stratified bootstrap: (replications, all seeds of all tasks)."""
    return np.concatenate(_resampled_tasks(scores, replications, rng), axis=1)


def probability_of_improvement(
    ours: Scores,
    theirs: Scores,
    *,
    rng: np.random.Generator,
    replications: int = REPLICATIONS,
) -> BootstrapEstimate:
    """How likely a random seed of ours beats one of theirs (ties count half), averaged over tasks.

    ours, theirs: the same tasks in the same order; numbers of seeds may differ. Both are resampled independently.
    """
    ours, theirs = _checked(ours), _checked(theirs)
    if len(ours) != len(theirs):
        raise UserError(f"cannot compare {len(ours)} tasks with {len(theirs)}; give the same tasks")
    value = float(_wins([x[None] for x in ours], [y[None] for y in theirs])[0])

    def resampled() -> np.ndarray:
        return _wins(_resampled_tasks(ours, replications, rng), _resampled_tasks(theirs, replications, rng))

    return _with_interval(value, [*ours, *theirs], resampled)


@dataclass(frozen=True)
class Profile:
    """The fraction of runs whose score is above each threshold; all arrays are (thresholds,)."""

    thresholds: np.ndarray
    fraction: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def performance_profile(
    scores: Scores,
    thresholds: np.ndarray,
    *,
    rng: np.random.Generator,
    replications: int = 2000,
) -> Profile:
    """Score distribution with pointwise bootstrap intervals (none where a task has one seed only)."""
    checked = _checked(scores)
    fraction = _fraction_above(np.concatenate(checked), thresholds)
    if min(map(len, checked)) < 2:
        return Profile(thresholds, fraction, None, None)
    low, high = _interval(_fraction_above(resample(checked, replications, rng), thresholds))
    return Profile(thresholds, fraction, low, high)


def common_tasks(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """The tasks that every method has at least one seed of, in the order of the first: only these are comparable.

    scores: method -> task -> one score per seed.
    """
    tables = list(scores.values())
    return [task for task in (tables[0] if tables else {}) if all(table.get(task) for table in tables)]


def _checked(scores: Scores) -> list[np.ndarray]:
    arrays = [np.asarray(task, dtype=float) for task in scores]
    if not arrays or any(array.ndim != 1 or not len(array) for array in arrays):
        raise UserError("statistics need at least one task, and at least one seed of each")
    if not all(np.isfinite(array).all() for array in arrays):
        raise UserError("a score is not a finite number; leave the run out")
    return arrays


def _resampled_tasks(scores: Scores, replications: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [task[rng.integers(len(task), size=(replications, len(task)))] for task in scores]


def _wins(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
    """Per task (R, seeds) arrays -> (R,): P(x > y) + P(x = y) / 2, mean over tasks."""
    tasks = []
    for x, y in zip(ours, theirs, strict=True):
        difference = x[:, :, None] - y[:, None, :]
        tasks.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2)))
    return np.mean(tasks, axis=0)


def _fraction_above(pooled: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """(..., N) -> (..., thresholds)"""
    return np.stack([(pooled > threshold).mean(axis=-1) for threshold in thresholds], axis=-1)


def _with_interval(value: float, scores: Scores, resampled: Callable[[], np.ndarray]) -> BootstrapEstimate:
    if min(map(len, scores)) < 2:
        return BootstrapEstimate(value, None, None)
    low, high = _interval(resampled())
    return BootstrapEstimate(value, float(low), float(high))


def _interval(resampled: np.ndarray) -> np.ndarray:
    """The percentile interval over the first axis: (2, ...)."""
    outside = (1 - CONFIDENCE) / 2
    return np.quantile(resampled, [outside, 1 - outside], axis=0)
