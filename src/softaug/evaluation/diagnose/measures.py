"""How far the network's view of a state moves with the appearance, as numbers.

Distances between two appearances of one state mean little by themselves: an encoder that maps everything to one point is
perfectly invariant, and useless. So each comes with its baseline, the distance between *different* states in the
training appearance, and `relative` = distance between appearances / distance between states: 0 is invariant, 1 means that the
appearance moves the network as far as another state would. (Its inverse is the ratio of separability.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.evaluation.policy import MeanPolicy, Policy
from softaug.learning.augment import center_crop

PIECE = 32
"""Images encoded at once: bounds the memory, not the result."""
COLLAPSED = 1e-6
"""A baseline below this tells no states apart, and nothing can be measured against it."""


@dataclass(frozen=True)
class Encoded:
    """What the network makes of n observations: one float64 tensor (n, D) for each of its stages."""

    features: Tensor | None
    """f, flattened; None for a policy that was made elsewhere, of which only the actions are known."""
    projection: Tensor | None
    """The actor's projection of them."""
    actions: Tensor
    """The mean action, in [-1, 1]."""
    soda: Tensor | None = None
    """SODA's projection g of them."""

    def vectors(self) -> dict[str, Tensor]:
        """What is compared by its direction."""
        stages = {
            "cosine_features": self.features,
            "cosine_projection": self.projection,
            "cosine_soda": self.soda,
        }
        return {name: vectors for name, vectors in stages.items() if vectors is not None}


@torch.no_grad()
def encode(policy: MeanPolicy, obs: np.ndarray, soda: nn.Module | None = None) -> Encoded:
    """obs: uint8 (n, 3k, H, W). soda: g, applied to the flattened features."""
    pieces = []
    for piece in torch.from_numpy(obs).split(PIECE):
        view = center_crop(piece, policy.crop_size).contiguous(memory_format=torch.channels_last)
        features = policy.encoder(view).flatten(1)
        mean, _ = policy.actor(features)
        stages = [features, policy.actor.projection(features), torch.tanh(mean)]
        if soda is not None:
            stages.append(soda(features))
        pieces.append([stage.double() for stage in stages])
    return Encoded(*(torch.cat(stage) for stage in zip(*pieces, strict=True)))


def act_on_each(policy: Policy, obs: np.ndarray) -> Encoded:
    """The actions of any policy, each observation as the first of an episode."""
    actions = []
    for image in obs:
        policy.begin_episode(0)
        actions.append(torch.from_numpy(np.asarray(policy.act(image))).double().clamp(-1, 1))
    return Encoded(None, None, torch.stack(actions))


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of each pair of rows (n, D), as 1 - |difference of directions|^2 / 2: equal rows give exactly 1."""
    return 1 - (F.normalize(left, dim=1) - F.normalize(right, dim=1)).square().sum(1) / 2


def action_distances(left: Tensor, right: Tensor) -> Tensor:
    """Mean |difference| over the A dimensions of each pair of actions (n, A), between 0 and 2."""
    return (left - right).abs().mean(1)


def baseline(clean: Encoded) -> dict[str, dict[str, float]]:
    """The same measures between all pairs of different states, both in the training appearance."""
    one, other = torch.triu_indices(len(clean.actions), len(clean.actions), offset=1)
    measured = {}
    for name, vectors in clean.vectors().items():
        directions = F.normalize(vectors, dim=1)
        measured[name] = _spread((directions @ directions.T)[one, other])
    measured["action_distance"] = _spread(action_distances(clean.actions[one], clean.actions[other]))
    return measured


def compare(clean: Encoded, seen: Encoded, base: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Row i of both is the same state, in the training appearance and in another."""
    measured: dict[str, Any] = {}
    for name, vectors in clean.vectors().items():
        values = cosines(vectors, seen.vectors()[name])
        measured[name] = _with_relative(values, 1 - values, 1 - base[name]["mean"])
    values = action_distances(clean.actions, seen.actions)
    measured["action_distance"] = _with_relative(values, values, base["action_distance"]["mean"])
    if seen.features is not None and clean.features is not None:
        similarity = F.normalize(seen.features, dim=1) @ F.normalize(clean.features, dim=1).T
        own = similarity.argmax(1) == torch.arange(len(similarity))
        measured["recognised"] = float(own.double().mean())
    return measured


def _with_relative(values: Tensor, distances: Tensor, scale: float) -> dict[str, Any]:
    relative = None if scale < COLLAPSED else float(distances.mean()) / scale
    return {**_spread(values), "relative": relative, "values": values.tolist()}


def _spread(values: Tensor) -> dict[str, float]:
    return {"mean": float(values.mean()), "std": float(values.std(correction=0))}
