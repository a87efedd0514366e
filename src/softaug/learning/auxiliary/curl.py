"""CURL: contrastive learning between two crops of one observation (Srinivas et al., 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.learning.augment import Augment
from softaug.learning.auxiliary import BatchViews, Needs
from softaug.learning.networks import Encoder, Projection


class CurlTask(nn.Module):
    """Tell which of the batch's keys is another crop of the query's observation.

    The query is the crop that the critic saw; the key's crop is drawn for this task.
    The query goes through the online encoder and the critic's projection, the key through their moving
    averages, which the learner already keeps as the critic's target: the task has no average of its own.
    """

    needs: Needs = "rl_batch"

    def __init__(
        self,
        encoder: Encoder,
        projection: Projection,
        key_encoder: Encoder,
        key_projection: Projection,
        weak: Augment,
        *,
        projection_dim: int,
    ):
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.key_encoder, self.key_projection = key_encoder, key_projection
        device = next(encoder.parameters()).device
        self.W = nn.Parameter(torch.rand(projection_dim, projection_dim, device=device))
        self.weak = weak

    def loss(self, batch: BatchViews, generator: torch.Generator) -> Tensor:
        """Cross-entropy over the batch; the positives lie on the diagonal."""
        return self.loss_of(self.prepare(batch, generator))

    def prepare(self, batch: BatchViews, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The two crops. (The keys' encoder is the critic's target, which the critic's update moves.)"""
        return batch.view, self.weak(batch.obs, generator)

    def loss_of(self, prepared: tuple[Tensor, Tensor]) -> Tensor:
        query_view, key_view = prepared
        query = self.projection(self.encoder(query_view))
        with torch.no_grad():
            key = self.key_projection(self.key_encoder(key_view))
        logits = self.logits(query, key)
        return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """q^T W k for every pair: (B, B)."""
        return query @ self.W @ key.T

    def update_target(self) -> None:
        """Nothing: the keys' moving average is the critic's target."""
