"""Grids: every combination once, checked before anything starts."""

from __future__ import annotations

import dataclasses

import pytest
from sweeping import TINY, grid

from softaug.config import write_config
from softaug.errors import UserError
from softaug.sweep import parse_seeds, plan_grid


def test_every_combination_once_and_seeds_outermost(tmp_path):
    runs = plan_grid(["walker_walk", "finger_spin"], ["sac", "soda"], [0, 3], tmp_path, preset="small")
    assert [run.name for run in runs] == [
        f"{task} {method} seed {seed}"
        for seed in (0, 3)
        for task in ("walker_walk", "finger_spin")
        for method in ("sac", "soda_overlay")
    ]
    assert runs[1].directory == tmp_path / "walker_walk" / "soda_overlay" / "seed0"
    assert not list(tmp_path.iterdir()), "planning makes nothing"


def test_aliases_and_repetitions_are_one_run(tmp_path):
    runs = plan_grid(["walker_walk"] * 2, ["rad", "sac", "soda", "soda_overlay"], [1, 1], tmp_path)
    assert [run.config.method for run in runs] == ["sac", "soda_overlay"]


def test_overrides_and_presets_reach_every_config(tmp_path):
    runs = plan_grid(
        ["walker_walk"], ["sac", "drq"], [0], tmp_path, preset="small", decisions=77, crop_size=40
    )
    assert {run.config.decisions for run in runs} == {77}
    assert {run.config.preset for run in runs} == {"small"}
    assert runs[1].config.image_size == 40, "the method's own rules still hold"


def test_relative_directories_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert grid("runs")[0].directory == tmp_path / "runs" / "cartpole_balance" / "sac" / "seed0"


@pytest.mark.parametrize(
    ("tasks", "methods", "overrides", "sentence"),
    [
        (["walker_fly"], ["sac"], {}, "walker_fly"),
        (["walker_walk"], ["sacc"], {}, "unknown method 'sacc'; did you mean sac"),
        (["walker_walk"], ["sac"], {"preset": "huge"}, "unknown preset 'huge'"),
        (["walker_walk"], ["sac"], {"eval_modes": ("train", "video_odd")}, "video_odd"),
        (
            ["walker_walk"],
            ["sac"],
            {"bach_size": 3},
            "unknown config field 'bach_size'; did you mean batch_size",
        ),
        ([], ["sac"], {}, "at least one task"),
    ],
)
def test_mistakes_are_refused(tmp_path, tasks, methods, overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        plan_grid(tasks, methods, [0], tmp_path, **overrides)


def test_a_run_with_another_config_is_refused_and_named(tmp_path):
    run = grid(tmp_path)[0]
    write_config(run.config, run.directory / "config.json")
    assert run.begun() == "begun"
    assert grid(tmp_path) == [run]
    assert grid(tmp_path, workers=2), "what cannot change results may differ"
    with pytest.raises(UserError, match=r"seed0 holds a run with another config: decisions 99 \(was 150\)"):
        grid(tmp_path, decisions=99)
    with pytest.raises(UserError, match="replay_memory 'ram'"):
        grid(tmp_path, replay_memory="ram")


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="out is a file"):
        grid(tmp_path / "out")


def test_finished_is_what_the_run_directory_says(tmp_path):
    run = grid(tmp_path)[0]
    assert run.begun() == "new"
    write_config(run.config, run.directory / "config.json")
    (run.directory / "final_eval.json").touch()
    assert run.begun() == "finished"


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("0,2,5", [0, 2, 5]), (" 7 , 1-2", [7, 1, 2]), ("3", [3])]
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "4-0", "-1", "0,,1", "1.5", "0-"])
def test_wrong_seeds(text):
    with pytest.raises(UserError, match="is no seed"):
        parse_seeds(text)


def test_more_seeds_than_anyone_trains_are_a_mistake():
    with pytest.raises(UserError, match="more than 10,000 seeds"):
        parse_seeds("0-99999999999")


def test_the_tiny_config_is_one_of_the_small_preset(tmp_path):
    config = grid(tmp_path)[0].config
    assert config.preset == "small" and dataclasses.replace(config, seed=0).decisions == TINY["decisions"]
