"""`softaug reproduce`: the files it writes, what it plans, and one real run through all of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fabricated import fabricate_eval, fabricate_run

from softaug.cli import main
from softaug.errors import UserError
from softaug.results.reading import find_runs, read_run
from softaug.results.reproduce.figures import figure_files, learning_curves
from softaug.results.reproduce.grids import make_items
from softaug.results.reproduce.missing_runs import plan_evaluations, plan_runs
from softaug.sweep import Outcome

TINY: dict[str, Any] = {
    "decisions": 60, "image_size": 16, "crop_size": 12, "frame_stack": 2, "filters": (4, 4), "strides": (2, 1),
    "pad_own_layers": 1, "projection_dim": 8, "hidden_dim": 16, "batch_size": 8, "aux_batch_size": 8,
    "action_repeat": 50, "random_decisions": 20, "initial_updates": 2, "replay_capacity": 60,
    "eval_every": 0, "eval_episodes": 1, "checkpoint_every": 60, "log_every": 20, "device": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_registered_media(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTAUG_HOME", str(tmp_path / "home"))


def as_flags(values: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in values.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += [f"--{name.replace('_', '-')}", text]
    return flags


def fabricate_all(folder: Path, methods: tuple[str, ...], seeds: int = 2) -> None:
    for method in methods:
        for seed in range(seeds):
            returns = {"train": [500 + seed] * 2, "color_easy": [400] * 2, "color_hard": [300 + seed] * 2}
            returns["video_hard"] = [100] * 2
            adapted = returns if method == "pad" else None
            fabricate_run(
                folder / method / str(seed), "walker_stand", method, seed, returns=returns, adapted=adapted
            )


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["reproduce", *words, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tables_and_figures_of_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_all(tmp_path / "runs", ("sac", "sac_conv", "soda_conv", "pad"))
    out = tmp_path / "out"
    words = ["all", "--runs", str(tmp_path / "runs"), "--only-existing", "--out", str(out)]
    words += ["--tasks", "walker_stand,robot_push"]
    # Not all of them: drawing takes a while, and the samples have a test of their own.
    some = ("appendix", "robot", "ablation")
    items = [item for item in make_items("all", ["walker_stand", "robot_push"]) if item.name in some]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softaug.commands.reproduce.make_items", lambda *_: items)
        result = run_json(capsys, *words)
    made = [item["item"] for item in result["items"]]
    assert made == ["appendix", "ablation"]  # there are no runs of the robot
    names = {path.name for path in out.iterdir()}
    tables = {
        f"appendix{end}" for end in (".csv", ".md", ".tex", "-aggregates.csv", "-profile.png", "-profile.svg")
    }
    assert names == tables | {f"ablation{end}" for end in (".png", ".svg", ".csv", ".md")}
    assert (out / "ablation.png").read_bytes().startswith(b"\x89PNG")
    (ablation,) = [item for item in result["items"] if item["item"] == "ablation"]
    assert {(point["method"], point["seeds"]) for point in ablation["points"]} == {
        ("sac_conv", 2),
        ("soda_conv", 2),
    }
    assert any("1 of 3 curves are missing" in note for note in ablation["notes"])


def test_people_see_both_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_all(tmp_path / "runs", ("sac",))
    words = ["appendix", "--runs", str(tmp_path / "runs"), "--only-existing", "--out", str(tmp_path / "out")]
    assert main(["reproduce", *words, "--tasks", "walker_stand"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "400 ± 0",
        "807 ± 67",
        "procedural media: not comparable with the paper",
        "preset small; 2 seeds",
    ):
        assert part in said, part


def test_figures_show_the_curves_and_are_reproducible(tmp_path: Path) -> None:
    fabricate_all(tmp_path, ("sac", "soda_conv"))
    records = [read_run(path) for path in find_runs([tmp_path])]
    methods = {"sac": "SAC", "soda_conv": "SODA", "sac_dr": "SAC (DR)"}
    modes = {"train": "training", "video_easy": "videos"}
    figure, again = (
        learning_curves(records, methods=methods, modes=modes, title="t", notes=["procedural"])
        for _ in range(2)
    )
    training, videos = figure.axes
    assert [line.get_ydata()[-1] for line in training.lines] == [500.5, 500.5]
    assert training.lines[0].get_xdata().tolist() == [1000, 2000, 3000]
    assert len(training.collections) == 2  # a shaded deviation each
    assert [text.get_text() for text in videos.texts] == ["no runs"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["SAC", "SODA", "SAC (DR) (no runs)"]
    assert figure_files(figure) == figure_files(again)  # the same runs give the same files


def test_figures_never_mix_presets(tmp_path: Path) -> None:
    fabricate_run(tmp_path / "a", preset="small")
    fabricate_run(tmp_path / "b", preset="paper")
    with pytest.raises(UserError, match="never mixed"):
        learning_curves([read_run(path) for path in find_runs([tmp_path])])


def test_figures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fabricate_all(tmp_path, ("sac",), seeds=1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"softaug\[report\]"):
        learning_curves([read_run(path) for path in find_runs([tmp_path])])


def test_the_plan_is_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_all(tmp_path / "runs", ("sac", "pad"))
    words = [
        "appendix",
        "--preset",
        "small",
        "--seeds",
        "3",
        "--tasks",
        "walker_stand",
        "--decisions",
        "3000",
    ]
    words += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--episodes", "2"]
    plan = run_json(capsys, *words, "--dry-run")
    assert len(plan["there"]) == 4 and plan["to_evaluate"] == []
    missing = [(run["seed"], run["method"]) for run in plan["missing"]]
    assert missing == [
        (0, "curl"), (0, "soda_overlay"), (1, "curl"), (1, "soda_overlay"),
        (2, "curl"), (2, "sac"), (2, "pad"), (2, "soda_overlay"),
    ]  # fmt: skip
    assert {run["decisions"] for run in plan["missing"]} == {3000}
    assert not (tmp_path / "out").exists()
    longer = run_json(capsys, *words[:-6], "--out", str(tmp_path / "out"), "--dry-run")
    assert len(longer["missing"]) == 12  # what is there was not given


def test_runs_of_another_length_or_preset_do_not_count(tmp_path: Path) -> None:
    fabricate_all(tmp_path / "runs", ("sac",))
    records = [read_run(path) for path in find_runs([tmp_path / "runs"])]
    items = make_items("appendix", ["walker_stand"])
    for preset, decisions, expected in (("small", 3000, 2), ("small", 4000, 0), ("paper", 3000, 0)):
        there, missing = plan_runs(
            items, records, range(2), tmp_path / "out", preset=preset, decisions=decisions
        )
        assert len(there) == expected and len(missing) == 8 - expected


def test_other_overlay_images_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabricate_run(tmp_path / "runs", "walker_stand", "soda_overlay", 0, media="official")
    words = ["reproduce", "appendix", "--preset", "small", "--seeds", "2", "--tasks", "walker_stand"]
    words += ["--decisions", "3000", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main([*words, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "(procedural)" in said and "(official)" in said and "--images" in said
    assert main([*words, "--dry-run", "--seeds", "1"]) == 0  # nothing new that uses any


def test_only_missing_episodes_are_played(tmp_path: Path) -> None:
    fabricate_all(tmp_path, ("sac", "pad"), seeds=1)
    items = [*make_items("appendix", ["walker_stand"]), *make_items("curves-conv", ["walker_stand"])]

    def jobs(episodes: int) -> list[tuple[str, tuple[str, ...], bool]]:
        runs = [read_run(path) for path in find_runs([tmp_path])]
        return [
            (job.path.parent.name, job.modes, job.adapt) for job in plan_evaluations(items, runs, episodes)
        ]

    both = ("color_easy", "video_hard")
    assert jobs(2) == []
    assert jobs(3) == [("pad", both, True), ("sac", both, False)]
    fabricate_eval(tmp_path / "sac" / "0", {"video_hard": [1.0] * 3}, media="procedural")
    fabricate_eval(tmp_path / "sac" / "0", {"color_easy": [1.0] * 3}, name="other", media="official")
    assert jobs(3) == [("pad", both, True), ("sac", ("color_easy",), False)]  # other media do not count


def test_failed_and_interrupted_sweeps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fabricate_all(tmp_path / "runs", ("sac", "sac_dr", "sac_conv"), seeds=1)
    words = ["reproduce", "curves-conv", "--preset", "small", "--seeds", "1", "--tasks", "walker_stand"]
    words += ["--decisions", "3000", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    for state, status, said in (("failed", 1, "out of luck"), ("interrupted", 130, "same command again")):

        def sweep(runs: Any, *, state: str = state, **_: Any) -> list[Outcome]:
            assert [run.config.method for run in runs] == ["soda_conv"]
            return [Outcome(run, state, 3, "out of luck") for run in runs]

        monkeypatch.setattr("softaug.sweep.run_sweep", sweep)
        assert main(words) == status
        assert said in capsys.readouterr().err
        assert (tmp_path / "out" / "curves-conv.png").exists()  # made from the other three, the first time


def test_failures_are_told_when_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sweep(runs: Any, **_: Any) -> list[Outcome]:
        return [Outcome(run, "failed", 3, "out of luck") for run in runs]

    monkeypatch.setattr("softaug.sweep.run_sweep", sweep)
    words = ["reproduce", "ablation", "--preset", "small", "--seeds", "1", "--tasks", "walker_stand"]
    assert main([*words, "--out", str(tmp_path / "out"), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.count("out of luck") == 3 and "none of the 0 runs" in said
    assert said.index("out of luck") < said.index("softaug: error:")
    assert "training" not in said  # --quiet silences progress, and nothing else


def test_media_that_are_not_here_cost_only_their_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = str(tmp_path / "gone")
    for seed, videos in enumerate(("procedural", gone)):
        returns = {"color_easy": [400.0], "video_hard": [100.0]}
        run = tmp_path / "runs" / str(seed)
        fabricate_run(run, "walker_stand", "sac", seed, returns=returns, videos=videos)
    runs = [read_run(path) for path in find_runs([tmp_path / "runs"])]
    jobs = plan_evaluations(make_items("appendix", ["walker_stand"]), runs, 5)
    assert [(job.path.name, job.modes, gone in job.problem) for job in jobs] == [
        ("0", ("color_easy", "video_hard"), False),
        ("1", ("color_easy",), False),
        ("1", ("video_hard",), True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softaug.sweep.run_sweep", lambda runs, **_: [Outcome(r, "finished", 1) for r in runs])
        words = ["appendix", "--preset", "small", "--seeds", "2", "--tasks", "walker_stand", "--quiet"]
        words += ["--decisions", "3000", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
        assert main(["reproduce", *words]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    # These runs have no checkpoints either.
    assert len(warnings) == 3 and gone in warnings[-1] and "not evaluated in video_hard" in warnings[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "video-and-color, appendix"),
        (["appendix", "--preset", "huge"], "paper, small"),
        (["appendix", "--seeds", "0", "--dry-run"], "at least 1"),
        (["appendix", "--episodes", "0"], "at least 1"),
        (["appendix", "--media", "film"], "official, davis, folder"),
        (["appendix", "--backend", "rey", "--only-existing"], "did you mean ray"),
        (["appendix", "--only-existing", "--dry-run"], "one of them"),
        (["appendix", "--only-existing", "--out", "OUT"], "does not exist"),
        (["appendix", "--only-existing", "--runs", "RUNS", "--preset", "paper"], "2 of preset small"),
        (["robot", "--only-existing", "--runs", "RUNS"], "none of the 2 runs"),
        (["appendix", "--only-existing", "--runs", "RUNS", "--out", "RUNS/sac/0/config.json"], "is a file"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    fabricate_all(tmp_path / "runs", ("sac",))
    places = {"RUNS": str(tmp_path / "runs"), "OUT": str(tmp_path / "none")}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("softaug: error: ") and said in error


def test_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []

    def gallery(out: Path, blocks: list[tuple], *, augmentations: bool, said: Any) -> dict[str, str]:
        ((tasks, modes),) = blocks
        drawn.append((tasks, list(modes), augmentations))
        out.write_bytes(b"image")
        return {"video_easy": "procedural"}

    monkeypatch.setattr("softaug.evaluation.gallery.save_gallery", gallery)
    tasks = "walker_walk,robot_push"
    result = run_json(capsys, "samples", "--only-existing", "--tasks", tasks, "--out", str(tmp_path))
    assert [Path(file).read_bytes() for file in result["items"][0]["files"]] == [b"image"] * 2
    assert drawn[0][0] == ["walker_walk"] and drawn[0][2] and "video_hard" in drawn[0][1]
    assert drawn[1] == (["robot_push"], ["train", "random_colors", "video_background"], False)


@pytest.mark.slow
def test_a_real_run_from_nothing_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of the four runs are made up; the fourth is trained, evaluated and put beside them."""
    out, task = tmp_path / "out", "cartpole_swingup"
    for method in ("curl", "pad", "soda_overlay"):
        returns = {"color_easy": [1.0], "video_hard": [2.0]}
        adapted = returns if method == "pad" else None
        fabricate_run(tmp_path / "runs" / method, task, method, returns=returns, adapted=adapted, **TINY)
    words = ["reproduce", "appendix", "--preset", "small", "--seeds", "1", "--tasks", task, "--episodes", "1"]
    words += [
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(out),
        "--cpus-per-run",
        "1",
        "--eval-workers",
        "1",
    ]
    words += [
        *as_flags(TINY),
        "--no-tensorboard",
        "--no-env-process",
        "--json",
        "--quiet",
    ]
    assert main(words) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    cells = {(c["mode"], c["method"]): c for c in item["cells"]}
    run = out / "runs" / task / "sac" / "seed0"
    record = read_run(run)
    assert record.finished and record.decisions == 60
    for mode in ("color_easy", "video_hard"):
        assert cells[mode, "sac"]["scores"] == [record.final[mode].mean]
        assert cells[mode, "sac"]["media"] == "procedural" and cells[mode, "sac"]["seeds"] == [0]
    assert cells["video_hard", "pad"]["mean"] == 2.0
    assert any("hidden_dim 16" in note for note in item["notes"])
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()}
    assert main(words) == 0  # nothing is missing any more
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()} == before


def test_published_numbers_make_a_table_before_there_is_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (written,) = run_json(capsys, "later-methods", "--only-existing", "--out", str(out))["items"]
    assert {path.name for path in out.iterdir()} == {
        "later-methods.csv", "later-methods-published.csv", "later-methods.md", "later-methods.tex",
    }  # fmt: skip
    (cell,) = [c for c in written["cells"] if (c["task"], c["method"]) == ("walker_stand", "simgrl")]
    assert cell["published"][0]["mean"] == 932 and "mean" not in cell
    assert main(["reproduce", "distracting", "--only-existing", "--out", str(out)]) == 2  # no numbers at all
    assert "does not exist" in capsys.readouterr().err


def test_later_items_are_planned_like_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--preset", "small", "--seeds", "1", "--tasks", "cheetah_run", "--dry-run"]
    plan = run_json(capsys, "gb2", *flags, "--out", str(tmp_path))
    assert {run["task"] for run in plan["missing"]} == {"cheetah_run"}
    assert {"sac", "soda_overlay"} <= {run["method"] for run in plan["missing"]}
    assert run_json(capsys, "gb2", *flags[2:], "--out", str(tmp_path))["preset"] == "gb2"  # its own settings
    assert run_json(capsys, "later-methods", *flags[2:], "--out", str(tmp_path))["preset"] == "paper"


def test_published_curves_are_drawn_over_frames_where_the_task_matches(tmp_path: Path) -> None:
    long = {"decisions": 30_000, "eval_every": 10_000}
    fabricate_run(tmp_path / "a", "walker_stand", "sac", **long)  # 120,000 frames
    fabricate_run(tmp_path / "b", "cartpole_swingup", "sac")  # 24,000: too short to say anything
    records = [read_run(path) for path in find_runs([tmp_path])]
    modes = {"train": "training", "color_hard": "colors"}
    figure = learning_curves(records, modes=modes, published=True)
    panels = {axis.get_title(): axis for axis in figure.axes[:2]}
    lines = panels["walker_stand"].get_lines()
    assert [line.get_xdata().tolist() for line in lines[1:]] == [[100_000, 200_000, 500_000]] * 2
    assert (
        lines[1].get_ydata().tolist() == [324, 677, 957]
        and lines[1].get_linewidth() < lines[0].get_linewidth()
    )
    assert lines[0].get_xdata()[-1] == 120_000 and panels["walker_stand"].get_xlim()[1] < 130_000
    assert len(panels["cartpole_swingup"].get_lines()) == 1
    assert [len(axis.get_lines()) for axis in figure.axes[2:]] == [1, 1]  # not in the test mode
    assert figure.axes[2].get_xlabel() == "frames"
    assert any("as reported by MR.Q's authors" in text.get_text().replace("\n", " ") for text in figure.texts)
    plain = learning_curves(records, modes=modes)
    assert plain.axes[2].get_xlabel() == "decisions" and len(plain.axes[0].get_lines()) == 1
