"""Auxiliary tasks that shape the encoder beside RL.

An `AuxiliaryTask` holds the encoder it shapes and its own heads. `needs` says what `loss` takes:

- ``observations``: raw observations, sampled for the task alone (SODA);
- ``rl_batch``: RL's batch and the views that RL saw of it, as `BatchViews` (CURL);
- ``one_step``: the same for transitions of one decision (PAD). With n-step returns RL's next observation lies
  further ahead, and the task gets a one-step batch of its own.

The caller steps the optimiser over `parameters()` (those that require a gradient) and then calls `update_target`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Needs = Literal["observations", "rl_batch", "one_step"]


class BatchViews(NamedTuple):
    """Transitions as RL sees them."""

    obs: Tensor
    """(B, 3k, H, W), raw"""
    action: Tensor
    """(B, A)"""
    view: Tensor
    """(B, 3k, h, w): what the critic sees of obs"""
    next_view: Tensor
    """(B, 3k, h, w): what the Bellman target sees of the next observation"""


class AuxiliaryTask(Protocol):
    """What the learner asks of an auxiliary task (an ``nn.Module``)."""

    needs: Needs

    def loss(self, data: Any, generator: torch.Generator) -> Tensor:
        """The task's loss on what it needs: `loss_of(prepare(data, generator))`."""

    def prepare(self, data: Any, generator: torch.Generator) -> Any:
        """The part that reads no weight which RL's update changes, and so may run beside it."""

    def loss_of(self, prepared: Any) -> Tensor:
        """The part with gradients."""

    def update_target(self) -> None:
        """Called after each optimiser step (moving averages)."""
