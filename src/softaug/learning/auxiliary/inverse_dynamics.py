"""PAD's auxiliary task: which action led from o to o'? (Hansen et al., 2021, "Self-Supervised Policy Adaptation")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.learning.auxiliary import BatchViews, Needs
from softaug.learning.networks import Encoder, Projection, make_mlp


class InverseDynamicsTask(nn.Module):
    """Encoder (trunk shared with RL, last layers its own), projection, MLP: (o, o') -> action."""

    needs: Needs = "one_step"

    def __init__(
        self,
        encoder: Encoder,
        projection: Projection,
        *,
        projection_dim: int,
        hidden_dim: int,
        action_dim: int,
    ):
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.mlp = make_mlp(2 * projection_dim, hidden_dim, action_dim)

    def forward(self, view: Tensor, next_view: Tensor) -> Tensor:
        """The predicted action (B, A)."""
        both = self.projection(self.encoder(torch.cat([view, next_view])))
        return self.mlp(torch.cat(both.chunk(2), dim=1))

    def loss(self, batch: BatchViews, generator: torch.Generator) -> Tensor:
        """Mean squared error of the predicted action on one-step transitions."""
        return self.loss_of(self.prepare(batch, generator))

    def prepare(self, batch: BatchViews, generator: torch.Generator) -> BatchViews:
        """Nothing to draw: the crops are RL's."""
        return batch

    def loss_of(self, prepared: BatchViews) -> Tensor:
        return F.mse_loss(self(prepared.view, prepared.next_view), prepared.action)

    def update_target(self) -> None:
        """Nothing to average."""
