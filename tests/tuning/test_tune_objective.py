"""The area under the training curve, and how tasks are put on one scale."""

from __future__ import annotations

import json

import pytest

from softaug.errors import UserError
from softaug.tuning.objective import Curve, area, normalized, read_curve, return_ranges


def test_area_in_closed_form():
    # 10 over (0, 20], 40 over (20, 50], and the last return until 80: (200 + 1200 + 1200) / 80
    assert area([20, 50], [10.0, 40.0], 80) == pytest.approx(32.5)
    assert area([20, 50], [10.0, 40.0], 50) == pytest.approx(28.0)


def test_a_constant_return_is_its_own_area():
    assert area([7, 30, 31, 90], [3.5] * 4, 123) == pytest.approx(3.5)


def test_a_linear_curve_has_half_its_end_as_area():
    ends = list(range(1, 1001))
    assert area(ends, [float(end) for end in ends], 1000) == pytest.approx(500, rel=2e-3)


def test_episodes_after_the_budget_change_nothing():
    early = area([20, 50], [10.0, 40.0], 60)
    assert area([20, 50, 61, 90], [10.0, 40.0, 999.0, -999.0], 60) == early


def test_without_an_episode_there_is_no_area():
    assert area([], [], 10) is None
    assert area([11], [5.0], 10) is None


def test_learning_sooner_gives_a_larger_area():
    ends = [100, 200, 300]
    assert area(ends, [0, 900, 900], 300) > area(ends, [0, 0, 900], 300)


def test_speed_counts_over_seconds_only():
    slow = Curve((100, 200), (100.0, 200.0), (0.0, 100.0), 200, 200.0)
    fast = Curve((100, 200), (10.0, 20.0), (0.0, 100.0), 200, 20.0)
    assert slow.area(200, "decisions") == fast.area(200, "decisions") == 50.0
    assert slow.area(200, "seconds") == 50.0
    assert fast.area(200, "seconds") == pytest.approx(95.0)


def test_the_curve_is_read_from_a_file_that_is_being_written(tmp_path):
    lines = [
        {"kind": "episode", "decisions": 20, "seconds": 1.5, "return": 4.0},
        {"kind": "train", "decisions": 30, "seconds": 2.0, "decisions_per_second": 15.0},
        {"kind": "eval", "decisions": 30, "seconds": 3.0, "mean": 99.0},
    ]
    path = tmp_path / "metrics.jsonl"
    assert read_curve(path) == Curve()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "epis')
    assert read_curve(path) == Curve((20,), (1.5,), (4.0,), 30, 3.0, 15.0)
    assert read_curve(path).reached(30, "decisions") and not read_curve(path).reached(31, "decisions")


def test_ranges_of_tasks():
    own = "robot:make"
    assert return_ranges(["walker_stand", "robot_push"], []) == {
        "walker_stand": (0, 1000),
        "robot_push": (0, 50),
    }
    assert return_ranges([own], []) == {own: (0, 1)}, "one environment alone: the plain area"
    assert return_ranges([own, "walker_stand"], [f"{own}=-200,0"])[own] == (-200, 0)
    assert return_ranges([own], ["-5,5"]) == {own: (-5, 5)}
    assert normalized(250, (0, 1000)) == 0.25 and normalized(-50, (-200, 0)) == 0.75


@pytest.mark.parametrize(
    ("tasks", "given", "sentence"),
    [
        (["a:b", "walker_stand"], [], "a:b must be normalized"),
        (["a:b"], ["5,5"], "no range"),
        (["a:b"], ["high"], "no range"),
        (["a:b"], ["0,inf"], "no range"),
        (["walker_stand"], ["walker_walk=0,1"], "not among the tasks"),
    ],
)
def test_wrong_ranges_are_refused(tasks, given, sentence):
    with pytest.raises(UserError, match=sentence):
        return_ranges(tasks, given)
