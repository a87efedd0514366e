"""`softaug bench lab`: what it says of memory, and what its tour asks of the lab."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np
import pytest
from lab_agents import tiny_lab_agent

from softaug.benchmarks import lab as bench
from softaug.envs.factory import modes_of
from softaug.lab.page import Page
from softaug.lab.settings import Settings


def test_growth_is_that_after_the_warm_up() -> None:
    """Start-up is no growth, and a steady leak is found at its own rate."""
    rng = np.random.default_rng(0)
    flat = [100.0 * step for step in range(20)] + [2000.0 + noise for noise in rng.uniform(-1, 1, 70)]
    facts = bench.growth(flat, 10.0)
    assert abs(facts["mb_per_minute"]) < 0.2 and abs(facts["end_mb"] - facts["warm_mb"]) < 1
    assert facts["start_mb"] == 0.0 and 2000 <= facts["highest_mb"] <= 2001

    leak = [value + 0.5 * step for step, value in enumerate(flat)]
    assert bench.growth(leak, 10.0)["mb_per_minute"] == pytest.approx(3.0, abs=0.2)
    assert bench.growth([5.0], 10.0)["mb_per_minute"] == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_memory_is_kept_by_process() -> None:
    log = bench.MemoryLog(1.0)
    log.sample({"this": [os.getpid()], "ended": [2**30]})
    log.sample({"this": [os.getpid()], "late": [os.getpid()]})
    facts = log.to_json()
    assert facts is not None
    series = facts["series_mb"]
    assert series["this"][0] > 1 and series["ended"] == [0.0, 0.0] and series["late"][0] == 0.0
    assert facts["all"]["end_mb"] == pytest.approx(series["this"][1] + series["late"][1], abs=0.2)


def test_a_system_that_does_not_say_is_not_taken_for_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_memory_mb", lambda pid: None)
    log = bench.MemoryLog(1.0)
    log.sample({"this": [os.getpid()]})
    assert log.to_json() is None


def test_the_tour_is_valid_and_shows_other_things_each_round() -> None:
    modes = modes_of(tiny_lab_agent().config)
    messages = list(itertools.islice(bench.tour_of("video_hard"), 60))
    assert {message["type"] for message in messages} <= set(Page.MESSAGES)
    settings, shown = Settings(), []
    for message in messages:
        if message["type"] == "change":
            settings = settings.with_changes(message["changes"])
            assert settings.mode in modes
            shown.append(settings.to_query())
    assert len(set(shown)) > len(shown) * 0.7
    assert {"video_hard", "train", "color_hard", "distracting_hard", "video_easy"} <= {
        message["changes"].get("mode") for message in messages if message["type"] == "change"
    }
