"""`softaug bench env` measures what it says."""

import json

import pytest

from softaug import cli
from softaug.benchmarks import env as bench


@pytest.mark.slow
def test_json_output(capsys):
    arguments = "bench env --tasks cartpole_swingup --modes train video_easy color_easy --decisions 10 --workers 1 --json"
    assert cli.main(arguments.split()) == 0
    result = json.loads(capsys.readouterr().out)
    rows = {row["mode"]: row for row in result["rows"]}
    assert set(rows) == {"train", "video_easy", "color_easy"}
    for row in rows.values():
        assert row["render"] > 0 and row["physics"] > 0 and row["reset"] > 0
        assert row["frames_per_second"]["1"] > 0
    assert rows["video_easy"]["chroma_key"] > 0 and rows["video_easy"]["video_frame"] > 0
    assert rows["train"]["chroma_key"] == rows["color_easy"]["video_frame"] == 0
    measured = [name for name in bench.GOALS if not name.startswith("other mode")]  # none was asked for
    assert [goal["name"] for goal in result["goals"]] == measured
    assert [row["render"] for row in result["cheaper_rendering"]] == ["fast", "coarse"]
    fast, coarse = (row["pixel_difference"] for row in result["cheaper_rendering"])
    assert 0 <= fast < coarse < 1


def row(mode, **times):
    parts = {
        "decision": 10.0,
        "physics": 1.0,
        "render": 9.0,
        "chroma_key": 0.0,
        "video_frame": 0.0,
        "rest": 0.0,
    }
    return bench.Timings(task="walker_walk", mode=mode, reset=20.0, **{**parts, **times})


def test_goals_are_ratios_to_the_train_mode():
    video = row("video_easy", chroma_key=0.2, decision_vs_train=1.2)
    color = row("color_easy", reset_vs_train=2.5)
    turned = row("rotate_hard", decision_vs_train=1.25)
    rows = [row("train", rest=1.0), video, color, turned]
    goals = {goal["name"]: goal for goal in bench.check_goals(rows)}
    assert goals["other mode's decision / train decision"]["worst"] == pytest.approx(1.25)
    assert goals["chroma key of a 100x100 frame, ms"]["worst"] == pytest.approx(0.2)
    assert goals["video decision / train decision"]["worst"] == pytest.approx(1.2)
    assert not goals["video decision / train decision"]["met"]
    assert goals["color reset / train reset"]["worst"] == pytest.approx(2.5)
    assert goals["color reset / train reset"]["met"]
    assert goals["wrapper beyond physics and render, %"]["worst"] == pytest.approx(10)


def test_ratios_are_taken_side_by_side():
    """A slow spell that hits both alike changes no ratio."""
    assert bench.median_ratio([2.0, 20.0, 2.2], [1.0, 10.0, 1.0]) == pytest.approx(2.0)


def test_tables_fit_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [row("train", decision=123.45), row("screen_color_video_hard", decision=123.45)]
    for measured in rows:
        measured.frames_per_second = {1: 1234.0, 2: 2345.0}
    result = {
        "machine": {"gl": "egl", "cpus": 2},
        "rows": [bench.asdict(measured) for measured in rows],
        "cheaper_rendering": [
            {
                "task": "ball_in_cup_catch",
                "mode": "train",
                "render": "coarse",
                "exact_ms": 2,
                "ms": 1,
                "time_vs_exact": 0.5,
                "pixel_difference": 0,
            }
        ],
        "goals": bench.check_goals(rows),
    }
    bench.show(result)
    printed = capsys.readouterr().out
    assert "…" not in printed and "screen_color" in printed and "2345" in printed


@pytest.mark.parametrize("options", ["--tasks walker_fly", "--modes video", "--decisions 0", "--workers 0"])
def test_bad_options(capsys, options):
    assert cli.main(["bench", "env", *options.split()]) == 2
    assert "softaug: error:" in capsys.readouterr().err


def test_unknown_benchmark(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "sleep"])
    assert "env" in capsys.readouterr().err
