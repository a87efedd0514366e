"""Run directories made up for tests: every file that results are read from, with chosen numbers, in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softaug.config import Config, make_config, write_config
from softaug.tasks import PAPER_TASKS

TEST_MODES = ("color_easy", "color_hard", "video_easy", "video_hard")
VERSIONS = {"softaug": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "mujoco": "3.17.0", "numpy": "2.4.6"}


def fabricate_run(
    path: Path,
    task: str = "walker_walk",
    method: str = "sac",
    seed: int = 0,
    *,
    preset: str = "small",
    returns: Mapping[str, Sequence[float]] | None = None,
    adapted: Mapping[str, Sequence[float]] | None = None,
    media: str = "procedural",
    finished: bool = True,
    evaluations: int = 3,
    level: float = 500.0,
    **overrides: Any,
) -> Config:
    """A run whose last evaluation has `returns` (mode -> one per episode) and whose curves rise to `level`."""
    config = make_config(
        task, method, preset, seed=seed, **{"decisions": 3000, "eval_every": 1000, **overrides}
    )
    repeat = PAPER_TASKS.get(task, 4)
    returns = {"train": [level, level + 10], "color_hard": [level / 2] * 2} if returns is None else returns
    path.mkdir(parents=True)
    write_config(config, path / "config.json")
    test_media = {mode: {"kind": media, "videos": 100} for mode in TEST_MODES}
    facts = {
        "run_id": f"{task}-{seed}",
        "versions": VERSIONS,
        "git_commit": None,
        "device": "cpu",
        "threads": 1,
        "media": {"overlay": {"kind": media}, **test_media},
    }
    _write(path / "run.json", facts)
    length = 1000 // repeat
    done = config.decisions if finished else config.decisions // 2
    lines = []
    for episode, decisions in enumerate(range(length, done + 1, length), start=1):
        where = {"decisions": decisions, "frames": decisions * repeat, "updates": decisions}
        clock = {"seconds": decisions / 20}
        value = level * decisions / config.decisions + seed
        lines.append(
            {"kind": "episode", **where, "episode": episode, "return": value, "length": length, **clock}
        )
        lines.append({"kind": "train", **where, "critic_loss": 0.5, **clock, "decisions_per_second": 20.0})
    for k in range(1, evaluations + 1):
        decisions = config.decisions * k // evaluations
        if decisions > done:
            break
        where = {"decisions": decisions, "frames": decisions * repeat, "updates": decisions}
        for mode, values in returns.items():
            part = [value * (k / evaluations) ** 0.5 for value in values]  # fast at first
            kind = None if mode == "train" else media
            summary = _summary(part, kind)
            said = {name: summary[name] for name in ("returns", "mean", "std", "media")}
            lines.append({"kind": "eval", **where, "mode": mode, "adapt": False, **said, "seconds": 1.0})
    lines.sort(key=lambda line: line["decisions"])
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        final = {
            "decisions": config.decisions,
            "frames": config.decisions * repeat,
            "updates": config.decisions,
            "modes": {m: _summary(v, None if m == "train" else media) for m, v in returns.items()},
            "adapted": {m: _summary(v, None if m == "train" else media) for m, v in (adapted or {}).items()},
        }
        _write(path / "final_eval.json", final)
    return config


def fabricate_eval(
    run: Path,
    returns: Mapping[str, Sequence[float]],
    *,
    name: str = "last",
    media: str = "official",
    adapt: bool = False,
    checkpoint: str | None = None,
    decisions: int | None = None,
    videos: int = 100,
) -> Path:
    """The file of a `softaug eval` of the run."""
    config = json.loads((run / "config.json").read_text())
    decisions = config["decisions"] if decisions is None else decisions
    rows = []
    for mode, values in returns.items():
        summary = _summary(values, None if mode == "train" else media)
        note = "procedural media: not comparable with the paper" if summary["media"] == "procedural" else ""
        rows.append({"mode": mode, "adapt": adapt, "note": note, **summary})
    report = {
        "run": "elsewhere",
        "task": config["task"],
        "method": config["method"],
        "train_seed": config["seed"],
        "checkpoint": checkpoint or f"{decisions:09d}",
        "decisions": decisions,
        "weights_sha256": "0" * 64,
        "eval_seed": 0,
        "softaug": "0.1.0",
        "media": {mode: None if mode == "train" else {"kind": media, "videos": videos} for mode in returns},
        "results": rows,
    }
    path = run / "eval" / f"{name}.json"
    _write(path, report)
    return path


def _summary(values: Sequence[float], media: str | None) -> dict[str, Any]:
    mean = sum(values) / len(values)
    return {
        "returns": list(values),
        "mean": mean,
        "std": (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5,
        "episodes": len(values),
        "decisions": 250 * len(values),
        "frames": 1000 * len(values),
        "media": media,
        "episode_info": [{}] * len(values),
    }


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
