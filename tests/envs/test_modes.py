"""Names of modes: their order, the benchmarks they belong to, and groups of them as one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from softaug.envs.modes import (
    MODE_GROUPS,
    MODE_NAMES,
    Mode,
    expand_groups,
    mode_group,
    ordered_modes,
)
from softaug.evaluation import run_evaluation


def test_modes_come_by_benchmark_and_in_its_order() -> None:
    names = ["zebra", "distracting_hard", "rotate_easy", "video_hard", "distracting(scale=0.2)", "train"]
    assert ordered_modes(names) == [
        "train", "video_hard", "rotate_easy", "distracting_hard", "distracting(scale=0.2)", "zebra",
    ]  # fmt: skip
    assert ordered_modes(set(MODE_NAMES)) == list(MODE_NAMES)


def test_every_mode_has_a_benchmark() -> None:
    assert [mode_group(mode) for mode in ("train", "light_easy", "random_colors", "screen_video_easy")] == [
        "DMControl-GB", "Camera, light, texture", "Robot", "DMControl-GB2",
    ]  # fmt: skip
    assert (
        mode_group(Mode.parse("distracting(scale=0.15)").name)
        == mode_group("distracting_easy")
        == "Distracting Control Suite"
    )
    assert all(mode_group(mode) != "Other modes" for mode in MODE_NAMES)
    assert mode_group("cluttered") == "Other modes"


def test_a_benchmarks_name_stands_for_its_modes_once() -> None:
    assert len(MODE_GROUPS["gb2"]) == 12 and set(MODE_GROUPS["gb2"]) <= set(MODE_NAMES)
    assert expand_groups(["train", "distracting"]) == [
        "train", "distracting_easy", "distracting_medium", "distracting_hard",
    ]  # fmt: skip
    both = expand_groups(["dmcgb", "gb2", "dmcgb"])
    assert len(both) == len(set(both)) == 5 + 10
    assert expand_groups(["video_hard", "video_hard"]) == ["video_hard", "video_hard"]
    assert run_evaluation.check_modes(["distracting"]) == list(MODE_GROUPS["distracting"])


def test_a_name_of_many_modes_fits_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trained:
        checkpoint = Path("000500000")
        config = None

    monkeypatch.setattr(run_evaluation, "default_modes", lambda config: ["train"])
    options = run_evaluation.EvaluationOptions(tmp_path, episodes=100, videos="procedural", adapt=True)

    def name(modes: list[str]) -> str:
        return run_evaluation._default_path(Trained, options, modes).name  # type: ignore[arg-type]

    many, more = list(MODE_NAMES), list(MODE_NAMES[1:])
    assert len(name(many)) < 200 and name(many) != name(more)
    assert "-color_easy+rotate_hard-" in name(["color_easy", "rotate_hard"])
