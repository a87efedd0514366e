"""Auxiliary tasks that shape the encoder next to RL.

An `AuxiliaryTask` is an ``nn.Module`` that holds the encoder it shapes and its own heads. `needs` says what `prepare`
takes:

- ``observations``: raw observations, sampled for the task alone (SODA);
- ``rl_batch``: RL's batch and the views that RL saw of it, as `BatchViews` (CURL);
- ``one_step``: the same for transitions of one decision (PAD). With n-step returns RL's next observation lies
  further ahead, and the task gets a one-step batch of its own.

`prepare` may run at the same time as the critic's step, and `loss_of` at the same time as the actor's, unless the task's
parameters include some of the actor's: neither may read what the other one changes.

The learner steps an optimizer over `parameters()` (those that require a gradient) on `loss_of(prepare(data, generator))`
and then calls `update_target`. `registry` builds tasks from a method's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

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
    """What the learner asks of an auxiliary task."""

    needs: Needs

    def prepare(self, data: Any, generator: torch.Generator) -> Any:
        """The part that draws, and reads no weight which RL's update changes."""

    def loss_of(self, prepared: Any) -> Tensor:
        """The loss, a scalar with gradients, of what `prepare` returned."""

    def update_target(self) -> None:
        """Called after each optimizer step (moving averages)."""

    # What every nn.Module has.
    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...
