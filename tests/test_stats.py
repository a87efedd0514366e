"""Statistics against hand-computed matrices, exhaustive enumeration, and the field's library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from softaug.errors import UserError
from softaug.results import statistics

MATRIX = [np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.6, 0.7, 5.0])]
"""Two tasks of four seeds; the middle four of all eight are 0.3, 0.4, 0.5, 0.6."""

finite = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 2))
matrices = st.lists(st.lists(finite, min_size=2, max_size=6), min_size=1, max_size=4)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def arrays(lists: list[list[float]]) -> list[np.ndarray]:
    return [np.array(values) for values in lists]


def test_mean_and_deviation_over_seeds() -> None:
    assert statistics.mean_std([1.0, 3.0]) == (2.0, 1.0)  # the population's: not sqrt(2)
    assert statistics.mean_std([5.0]) == (5.0, None)


def test_interquartile_mean_by_hand() -> None:
    assert statistics.interquartile_mean(np.concatenate(MATRIX)) == pytest.approx(0.45)
    assert statistics.interquartile_mean(np.array([7.0])) == 7.0
    assert statistics.interquartile_mean(np.array([0.0, 1.0, 5.0])) == 2.0  # a quarter of three is none


def test_optimality_gap_by_hand() -> None:
    # 5.0 counts as 1: 1 - (0.1+0.2+0.3+0.4+0.5+0.6+0.7+1)/8
    assert statistics.optimality_gap(np.concatenate(MATRIX)) == pytest.approx(1 - 3.8 / 8)


@given(matrices)
def test_statistics_equal_scipys(lists: list[list[float]]) -> None:
    pooled = np.concatenate(arrays(lists))
    assert statistics.interquartile_mean(pooled) == pytest.approx(scipy.stats.trim_mean(pooled, 0.25))
    others = [values[::-1][:-1] for values in lists]
    expected = np.mean(
        [
            scipy.stats.mannwhitneyu(x, y, alternative="greater").statistic / (len(x) * len(y))
            for x, y in zip(lists, others, strict=True)
        ]
    )
    found = statistics.probability_of_improvement(arrays(lists), arrays(others), rng=rng(), replications=2)
    assert found.value == pytest.approx(expected)


def test_statistics_equal_rliables() -> None:
    metrics = pytest.importorskip("rliable.metrics")
    draws = np.random.default_rng(1)
    x, y = draws.random((5, 3)) * 1.2, draws.random((5, 3))
    pooled = x.T.reshape(-1)
    assert statistics.interquartile_mean(pooled) == pytest.approx(metrics.aggregate_iqm(x))
    assert statistics.optimality_gap(pooled) == pytest.approx(metrics.aggregate_optimality_gap(x))
    assert statistics.probability_of_improvement(
        list(x.T), list(y.T), rng=rng(), replications=2
    ).value == pytest.approx(metrics.probability_of_improvement(x, y))


def test_the_bootstrap_is_stratified_and_draws_every_seed_alike() -> None:
    tasks = [np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])]
    drawn = statistics.resample(tasks, 20_000, rng())
    assert drawn.shape == (20_000, 5)
    assert set(np.unique(drawn[:, :2])) == {1.0, 2.0} and set(np.unique(drawn[:, 2:])) == {10.0, 20.0, 30.0}
    for value, part in ((1.0, drawn[:, :2]), (20.0, drawn[:, 2:])):
        assert (part == value).mean() == pytest.approx(1 / (2 if value == 1.0 else 3), abs=0.01)


def test_the_interval_is_that_of_all_possible_resamples() -> None:
    tasks = [np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.7, 0.8])]
    every = np.array(
        [
            np.concatenate([a, b])
            for a in itertools.product(tasks[0], repeat=3)
            for b in itertools.product(tasks[1], repeat=3)
        ]
    )
    exact = np.quantile(statistics.interquartile_mean(every), [0.025, 0.975])
    found = statistics.estimate(tasks, rng=rng(), replications=50_000)
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=0.011)
    assert found.low is not None and found.high is not None and found.low < found.value < found.high


def test_coverage_of_the_interval() -> None:
    """Of many experiments with 10 seeds on 3 tasks, the interval of the mean holds the true one nearly as often as it says."""
    draws = np.random.default_rng(2)
    means = np.array([0.2, 0.5, 0.8])
    held = 0
    for _ in range(300):
        tasks = list((means + 0.1 * draws.standard_normal((10, 3))).T)
        found = statistics.estimate(tasks, lambda pooled: pooled.mean(axis=-1), rng=draws, replications=400)
        assert found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 0.88 <= held / 300 <= 0.98


def test_one_seed_has_no_interval() -> None:
    assert statistics.estimate([np.array([0.5])], rng=rng()) == statistics.BootstrapEstimate(0.5, None, None)
    two = [np.array([0.1, 0.2])]
    assert statistics.probability_of_improvement(
        two, [np.array([0.15])], rng=rng()
    ) == statistics.BootstrapEstimate(0.5, None, None)
    profile = statistics.performance_profile([np.array([0.5])], np.array([0.4, 0.5]), rng=rng())
    assert profile.fraction.tolist() == [1.0, 0.0] and profile.low is None


def test_probability_of_improvement_by_hand() -> None:
    ours = [np.array([3.0, 1.0]), np.array([1.0, 1.0])]
    theirs = [np.array([2.0, 2.0]), np.array([1.0, 0.0])]
    found = statistics.probability_of_improvement(ours, theirs, rng=rng())
    assert found.value == pytest.approx((0.5 + 0.75) / 2)
    reverse = statistics.probability_of_improvement(theirs, ours, rng=rng())
    assert reverse.value == pytest.approx(1 - found.value)
    sure = statistics.probability_of_improvement([np.array([2.0, 3.0])], [np.array([0.0, 1.0])], rng=rng())
    assert sure == statistics.BootstrapEstimate(1.0, 1.0, 1.0)


def test_performance_profile_by_hand() -> None:
    profile = statistics.performance_profile(MATRIX, np.array([0.0, 0.3, 0.65, 9.0]), rng=rng())
    assert profile.fraction.tolist() == [1.0, 5 / 8, 2 / 8, 0.0]
    assert profile.low is not None and profile.high is not None
    assert (profile.low <= profile.fraction).all() and (profile.fraction <= profile.high).all()
    assert profile.low[0] == profile.high[0] == 1.0


def test_the_same_generator_gives_the_same_interval_and_the_global_one_is_untouched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert statistics.estimate(MATRIX, rng=rng()) == statistics.estimate(MATRIX, rng=rng())
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_common_tasks() -> None:
    scores = {"a": {"x": [1.0], "y": [1.0], "z": [1.0]}, "b": {"z": [2.0], "x": [2.0], "y": []}}
    assert statistics.common_tasks(scores) == ["x", "z"]
    assert statistics.common_tasks({}) == []


@pytest.mark.parametrize("bad", [[], [np.array([])], [np.array([[1.0]])], [np.array([np.nan])]])
def test_scores_that_say_nothing_are_refused(bad: list[np.ndarray]) -> None:
    with pytest.raises(UserError):
        statistics.estimate(bad, rng=rng())
    with pytest.raises(UserError):
        statistics.probability_of_improvement([np.ones(2)], [np.ones(2), np.ones(2)], rng=rng())
