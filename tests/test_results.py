"""Reading runs back: what is found, which evaluation counts, and what damage is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fabricated import fabricate_eval, fabricate_run
from fakes import DotFactory, FakeImages, tiny_config

from softaug.cli import main
from softaug.errors import UserError
from softaug.media.comparability import (
    OUTDATED,
    OUTDATED_NOTE,
    PROCEDURAL_NOTE,
    PROCEDURAL_VIDEO_VERSIONS,
)
from softaug.results.reading import find_runs, read_run
from softaug.training.log import read_metrics
from softaug.training.run import train


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `train` itself wrote."""
    out = tmp_path_factory.mktemp("real") / "run"
    train(tiny_config(), out, env_factory=DotFactory(), images=FakeImages(), quiet=True)
    return out


def test_a_real_run_is_read_as_it_was_written(real_run: Path) -> None:
    record = read_run(real_run)
    assert record.config == tiny_config()
    assert record.finished and record.decisions == 240 and record.frames == 480
    assert [e.total for e in record.curve] == [
        line["return"] for line in read_metrics(real_run / "metrics.jsonl", "episode")
    ]
    assert [(e.decisions, e.mode) for e in record.evals] == [
        (line["decisions"], line["mode"]) for line in read_metrics(real_run / "metrics.jsonl", "eval")
    ]
    final = json.loads((real_run / "final_eval.json").read_text())
    for mode, values in final["modes"].items():
        assert record.final[mode].mean == pytest.approx(values["mean"])
        assert record.final[mode].std == pytest.approx(values["std"])
    assert record.adapted == {} and record.seconds > 0 and len(record.rates) > 0


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "run")
    code = (
        "import sys, softaug.results.reading as r; r.read_run(sys.argv[1]); "
        "sys.exit('torch' in sys.modules or 'dm_control' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False).returncode == 0


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "seed0", tmp_path / "b" / "deep" / "seed1", tmp_path / "c"]
    for path in paths:
        fabricate_run(path)
    fabricate_run(tmp_path / ".hidden" / "run")
    fabricate_run(paths[2] / "videos" / "copy")  # below a run: part of that run
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "config.json").write_text("{}")  # planned, not begun
    assert find_runs([tmp_path]) == paths
    assert find_runs([paths[1], tmp_path]) == [paths[1], paths[0], paths[2]]


def test_places_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        find_runs([tmp_path / "absent"])
    with pytest.raises(UserError, match="at least one"):
        find_runs([])
    with pytest.raises(UserError, match="holds no run"):
        read_run(tmp_path)


def test_most_episodes_win_then_the_media_nearer_to_the_paper(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fabricate_run(run, returns={"train": [1, 2], "video_easy": [10, 20], "color_hard": [5, 5]})
    fabricate_eval(run, {"video_easy": [100] * 4}, name="more")
    fabricate_eval(run, {"color_hard": [7, 7]}, name="same")
    fabricate_eval(run, {"train": [9]}, name="fewer")
    record = read_run(run)
    assert record.final["video_easy"].returns == (100,) * 4
    assert record.final["color_hard"].media == "official"
    assert record.final["train"].returns == (1, 2)
    on_procedural = record.evaluation("video_easy", media="procedural")
    assert on_procedural is not None and on_procedural.returns == (10, 20)
    assert record.evaluation("video_hard") is None
    training = record.evaluation("train", media="official")  # needs no media, so any will do
    assert training is not None and training.episodes == 2


def on_videos_of(run: Path, version: int) -> None:
    """Let the run's own evaluations in video_easy be on procedural videos of a version."""
    facts = json.loads((run / "run.json").read_text())
    facts["media"]["video_easy"] |= {"level": "easy", "version": version}
    (run / "run.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("own", [False, True], ids=["softaug eval", "the run's own"])
def test_results_on_earlier_procedural_videos_say_so_and_give_way_to_those_on_todays(
    tmp_path: Path, own: bool
) -> None:
    """Whether they are of `softaug eval` or of the end of training."""
    run = tmp_path / "run"
    today = PROCEDURAL_VIDEO_VERSIONS["easy"]
    versions = today - 1, today
    fabricate_run(run, returns={"train": [1, 2]} | ({"video_easy": [float(versions[0])] * 10} if own else {}))
    on_videos_of(run, versions[0])
    for version in versions[own:]:
        returns = {"video_easy": [float(version)] * (10 if version == versions[0] else 4)}
        file = fabricate_eval(run, returns, name=f"version{version}", media="procedural")
        report = json.loads(file.read_text())
        report["media"]["video_easy"] |= {"level": "easy", "version": version}
        file.write_text(json.dumps(report))
    record = read_run(run)
    assert record.final["video_easy"].returns == (today,) * 4
    found = {e.returns[0]: (e.media, e.note) for e in record.evaluations if e.mode == "video_easy"}
    assert found == {versions[0]: (OUTDATED, OUTDATED_NOTE), today: ("procedural", PROCEDURAL_NOTE)}
    assert {e.media for e in record.evals if e.mode == "video_easy"} == ({OUTDATED} if own else set())


def test_results_on_videos_of_two_versions_are_no_one_result(tmp_path: Path) -> None:
    """Two seeds, one tested before the videos changed: the table says both kinds of media, and so does the page."""
    today = PROCEDURAL_VIDEO_VERSIONS["easy"]
    for seed, version in enumerate((today - 1, today)):
        run = tmp_path / f"seed{seed}"
        fabricate_run(run, seed=seed, returns={"train": [1, 2], "video_easy": [100.0 * version] * 2})
        on_videos_of(run, version)
    records = [read_run(run) for run in find_runs([tmp_path])]
    assert sorted(record.final["video_easy"].media or "" for record in records) == [OUTDATED, "procedural"]
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(page)]) == 0
    assert f"{OUTDATED} media, procedural media" in page.read_text()


def test_only_the_last_weights_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fabricate_run(run, returns={"train": [1, 2]})
    fabricate_eval(run, {"train": [50] * 9}, name="best", checkpoint="best")
    fabricate_eval(run, {"train": [60] * 9}, name="early", decisions=1000)
    assert read_run(run).final["train"].returns == (1, 2)
    assert len(read_run(run).evaluations) == 1


def test_adapted_returns_are_kept_apart_and_are_what_pad_reports(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fabricate_run(run, method="pad", returns={"video_easy": [1, 1]}, adapted={"video_easy": [2, 2]})
    fabricate_eval(run, {"video_easy": [3] * 3}, adapt=True, media="procedural")
    record = read_run(run)
    assert record.final["video_easy"].returns == (1, 1)
    assert record.adapted["video_easy"].returns == (3, 3, 3)
    chosen = record.evaluation("video_easy")
    assert chosen is not None and chosen.adapted


def test_notes_say_what_is_not_comparable(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", returns={"train": [1], "video_easy": [1]})
    notes = {mode: e.note for mode, e in read_run(tmp_path / "a").final.items()}
    assert notes == {"train": "", "video_easy": "procedural media: not comparable with the paper"}


def test_a_run_being_written_can_be_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fabricate_run(run, finished=False)
    whole = read_run(run)
    assert not whole.finished and whole.final == {} and whole.decisions == 1500
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "episode", "decis')
    assert read_run(run).curve == whole.curve
    (run / "metrics.jsonl").unlink()  # begun a moment ago
    assert read_run(run).decisions == 0


def test_older_configs_can_be_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = fabricate_run(run)
    values = json.loads((run / "config.json").read_text())
    del values["env_process"]
    (run / "config.json").write_text(json.dumps(values))
    assert read_run(run).config == config
    (run / "config.json").write_text(json.dumps({**values, "from_the_future": 1}))
    with pytest.raises(UserError, match="from_the_future"):
        read_run(run)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", "{}", "no config"),
        ("run.json", "[]", "run.json"),
        ("metrics.jsonl", '{"kind": "episode"}\n', "no 'decisions'"),
        ("metrics.jsonl", '{"kind": "episode"\n{"kind": "train"}\n', "line 1"),
        ("final_eval.json", '{"decisions": 3000}', "final_eval.json is damaged"),
        ("final_eval.json", '{"decisions": 1, "frames": 1, "modes": {"train": {"returns": []}}, "adapted": {}}', "damaged"),
        ("eval/x.json", '{"results": 3}', "x.json is damaged"),
    ],
)  # fmt: skip
def test_damage_is_refused_by_name(tmp_path: Path, name: str, content: str, said: str) -> None:
    fabricate_run(tmp_path / "run")
    (tmp_path / "run" / "eval").mkdir()
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(UserError, match=said):
        read_run(tmp_path / "run")


def test_the_newest_video_of_each_mode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fabricate_run(run)
    for name in ("000001000/train", "000003000/train", "000001000/video_easy"):
        path = run / "videos" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert read_run(run).videos == {
        "train": run / "videos" / "000003000" / "train.mp4",
        "video_easy": run / "videos" / "000001000" / "video_easy.mp4",
    }


def test_committed_results_can_be_read() -> None:
    folder = Path(__file__).parent.parent / "results"
    for run in find_runs([folder]):
        assert read_run(run).curve
    for run in find_runs(
        [folder / "demo", folder / "small"]
    ):  # results/trials were stopped when they had told enough
        record = read_run(run)
        assert record.finished and record.final["train"].episodes >= 1
