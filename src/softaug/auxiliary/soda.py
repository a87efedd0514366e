"""SODA: soft data augmentation (the paper's Section III and Algorithm 1).

Symbols are the paper's: f encoder, g projection, h predictor; theta is learned by gradient, psi is its
exponential moving average; o an observation, o' = t(o) its strongly augmented view.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.augment import Augment
from softaug.networks import ema_update, feature_shape, initialise


class SodaTask(nn.Module):
    """The auxiliary task on any encoder.

    encoder: f_theta, float32 pixels (B, C, H, W) in 0..255 -> features of any shape; it is shared, not copied.
    weak: the view both branches get, drawn independently for each (None: the observation as it is).
    strong: the augmentation t. obs_shape: (C, H, W) as the encoder sees it, i.e. after `weak`.
    """

    needs: Literal["observations", "transitions"] = "observations"

    def __init__(
        self,
        encoder: nn.Module,
        strong: Augment,
        *,
        obs_shape: Sequence[int],
        weak: Augment | None = None,
        projection_dim: int = 100,
        tau: float = 0.005,
    ):
        super().__init__()
        feature_dim = 1
        for size in feature_shape(encoder, obs_shape):
            feature_dim *= size
        device = next(encoder.parameters()).device
        self.f_theta = encoder
        self.g_theta = make_head(feature_dim, projection_dim).to(device)
        self.h_theta = make_head(projection_dim, projection_dim).to(device)
        initialise(self.g_theta)
        initialise(self.h_theta)
        self.f_psi = copy.deepcopy(self.f_theta).requires_grad_(False)
        self.g_psi = copy.deepcopy(self.g_theta).requires_grad_(False)
        self.weak, self.strong, self.tau = weak, strong, tau

    def loss(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Algorithm 1, lines 6-9, for o ~ B: a scalar between 0 and 4."""
        o = self._weak(observations, generator).to(torch.float32)
        o_prime = self.strong(self._weak(observations, generator), generator).to(torch.float32)
        z_hat = self.h_theta(self.g_theta(self.f_theta(o_prime).flatten(1)))
        with torch.no_grad():  # no gradient into z*
            z_star = self.g_psi(self.f_psi(o).flatten(1))
        return consistency_loss(z_hat, z_star)

    def after_step(self) -> None:
        """Algorithm 1, line 10: psi <- (1 - tau) psi + tau theta, BatchNorm's buffers included."""
        ema_update(self.f_psi, self.f_theta, self.tau)
        ema_update(self.g_psi, self.g_theta, self.tau)

    def _weak(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        return observations if self.weak is None else self.weak(observations, generator)


def consistency_loss(z_hat: Tensor, z_star: Tensor) -> Tensor:
    """Eq. 2: squared distance of the normalised vectors (B, K), summed over K, mean over the batch."""
    return (F.normalize(z_hat, dim=1) - F.normalize(z_star, dim=1)).square().sum(1).mean()


def make_head(in_dim: int, projection_dim: int) -> nn.Sequential:
    """g and h: Linear, BatchNorm, ReLU, Linear."""
    return nn.Sequential(
        nn.Linear(in_dim, projection_dim),
        nn.BatchNorm1d(projection_dim),
        nn.ReLU(),
        nn.Linear(projection_dim, projection_dim),
    )
