"""From made-up runs to the paper's tables: which runs count, what is refused, and what every form says."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from fabricated import fabricate_eval, fabricate_run

from softaug.errors import UserError
from softaug.methods import METHODS, Method
from softaug.results.model import departures
from softaug.results.paper import paper_result, paper_results
from softaug.results.reading import find_runs, read_run
from softaug.results.records import RunRecord
from softaug.results.reproduce import formats
from softaug.results.reproduce.collect import choose_media, describe_runs, make_cell, select
from softaug.results.reproduce.curves import make_curve
from softaug.results.reproduce.grids import ITEMS, LATER_ITEMS, FigureItem, SamplesItem, TableItem, make_items
from softaug.results.reproduce.latex import escape, latex
from softaug.results.reproduce.tables import TableResult, make_table
from softaug.results.reproduce.writing import write_curves

WALK = "walker_walk"
PROCEDURAL = "procedural media: not comparable with the paper"


def records(folder: Path) -> list[RunRecord]:
    return [read_run(path) for path in find_runs([folder])]


def one_table(name: str, tasks: list[str] | None = None) -> TableItem:
    (item,) = make_items(name, tasks)
    assert isinstance(item, TableItem)
    return item


@pytest.fixture
def appendix(tmp_path: Path) -> TableResult:
    """Two seeds of sac and soda_overlay on walker_walk, one of sac on walker_stand; nothing else."""
    levels = {(WALK, "sac", 0): 100, (WALK, "sac", 1): 300, (WALK, "soda_overlay", 0): 500}
    levels |= {(WALK, "soda_overlay", 1): 520, ("walker_stand", "sac", 0): 700}
    for (task, method, seed), level in levels.items():
        returns = {"color_easy": [level - 10, level + 10], "video_hard": [level / 2] * 2}
        fabricate_run(tmp_path / f"{task}-{method}-{seed}", task, method, seed, returns=returns)
    item = one_table("appendix")
    return make_table(item, select(records(tmp_path), item.grid), asked_seeds=5)


# The grids


def test_every_number_of_the_paper_has_its_cell() -> None:
    tables = [item for item in make_items("all") if isinstance(item, TableItem)]
    cells = [cell for table in tables for cell in table.cells]
    assert len(cells) == len(set(cells)) == 118
    assert set(cells) == set(paper_results())
    assert paper_result("video_easy", WALK, "rad") == (606, 63)
    assert paper_result("train", "robot_push", "soda_overlay") == (21.3, 5.0)
    assert paper_result("train", WALK, "sac") is None


def test_the_figures_compare_what_the_papers_do() -> None:
    figures = {item.name: item for item in make_items("all") if isinstance(item, FigureItem)}
    assert list(figures["curves-conv"].methods) == ["sac", "sac_dr", "sac_conv", "soda_conv"]
    assert list(figures["curves-overlay"].methods) == ["sac", "sac_dr", "sac_overlay", "soda_overlay"]
    assert list(figures["curves-conv"].modes) == ["train", "color_hard"]
    assert figures["ablation"].methods == {
        "sac_conv": "Augment RL", "soda_both_conv": "Augment both", "soda_conv": "Augment SODA",
    }  # fmt: skip
    assert figures["ablation"].tasks == (WALK, "walker_stand")
    assert list(figures["robot-curves"].modes) == ["train", "random_colors"]


def test_items_for_chosen_tasks() -> None:
    assert [item.name for item in make_items("all", ["walker_stand"])] == [
        name for name in ITEMS if "robot" not in name and name not in LATER_ITEMS
    ]
    assert [item.name for item in make_items("all", ["robot_push"])] == ["robot", "robot-curves", "samples"]
    with pytest.raises(UserError, match="robot_push"):
        make_items("robot", [WALK])
    with pytest.raises(UserError, match="curves-overlay"):
        make_items("table-1")
    assert isinstance(make_items("samples")[0], SamplesItem)


# Which runs count


def test_a_cell_is_the_mean_over_seeds_of_means_over_episodes(appendix: TableResult) -> None:
    cell = appendix.cells["color_easy", WALK, "sac"]
    assert cell is not None
    assert cell.scores == {0: 100, 1: 300} and cell.episodes == (2, 2)
    assert cell.mean == 200 and cell.std == 100  # of two seeds, ddof 0; not of four episodes
    alone = appendix.cells["color_easy", "walker_stand", "sac"]
    assert alone is not None and alone.mean == 700 and alone.std is None
    assert appendix.cells["color_easy", WALK, "curl"] is None


def test_presets_are_never_mixed(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", preset="small")
    fabricate_run(tmp_path / "b", preset="paper", seed=1)
    grid = [(WALK, "sac")]
    with pytest.raises(UserError, match="small and paper"):
        select(records(tmp_path), grid)
    assert [r.config.seed for r in select(records(tmp_path), grid, preset="paper").runs] == [1]
    with pytest.raises(UserError, match="unknown preset"):
        select(records(tmp_path), grid, preset="large")


def test_lengths_and_settings_are_never_mixed_within_a_task(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", seed=0)
    fabricate_run(tmp_path / "b", seed=1, decisions=4000)
    grid = [(WALK, "sac"), (WALK, "soda_overlay")]
    with pytest.raises(UserError, match=r"3,000 and 4,000 decisions.*--decisions"):
        select(records(tmp_path), grid)
    assert len(select(records(tmp_path), grid, decisions=4000).runs) == 1
    fabricate_run(tmp_path / "c" / "run", method="soda_overlay", batch_size=32)
    with pytest.raises(UserError, match="differ in batch_size"):
        select(records(tmp_path), grid, decisions=3000)
    # A method's own numbers are no difference, and neither is how often a run is evaluated.
    fabricate_run(tmp_path / "d" / "0", method="sac")
    fabricate_run(tmp_path / "d" / "1", method="soda_overlay", eval_every=500, threads=2, videos="folder")
    assert len(select(records(tmp_path / "d"), grid).runs) == 2


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a")
    fabricate_run(tmp_path / "b")
    with pytest.raises(UserError, match="both walker_walk, sac, seed 0"):
        select(records(tmp_path), [(WALK, "sac")])


def test_unfinished_runs_are_left_out_and_counted(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a")
    fabricate_run(tmp_path / "b", seed=1, finished=False)
    selection = select(records(tmp_path), [(WALK, "sac")])
    assert len(selection.runs) == 1 and selection.unfinished == 1
    assert "1 unfinished run left out" in describe_runs(selection)


def test_media_are_never_mixed_within_a_mode(tmp_path: Path) -> None:
    for seed in range(3):
        run = tmp_path / str(seed)
        fabricate_run(run, seed=seed, returns={"video_hard": [100]})
        if seed < 2:
            fabricate_eval(run, {"video_hard": [900, 900]}, media="official")
    runs = records(tmp_path)
    assert choose_media(runs, "video_hard") == ["procedural", "official"]
    item = one_table("appendix", [WALK])
    selection = select(runs, item.grid)
    usual = make_table(item, selection).cells["video_hard", WALK, "sac"]
    assert usual is not None and usual.scores == {0: 100, 1: 100, 2: 100} and usual.notes == (PROCEDURAL,)
    official = make_table(item, selection, media="official")
    cell = official.cells["video_hard", WALK, "sac"]
    assert cell is not None and cell.scores == {0: 900, 1: 900} and cell.notes == ()
    assert any("also there: procedural" in note for note in official.notes)


def test_a_number_says_when_some_seeds_are_not_behind_it(tmp_path: Path) -> None:
    for seed, media in enumerate(("official", "official", "procedural")):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"video_hard": [100]}, media=media)
    item = one_table("appendix", [WALK])
    table = make_table(item, select(records(tmp_path), item.grid))
    said = "video_hard: only 2 of 3 seeds in walker_walk sac; the others have no evaluation on official media"
    assert said in table.notes and said in formats.markdown(table)
    assert "color_easy: only 0 of 3 seeds in walker_walk sac; the others have no evaluation" in table.notes
    alike = make_table(item, select(records(tmp_path), item.grid, seeds=[0, 1]))
    assert not any("video_hard: only" in note for note in alike.notes)


def test_one_panel_shows_one_kind_of_media(tmp_path: Path) -> None:
    kinds = {("sac", 0): "official", ("sac", 1): "procedural", ("soda_conv", 0): "official"}
    kinds |= {("soda_conv", 1): "official", ("sac_dr", 0): "procedural"}
    for (method, seed), media in kinds.items():
        fabricate_run(tmp_path / f"{method}{seed}", method=method, seed=seed, media=media)
    (item,) = make_items("curves-conv", [WALK])
    assert isinstance(item, FigureItem)
    selection = select(records(tmp_path), item.grid)

    def shown(media: str | None) -> tuple[dict[str, tuple[str | None, int]], tuple[str, ...]]:
        made = write_curves(item, selection, tmp_path / "out", media=media)
        points = [point for point in made.content["points"] if point["mode"] == "color_hard"]
        return {point["method"]: (point["media"], point["seeds"]) for point in points}, made.notes

    usual, notes = shown(None)
    assert usual == {"sac": ("official", 1), "soda_conv": ("official", 2)}
    missing = "the others have no evaluation during training on official media"
    assert f"color_hard: only 1 of 2 seeds in walker_walk sac; {missing}" in notes
    assert f"color_hard: only 0 of 1 seed in walker_walk sac_dr; {missing}" in notes
    assert shown("procedural")[0] == {"sac": ("procedural", 1), "sac_dr": ("procedural", 1)}


def test_folders_and_overlay_images_are_never_mixed(tmp_path: Path) -> None:
    for seed in range(2):
        fabricate_run(tmp_path / "test" / str(seed), seed=seed, returns={"video_hard": [100]})
        fabricate_eval(tmp_path / "test" / str(seed), {"video_hard": [9, 9]}, media="folder", videos=3 + seed)
    selection = select(records(tmp_path / "test"), [(WALK, "sac")])
    with pytest.raises(
        UserError, match=r"folder 3 videos in sac seed 0, folder 4 videos in sac seed 1.*--media"
    ):
        make_cell(selection, "video_hard", WALK, "sac", media="folder")
    cell = make_cell(selection, "video_hard", WALK, "sac", media="procedural")
    assert cell is not None and set(cell.scores) == {0, 1}
    # Methods that are compared, too.
    for seed, (method, media) in enumerate((("sac_overlay", "official"), ("soda_overlay", "procedural"))):
        fabricate_run(tmp_path / "train" / method, method=method, seed=seed, media=media)
    fabricate_run(tmp_path / "train" / "sac", media="procedural")  # uses none
    grid = [(WALK, "sac"), (WALK, "sac_overlay"), (WALK, "soda_overlay")]
    with pytest.raises(
        UserError, match=r"official in sac_overlay seed 0, procedural in soda_overlay.*--runs"
    ):
        select(records(tmp_path / "train"), grid)
    assert len(select(records(tmp_path / "train"), grid[:2]).runs) == 2


def test_pad_is_reported_with_adaptation(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", method="pad", returns={"color_easy": [1]}, adapted={"color_easy": [2]})
    cell = make_cell(select(records(tmp_path), [(WALK, "pad")]), "color_easy", WALK, "pad")
    assert cell is not None and cell.mean == 2


def test_training_on_procedural_overlays_is_said_too(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", method="soda_overlay", returns={"train": [1]}, media="procedural")
    cell = make_cell(select(records(tmp_path), [(WALK, "soda_overlay")]), "train", WALK, "soda_overlay")
    assert cell is not None and cell.media is None and cell.notes == (PROCEDURAL,)


def test_settings_that_depart_from_the_preset_are_said(tmp_path: Path) -> None:
    config = fabricate_run(tmp_path / "a", n_step=7)
    assert list(departures(config)) == ["n_step"]
    said = describe_runs(select(records(tmp_path), [(WALK, "sac")]))
    assert any("n_step 7 (preset: 3)" in sentence for sentence in said)


# Statistics and forms


def test_aggregates_use_seeds_and_only_the_tasks_every_method_has(appendix: TableResult) -> None:
    (sac,) = [a for a in appendix.aggregates if (a.mode, a.method) == ("color_easy", "sac")]
    assert sac.tasks == (WALK,) and sac.seeds == (2,)  # walker_stand has no soda_overlay
    assert sac.iqm.value == pytest.approx(0.2)
    assert sac.iqm.low == pytest.approx(0.1) and sac.iqm.high == pytest.approx(0.3)
    assert sac.improvement is not None and sac.improvement.value == 1.0
    (soda,) = [a for a in appendix.aggregates if (a.mode, a.method) == ("color_easy", "soda_overlay")]
    assert soda.improvement is None and soda.optimality_gap.value == pytest.approx(0.49)


def test_csv_has_every_cell_with_its_origin(appendix: TableResult) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.cells_csv(appendix))))
    assert len(rows) == 40
    by_key = {(row["mode"], row["task"], row["method"]): row for row in rows}
    sac = by_key["color_easy", WALK, "sac"]
    assert (sac["mean"], sac["std"], sac["seeds"]) == ("200.0", "100.0", "2")
    assert (sac["decisions"], sac["frames"], sac["preset"]) == ("3000", "12000", "small")
    assert (sac["media"], sac["note"]) == ("procedural", PROCEDURAL)
    assert (sac["paper_mean"], sac["paper_std"]) == ("636.0", "33.0")
    empty = by_key["video_hard", "finger_spin", "pad"]
    assert (empty["mean"], empty["seeds"], empty["paper_mean"]) == ("", "0", "56.0")


def test_markdown_says_everything(appendix: TableResult) -> None:
    text = formats.markdown(appendix)
    rows = [
        [part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    ]
    assert rows[0] == ["", "CURL", "RAD", "PAD", "SODA (overlay)"]
    assert rows[2] == [WALK, "–", "200 ± 100", "–", "**510 ± 10**"]
    assert rows[3] == ["*paper*", "*645 ± 55*", "*636 ± 33*", "*687 ± 119*", "*811 ± 41*"]
    assert rows[4][:3] == ["walker_stand", "–", "700"]  # one seed: no deviation; alone: not bold
    for said in ("1–2 seeds of 5 asked for (1 in walker_stand)", "3,000 decisions of training = 12,000 frames",
                 "preset small", PROCEDURAL, "ddof 0", "2 episodes", "34 of 40 numbers are missing"):  # fmt: skip
        assert said in text, said


def test_latex_is_whole(appendix: TableResult) -> None:
    text = latex(appendix)
    assert text.count("{") == text.count("}") and text.count(r"\begin") == text.count(r"\end")
    assert r"$\mathbf{510}$" in text and r"\toprule" in text and "(645$\\pm$55)" in text
    for tabular in re.findall(r"\\begin\{tabular\}\{(.*?)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns = len(tabular[0])
        for line in tabular[1].splitlines():
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert line.count("&") - line.count(r"\&") == columns - 1, line
    assert not re.search(r"(?<!\\)_", re.sub(r"\\label\{.*?\}", "", text))
    assert escape("50 % of a_b & ±") == r"50 \% of a\_b \& $\pm$"


def test_ties_are_all_bold_and_zero_has_no_sign(tmp_path: Path) -> None:
    for method in ("sac", "curl"):
        fabricate_run(tmp_path / method, method=method, returns={"color_easy": [-0.1]})
    item = one_table("appendix", [WALK])
    table = make_table(item, select(records(tmp_path), item.grid))
    assert table.best(item.panels[0], item.panels[0].rows[0], "color_easy") == {"sac", "curl"}
    assert formats.cell_text(table.cells["color_easy", WALK, "sac"], 0) == "0"


def test_json_holds_the_scores(appendix: TableResult) -> None:
    values = json.loads(json.dumps(formats.as_json(appendix)))
    assert len(values["cells"]) == 40 and len(values["aggregates"]) == 4
    (cell,) = [
        c for c in values["cells"] if (c["mode"], c["task"], c["method"]) == ("color_easy", WALK, "sac")
    ]
    assert cell["scores"] == [100, 300] and cell["paper"] == {"mean": 636, "std": 33}


def test_the_robots_table(tmp_path: Path) -> None:
    item = one_table("robot")
    assert item.scale == 50 and item.overrides["eval_modes"] == ("train", "random_colors", "video_background")
    table = make_table(item, select([], item.grid))
    rows = formats.markdown(table)
    assert "never released: not comparable with the paper" in rows
    assert "21.3 ± 5.0" in rows and "no finished run yet" in rows and "-4.5 ± 1.1" in rows


# Later work: numbers of others, each with who reports it


def test_later_methods_stand_next_to_what_each_author_reports(tmp_path: Path) -> None:
    for seed in (0, 1):
        fabricate_run(
            tmp_path / str(seed), WALK, "soda_overlay", seed, returns={"video_hard": [400 + 2 * seed]}
        )
    item = one_table("later-methods", [WALK])
    table = make_table(item, select(records(tmp_path), item.grid))
    rows = [line.split("|")[1:-1] for line in formats.markdown(table).splitlines() if line.startswith("|")]
    rows = [[part.strip().strip("*") for part in row] for row in rows]
    column = rows[0].index("SODA (overlay)")
    shown = {row[0]: row[column] for row in rows if row[0]}
    assert shown[WALK] == "401 ± 1"
    assert shown["as reported by the SODA paper"] == "381 ± 72"
    assert shown["as reported by MaDi's authors"] == "214"
    assert rows[0].count("SVEA (view not stated)") == 1  # none of our rows
    assert ("video_hard", WALK, "svea") in table.cells and (WALK, "svea") not in item.grid
    assert not any("svea_conv" in note for note in table.notes)
    sources = [note for note in table.notes if note.startswith("as reported by")]
    assert any("SGQN repository's results table" in note for note in sources)
    published = list(csv.DictReader(io.StringIO(formats.published_csv(table))))
    assert {row["reported_by"] for row in published if row["method"] == "sgqn"} == {
        "SGQN's authors", "MaDi's authors",
    }  # fmt: skip
    assert all(row["source"] for row in published)
    text = latex(table)
    assert "as reported by MaDi's authors" in text and "(858$\\pm$37)" in text


def test_a_method_without_a_row_is_only_reported_and_one_with_a_row_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("sgqn", "soda_sada"):
        monkeypatch.delitem(METHODS, name, raising=False)
    item = one_table("later-methods", [WALK])
    assert "sgqn" in {method for _, _, method in item.cells}
    assert "sgqn" not in {method for _, method in item.grid}
    assert "soda_sada" not in {method for _, _, method in item.cells}  # nobody has numbers
    monkeypatch.setitem(METHODS, "soda_sada", Method("soda_sada", "SODA (SADA)", weak="shift"))
    item = one_table("later-methods", [WALK])
    assert (WALK, "soda_sada") in item.grid and item.label("soda_sada") == "SODA (SADA)"


def test_gb2_has_its_twelve_modes_and_says_when_settings_are_others(tmp_path: Path) -> None:
    item = one_table("gb2")
    assert len(item.panels) == 12 and item.panels[0].rows[-1].task == "cheetah_run"
    fabricate_run(tmp_path / "a", WALK, "sac", returns={"rotate_hard": [100], "screen_video_hard": [50]})
    item = one_table("gb2", [WALK])
    table = make_table(item, select(records(tmp_path), item.grid))
    by_key = {(cell["mode"], cell["method"]): cell for cell in formats.as_json(table)["cells"]}
    assert by_key["rotate_hard", "sac"]["mean"] == 100 and not by_key["rotate_hard", "sac"]["published"]
    # GB2's video_hard is a screen; neither its number nor DMControl-GB's may come under the other's name.
    assert [n["mean"] for n in by_key["screen_video_hard", "sada"]["published"]] == [270]
    assert {n["reported_by"] for n in by_key["color_hard", "sada"]["published"]} == {"SADA's authors"}
    assert by_key["color_hard", "svea_overlay"]["published"] == []  # SVEA's is of DMControl-GB's settings
    (said,) = [note for note in table.notes if note.startswith("ours are not comparable")]
    assert "50 px instead of 84, action repeat 4 instead of 2, 12,000 instead of 1,000,000 frames" in said


def test_distracting_modes_on_the_originals_tasks() -> None:
    item = one_table("distracting")
    assert {mode for mode, _, _ in item.cells} == {f"distracting_{s}" for s in ("easy", "medium", "hard")}
    assert "reacher_easy" in {task for task, _ in item.grid} and not item.shows_published


# Curves


def test_a_curve_is_the_mean_over_seeds_at_the_points_all_have(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "0", seed=0, returns={"color_hard": [100, 300]}, evaluations=3)
    fabricate_run(tmp_path / "1", seed=1, returns={"color_hard": [400]}, evaluations=6)
    curve = make_curve(records(tmp_path), "color_hard")
    assert curve is not None
    assert curve.decisions == (1000, 2000, 3000) and curve.frames == (4000, 8000, 12000)
    steps = np.sqrt([1 / 3, 2 / 3, 1])
    assert curve.mean == pytest.approx(300 * steps) and curve.std == pytest.approx(100 * steps)
    assert (curve.source, curve.media, curve.seeds) == ("evaluations", "procedural", (0, 1))
    assert make_curve(records(tmp_path), "video_easy") is None


def test_training_episodes_stand_in_where_there_was_no_periodic_evaluation(tmp_path: Path) -> None:
    for seed in (0, 1):
        fabricate_run(tmp_path / str(seed), seed=seed, level=800, evaluations=1)
    runs = records(tmp_path)
    curve = make_curve(runs, "train")
    assert curve is not None and curve.source == "training episodes"
    assert curve.mean[-1] == pytest.approx(800.5)  # 800 and 801 at the end
    test = make_curve(runs, "color_hard")
    assert test is not None and test.decisions == (3000,)
