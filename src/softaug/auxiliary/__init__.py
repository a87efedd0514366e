"""Auxiliary tasks that shape the encoder beside RL.

An `AuxiliaryTask` holds the encoder it shapes and its own heads. `needs` says what `loss` takes: a tensor of
raw observations or a `Batch` of one-step transitions. The caller steps the optimiser over `parameters()`
(those that require a gradient) and then calls `update_target`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor


class AuxiliaryTask(Protocol):
    """What the learner asks of an auxiliary task (an ``nn.Module``)."""

    needs: Literal["observations", "transitions"]

    def loss(self, data: Any, generator: torch.Generator) -> Tensor:
        """The task's loss on raw, un-augmented data: `loss_of(prepare(data, generator))`."""

    def prepare(self, data: Any, generator: torch.Generator) -> Any:
        """The part that reads no weight which RL's update changes, and so may run beside it."""

    def loss_of(self, prepared: Any) -> Tensor:
        """The part with gradients."""

    def update_target(self) -> None:
        """Called after each optimiser step (moving averages)."""
