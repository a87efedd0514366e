"""The examples run as they stand, for a few seconds."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from gymnasium.wrappers import TimeLimit

import softaug
import softaug.envs
from softaug.results.reading import read_run

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_plain_pytorch_loop(monkeypatch, capsys):
    run_example("plain_pytorch_soda.py", ["--steps", "64", "--task", "cartpole_balance"], monkeypatch)
    found = re.search(r"4 actor-critic updates, the last SODA loss ([\d.]+)", capsys.readouterr().out)
    assert found and 0 < float(found[1]) <= 4


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_sb3_ppo_saves_and_goes_on(monkeypatch, capsys, tmp_path):
    pytest.importorskip("stable_baselines3")
    sizes = ["--task", "cartpole_balance", "--envs", "2", "--rollout", "8", "--episodes", "0"]
    arguments = ["--steps", "16", *sizes, "--out", str(tmp_path / "ppo")]
    run_example("sb3_ppo_soda.py", arguments, monkeypatch)
    assert "4 PPO updates, 1 SODA updates" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "ppo").iterdir()} == {"ppo.zip", "soda.pt"}
    # And tests it, in episodes of a few decisions.
    make_env = softaug.make_env
    monkeypatch.setattr(softaug, "make_env", lambda *args, **kwargs: TimeLimit(make_env(*args, **kwargs), 5))
    arguments[arguments.index("--episodes") + 1] = "1"
    run_example("sb3_ppo_soda.py", arguments, monkeypatch)
    said = capsys.readouterr().out
    assert "8 PPO updates, 2 SODA updates" in said
    tested = re.findall(r"^(\w+): return ([\d.]+) ± 0\.0 over 1 episodes$", said, re.MULTILINE)
    assert [mode for mode, _ in tested] == ["train", "color_hard", "video_easy"]
    assert all(0 < float(mean) <= 5 * 8 for _, mean in tested)  # rewards of at most 1 in 8 frames a decision


def short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five decisions each."""
    make_env = softaug.envs.make_env
    monkeypatch.setattr(
        softaug.envs, "make_env", lambda *args, **kwargs: TimeLimit(make_env(*args, **kwargs), 5)
    )


def test_random_convolutions(monkeypatch, capsys, tmp_path):
    short_episodes(monkeypatch)
    out = tmp_path / "random"
    arguments = ["--task", "cartpole_balance", "--episodes", "2", "--workers", "1", "--out", str(out)]
    run_example("evaluate_random_convolutions.py", arguments, monkeypatch)
    tested = re.findall(
        r"^(\w+): return ([\d.]+) ± [\d.]+ over 2 episodes$", capsys.readouterr().out, re.MULTILINE
    )
    assert [mode for mode, _ in tested] == ["train", "color_hard", "video_easy"]
    assert all(0 < float(mean) <= 5 * 4 for _, mean in tested)  # rewards of at most 1 in 4 frames a decision
    record = read_run(out)
    assert record.config.row.title == "random convolutions" and set(record.final) == {
        mode for mode, _ in tested
    }


def test_sb3_agent_in_the_test_modes(monkeypatch, capsys, tmp_path):
    pytest.importorskip("stable_baselines3")
    short_episodes(monkeypatch)
    out = tmp_path / "sac"
    arguments = [
        "--steps",
        "4",
        "--episodes",
        "1",
        "--workers",
        "1",
        "--modes",
        "train,color_hard",
        "--out",
        str(out),
    ]
    run_example("evaluate_sb3_agent.py", arguments, monkeypatch)
    assert re.findall(r"^(\w+): return", capsys.readouterr().out, re.MULTILINE) == ["train", "color_hard"]
    record = read_run(out)
    assert record.config.row.title == "SAC of Stable-Baselines3" and record.decisions == 4
    assert (record.config.image_size, record.config.frame_stack) == (84, 3)
    assert record.facts["policy"]["kind"] == "stable-baselines3"
