"""The files of a run directory. Nothing else in the package spells their names.

config.json       the config; its presence marks a run
run.json          facts: versions, git commit, media, device, GL renderer: what else the numbers may depend on
metrics.jsonl     losses, episodes, evaluations (see `softaug.training.log`)
checkpoints/      see `softaug.storage.checkpoint`
replay/           the replay's memory-mapped arrays, while the run is unfinished (or if it is to be kept)
tb/, videos/      TensorBoard events; videos of evaluation episodes on request
final_eval.json   the last evaluation; its presence marks a finished run
diagnosis.json    what `softaug diagnose` measured
eval/             what `softaug eval` measured
"""

from __future__ import annotations

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
        self.evaluations = self.path / "eval"

    @property
    def exist(self) -> bool:
        """Whether the directory holds a run, finished or not."""
        return self.config.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has been trained and evaluated to its end."""
        return self.final_eval.is_file()
