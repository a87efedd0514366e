"""PAD's auxiliary task: which action led from o to o'? (Hansen et al., 2021, "Self-Supervised Policy Adaptation")."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.augment import Augment
from softaug.networks import Encoder, Projection, make_mlp
from softaug.replay import Batch


class InverseDynamicsTask(nn.Module):
    """Encoder (trunk shared with RL, last layers its own), projection, MLP: (o, o') -> action."""

    needs: Literal["observations", "transitions"] = "transitions"

    def __init__(
        self,
        encoder: Encoder,
        projection: Projection,
        weak: Augment,
        *,
        projection_dim: int,
        hidden_dim: int,
        action_dim: int,
    ):
        super().__init__()
        self.encoder, self.projection, self.weak = encoder, projection, weak
        self.mlp = make_mlp(2 * projection_dim, hidden_dim, action_dim)

    def forward(self, view: Tensor, next_view: Tensor) -> Tensor:
        """The predicted action (B, A)."""
        both = self.projection(self.encoder(torch.cat([view, next_view])))
        return self.mlp(torch.cat(both.chunk(2), dim=1))

    def loss(self, transitions: Batch, generator: torch.Generator) -> Tensor:
        """Mean squared error of the predicted action on one-step transitions."""
        return self.loss_of(self.prepare(transitions, generator))

    def prepare(self, transitions: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A crop of each end, and the action between them."""
        view = self.weak(transitions.obs, generator)
        next_view = self.weak(transitions.next_obs, generator)
        return view, next_view, transitions.action

    def loss_of(self, prepared: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        view, next_view, action = prepared
        return F.mse_loss(self(view, next_view), action)

    def update_target(self) -> None:
        """Nothing to average."""
