"""The policy of an agent in the lab: what it does, how far the appearance moves it, and what moves its action."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from softaug.envs.observations import newest_frame
from softaug.evaluation.diagnose.figure import HEAT, attention
from softaug.evaluation.diagnose.measures import (
    COLLAPSED,
    Encoded,
    action_distances,
    baseline,
    cosines,
    encode,
)
from softaug.evaluation.policy import AdaptivePolicy, MeanPolicy, Policy

KEPT_STATES, KEEP_EVERY, LEAST_STATES = 24, 5, 8
"""States whose distances from each other are the measure of how far an appearance moves the network."""


@dataclass(frozen=True)
class Distances:
    """Between this state in its appearance and in that of training, as `softaug diagnose` measures them.

    relative: divided by the mean distance between different states in the appearance of training; None until enough of
    these were seen.
    """

    features: float | None
    """1 - cosine."""
    actions: float
    """Mean |difference| over the action's dimensions, 0 to 2."""
    relative_features: float | None = None
    relative_actions: float | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Mind:
    """A policy that is watched while it acts."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        inner = policy.policy if isinstance(policy, AdaptivePolicy) else policy
        self._network = inner if isinstance(inner, MeanPolicy) else None
        self._kept: list[Encoded] = []
        self._base: dict[str, dict[str, float]] | None = None
        self._seen = 0

    @property
    def crop_size(self) -> int | None:
        """The part of an image that the network gets; None if unknown."""
        return None if self._network is None else self._network.crop_size

    def begin_episode(self, seed: int) -> None:
        self.policy.begin_episode(seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.asarray(self.policy.act(obs), np.float32)

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        self.policy.observe(obs, action, next_obs)

    def distances(self, obs: np.ndarray, training_obs: np.ndarray | None) -> Distances | None:
        if training_obs is None:
            return None
        encoded = self._encode(np.stack([training_obs, obs]))
        actions = float(action_distances(encoded.actions[:1], encoded.actions[1:])[0])
        features = None
        if encoded.features is not None:
            features = 1.0 - float(cosines(encoded.features[:1], encoded.features[1:])[0])
        self._keep(encoded)
        if self._base is None:
            return Distances(features, actions)
        relative = None
        if features is not None:
            relative = _relative(features, 1.0 - self._base["cosine_features"]["mean"])
        return Distances(
            features, actions, relative, _relative(actions, self._base["action_distance"]["mean"])
        )

    def _encode(self, obs: np.ndarray) -> Encoded:
        """Features and actions of observations (n, 3k, H, W); of a policy made elsewhere only the actions."""
        if self._network is not None:
            return encode(self._network, obs)
        return Encoded(None, None, torch.from_numpy(np.stack([self.act(image) for image in obs])).double())

    def saliency(self, obs: np.ndarray) -> np.ndarray | None:
        """The newest frame, uint8 (H, W, 3), with what moves the action in bright colors; None for a foreign policy."""
        if self._network is None:
            return None
        values = attention(self._network, obs[None])[0]
        return heat_over(newest_frame(obs), values)

    def _keep(self, encoded: Encoded) -> None:
        """Every few decisions another state (row 0, in the appearance of training), and the baseline anew."""
        self._seen += 1
        if self._seen % KEEP_EVERY:
            return
        self._kept = [*self._kept[-(KEPT_STATES - 1) :], encoded]
        if len(self._kept) >= LEAST_STATES:
            features = [kept.features[:1] for kept in self._kept if kept.features is not None]
            actions = torch.cat([kept.actions[:1] for kept in self._kept])
            self._base = baseline(Encoded(torch.cat(features) if features else None, None, actions))


def heat_over(frame: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` (H, W) as colors over the faint image."""
    scale = float(np.quantile(values, 0.995))
    share = np.clip(values / scale, 0, 1) if scale > 0 else np.zeros_like(values)
    steps = share * (len(HEAT) - 1)
    lower = np.minimum(steps.astype(int), len(HEAT) - 2)
    weight = (steps - lower)[..., None]
    colors = HEAT[lower] * (1 - weight) + HEAT[lower + 1] * weight
    strength = 0.25 + 0.6 * share[..., None]
    return np.rint(strength * colors + (1 - strength) * frame).astype(np.uint8)


def crop(frame: np.ndarray, size: int | None) -> np.ndarray:
    """The central window of (H, W, 3)."""
    if size is None or size >= len(frame):
        return frame
    margin = (len(frame) - size) // 2
    return np.ascontiguousarray(frame[margin : margin + size, margin : margin + size])


def _relative(distance: float, scale: float) -> float | None:
    return None if scale < COLLAPSED else distance / scale


def encoded_image(frame: np.ndarray, kind: str) -> bytes:
    """As JPEG (large images) or PNG (small ones, exact)."""
    content = io.BytesIO()
    options: dict[str, Any] = {"quality": 88} if kind == "JPEG" else {"compress_level": 1}
    Image.fromarray(frame).save(content, kind, **options)
    return content.getvalue()
