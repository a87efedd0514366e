"""The report: what may be averaged, what is left out and said to be, and a page that no string can break."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from fabricated import fabricate_eval, fabricate_run
from PIL import Image

from softaug.cli import main
from softaug.commands import report as command
from softaug.config import Config, make_config
from softaug.errors import UserError
from softaug.results.groups import EPISODES, Group, make_groups
from softaug.results.reading import find_runs, read_run
from softaug.results.records import RunRecord
from softaug.results.report import Reporter
from softaug.results.report.media import choose_videos
from softaug.results.report.page import environment
from softaug.results.report.payload import make_payload, make_profile, points_of_a_curve
from softaug.results.report.samples import Samples
from softaug.results.report.sections import comparability
from softaug.results.report.tables import breakable

HOSTILE = "<img src=x onerror=pwned()></script><script>pwned()</script>{{script}}\"'&"


def groups_in(folder: Path, points: int = 100) -> tuple[list[Group], list[str]]:
    return make_groups([read_run(path) for path in find_runs([folder])], points)


def evaluate_on_official_media(run: Path) -> None:
    """As if the evaluations during training had been on these."""
    file = run / "metrics.jsonl"
    file.write_text(file.read_text().replace('"procedural"', '"official"'))


def page_of(folder: Path, out: Path) -> str:
    Reporter([folder], samples=False).write(out)
    return out.read_text()


# ---- what may be averaged ------------------------------------------------------------------------------------------


def test_seeds_are_the_replicates(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", seed=0, returns={"train": [100, 200, 300], "color_hard": [50]})
    fabricate_run(tmp_path / "b", seed=1, returns={"train": [400], "color_hard": [100, 200]})
    [group], left_out = groups_in(tmp_path)
    cell = group.cell("train")
    assert cell is not None and cell.scores == {0: 200, 1: 400}
    assert cell.mean == 300  # not 250, the mean of all episodes
    assert cell.episodes == (3, 1)
    assert not left_out


@pytest.mark.parametrize(
    "other", [{"preset": "paper"}, {"decisions": 4000}, {"media": "folder"}, {"batch_size": 32}]
)
def test_other_settings_and_training_media_are_never_mixed(tmp_path: Path, other: dict) -> None:
    fabricate_run(tmp_path / "a", seed=0, method="soda")
    fabricate_run(tmp_path / "b", seed=1, method="soda", **other)
    groups, _ = groups_in(tmp_path)
    assert [len(group.records) for group in groups] == [1, 1]
    assert groups[0].variant != groups[1].variant and all(group.variant for group in groups)


def test_what_cannot_change_training_makes_no_other_group(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", seed=0, workers=1, eval_episodes=5, threads=1)
    fabricate_run(tmp_path / "b", seed=1, workers=2, eval_episodes=10, threads=2)
    [group], _ = groups_in(tmp_path)
    assert len(group.records) == 2 and group.variant == ""


def test_the_same_settings_and_seed_count_once_and_the_page_says_so(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "half", seed=3, finished=False)
    fabricate_run(tmp_path / "whole", seed=3)
    [group], left_out = groups_in(tmp_path)
    assert [record.path.name for record in group.records] == ["whole"]
    assert len(left_out) == 1 and "half" in left_out[0]
    assert "same settings and seed" in page_of(tmp_path, tmp_path / "report.html")


def test_test_media_stand_in_cells_of_their_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"train": [500], "video_easy": [300] * 4})
        fabricate_eval(tmp_path / str(seed), {"video_easy": [100.0 + seed] * 2})
    [group], _ = groups_in(tmp_path)
    found = {cell.media: cell.scores for cell in group.cells["video_easy"]}
    assert found == {"official": {0: 100, 1: 101}, "procedural": {0: 300, 1: 300}}
    assert group.cells["video_easy"][0].media == "official"  # nearest to the paper's, seeds being equal


def test_finished_seeds_are_not_mixed_with_running_ones(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", seed=0, returns={"train": [900]})
    fabricate_run(tmp_path / "b", seed=1, returns={"train": [900]}, finished=False)
    [group], _ = groups_in(tmp_path)
    cell = group.cell("train")
    assert cell is not None and cell.final and set(cell.scores) == {0}
    assert group.unfinished == 1


def test_running_seeds_are_compared_where_they_have_all_been(tmp_path: Path) -> None:
    """Seed 0 was evaluated at 1000 and 2000, seed 1 at 1000 only."""
    for seed, done in ((0, 3000), (1, 2000)):
        path = tmp_path / str(seed)
        fabricate_run(
            path, seed=seed, returns={"train": [300]}, finished=False, decisions=done * 2, evaluations=6
        )
        values = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**values, "decisions": 6000}))
    [group], _ = groups_in(tmp_path)
    common = {e.decisions for e in group.records[0].evals} & {e.decisions for e in group.records[1].evals}
    cell = group.cell("train")
    assert cell is not None and not cell.final
    assert cell.decisions == max(common) and set(cell.scores) == {0, 1}
    assert "so far, at" in page_of(tmp_path, tmp_path / "report.html")


def test_pad_is_shown_adapting_and_not(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", method="pad", returns={"train": [500]}, adapted={"train": [600]})
    groups, _ = groups_in(tmp_path)
    assert [(g.adapted, g.cell("train").mean) for g in groups] == [(True, 600), (False, 500)]  # type: ignore[union-attr]
    assert groups[0].title != groups[1].title


def test_gap_is_taken_seed_by_seed(tmp_path: Path) -> None:
    for seed, (clean, test) in enumerate([(800, 600), (400, 400)]):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"train": [clean], "color_hard": [test]})
    [group], _ = groups_in(tmp_path)
    assert group.gaps("color_hard") == {0: 200, 1: 0}
    assert group.kept("color_hard") == {0: 0.75, 1: 1.0}
    assert group.gaps("video_hard") == {}


def test_no_share_of_a_return_that_is_not_positive(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", returns={"train": [-2.0], "color_hard": [-5.0]})
    [group], _ = groups_in(tmp_path)
    assert group.gaps("color_hard") == {0: 3.0} and group.kept("color_hard") == {}


# ---- curves, profiles, bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [3, 7, 1000])
def test_episode_curve_is_the_mean_of_each_bin(tmp_path: Path, points: int) -> None:
    fabricate_run(tmp_path / "a", decisions=5000)
    [group], _ = groups_in(tmp_path, points)
    curve, episodes = group.curves[EPISODES], group.records[0].curve
    assert len(curve.decisions) <= points
    assert curve.decisions[-1] == episodes[-1].decisions
    start = 0
    for end, value in zip(curve.decisions, curve.values[0], strict=True):
        inside = [e.total for e in episodes if start < e.decisions <= end]
        assert value == pytest.approx(np.mean(inside))
        start = end


def test_eval_curve_keeps_its_last_point(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", decisions=10_000, evaluations=40, returns={"train": [640.0]})
    [group], _ = groups_in(tmp_path, points=9)
    curve = group.curves["train"]
    assert len(curve.decisions) <= 9 and curve.decisions[-1] == 10_000
    assert curve.values[0][-1] == pytest.approx(640)


def test_eval_curve_is_of_one_kind_of_media(tmp_path: Path) -> None:
    for seed in range(3):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"video_easy": [100.0 * seed]})
    evaluate_on_official_media(tmp_path / "0")
    [group], _ = groups_in(tmp_path)
    curve = group.curves["video_easy"]
    assert (curve.media, set(curve.values), curve.left_out) == ("procedural", {1, 2}, 1)
    drawn = make_payload([group], ["video_easy"], [])["groups"][0]["curves"]["video_easy"]
    assert drawn["mean"][-1] == 150 and (drawn["media"], drawn["leftOut"]) == ("procedural", 1)


def test_eval_curve_is_of_the_media_nearest_to_the_papers(tmp_path: Path) -> None:
    for seed in range(2):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"video_easy": [100.0]})
    evaluate_on_official_media(tmp_path / "1")
    [group], _ = groups_in(tmp_path)
    assert group.curves["video_easy"].media == "official" and set(group.curves["video_easy"].values) == {1}


def test_band_and_counts_follow_the_seeds_that_are_there(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", seed=0, level=600)
    fabricate_run(tmp_path / "b", seed=1, level=600, finished=False)
    groups, _ = groups_in(tmp_path)
    curve = make_payload(groups, ["train"], [])["groups"][0]["curves"][EPISODES]
    assert curve["n"][0] == 2 and curve["n"][-1] == 1
    assert curve["std"][0] == pytest.approx(0.5) and curve["std"][-1] is None


def test_profile_takes_tasks_that_every_method_has(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", "walker_walk", "sac", returns={"train": [250.0]})
    fabricate_run(tmp_path / "b", "walker_walk", "soda", returns={"train": [750.0]})
    fabricate_run(tmp_path / "c", "finger_spin", "soda", returns={"train": [100.0]})
    groups, _ = groups_in(tmp_path)
    [block] = make_profile(groups, "train")
    assert block["tasks"] == ["walker_walk"] and block["left_out"] == ["finger_spin"]
    above = {line["method"]: line["y"] for line in block["lines"]}
    assert above["sac"][20] == 1 and above["sac"][30] == 0  # thresholds 0.20 and 0.30
    assert above["soda_overlay"][70] == 1 and above["soda_overlay"][80] == 0


def test_profile_never_mixes_presets_or_media(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", preset="small", returns={"video_easy": [250.0]})
    fabricate_run(tmp_path / "b", preset="paper", returns={"video_easy": [250.0]})
    fabricate_run(
        tmp_path / "c", "finger_spin", preset="paper", returns={"video_easy": [1.0]}, media="official"
    )
    groups, _ = groups_in(tmp_path)
    blocks = {(b["preset"], b["media"]): b["tasks"] for b in make_profile(groups, "video_easy")}
    assert blocks == {
        ("small", "procedural"): ["walker_walk"],
        ("paper", "procedural"): ["walker_walk"],
        ("paper", "official"): ["finger_spin"],
    }


def test_profile_never_mixes_lengths_of_training(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", "walker_walk", "sac", decisions=3000, returns={"train": [250.0]})
    fabricate_run(tmp_path / "b", "walker_walk", "soda", decisions=4000, returns={"train": [750.0]})
    blocks = make_profile(groups_in(tmp_path)[0], "train")
    found = {block["decisions"]: [line["method"] for line in block["lines"]] for block in blocks}
    assert found == {3000: ["sac"], 4000: ["soda_overlay"]}


def test_groups_of_a_task_and_method_have_names_of_their_own(tmp_path: Path) -> None:
    """Three settings differ, and the first two are the same in two of the runs."""
    for number, (batch_size, n_step, discount) in enumerate([(32, 1, 0.9), (32, 1, 0.95), (64, 3, 0.95)]):
        settings = {"batch_size": batch_size, "n_step": n_step, "discount": discount}
        fabricate_run(tmp_path / str(number), seed=number, returns={"train": [100.0 * number]}, **settings)
    fabricate_run(tmp_path / "paper", preset="paper", returns={"train": [1.0]})
    groups, _ = groups_in(tmp_path)
    assert len({group.label for group in groups}) == 4
    lines = [len(block["lines"]) for block in make_profile(groups, "train")]
    assert sorted(lines) == [1, 3]  # none overwrites another


def test_hundreds_of_runs_have_bounded_curves() -> None:
    assert points_of_a_curve(1) == 200
    assert all(points_of_a_curve(runs) * runs * 6 <= 100_000 for runs in (100, 300, 600))
    assert points_of_a_curve(100_000) >= 20


def test_videos_are_bounded_and_every_group_comes_first(tmp_path: Path) -> None:
    for method in ("sac", "soda"):
        for seed in range(3):
            path = tmp_path / f"{method}{seed}"
            fabricate_run(path, method=method, seed=seed)
            folder = path / "videos" / "000003000"
            folder.mkdir(parents=True)
            (folder / "train.mp4").write_bytes(b"x" * 100)
            (folder / ".writing-1-train.mp4").write_bytes(b"half")
    groups, _ = groups_in(tmp_path)
    chosen, left_out = choose_videos(groups, limit=350)
    assert [v.record.path.name for v in chosen] == ["sac0", "soda0", "sac1"]
    assert [record.path.name for record in left_out] == ["soda1", "sac2", "soda2"]
    assert all(set(v.by_mode) == {"train"} for v in chosen)
    assert base64.b64decode(chosen[0].by_mode["train"]) == b"x" * 100


def test_the_page_says_which_videos_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fabricate_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "videos" / "000003000").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "videos" / "000003000" / "train.mp4").write_bytes(b"x" * 17_000_000)
    text = page_of(tmp_path / "runs", tmp_path / "report.html")
    assert "at most 16 MB of videos" in text and len(text) < 1_000_000


# ---- the page ------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Collects elements and checks that every one is closed where it should be."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_every_string_is_escaped(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "<b onclick=pwned()>"
    fabricate_run(run, task=HOSTILE)
    facts = json.loads((run / "run.json").read_text())
    facts |= {"device": HOSTILE, "versions": {HOSTILE: HOSTILE}, "media": {HOSTILE: {"kind": HOSTILE}}}
    (run / "run.json").write_text(json.dumps(facts))
    modes = {HOSTILE: {"cosine_features": {"mean": 0.5}}}
    (run / "diagnosis.json").write_text(json.dumps({"modes": modes, "notes": [HOSTILE]}))
    elements = Elements(page_of(tmp_path / "runs", tmp_path / "report.html"))
    assert len(elements.of("script")) == 2 and not elements.of("img") and not elements.of("b")
    assert not any(key.startswith("on") for _, attributes in elements.found for key in attributes)


def test_json_in_the_page_cannot_end_its_script() -> None:
    value = {"a": HOSTILE, "b": "<!-- <script>", "c": "\u2028"}
    body = environment().from_string("{{ value|tojson }}").render(value=value)
    assert not set("<>&") & set(body)
    assert json.loads(body) == value


def test_names_break_after_underscores_and_slashes_and_are_escaped() -> None:
    assert breakable("a_<b>/c") == "a_<wbr>&lt;b&gt;/<wbr>c"


def test_policy_allows_this_script_and_style_and_nothing_else(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "a")
    text = page_of(tmp_path / "runs", tmp_path / "report.html")
    meta = Elements(text).of("meta")
    policy = next(m["content"] for m in meta if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy


def test_page_is_whole_labelled_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    for seed, method in enumerate(["sac", "soda", "pad"]):
        fabricate_run(tmp_path / "runs" / method, method=method, seed=seed, adapted={"train": [5.0]})
    elements = Elements(page_of(tmp_path / "runs", tmp_path / "report.html"))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag in ("a", "img", "script", "link", "video"):
        for attributes in elements.of(tag):
            target = attributes.get("href") or attributes.get("src") or "#"
            assert target.startswith(("#", "data:"))
    anchors = [a["href"] for a in elements.of("a")]
    assert all(anchor is not None and anchor[1:] in ids for anchor in anchors) and len(anchors) > 5
    assert all(attributes.get("scope") for attributes in elements.of("th"))


def test_says_what_keeps_numbers_from_the_papers(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "small" / "a", preset="small")
    sentence = comparability(Reporter([tmp_path / "small"], samples=False).collect())
    assert "preset small" in sentence and "procedural media" in sentence and "1 seed instead of 5" in sentence
    for seed in range(5):
        settings = {"preset": "paper", "media": "official", "decisions": 500_000, "seed": seed}
        fabricate_run(tmp_path / "paper" / str(seed), **settings)
    assert comparability(Reporter([tmp_path / "paper"], samples=False).collect()) == ""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"decisions": 40_000}, "40,000 instead of 500,000 decisions"),
        ({"batch_size": 32}, "other settings than the paper’s (batch_size)"),
        ({"method": "soda", "media": "procedural"}, "procedural overlay images in training"),
        ({"task": "robot_push"}, "robot_push is a reconstruction"),
        ({"task": "robot_push_3d"}, "robot_push_3d is a reconstruction"),
    ],
)
def test_says_what_keeps_runs_of_preset_paper_from_the_papers(
    tmp_path: Path, settings: dict, reason: str
) -> None:
    """All else as in the paper: the one reason is the only one."""
    usual = {"preset": "paper", "media": "official", "decisions": 500_000}
    for seed in range(5):
        fabricate_run(tmp_path / str(seed), seed=seed, returns={"train": [9.0]}, **{**usual, **settings})
    sentence = comparability(Reporter([tmp_path], samples=False).collect())
    assert sentence == f"Not directly comparable with the paper: {reason}."


def test_a_number_of_fewer_seeds_says_so(tmp_path: Path) -> None:
    for seed in range(3):
        returns = {"train": [9.0], **({"color_hard": [5.0]} if seed else {})}
        fabricate_run(tmp_path / str(seed), seed=seed, returns=returns)
    fabricate_eval(tmp_path / "1", {"color_hard": [4.0]})
    sections = environment().get_template("sections.html").module
    text = str(sections.results_table(groups_in(tmp_path)[0], ["train", "color_hard"]))
    assert text.count("2 of 3 seeds") == 1 and text.count("1 of 3 seeds") == 1
    assert text.index("9.0") < text.index("2 of 3 seeds") < text.index("official media (1 of 3 seeds)")


def test_papers_number_stands_beside_ours(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "a", "walker_stand", "soda", returns={"video_easy": [900.0]})
    text = page_of(tmp_path / "runs", tmp_path / "report.html")
    assert "paper 955 ± 13" in text and "−55.0" in text


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "good")
    fabricate_run(tmp_path / "runs" / "bad", seed=1)
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    content = Reporter([tmp_path / "runs"], samples=False).collect()
    assert [record.path.name for record in content.records] == ["good"]
    assert any("bad" in problem and "damaged" in problem for problem in content.problems)
    (tmp_path / "runs" / "good" / "run.json").write_text("{")
    with pytest.raises(UserError, match="no run can be read"):
        Reporter([tmp_path / "runs"], samples=False).collect()


def test_diagnosis_is_shown_with_its_picture(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    fabricate_run(run)
    measured = {"mean": 0.912, "std": 0.03, "relative": 0.25}
    values = {
        "modes": {"video_hard": {"cosine_features": measured, "recognised": 0.5}},
        "baseline": {"cosine_features": {"mean": 0.4, "std": 0.1}},
        "notes": ["a note"],
    }
    (run / "diagnosis.json").write_text(json.dumps(values))
    Image.new("RGB", (8, 8), "red").save(run / "diagnosis.png")
    text = page_of(tmp_path / "runs", tmp_path / "report.html")
    assert all(part in text for part in ("0.912", "0.25 of a state", "0.400", "50 %", "a note"))
    assert len(Elements(text).of("img")) == 1


def test_a_diagnosis_of_no_sense_does_not_break_the_page(tmp_path: Path) -> None:
    for name, text in (("a", "[1]"), ("b", "{"), ("c", '{"modes": 3, "baseline": [], "notes": null}')):
        fabricate_run(tmp_path / "runs" / name, seed=ord(name))
        (tmp_path / "runs" / name / "diagnosis.json").write_text(text)
    content = Reporter([tmp_path / "runs"], samples=False).collect()
    assert [d.record.path.name for d in content.diagnoses] == ["c"]
    assert sum("diagnosis.json" in problem for problem in content.problems) == 2
    assert "diagnosis.json" in page_of(tmp_path / "runs", tmp_path / "report.html")


def test_a_damaged_diagnosis_picture_is_named_and_the_rest_shown(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    fabricate_run(run)
    (run / "diagnosis.json").write_text(
        json.dumps({"modes": {"video_hard": {"cosine_features": {"mean": 0.912}}}})
    )
    for damaged in (b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40):
        (run / "diagnosis.png").write_bytes(damaged)
        content = Reporter([tmp_path / "runs"], samples=False).collect()
        assert any("diagnosis.png cannot be read" in problem for problem in content.problems)
        assert content.diagnoses[0].image is None
    assert "0.912" in page_of(tmp_path / "runs", tmp_path / "report.html")


def test_a_running_run_is_diagnosed_once_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metrics are always ahead of its newest weights, which alone can be diagnosed."""
    run = tmp_path / "runs" / "a"
    fabricate_run(run, finished=False)
    assert read_run(run).decisions == 1500
    measured: list[int] = []

    def measure(record: RunRecord, problems: list[str]) -> dict:
        measured.append(max(int(path.name) for path in (run / "checkpoints").iterdir()))
        values = {"checkpoint": {"decisions": measured[-1]}, "modes": {}}
        (run / "diagnosis.json").write_text(json.dumps(values))
        return values

    monkeypatch.setattr("softaug.results.report._measure", measure)
    reporter = Reporter([tmp_path / "runs"], samples=False, diagnose=True)
    for newest in (500, 1000):
        (run / "checkpoints" / f"{newest:09d}").mkdir(parents=True)
        for _ in range(3):
            reporter.write(tmp_path / "report.html")
    assert measured == [500, 1000]
    assert (
        "was measured after 1,000 decisions; the run has 1,500 now" in (tmp_path / "report.html").read_text()
    )


@pytest.mark.parametrize("file", ["metrics.jsonl", "final_eval.json"])
def test_a_run_with_a_return_that_is_no_number_is_named_and_skipped(tmp_path: Path, file: str) -> None:
    fabricate_run(tmp_path / "runs" / "good")
    fabricate_run(tmp_path / "runs" / "bad", seed=1, returns={"train": [321.0]})
    path = tmp_path / "runs" / "bad" / file
    path.write_text(path.read_text().replace("321.0", "NaN"))
    content = Reporter([tmp_path / "runs"], samples=False).collect()
    assert [record.path.name for record in content.records] == ["good"]
    assert any(f"bad/{file} is damaged (nan" in problem for problem in content.problems)


# ---- sample observations -------------------------------------------------------------------------------------------


def test_what_cannot_be_rendered_is_said(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", task="no_such_task")
    [sample], left_out = Samples().of(groups_in(tmp_path)[0])
    assert not sample.images and "could not be rendered here" in sample.problem and not left_out
    Reporter([tmp_path / "a"]).write(tmp_path / "report.html")
    assert "could not be rendered here" in (tmp_path / "report.html").read_text()


def test_samples_show_each_mode_and_view_once(tmp_path: Path) -> None:
    settings = {"image_size": 24, "crop_size": 20, "eval_modes": ("train", "video_easy")}
    for method in ("sac", "soda", "soda_conv", "sac_overlay"):
        fabricate_run(tmp_path / method, "cartpole_swingup", method, filters=(4,), strides=(2,), **settings)
    groups = groups_in(tmp_path)[0]
    samples = Samples()
    [sample], _ = samples.of(groups)
    assert [shown.name for shown in sample.images] == ["train", "video_easy"] and not sample.problem
    clean, video = (shown.image for shown in sample.images)
    assert clean.shape == video.shape == (24, 24, 3) and (clean != video).any()
    names = [view.name for view in sample.views]
    assert sorted(names) == ["crop + random conv", "crop + random overlay", "random crop to 20"]
    assert all(image.shape == (20, 20, 3) for view in sample.views for image in view.images)
    assert samples.of(groups)[0][0] is sample  # not rendered twice


def test_views_are_made_only_for_runs_that_render_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller preset comes first: a crop of 84 out of its 56 pixels is impossible."""
    fabricate_run(tmp_path / "a", method="sac", preset="small")
    fabricate_run(tmp_path / "b", method="soda", preset="paper")

    def observation(config: Config, mode: str) -> tuple[np.ndarray, dict]:
        return np.zeros((3 * config.frame_stack, config.image_size, config.image_size), np.uint8), {}

    monkeypatch.setattr("softaug.results.report.samples._observation", observation)
    [sample], _ = Samples().of(groups_in(tmp_path)[0])
    assert [view.name for view in sample.views] == ["random crop to 50"]
    assert "not shown" in sample.problem and "preset paper, 100 × 100" in sample.problem


def test_many_tasks_are_named_not_rendered(tmp_path: Path) -> None:
    for number in range(8):
        fabricate_run(tmp_path / str(number), task=f"no_task_{number}")
    samples, left_out = Samples().of(groups_in(tmp_path)[0])
    assert len(samples) == 6 and left_out == ["no_task_6", "no_task_7"]


# ---- the command ---------------------------------------------------------------------------------------------------


def test_command_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_run(tmp_path / "runs" / "a")
    out = tmp_path / "new folder" / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), "--no-samples"]) == 0
    said = capsys.readouterr().out
    assert "report of 1 run written to" in said and out.as_uri() in said
    assert out.read_text().startswith("<!doctype html>") and [f.name for f in out.parent.iterdir()] == [
        out.name
    ]


def test_command_gives_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_run(tmp_path / "runs" / "a", seed=4, returns={"train": [1.0, 3.0]})
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), "--no-samples", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["bytes"] == out.stat().st_size and len(values["runs"]) == 1
    [result] = values["results"]
    assert result["mode"] == "train" and result["mean"] == 2.0 and result["scores"] == {"4": 2.0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{runs}/nowhere"], "does not exist"),
        (["{empty}"], "no run in"),
        (["{runs}", "--out", "{empty}"], "is a directory"),
        (["{runs}", "--out", "{runs}/a/config.json/report.html"], "cannot write"),
        (["{runs}", "--watch", "0"], "--watch needs at least"),
        (["{runs}", "--watch", "nan"], "--watch needs at least"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    fabricate_run(tmp_path / "runs" / "a")
    (tmp_path / "empty").mkdir()
    filled = [a.format(runs=tmp_path / "runs", empty=tmp_path / "empty") for a in arguments]
    out = [] if "--out" in filled else ["--out", str(tmp_path / "report.html")]
    assert main(["report", *filled, *out, "--no-samples"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_watch_follows_a_run_and_leaves_a_page_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "runs" / "a", tmp_path / "report.html"
    fabricate_run(run, returns={"train": [100.0]}, finished=False)
    pages: list[str] = []

    def sleep(seconds: float) -> None:
        assert seconds == 5
        pages.append(out.read_text())
        if len(pages) == 1:
            lines = (run / "metrics.jsonl").read_text().splitlines()
            last = json.loads(lines[-1]) | {"decisions": 2345}
            (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(last), '{"kind": "ev']))
        if len(pages) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    assert main(["report", str(run), "--out", str(out), "--no-samples", "--watch", "5"]) == 0
    assert all('data-reload-seconds="5"' in page for page in pages)
    assert "2,345" not in pages[0] and "2,345" in pages[1]
    assert pages[2] == pages[1]  # nothing happened: not written again
    assert "data-reload-seconds" not in out.read_text() and "2,345" in out.read_text()
    assert "Ctrl-C" in capsys.readouterr().err


def test_a_config_flag_of_every_setting_reaches_the_page(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "a")
    text = page_of(tmp_path / "runs", tmp_path / "report.html")
    assert all(
        f">{name}<" in text for name in make_config().to_json() if name not in ("task", "method", "seed")
    )
