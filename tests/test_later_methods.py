"""The methods after the paper, from the command line: they train, finish, and their policies act."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from softaug import cli
from softaug.config import read_config
from softaug.evaluation.runs import load_policy
from softaug.methods import get_method

SMALL = """
    --decisions 46 --random-decisions 40 --initial-updates 2 --filters 4,4 --strides 2,1 --projection-dim 8
    --hidden-dim 16 --batch-size 8 --aux-batch-size 8 --eval-every 0 --eval-episodes 1 --log-every 1 --workers 1
    --images procedural --no-tensorboard --no-env-process --device cpu --quiet
"""


@pytest.mark.parametrize("method", ["sada", "simgrl", "sgqn", "madi", "soda_sada", "soda_simgrl"])
def test_it_trains_from_the_command_line(method: str, tmp_path: Path):
    out, sizes = tmp_path / "run", ["--crop-size", "16"]
    if get_method(method).crops:
        sizes += ["--image-size", "18"]
    arguments = ["--env", "own_fakes:make_corner", "--method", method, "--preset", "small", "--out", str(out)]
    assert cli.main(["train", *arguments, *SMALL.split(), *sizes]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = {name: value for line in lines for name, value in line.items() if name.endswith("_loss")}
    expected = {"critic_loss", "actor_loss"} | ({"aux_loss"} if get_method(method).auxiliary else set())
    assert set(losses) == expected and all(math.isfinite(value) for value in losses.values())
    assert (out / "final_eval.json").is_file()
    config = read_config(out / "config.json")
    obs = np.zeros((3 * config.frame_stack, config.image_size, config.image_size), np.uint8)
    assert np.isfinite(load_policy(out).act(obs)).all()
