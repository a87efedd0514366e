"""What a run ended with, and whether two runs ended with the same, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softaug.storage import checkpoint
from softaug.training import log


def outcome(run: Path) -> dict[str, Any]:
    """Everything a run ends with, except the wall clock."""
    tree = checkpoint.load_tree(checkpoint.find_checkpoint(run))
    for name in ("seconds", "metrics_bytes"):  # the wall clock, and how many digits it has
        del tree["counters"][name]
    metrics = log.read_metrics(run / "metrics.jsonl")
    for line in metrics:
        for name in log.WALL_CLOCK:
            line.pop(name, None)
    return {
        "tree": tree,
        "policy": checkpoint.load_weights(checkpoint.find_checkpoint(run)),
        "best": (checkpoint.find_checkpoint(run, "best") / "policy.safetensors").read_bytes(),
        "metrics": metrics,
        "final": json.loads((run / "final_eval.json").read_text()),
    }


def assert_same(left: Any, right: Any, path: str = "") -> None:
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    elif isinstance(left, np.ndarray):
        assert np.array_equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}/{i}")
    else:
        assert left == right, path
