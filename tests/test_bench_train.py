"""`softaug bench train`: its clocks add up, change no number, and rates are what the metrics say."""

from __future__ import annotations

import subprocess
import time

import pytest
import torch
from fakes import DotFactory, FakeImages, tiny_config

from softaug.benchmarks.train import (
    PARTS,
    Clock,
    checkout,
    instrumented,
    limit,
    measure_parts,
    rate_of,
    real_rate,
)
from softaug.benchmarks.update import useful_gflop
from softaug.config import make_config
from softaug.errors import UserError
from softaug.training import log
from softaug.training.run import train

OPTIONS = {"env_factory": DotFactory(), "images": FakeImages(), "quiet": True}


def metrics_of(run):
    lines = log.read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key not in log.WALL_CLOCK} for line in lines]


@pytest.mark.parametrize("method", ["sac", "soda_overlay", "pad", "sgqn"])
def test_clocks_change_no_number_and_are_gone_afterwards(tmp_path, method):
    config = tiny_config(method=method, crop_size=12 if method == "sgqn" else 10)
    originals = torch.Tensor.backward, torch.optim.Adam.step
    clock = Clock()
    with instrumented(clock):
        train(config, tmp_path / "timed", **OPTIONS)
    assert (torch.Tensor.backward, torch.optim.Adam.step) == originals
    train(config, tmp_path / "plain", **OPTIONS)
    assert metrics_of(tmp_path / "timed") == metrics_of(tmp_path / "plain")
    assert clock.decisions == config.decisions - config.random_decisions - 1  # those with an update


def test_parts_add_up_to_the_time_of_a_decision(tmp_path):
    clock = Clock()
    with instrumented(clock):
        train(tiny_config(method="soda_overlay"), tmp_path / "run", **OPTIONS)
    parts = clock.milliseconds()
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(1e3 * clock.total / clock.decisions, rel=0.02)
    used = set(PARTS) - {"render"}  # the toy environment renders without MuJoCo
    assert all(parts[name] > 0 for name in used) and parts["render"] == 0


def test_measuring_parts_needs_no_process_of_its_own(tmp_path):
    parts = measure_parts(tiny_config(env_process=True), tmp_path, env_factory=DotFactory())
    assert parts["step"] > 0


def test_times_are_exclusive_and_acting_keeps_its_encoder(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = Clock()
    clock.running = True
    with clock.part("other"):
        now += 1
        with clock.part("heads"):
            now += 2
            with clock.part("encoder"):
                now += 4
            now += 8
        with clock.part("act"), clock.part("encoder"):
            now += 16
        now += 32
    assert {name: value for name, value in clock.seconds.items() if value} == {
        "other": 33,
        "heads": 10,
        "encoder": 4,
        "act": 16,
    }


def test_the_rate_is_that_of_learning():
    lines = [
        {"kind": "train", "decisions": 100, "seconds": 1.0},
        {"kind": "train", "decisions": 125, "seconds": 20.0},  # the catch-up updates fell in here
        {"kind": "episode", "decisions": 130, "seconds": 21.0},
        {"kind": "train", "decisions": 150, "seconds": 22.5},
        {"kind": "train", "decisions": 175, "seconds": 25.0},
    ]
    assert rate_of(lines, 100) == pytest.approx(10)


def test_the_code_that_is_compared_with_runs_whatever_the_current_directory_holds(tmp_path, monkeypatch):
    for name, message in (("here", "the wrong one"), ("other", "the right one")):
        package = tmp_path / name / "softaug"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "cli.py").write_text(f"raise SystemExit('{message}')")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="the right one"):
        real_rate(tmp_path / "other", {"random_decisions": 1}, tmp_path / "run")


@pytest.mark.parametrize(
    ("overlap", "cores", "render", "expected"),
    [
        ("off", 2, 1.0, 500),  # the learner's core
        ("off", 2, 900.0, 901),  # the environment's
        ("on", 4, 1.0, 250),  # both threads of the learner
        ("on", 2, 99.0, 300),  # two cores full of work
        ("on", 2, 900.0, 901),
    ],
)
def test_the_limit_is_the_longest_of_learner_environment_and_cores(
    overlap, cores, render, expected, monkeypatch
):
    monkeypatch.setattr("softaug.benchmarks.train.available_cores", lambda: cores)
    config = make_config(method="soda", preset="small", overlap=overlap)
    shortest = limit(config, {**dict.fromkeys(PARTS, 1.0), "render": render}, useful_gflop(config) / 0.5)
    assert shortest["learner_ms"] == pytest.approx(500)
    assert shortest["decision_ms"] == pytest.approx(expected)


def test_against_takes_a_folder_or_a_commit(tmp_path):
    (tmp_path / "other" / "src" / "softaug").mkdir(parents=True)
    (tmp_path / "other" / "src" / "softaug" / "__init__.py").touch()
    assert checkout(str(tmp_path / "other"), tmp_path) == tmp_path / "other" / "src"
    with pytest.raises(UserError, match="neither a folder"):
        checkout("no-such-commit", tmp_path)
    with pytest.raises(UserError, match="neither a folder"):
        checkout("--output=stolen", tmp_path)
    inside = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True)
    if inside.returncode:
        pytest.skip("not in a repository")
    assert (checkout("HEAD", tmp_path) / "softaug" / "cli.py").is_file()
