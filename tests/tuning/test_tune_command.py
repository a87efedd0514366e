"""`softaug tune` as users give it: a study of real runs, killed and continued; its preset; mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from softaug.cli import main
from softaug.config import read_config
from softaug.training.log import read_metrics
from softaug.training.run import train

TESTS = Path(__file__).parents[1]
ENV = "own_fakes:make_restorable"
SIZES = [
    "--image-key", "camera", "--decisions", "240", "--image-size", "20", "--crop-size", "16", "--frame-stack", "2",
    "--filters", "4,4", "--strides", "2,1", "--projection-dim", "8", "--hidden-dim", "16", "--batch-size", "8",
    "--random-decisions", "30", "--initial-updates", "10", "--checkpoint-every", "40", "--log-every", "10",
    "--threads", "1", "--device", "cpu", "--no-env-process",
]  # fmt: skip


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def command(out: Path, *more: str) -> list[str]:
    return ["tune", "--env", ENV, *SIZES, "--out", str(out), *more]


def wait_for(path: Path, process: subprocess.Popen) -> None:
    for _ in range(1200):
        if path.exists() and path.stat().st_size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")


@pytest.mark.slow
def test_a_study_killed_in_the_middle_continues_and_its_preset_trains(tmp_path, fakes, capsys):
    out = tmp_path / "study"
    given = command(out, "--trials", "4", "--workers", "2", "--pruner", "none", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "softaug.cli", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    begun = out / "trials/0001" / ENV.replace(":", ".") / "seed0"
    wait_for(begun / "metrics.jsonl", process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (out / "trials/0003").exists(), "it was killed in the middle"

    assert main(given) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"] and sorted(t["number"] for t in result["trials"]) == [0, 1, 2, 3]
    assert {t["state"] for t in result["trials"]} == {"finished"}

    # The trial that was running when the study was killed is, to the last bit, one that was never interrupted.
    undisturbed = tmp_path / "undisturbed"
    train(read_config(begun / "config.json"), undisturbed, quiet=True)

    def curve(run):
        return [
            (line["decisions"], line["return"]) for line in read_metrics(run / "metrics.jsonl", "episode")
        ]

    assert curve(begun) == curve(undisturbed)

    preset = out / "preset.json"
    flags = ["--env", ENV, "--image-key", "camera", "--eval-episodes", "1", "--decisions", "80", "--quiet"]
    run = tmp_path / "run"
    assert main(["train", *flags, "--preset", str(preset), "--out", str(run)]) == 0
    best = next(t for t in result["trials"])
    config = read_config(run / "config.json")
    assert config.preset == "small+preset" and config.hidden_dim == 16
    assert all(getattr(config, name) == value for name, value in best["values"].items())
    preset.unlink()
    assert main(["train", "--resume", str(run), "--quiet"]) == 0, "the run does not need the file again"


def test_a_preset_file_is_accepted_by_sweep_and_survives_a_resume(tmp_path, capsys):
    preset = tmp_path / "mine.json"
    preset.write_text(
        json.dumps({"softaug_preset": 1, "base": "small", "values": {"n_step": 2, "filters": [8, 8, 8]}})
    )
    from softaug.sweep import plan_grid

    (run,) = plan_grid(["walker_stand"], ["soda"], [0], tmp_path / "grid", preset=str(preset))
    assert (run.config.n_step, run.config.filters, run.config.preset) == (2, (8, 8, 8), "small+mine")
    assert type(run.config).from_json(json.loads(json.dumps(run.config.to_json()))) == run.config


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is damaged"),
        ("[]", "no JSON object"),
        ({"softaug_preset": 1, "base": "large", "values": {}}, "needs a base"),
        ({"softaug_preset": 1, "base": "small", "values": {"seed": 3}}, "cannot set 'seed'"),
        ({"softaug_preset": 1, "base": "small", "values": {"nstep": 3}}, "cannot set 'nstep'"),
        ({"softaug_preset": 1, "base": "small", "values": {"n_step": "3"}}, "n_step '3', which cannot be"),
    ],
)
def test_wrong_preset_files_are_refused(tmp_path, capsys, content, sentence):
    preset = tmp_path / "mine.json"
    preset.write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["train", "--preset", str(preset), "--out", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "give --tasks"),
        (["--tasks", "walker_stand", "--env", "a:b"], "give --tasks"),
        (["--env", "robot"], "not of the form module:callable"),
        (["--tasks", "walker_stan"], "nknown task"),
        (["--tasks", "walker_stand,walker_stand"], "each once"),
        (["--tasks", "walker_stand", "--preset", "smal"], "unknown preset 'smal'"),
        (["--tasks", "walker_stand", "--trials", "1"], "--trials must be at least 2"),
        (["--tasks", "walker_stand", "--decisions", "500"], "nothing is learned in 500 decisions"),
        (["--tasks", "walker_stand", "--frames", "9999", "--decisions", "5000"], "give one of them"),
        (["--tasks", "walker_stand", "--pruner", "median"], "unknown pruner"),
        (["--tasks", "walker_stand", "--seconds", "0"], "--seconds must be positive"),
        (["--tasks", "walker_stand", "--space", "missing.json"], "cannot be read"),
        (["--tasks", "walker_stand", "--workers", "0"], "workers must be at least 1"),
        (["--tasks", "walker_stand", "--sampler-seed", "-1"], "--sampler-seed must not be negative"),
        (["--tasks", "walker_stand", "--seconds", "9", "--rungs", "1000"], "below a millionth of the budget"),
        (["--tasks", "walker_stand", "--seeds", "0-99999999"], "more than 10,000 seeds"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, capsys, flags, sentence):
    out = tmp_path / "study"
    assert main(["tune", *flags, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("softaug: error: ") and len(error.splitlines()) == 1
    assert not out.exists()


def test_a_tuned_image_size_is_that_of_methods_that_do_not_crop(tmp_path):
    preset = tmp_path / "mine.json"
    preset.write_text(json.dumps({"softaug_preset": 1, "base": "small", "values": {"image_size": 64}}))
    from softaug.config import make_config

    config = make_config("cartpole_swingup", "drq", str(preset))
    tuned = make_config("cartpole_swingup", "drq", "small", image_size=64)
    assert (config.image_size, config.crop_size) == (64, 64) == (tuned.image_size, tuned.crop_size)
    assert make_config("cartpole_swingup", "drq", "small").image_size == 50


def test_a_name_that_no_trial_could_use_is_refused_at_once(tmp_path, capsys):
    space = tmp_path / "space.json"
    space.write_text(json.dumps({"conv_init": {"choices": ["orthogonal", "nonsense"]}}))
    flags = ["--tasks", "walker_stand", "--space", str(space)]
    assert main(["tune", *flags, "--out", str(tmp_path / "study")]) == 2
    assert "nonsense" in capsys.readouterr().err and not (tmp_path / "study").exists()


def test_a_field_is_given_or_searched_not_both(tmp_path, capsys):
    space = tmp_path / "space.json"
    space.write_text(json.dumps({"n_step": {"low": 1, "high": 3}}))
    flags = ["--tasks", "walker_stand", "--n-step", "2", "--space", str(space)]
    assert main(["tune", *flags, "--out", str(tmp_path / "study")]) == 2
    assert "n_step is both given and searched" in capsys.readouterr().err
