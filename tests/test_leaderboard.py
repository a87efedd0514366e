"""The leaderboard: every number with its origin, comparable or why not, and means over shared tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fabricated import fabricate_eval, fabricate_run

from softaug.config import Config
from softaug.results.groups import make_groups
from softaug.results.leaderboard import Entry, Leaderboard, make_leaderboard
from softaug.results.reading import find_runs, read_run
from softaug.results.report import Reporter
from softaug.results.statistics import interquartile_mean, iqm_over_tasks

WALK, STAND = "walker_walk", "walker_stand"


def board_of(folder: Path) -> Leaderboard:
    groups, _ = make_groups([read_run(path) for path in find_runs([folder])], 50)
    return make_leaderboard(groups)


def ours(board: Leaderboard) -> list[Entry]:
    return [entry for entry in board.entries if entry.origin != "published"]


def test_measured_and_published_numbers_of_the_same_task_and_mode_by_return(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", STAND, "sac", returns={"train": [900], "video_hard": [600, 610]})
    board = board_of(tmp_path)
    hard = [entry for entry in board.entries if entry.mode == "video_hard"]
    assert {entry.task for entry in board.entries} == {STAND} and board.modes == ["train", "video_hard"]
    assert [entry.mean for entry in hard] == sorted((entry.mean for entry in hard), reverse=True)
    soda = {entry.origin_text: entry.mean for entry in hard if entry.method == "soda_overlay"}
    assert soda == {
        "reported by the SODA paper": 771, "reported by SGQN's authors": 736, "reported by MaDi's authors": 143,
    }  # fmt: skip
    (mine,) = [entry for entry in hard if entry.origin == "run"]
    assert mine.mean == 605 and mine.origin_text == "measured here" and mine.seeds == 1
    assert all(entry.source for entry in board.entries)
    assert not [
        entry for entry in board.entries if entry.mode == "video_easy"
    ]  # nothing of ours to compare with


def test_why_a_number_is_not_comparable(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "small", STAND, "sac", returns={"video_hard": [600]})
    fabricate_run(tmp_path / "other", STAND, "drq", returns={"rotate_hard": [100]})
    fabricate_run(tmp_path / "gb2", WALK, "sac", preset="paper", returns={"rotate_hard": [100]})
    fabricate_run(tmp_path / "robot", "robot_push", "sac", returns={"train": [10]})
    found = {(entry.task, entry.mode): entry.differences for entry in ours(board_of(tmp_path))}
    assert found[STAND, "video_hard"] == ("preset small", "procedural media", "1 seed instead of 5")
    assert found[STAND, "rotate_hard"] == ("preset small", "procedural media", "1 seed instead of 5")
    assert found[WALK, "rotate_hard"][:2] == (
        "action repeat 4 instead of 2", "12,000 instead of 1,000,000 frames",
    )  # fmt: skip
    assert found["robot_push", "train"][0] == "robot_push is a reconstruction"


def test_five_seeds_of_the_papers_settings_are_comparable(tmp_path: Path) -> None:
    for seed in range(5):
        run = tmp_path / str(seed)
        settings = {"preset": "paper", "decisions": Config.decisions, "evaluations": 1}
        fabricate_run(run, STAND, "sac", seed, returns={"video_hard": [600]}, media="official", **settings)
    (mine,) = ours(board_of(tmp_path))
    assert mine.differences == () and mine.to_json()["comparable"] is True
    fabricate_eval(tmp_path / "0", {"video_hard": [1, 1]}, media="folder")
    found = {entry.variant: entry.differences for entry in ours(board_of(tmp_path))}
    assert found[""] == () and "folder media" in found  # another kind of media is another entry


def test_another_action_repeat_is_a_difference_under_any_preset(tmp_path: Path) -> None:
    settings = {"preset": "paper", "decisions": Config.decisions, "evaluations": 1, "media": "official"}
    fabricate_run(tmp_path / "a", STAND, "sac", returns={"video_hard": [600]}, **settings)
    for name in (
        "metrics.jsonl",
        "final_eval.json",
    ):  # two frames a decision, as if the method's paper had them
        file = tmp_path / "a" / name
        file.write_text(file.read_text().replace('"frames": 2000000', '"frames": 1000000'))
    (mine,) = ours(board_of(tmp_path))
    assert mine.differences == ("action repeat 2 instead of 4", "1 seed instead of 5")


def test_a_policy_of_the_zoo_says_so(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "walker", STAND, "sac", returns={"video_hard": [600]})
    groups, _ = make_groups([read_run(tmp_path / "walker")], 50)
    (tmp_path / "walker" / "results.json").write_text("{}")  # what marks a published policy
    (mine,) = ours(make_leaderboard(groups, lambda record: f"zoo:{record.path.name}"))
    assert (mine.origin, mine.origin_text, mine.source) == ("zoo", "zoo", "zoo:walker")


# ---- over tasks ------------------------------------------------------------------------------------------------------


def test_means_over_tasks_are_of_those_who_have_all_of_them(tmp_path: Path) -> None:
    for task, returns in ((WALK, [100.0, 300.0]), (STAND, [500.0, 500.0])):
        for seed, value in enumerate(returns):
            fabricate_run(tmp_path / f"{task}{seed}", task, "sac", seed, returns={"video_hard": [value]})
    fabricate_run(tmp_path / "alone", WALK, "soda_overlay", returns={"video_hard": [999]})
    (block,) = board_of(tmp_path).over_tasks
    assert (block.mode, block.tasks) == ("video_hard", (STAND, WALK))
    found = {(entries[0].label, entries[0].origin_text): iqm for entries, iqm in block.rows}
    mine = found["SAC (RAD: random crop)", "measured here"]
    assert mine.value == pytest.approx((0.2 + 0.5) / 2)
    assert mine.low == pytest.approx(0.3) and mine.high == pytest.approx(0.4)
    assert found["SimGRL", "reported by SimGRL's authors"].value == pytest.approx((0.773 + 0.932) / 2)
    assert ("SODA (overlay)", "measured here") not in found  # one task only
    values = [iqm.value for _, iqm in block.rows]
    assert values == sorted(values, reverse=True)


def test_every_task_counts_once_however_many_seeds_it_has() -> None:
    scores = [np.array([0.1] * 9), np.array([0.3]), np.array([0.5]), np.array([0.9])]
    found = iqm_over_tasks(scores, rng=np.random.default_rng(0))
    assert (
        found.value == pytest.approx(interquartile_mean(np.array([0.1, 0.3, 0.5, 0.9]))) == pytest.approx(0.4)
    )
    assert found.low is None  # one seed says nothing of the spread
    seeded = [np.array([0.0, 1.0]), np.array([0.5, 0.5])]
    spread = iqm_over_tasks(seeded, rng=np.random.default_rng(0))
    assert (spread.value, spread.low, spread.high) == (0.5, 0.25, 0.75)


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_holds_every_number_with_its_reporter(tmp_path: Path) -> None:
    fabricate_run(
        tmp_path / "runs" / "a", STAND, "soda_overlay", returns={"train": [900], "video_hard": [600]}
    )
    written = Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html")
    page = written.out.read_text()
    board = page[page.index('<section id="board"') : page.index('<section id="curves"')]
    assert board.count("<tr data-task") == len(written.to_json()["leaderboard"])
    row = next(
        row for row in board.split("<tr ") if "reported by MaDi&#39;s authors" in row and "SODA" in row
    )
    assert ">143<" in row and 'data-origin="published"' in row and "MaDi repository" in row
    mode_table = page[page.index('data-tab="video_hard"') : page.index('<section id="board"')]
    assert re.search(r"143 MaDi&#39;s authors", mode_table) and "736 SGQN&#39;s authors" in mode_table
    json.dumps(written.to_json())


def test_published_training_curves_belong_to_the_tasks_of_the_page(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "a", "cheetah_run", "sac")
    page = Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html").out.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    found = [(curve["label"], curve["by"], curve["y"][0]) for curve in data["references"]]
    assert found == [("DrQ-v2", "DrQ-v2's authors", 273), ("MR.Q", "MR.Q's authors", 254)]
