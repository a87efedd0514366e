"""Numbers that others report: complete, under our names, never without who reports them."""

from __future__ import annotations

from softaug.envs.modes import MODE_NAMES
from softaug.methods import METHODS
from softaug.results.published import (
    LABELS,
    PAPER,
    find_published,
    method_label,
    published_curves,
    published_results,
)
from softaug.tasks import ALL_TASKS


def test_every_number_has_a_source_a_known_task_and_one_of_our_modes() -> None:
    found = published_results()
    assert len(found) == 118 + 143
    for number in found:
        assert number.mode in MODE_NAMES and number.task in ALL_TASKS, number
        assert number.reported_by and number.source
        assert number.method in METHODS or number.method in LABELS, number
    assert len({(*number.key, number.reported_by, number.benchmark) for number in found}) == len(found)


def test_one_method_has_several_numbers_each_with_its_reporter() -> None:
    found = {n.reported_by: n.mean for n in find_published("video_hard", "walker_stand", "soda_overlay")}
    assert found == {PAPER: 771, "SGQN's authors": 736, "MaDi's authors": 143}


def test_the_screens_of_gb2_are_not_the_videos_of_the_benchmark() -> None:
    assert [n.mean for n in find_published("screen_video_hard", "walker_stand", "sada")] == [702]
    assert [n.mean for n in find_published("screen_color_video_easy", "finger_spin", "sada")] == [850]
    assert find_published("video_hard", method="sada") == []
    assert find_published("rotate_hard", "walker_walk")[0].differences == ()
    (color,) = find_published("color_hard", "walker_walk", "sada")
    assert "action repeat 2" in color.differences[0]


def test_another_action_repeat_is_a_difference_where_it_is_one() -> None:
    by_task = {n.task: n.differences for n in find_published("video_hard", method="madi")}
    assert by_task["walker_walk"] == ()
    assert by_task["finger_spin"] == ("probably action repeat 4 instead of 2",)
    assert by_task["cartpole_swingup"] == ("probably action repeat 4 instead of 8",)


def test_svea_without_a_view_is_no_row_of_ours() -> None:
    """Our alias `svea` is the convolution variant; the tables that say SVEA do not say which one they ran."""
    assert method_label("svea") == "SVEA (view not stated)"
    assert find_published("video_hard", method="svea_conv") == []
    assert {n.reported_by for n in find_published(method="svea")} == {"SGQN's authors", "MaDi's authors"}


def test_curves_are_over_frames() -> None:
    (curve,) = [c for c in published_curves() if (c.task, c.method) == ("walker_stand", "drqv2")]
    assert curve.frames == (100_000, 200_000, 500_000) and curve.returns == (324, 677, 957)
    assert curve.label == "DrQ-v2"
