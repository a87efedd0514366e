"""Reading a finished or running run: its config, a checkpoint's policy weights, and the policy itself.

    policy = load_policy("runs/walker", checkpoint="best")
    policy.begin_episode()
    action = policy.act(obs)               # obs: uint8 (3k, H, W)

Only config.json and the checkpoint's policy.safetensors are read: no replay, no optimiser state, no pickle.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from softaug.config import Config, read_config
from softaug.errors import UserError
from softaug.evaluation.policy import Policy, make_policy
from softaug.storage.checkpoint import (
    POLICY_FILE,
    Damaged,
    complete_checkpoints,
    find_checkpoint,
    parse_weights,
    read_weights,
)
from softaug.storage.run_files import RunFiles


@dataclass(frozen=True)
class RunPolicy:
    """Makes the policy of a config and its weights (`Agent.policy_weights`). Picklable, weights included."""

    config: Config
    weights: Mapping[str, Tensor]
    adapt: bool = False

    def __call__(self) -> Policy:
        shape = observation_shape(self.config)
        return make_policy(self.config, self.weights, shape, action_dim(self.weights), adapt=self.adapt)

    # As plain bytes: pickled tensors would go through shared memory, which containers keep small.
    def __getstate__(self) -> dict[str, Any]:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in self.weights.items()}
        return {"config": self.config, "weights": safetensors.torch.save(plain), "adapt": self.adapt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in (state | {"weights": safetensors.torch.load(state["weights"])}).items():
            object.__setattr__(self, name, value)


def observation_shape(config: Config) -> tuple[int, int, int]:
    """(3k, H, W) of the raw observations."""
    return 3 * config.frame_stack, config.image_size, config.image_size


def action_dim(weights: Mapping[str, Tensor]) -> int:
    """A, read off the actor's last layer, whose 2A outputs are mean and log-std."""
    biases = [name for name in weights if name.startswith("actor.mlp.") and name.endswith(".bias")]
    if not biases:
        raise UserError("the weights hold no actor; give those of a softaug policy")
    last = max(biases, key=lambda name: int(name.split(".")[2]))
    return weights[last].numel() // 2


@dataclass(frozen=True)
class Run:
    """A run directory with one of its checkpoints."""

    path: Path
    config: Config
    checkpoint: Path
    """The directory that holds the weights."""
    decisions: int | None
    """Decisions of training behind these weights; None if the file does not say."""
    weights: dict[str, Tensor]
    sha256: str
    """Of the weights file: what an evaluation's results belong to."""

    def policy(self, adapt: bool = False) -> RunPolicy:
        """What makes its policy, here or in another process."""
        return RunPolicy(self.config, self.weights, adapt)


def load_run(path: str | Path, checkpoint: str = "last") -> Run:
    """Read the run directory `path`; `checkpoint` is `last`, `best` or a number of decisions."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give the directory of a softaug run")
    config = read_config(RunFiles(path).config)
    directory = find_checkpoint(path, checkpoint)
    directory, content = _last_good(path) if checkpoint == "last" else (directory, read_weights(directory))
    weights, facts = parse_weights(directory / POLICY_FILE, content)
    said = directory.name if directory.name.isdecimal() else facts.get("decisions", "")
    decisions = int(said) if said.isdecimal() else None
    return Run(path, config, directory, decisions, weights, hashlib.sha256(content).hexdigest())


def _last_good(run: Path) -> tuple[Path, bytes]:
    """The newest checkpoint whose weights are as they were written, and their file; damaged ones are named."""
    first_error: Damaged | None = None
    for directory in reversed(complete_checkpoints(RunFiles(run).checkpoints)):
        try:
            content = read_weights(directory)
        except Damaged as error:
            first_error = first_error or error
            continue
        if first_error is not None:
            logging.getLogger("softaug").warning(f"warning: {first_error}. Using {directory} instead")
        return directory, content
    assert first_error is not None  # `find_checkpoint` found one
    if (RunFiles(run).checkpoints / "best" / POLICY_FILE).is_file():
        raise Damaged(f"{first_error}, for example --checkpoint best")
    raise Damaged(f"{first_error} or train the run again")


def load_policy(path: str | Path, checkpoint: str = "last", adapt: bool | None = None) -> Policy:
    """The trained policy of the run directory `path`, on the CPU: mean actions of raw uint8 observations (3k, H, W).

    adapt: adapt to what is seen during an episode; None does what the method does at test time (PAD adapts).
    """
    run = load_run(path, checkpoint)
    return run.policy(run.config.row.adapts if adapt is None else adapt)()
