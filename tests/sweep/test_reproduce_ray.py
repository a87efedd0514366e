"""Test episodes on a real Ray cluster: the driver's numbers bit for bit, and nothing is played twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import ray_environment, ray_head
from sweeping import TINY

from softaug.evaluation.evaluate import Task
from softaug.evaluation.runs import load_run
from softaug.results.reproduce.missing_runs import Evaluating, evaluate
from softaug.sweep import PlannedRun, episodes_on_ray, plan_grid, run_sweep

MODES = ("color_easy", "video_hard")
EPISODES = episodes_on_ray.EPISODES_PER_TASK + 1
SMALLEST = {**TINY, "decisions": 60, "action_repeat": 100, "eval_modes": MODES}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> list[PlannedRun]:
    """A run that adapts at test time and one that does not."""
    runs = plan_grid(["cartpole_swingup"], ["sac", "pad"], [0], tmp_path_factory.mktemp("runs"), **SMALLEST)
    outcomes = run_sweep(runs, workers=2, cpus_per_run=1, quiet=True)
    assert [outcome.state for outcome in outcomes] == ["finished"] * 2, outcomes
    return runs


def results(run: Path) -> dict[str, Any]:
    """The one evaluation of a run, without the path that was given for it."""
    (file,) = (run / "eval").glob("*.json")
    return {key: value for key, value in json.loads(file.read_text()).items() if key != "run"}


def reproduce_on_ray(runs: Path, out: Path, address: str, environment: dict[str, str]) -> str:
    """`softaug reproduce appendix` of what is there and of what it trains."""
    words = ["reproduce", "appendix", "--tasks", "cartpole_swingup", "--seeds", "1", "--runs", str(runs)]
    words += ["--out", str(out), "--backend", "ray", "--address", address, "--episodes", str(EPISODES)]
    words += ["--preset", "small", "--cpus-per-run", "1", "--json"]
    for name, value in SMALLEST.items():
        if name not in ("preset", "eval_modes") and not isinstance(value, bool):
            words += [
                f"--{name.replace('_', '-')}",
                ",".join(map(str, value)) if isinstance(value, tuple) else str(value),
            ]
    done = subprocess.run(
        [sys.executable, "-m", "softaug.cli", *words, "--no-tensorboard", "--no-env-process"],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["items"]) == 1
    return done.stderr


@pytest.mark.slow
def test_the_cluster_plays_the_drivers_episodes(trained, tmp_path):
    pytest.importorskip("ray")
    here, there = tmp_path / "here", tmp_path / "there"
    for run in trained:
        method = run.config.method
        for copy in (here, there):
            shutil.copytree(run.directory, copy / method)
        evaluate(Evaluating(here / method, MODES, adapt=method == "pad"), EPISODES, workers=1)
    with ray_environment() as environment, ray_head(environment) as address:
        said = reproduce_on_ray(there, tmp_path / "out", address, environment)
        assert "evaluating 4 runs on Ray" in said, said
        for method in ("sac", "pad"):
            assert results(there / method) == results(here / method)
        # Interrupted: the results and one episode are gone, and only that one is played again.
        (journal,) = (there / "pad" / "eval").glob("*.jsonl")
        kept = journal.read_text().splitlines()[1:]
        journal.write_text("\n".join(kept) + "\n")
        for file in (there / "pad" / "eval").glob("*.json"):
            file.unlink()
        said = reproduce_on_ray(there, tmp_path / "out", address, environment)
        assert "evaluating 1 run on Ray" in said, said
        lines = journal.read_text().splitlines()
        assert lines[: len(kept)] == kept and len(lines) == len(kept) + 1
        assert results(there / "pad") == results(here / "pad")


def test_pieces_hold_every_episode_once_and_one_mode_each():
    tasks = [Task(mode, episode) for episode in range(12) for mode in MODES]
    made = episodes_on_ray.pieces(tasks)
    assert sorted((t.mode, t.episode) for piece in made for t in piece) == sorted(
        (t.mode, t.episode) for t in tasks
    )
    assert all(len({task.mode for task in piece}) == 1 for piece in made)
    assert [len(piece) for piece in made] == [5, 5, 2] * 2


def test_what_goes_wrong_on_a_node_is_one_sentence(trained, monkeypatch):
    policy = load_run(trained[0].directory).policy()
    task = (Task("video_hard", 0),)
    expected = episodes_on_ray.media_facts(policy.config, "video_hard")
    answer = episodes_on_ray.play_piece(policy, task, 0, {**expected, "kind": "official"})
    assert "differ between the nodes and the driver (procedural and official)" in answer["error"]

    def broken(*_: Any) -> Any:
        raise OSError("no GL\nand a long story")

    monkeypatch.setattr(episodes_on_ray, "play_episodes", broken)
    answer = episodes_on_ray.play_piece(policy, task, 0, expected)
    assert answer["error"].startswith("video_hard, episodes from 0: OSError: no GL")
    assert episodes_on_ray._first_line(answer["error"]).endswith("no GL")
