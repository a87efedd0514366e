"""The files of a run directory. Nothing else in the package spells their names.

config.json       the config; its presence marks a run
run.json          facts: versions, git commit, media, device, GL renderer: what else the numbers may depend on
metrics.jsonl     losses, episodes, evaluations (see `softaug.training.log`)
checkpoints/      see `softaug.storage.checkpoint`
replay/           the replay's memory-mapped arrays, while the run is unfinished (or if it is to be kept)
tb/, videos/      TensorBoard events; videos of evaluation episodes on request
final_eval.json   the last evaluation; its presence marks a finished run
diagnosis.json    what `softaug diagnose` measured
probe.json        what `softaug diagnose --probe` measured
eval/             what `softaug eval` measured
log.txt           of a sweep: everything the run printed, attempt after attempt
sweep.json        of a sweep: its name, the attempts made in it and their state

A published policy (`softaug.zoo`) is a directory with a config.json too, but has its weights and results instead of the rest:

policy.safetensors  the weights
results.json        test results, and what else is known of the run; its presence marks a published policy
"""

from __future__ import annotations

import json
from pathlib import Path


class RunFiles:
    """Paths of one run; nothing has to exist."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.facts = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.replay = self.path / "replay"
        self.replay_kept = self.replay / "kept"
        self.tensorboard = self.path / "tb"
        self.videos = self.path / "videos"
        self.final_eval = self.path / "final_eval.json"
        self.diagnosis = self.path / "diagnosis.json"
        self.probe = self.path / "probe.json"
        self.evaluations = self.path / "eval"
        self.log = self.path / "log.txt"
        self.sweep = self.path / "sweep.json"
        self.results = self.path / "results.json"

    @property
    def exist(self) -> bool:
        """Whether the directory holds a run, finished or not."""
        return self.config.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has been trained and evaluated to its end."""
        return self.final_eval.is_file()

    @property
    def published(self) -> bool:
        """Whether the directory holds a published policy instead of a run. Only `results.publishing` writes one."""
        return self.exist and self.results.is_file()


def run_directory_of(path: Path) -> Path | None:
    """The run directory that `path` lies in, or is; None if it lies in none."""
    for place in {path.absolute(), path.resolve()}:
        for folder in (place, *place.parents):
            if _is_run_directory(folder):
                return folder
    return None


def _is_run_directory(folder: Path) -> bool:
    """By its config.json alone: what else a shared run holds is up to its author."""
    try:
        values = json.loads(RunFiles(folder).config.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"task", "method", "preset"} <= values.keys()
