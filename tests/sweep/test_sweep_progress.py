"""What a sweep shows: read from files that another process writes, and true."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from sweeping import grid

from softaug.config import write_config
from softaug.sweep import display
from softaug.sweep.display import SweepDisplay, SweepRow, duration, short, summary, sweep_seconds_left, table
from softaug.sweep.progress import RunProgress, read_progress
from softaug.sweep.supervise import Status, write_status


def write_metrics(run, lines, *, after=b""):
    run.directory.mkdir(parents=True, exist_ok=True)
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (run.directory / "metrics.jsonl").write_bytes(content + after)


def losses(decisions, seconds, rate=10.0):
    return {
        "kind": "train", "decisions": decisions, "frames": 20 * decisions, "seconds": seconds,
        "decisions_per_second": rate,
    }  # fmt: skip


def episode(decisions, seconds, value):
    return {
        "kind": "episode", "decisions": decisions, "frames": 20 * decisions, "seconds": seconds, "return": value,
    }  # fmt: skip


def test_nothing_is_known_before_the_first_line(tmp_path):
    run = grid(tmp_path)[0]
    assert read_progress(run.directory, run.config) == RunProgress()
    write_metrics(run, [], after=b'{"kind": "tra')
    assert read_progress(run.directory, run.config) == RunProgress()


def test_progress_is_that_of_the_last_whole_line(tmp_path):
    run = grid(tmp_path)[0]  # 30 random decisions of 150
    lines = [losses(30, 1.0), episode(50, 12.0, 7.5), losses(90, 32.0, rate=4.0)]
    write_metrics(run, lines, after=b'{"kind": "train", "decisions": 100')
    progress = read_progress(run.directory, run.config)
    assert (progress.decisions, progress.frames, progress.rate) == (90, 1800, 4.0)
    assert progress.last_return == 7.5
    # 40 decisions in 20 s since learning began; the quick random ones do not count.
    assert progress.overall_rate == 2.0
    assert progress.seconds_left(run.config.decisions) == 30.0


def test_a_checkpoint_counts_before_the_first_line(tmp_path):
    run = grid(tmp_path)[0]
    for name in ("000000025", "000000050", ".writing-000000075", "best"):
        (run.directory / "checkpoints" / name).mkdir(parents=True)
    progress = read_progress(run.directory, run.config)
    assert (progress.decisions, progress.frames) == (50, 1000)
    write_metrics(run, [losses(60, 11.0)])
    assert read_progress(run.directory, run.config).decisions == 60


def test_only_the_end_of_a_long_file_is_read(tmp_path):
    run = grid(tmp_path, decisions=100_000)[0]
    write_metrics(run, [losses(10 * i, 5.0 * i) for i in range(1, 5000)])
    progress = read_progress(run.directory, run.config)
    assert progress.decisions == 49_990 and progress.overall_rate == pytest.approx(2.0)


def test_rows_follow_the_files_of_this_sweep(tmp_path):
    run = grid(tmp_path)[0]
    assert display.read_row(run, "now").state == "waiting"
    write_status(run, Status("before", "failed", 3))
    assert display.read_row(run, "now").state == "waiting", "what an earlier sweep noted does not count"
    write_status(run, Status("now", "running", 2))
    assert (display.read_row(run, "now").state, display.read_row(run, "now").shown_state) == (
        "running",
        "try 2",
    )
    write_config(run.config, run.directory / "config.json")
    (run.directory / "final_eval.json").touch()
    assert display.read_row(run, "now").state == "finished"


def test_without_a_terminal_each_change_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(display, "READ_SECONDS", 0.0)
    runs = grid(tmp_path, 2)
    stream = io.StringIO()
    shown = SweepDisplay(runs, "now", stream=stream)
    shown.refresh()
    assert stream.getvalue() == "", "nothing has changed yet"
    write_status(runs[1], Status("now", "running", 1))
    write_metrics(runs[1], [losses(40, 1.0), losses(60, 11.0), episode(60, 11.0, 3.0)])
    shown.refresh()
    shown.refresh()
    assert stream.getvalue().splitlines() == [
        "cartpole_balance sac seed 1: running  60/150 decisions (1,200 frames)  10.0 decisions/s  ETA 0:00:45  return 3"
    ]
    monkeypatch.setattr(display, "PLAIN_SECONDS", 0.0)
    shown.refresh()
    assert len(stream.getvalue().splitlines()) == 2, "and one every minute"
    shown.close()


def rows_of(tmp_path, states):
    known = RunProgress(60, 1200, 11.0, 10.0, 2.0, 3.0)
    runs = grid(tmp_path, len(states))
    return [
        SweepRow(run, state, 1, RunProgress() if state == "waiting" else known)
        for run, state in zip(runs, states, strict=True)
    ]


def rendered(rows, width, **options):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(table(rows, width, **options))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_cuts_no_name_and_no_number(tmp_path, width):
    text = rendered(rows_of(tmp_path, ["finished", "running", "failed", "waiting", "interrupted"]), width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert text.count("cartpole_balance") == 5
    assert "0:00:45" in text


def test_what_matters_is_shown_where_not_everything_fits(tmp_path):
    rows = rows_of(tmp_path, ["finished"] * 30 + ["running", "failed"] + ["waiting"] * 30)
    text = rendered(rows, 100, most=4)
    assert "running" in text and "failed" in text and "finished" not in text
    assert "and 58 more" in text
    assert summary(rows) == "62 runs: 1 running, 1 failed, 30 waiting, 30 finished"


def test_time_left_of_a_sweep(tmp_path):
    # Two run and need 45 s each (90 of 150 decisions at 2 a second); three wait for 75 s each.
    rows = rows_of(tmp_path, ["finished", "running", "running", "waiting", "waiting", "waiting"])
    assert sweep_seconds_left(rows) == (2 * 45 + 3 * 75) / 2
    assert sweep_seconds_left(rows_of(tmp_path, ["waiting"])) is None


def test_numbers_for_people():
    assert [short(n) for n in (0, 9999, 12_345, 30_000, 500_000, 2_000_000)] == [
        *("0", "9999", "12.3k", "30k", "500k", "2.00M"),
    ]
    assert [duration(s) for s in (None, 0, 59.6, 3661, 200 * 3600)] == [
        "–",
        "0:00:00",
        "0:01:00",
        "1:01:01",
        "8d 8h",
    ]
