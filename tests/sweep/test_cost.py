"""`softaug reproduce --cost`: totals follow from the parts, and the parts from the files of `softaug bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweeping import TINY

from softaug.cli import main
from softaug.sweep import plan_grid
from softaug.sweep.cost import Benchmarks, grid_cost, read_benchmarks

STEP, TFLOPS = 0.02, 2.0


@pytest.fixture(scope="module")
def cost(tmp_path_factory) -> dict[str, Any]:
    config = {**TINY, "decisions": 1000, "random_decisions": 100, "initial_updates": 100, "env_process": True}
    runs = plan_grid(
        ["cartpole_balance"], ["sac", "pad"], range(2), tmp_path_factory.mktemp("none"), **config
    )
    return grid_cost(
        runs,
        {("cartpole_balance", "sac"): 2},
        episodes=10,
        workers=[1, 3],
        gpu_tflops=TFLOPS,
        benchmarks=Benchmarks({"cartpole_balance": STEP}, {"sac": 0.5}),
        say=lambda text: None,
    )


def test_a_run_from_its_parts(cost):
    sac, pad = cost["kinds"]
    assert (sac["step_ms"], sac["cpu_update_ms"], pad["cpu_update_ms"]) == (1e3 * STEP, 500, None)
    update, act = sac["update_gflop"] / (1e3 * TFLOPS), sac["act_ms"] / 1e3
    assert sac["gpu_update_ms"] == pytest.approx(1e3 * update)
    training = 100 * STEP + 100 * update + 900 * (max(STEP, update) + act)
    assert 3600 * sac["training_hours"] == pytest.approx(training)
    # One episode of 1,000 frames with an action repeat of 20, at the end alone.
    assert 3600 * sac["evaluating_hours"] == pytest.approx(50 * (STEP + act))
    assert 3600 * sac["test_cpu_hours"] == pytest.approx(20 * 50 * (STEP + act))
    assert pad["test_cpu_hours"] == 0 and pad["test_act_ms"] > pad["act_ms"], "it adapts after each action"


def test_the_grid_from_its_runs(cost):
    each = [kind["training_hours"] + kind["evaluating_hours"] for kind in cost["kinds"]]
    assert (cost["runs"], cost["decisions"], cost["test_episodes"]) == (4, 4000, 40)
    assert cost["gpu_hours"] == pytest.approx(2 * sum(each))
    one, three = cost["workers"]
    assert one["training_wall_hours"] == pytest.approx(cost["gpu_hours"])
    # Four runs on three workers: somebody has two.
    assert max(each) < three["training_wall_hours"] < cost["gpu_hours"]
    assert three["replay_bytes"] == 3 * one["replay_bytes"] > 0
    assert one["test_wall_hours"] == pytest.approx(3 * three["test_wall_hours"])


def test_the_committed_benchmarks_are_read():
    found = read_benchmarks(Path(__file__).parents[2] / "results" / "bench")
    assert set(found.updates) == {"sac", "soda_overlay"} and len(found.steps) == 5
    assert all(0.001 < seconds < 0.2 for seconds in found.steps.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cost", "0,8"], "give for example 1,8,64"),
        (["--cost", "many"], "give for example 1,8,64"),
        (["--cost", "1", "--gpu-tflops", "0"], "above 0"),
        (["--cost", "1", "--bench", "none"], "softaug bench env --json"),
        (["--cost", "1", "--bench", "HERE"], "write env.json and update.json again"),
    ],
)
def test_mistakes_are_told_in_a_sentence(tmp_path, capsys, words, said):
    for name in ("env.json", "update.json"):
        (tmp_path / name).write_text(json.dumps([1]))
    words = [str(tmp_path) if word == "HERE" else word for word in words]
    assert main(["reproduce", "ablation", "--out", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("softaug: error: ") and said in error and len(error.splitlines()) == 1
