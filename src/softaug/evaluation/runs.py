"""Reading a finished or running run: its config, a checkpoint's policy weights, and the policy itself.

    policy = load_policy("runs/walker", checkpoint="best")
    policy.begin_episode()
    action = policy.act(obs)               # obs: uint8 (3k, H, W)

Only config.json and the checkpoint's policy.safetensors are read: no replay, no optimizer state, no pickle. A published
policy (``zoo:NAME``, see `softaug.zoo`) is read in the same way.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from softaug.config import Config, read_config
from softaug.errors import UserError
from softaug.evaluation.policy import Policy, make_policy
from softaug.storage.checkpoint import (
    POLICY_FILE,
    TENSORS_FILE,
    check_file,
    complete_checkpoints,
    find_checkpoint,
    parse_weights,
    read_weights,
)
from softaug.storage.checksums import Damaged
from softaug.storage.run_files import RunFiles
from softaug.zoo import PolicyFolder, locate
from softaug.zoo.folder import reason


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
    found = (re.fullmatch(r"actor\.mlp\.(0|[1-9][0-9]*)\.bias", name) for name in weights)
    layers = [int(match[1]) for match in found if match]
    if not layers:
        raise UserError("the weights hold no actor; give those of a softaug policy")
    return weights[f"actor.mlp.{max(layers)}.bias"].numel() // 2


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
    """Read the run directory or published policy `path`; `checkpoint` is `last`, `best` or a number of decisions."""
    path = locate(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give the directory of a softaug run, or zoo:NAME")
    if RunFiles(path).published:
        return _load_published(path, checkpoint)
    config = read_config(RunFiles(path).config)
    if config.row.foreign:
        raise UserError(
            f"{path} has the results of a policy that was made elsewhere, not the policy; give --policy (see softaug eval)"
        )
    directory = find_checkpoint(path, checkpoint)
    directory, content = _last_good(path) if checkpoint == "last" else (directory, read_weights(directory))
    weights, facts = parse_weights(directory / POLICY_FILE, content)
    said = directory.name if directory.name.isdecimal() else facts.get("decisions", "")
    decisions = int(said) if said.isdecimal() else None
    return Run(path, config, directory, decisions, weights, hashlib.sha256(content).hexdigest())


def _load_published(path: Path, checkpoint: str) -> Run:
    """A published policy has one set of weights, whose file is the run's own, byte for byte."""
    if checkpoint != "last":
        raise UserError(
            f"{path} is a published policy and has no checkpoint {checkpoint!r}; leave --checkpoint out"
        )
    folder = PolicyFolder(path)
    folder.read(RunFiles(path).config.name)
    content = folder.read(POLICY_FILE)
    try:
        config = read_config(RunFiles(path).config)
        weights, _ = parse_weights(path / POLICY_FILE, content)
    except UserError as error:  # whose remedies are those of a run
        raise UserError(f"{reason(error)}; get the policy again") from None
    decisions = folder.results().get("decisions")
    known = decisions if isinstance(decisions, int) else None
    return Run(path, config, path, known, weights, hashlib.sha256(content).hexdigest())


def training_weights(run: Run, prefix: str) -> dict[str, Tensor] | None:
    """What the run's checkpoint holds below `prefix`, by the rest of the name; None where only the policy was kept (`best`).

    prefix: a path in the checkpoint's tree, for example ``/agent/sac/critic.``
    """
    file = run.checkpoint / TENSORS_FILE
    if not file.is_file():
        return None
    check_file(run.checkpoint, TENSORS_FILE)
    try:
        with safe_open(file, framework="pt") as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118 - not a dict
            return {name.removeprefix(prefix): tensors.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}); use another checkpoint") from None


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

    path: also ``zoo:NAME`` or ``hf:ORG/NAME``, a published policy.

    adapt: adapt to what is seen during an episode; None does what the method does at test time (PAD adapts).
    """
    run = load_run(path, checkpoint)
    return run.policy(run.config.row.adapts if adapt is None else adapt)()
