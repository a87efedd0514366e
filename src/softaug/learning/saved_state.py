"""Weights and optimizers as plain tensors on the CPU, for checkpoints, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory with the network, or with each other."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}


def optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """What the optimizer remembers of each parameter, by the parameter's number."""
    return {
        str(index): {
            name: torch.as_tensor(value).detach().cpu().clone().contiguous() for name, value in entry.items()
        }
        for index, entry in optimiser.state_dict()["state"].items()
    }


def load_optimiser_state(optimiser: torch.optim.Optimizer, entries: dict[str, Any]) -> None:
    """Inverse of `optimiser_state`."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state = optimiser.state_dict()
    state["state"] = {
        int(index): {name: _laid_out_like(parameters[int(index)], value) for name, value in entry.items()}
        for index, entry in entries.items()
    }
    optimiser.load_state_dict(state)


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` in the parameter's memory format: fused Adam pairs the two in memory order."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
