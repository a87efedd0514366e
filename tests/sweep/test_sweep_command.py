"""`softaug sweep` as typed: plans, estimates, exit statuses and what is said."""

from __future__ import annotations

import json
import shutil

import pytest
from sweeping import flags, grid

from softaug import cli
from softaug.config import write_config
from softaug.sweep import Outcome
from softaug.sweep.estimate import disk_bytes, estimate, wall_seconds


def answer_with(monkeypatch, *states):
    """Make the command's `run_sweep` end at once, in these states."""

    def run_sweep(runs, **options):
        return [
            Outcome(run, state, 2, "the disk is full" if state == "failed" else "")
            for run, state in zip(runs, states, strict=True)
        ]

    monkeypatch.setattr("softaug.commands.sweep.run_sweep", run_sweep)


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("finished", "finished"), 0),
        (("finished", "failed"), 1),
        (("interrupted", "failed"), 1),
        (("interrupted", "finished"), 130),
    ],
)
def test_exit_status_and_json(monkeypatch, tmp_path, capsys, states, status):
    answer_with(monkeypatch, *states)
    assert cli.main(["sweep", *flags(), "--seeds", "0-1", "--out", str(tmp_path), "--json"]) == status
    answer = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in answer["runs"]] == list(states)
    assert answer["runs"][1]["directory"] == str(tmp_path / "cartpole_balance" / "sac" / "seed1")


def test_failures_show_their_log_and_how_to_go_on(monkeypatch, tmp_path, capsys):
    answer_with(monkeypatch, "failed", "finished")
    monkeypatch.setattr("sys.argv", ["softaug", "sweep", "--out", "my runs"])
    assert cli.main(["sweep", *flags(), "--seeds", "0-1", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "cartpole_balance sac seed 0 failed after 2 attempts" in said
    assert "the disk is full" in said and "log.txt" in said
    assert "softaug sweep --out 'my runs'" in said


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--seeds", "4-0"], "'4-0' is no seed; give seeds like 0-4 or 0,2,5"),
        (["--tasks", "walker_fly"], "walker_fly"),
        (["--methods", "sodaa"], "unknown method 'sodaa'"),
        (["--preset", "huge"], "unknown preset 'huge'"),
        (["--backend", "slurm"], "unknown backend 'slurm'"),
        (["--workers", "0"], "workers must be at least 1"),
        (["--gpus-per-run", "1"], "--backend ray"),
        (["--workers", "0", "--dry-run"], "workers must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(given, sentence, tmp_path, capsys):
    assert cli.main(["sweep", *flags(), "--out", str(tmp_path / "out"), *given]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("softaug: error: ") and sentence in error
    assert not list(tmp_path.iterdir())


def test_evaluation_processes_have_their_own_flag(monkeypatch, tmp_path, capsys):
    seen = {}
    monkeypatch.setattr(
        "softaug.commands.sweep.run_sweep", lambda runs, **options: seen.update(runs=runs, **options) or []
    )
    assert cli.main(["sweep", *flags(), "--out", str(tmp_path), "--workers", "3", "--eval-workers", "2"]) == 0
    assert seen["workers"] == 3 and seen["runs"][0].config.workers == 2
    capsys.readouterr()


def test_dry_run_says_what_would_happen_and_does_nothing(tmp_path, capsys):
    finished, begun, _ = grid(tmp_path, 3)
    for run in (finished, begun):
        write_config(run.config, run.directory / "config.json")
    (finished.directory / "final_eval.json").touch()
    line = {"kind": "train", "decisions": 75, "frames": 1500, "seconds": 9.0}
    (begun.directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    before = sorted(tmp_path.rglob("*"))
    command = ["sweep", *flags(), "--seeds", "0-2", "--out", str(tmp_path), "--dry-run"]
    assert cli.main([*command, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [run["plan"] for run in plan["runs"]] == ["skip", "resume", "make"]
    skipped, resumed, made = (run["seconds"] for run in plan["runs"])
    assert skipped == 0 and resumed == pytest.approx(made / 2) and made > 0
    assert plan["seconds"] == pytest.approx(made + resumed)
    assert plan["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert sorted(tmp_path.rglob("*")) == before


def test_estimates_take_the_speed_of_runs_that_are_there(tmp_path):
    done, new = grid(tmp_path, 2)
    write_config(done.config, done.directory / "config.json")
    (done.directory / "final_eval.json").touch()
    lines = [{"kind": "train", "decisions": d, "frames": 0, "seconds": d / 3} for d in (50, 110)]
    (done.directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    checkpoint = done.directory / "checkpoints" / "000000150"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tensors.safetensors").write_bytes(bytes(1000))
    first, second = estimate([done, new], threads=1, say=lambda text: pytest.fail("nothing is measured"))
    assert first.seconds_left == 0 and second.cost.measured
    assert second.seconds_left == pytest.approx(150 / 3)
    assert second.cost.kept_bytes == 2 * 1000
    # 70 transitions and 2 x 25 of slack in episodes of 50: 70 + 2 + 1 and 50 + 1 + 1 slots of 20 x 20 pixels, with a
    # checksum of 4 bytes each.
    assert second.cost.replay_bytes == (73 + 52) * (20 * 20 * 3 + 4 + 14 + 4)
    assert disk_bytes([first, second], workers=2) == (second.cost.replay_bytes, 2000)


def test_dry_run_measures_own_environments(tmp_path, capsys):
    """Their episodes end early, and their test environments are in the config."""
    own = {"eval_modes": ("train", "dark"), "test_env": ("dark=own_fakes:make_dark",)}
    given = [word.replace("cartpole_balance", "own_fakes:make_corner") for word in flags(**own)]
    command = ["sweep", *given, "--image-key", "camera", "--out", str(tmp_path), "--dry-run", "--json"]
    assert cli.main(command) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["task"] == "own_fakes:make_corner" and run["seconds"] > 0 and not run["measured"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--backend", "ray"], True),
        (["--backend", "ray", "--workers", "1"], False),
        ([], False),
    ],
)
def test_dry_run_says_that_ray_may_train_several_at_a_time(given, said, tmp_path, capsys):
    (finished,) = grid(tmp_path, 1)
    write_config(finished.config, finished.directory / "config.json")
    (finished.directory / "final_eval.json").touch()
    assert cli.main(["sweep", *flags(), "--out", str(tmp_path), "--dry-run", *given]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 at a time" in text
    assert ("as many as fit" in text and "--workers" in text) == said


def test_wall_time_hands_out_jobs_in_order():
    assert wall_seconds([3, 3, 3], 2) == 6
    assert wall_seconds([5, 1, 1, 1], 2) == 5
    assert wall_seconds([], 2) == 0
