"""Metrics lines, their cutting back on resume, means of losses, and what people see."""

import importlib.machinery
import io
import json
import sys
import types
from pathlib import Path

import pytest
import torch

from softaug.errors import UserError
from softaug.training import log

CLOCK = {"seconds": 1.5, "decisions_per_second": 20.0}


def test_means_equal_those_of_the_raw_values():
    losses = log.MeanLosses()
    for step in range(7):
        losses.add(
            {
                "critic_loss": torch.tensor(float(step)),
                **({"aux_loss": torch.tensor(2.0 * step)} if step % 2 else {}),
            }
        )
    assert losses.means() == {"critic_loss": 3.0, "aux_loss": 6.0}
    losses.clear()
    assert losses.means() == {}


def test_means_do_not_keep_or_change_the_updates_tensors():
    value = torch.tensor(1.0, requires_grad=True)
    losses = log.MeanLosses()
    losses.add({"a": value})
    losses.add({"a": value})
    assert value.item() == 1.0 and not losses.state()["sums"]["a"].requires_grad


def test_restored_means_go_on_exactly():
    values = torch.rand(20, generator=torch.Generator().manual_seed(0))
    whole, first, second = log.MeanLosses(), log.MeanLosses(), log.MeanLosses()
    for value in values:
        whole.add({"a": value})
    for value in values[:9]:
        first.add({"a": value})
    second.load_state(first.state(), torch.device("cpu"))
    for value in values[9:]:
        second.add({"a": value})
    assert whole.means() == second.means()


def test_a_resumed_file_is_cut_where_the_checkpoint_was_made(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics = log.MetricsFile(path)
    metrics.write({"kind": "train", "n": 1})
    offset = metrics.offset()
    metrics.write({"kind": "train", "n": 2})
    metrics.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "tr')  # a killed process
    assert [line["n"] for line in log.read_metrics(path)] == [1, 2]
    metrics = log.MetricsFile(path, offset=offset)
    metrics.write({"kind": "episode", "n": 3})
    assert metrics.offset() == path.stat().st_size
    metrics.close()
    assert [line["n"] for line in log.read_metrics(path)] == [1, 3]
    assert [line["n"] for line in log.read_metrics(path, "episode")] == [3]


def test_a_file_shorter_than_the_checkpoint_says_so(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="has 3 bytes, but the checkpoint was made after 10"):
        log.MetricsFile(path, offset=10)
    assert path.read_text() == "{}\n"


def test_reading_no_file_is_a_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist"):
        log.read_metrics(tmp_path / "metrics.jsonl")


def test_lines_and_events_of_a_run(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = log.RunLog(log.MetricsFile(tmp_path / "m.jsonl"), [log.TensorBoard(tmp_path / "tb", decisions=0)])
    where = {"decisions": 100, "frames": 400}
    run.train({"critic_loss": 0.5}, where, CLOCK)
    run.episode({"episode": 1, "return": 12.5, "length": 50}, where, CLOCK)
    run.evaluation("video_easy", {"returns": [1.0, 3.0], "mean": 2.0, "std": 1.0}, where, CLOCK)
    run.close()
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines == [
        {"kind": "train", **where, "critic_loss": 0.5, **CLOCK},
        {"kind": "episode", **where, "episode": 1, "return": 12.5, "length": 50, **CLOCK},
        {
            "kind": "eval",
            **where,
            "mode": "video_easy",
            "returns": [1.0, 3.0],
            "mean": 2.0,
            "std": 1.0,
            **CLOCK,
        },
    ]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/video_easy")] == [(100, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("train/critic_loss")] == [(100, 0.5)]


def test_a_resumed_run_hides_the_events_after_its_checkpoint(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = log.TensorBoard(tmp_path, decisions=0)
    for step in (10, 20, 30):
        first.scalars({"a": step}, step)
    first.close()
    second = log.TensorBoard(tmp_path, decisions=20)
    second.scalars({"a": 31.0}, 30)
    second.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a")] == [(10, 10.0), (20, 20.0), (30, 31.0)]


def test_a_missing_tracker_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'softaug\[tracking\]'"):
        log.WeightsAndBiases("project", name="n", run_id="i", config={})


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = log.ConsoleProgress("walker_walk soda", 1000, stream=stream)
    progress.begin(100)
    for done in range(101, 201):
        now[0] += 1.0
        progress.update(done, {"return": 12.0, "critic_loss": 0.123456, "alpha": 0.1})
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(
        "walker_walk soda  130/1,000 decisions (13.0%)  1.0/s  ETA 0:14:30  return 12  critic 0.123"
    )


def test_the_time_of_a_phase_is_not_slow_decisions(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = log.ConsoleProgress("run", 1000, stream=stream)
    for done in range(1, 30):
        now[0] += 1.0
        progress.update(done)
    progress.phase("evaluation", 0, 1)
    now[0] += 500.0
    progress.phase("evaluation", 1, 1)
    now[0] += 1.0
    progress.update(30)
    assert "30/1,000 decisions (3.0%)  1.0/s" in stream.getvalue()


def test_quiet_progress_says_nothing():
    stream = io.StringIO()
    progress = log.ConsoleProgress("run", 10, quiet=True, stream=stream)
    progress.say("hello")
    progress.update(5)
    assert stream.getvalue() == ""


def test_weights_and_biases_gets_scalars_by_decision_in_one_resumable_run(monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append(("log", values, step))

        def finish(self):
            calls.append("finish")

    def init(**options):
        calls.append(options)
        return Run()

    fake = types.ModuleType("wandb")
    fake.init = init
    fake.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = log.WeightsAndBiases("project", name="first", run_id="abc", config={"seed": 1})
    sink.scalars({"train/critic_loss": 0.5}, 250)
    sink.close()
    assert calls == [
        {"project": "project", "name": "first", "id": "abc", "config": {"seed": 1}, "resume": "allow"},
        ("log", {"train/critic_loss": 0.5, "decisions": 250}, 250),
        "finish",
    ]
