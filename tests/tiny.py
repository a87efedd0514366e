"""Tiny learners: the paper's code path with networks of a few hundred weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fakes import FakeImages
from torch import Tensor, nn

from softaug.config import Config, make_config
from softaug.learning.agent import Agent, make_agent
from softaug.learning.replay import Replay

ACTION_DIM = 2
SIZES: dict[str, Any] = {
    "image_size": 16,
    "crop_size": 12,
    "frame_stack": 2,
    "filters": (4, 6),
    "strides": (2, 1),
    "pad_own_layers": 1,
    "projection_dim": 8,
    "hidden_dim": 16,
    "batch_size": 8,
    "aux_batch_size": 8,
    "device": "cpu",
}


def tiny_method(method: str, **overrides: Any) -> Config:
    """`method` with its paper's numbers and schedules, but tiny sizes."""
    sizes, paper = dict(SIZES), make_config(method=method)
    if not paper.row.crops:
        del sizes["image_size"]
    if paper.frame_layers:
        sizes["frame_layers"] = 1
    return make_config(method=method, **{**sizes, **overrides})


def obs_shape(config: Config) -> tuple[int, int, int]:
    return (3 * config.frame_stack, config.image_size, config.image_size)


def tiny_agent(method: str, **overrides: Any) -> Agent:
    config = tiny_method(method, **overrides)
    return make_agent(config, obs_shape(config), ACTION_DIM, images=FakeImages())


def tiny_replay(config: Config, *, episodes: int = 4, length: int = 12, seed: int = 0) -> Replay:
    """A replay in RAM with random frames, actions and rewards; every second episode really ends."""
    rng = np.random.default_rng(seed)
    frame_shape = (config.image_size, config.image_size, 3)
    replay = Replay(
        None,
        capacity=200,
        slack=10,
        episode_decisions=length,
        frame_shape=frame_shape,
        frame_stack=config.frame_stack,
        action_dim=ACTION_DIM,
        discount=config.discount,
    )
    for episode in range(episodes):
        replay.begin_episode(rng.integers(0, 256, frame_shape, dtype=np.uint8))
        for t in range(length):
            action = rng.uniform(-1, 1, ACTION_DIM).astype(np.float32)
            terminated = t == length - 1 and episode % 2 == 1
            replay.add(
                action, float(rng.normal()), terminated, rng.integers(0, 256, frame_shape, dtype=np.uint8)
            )
    return replay


def replay_for(method: str, **overrides: Any) -> Replay:
    return tiny_replay(tiny_method(method, **overrides))


def generator(device: str = "cpu", seed: int = 0) -> torch.Generator:
    """Draws on `device`; each kind of device makes other numbers of a seed."""
    return torch.Generator(device).manual_seed(seed)


def pixels(*shape: int, seed: int = 0, dtype: torch.dtype = torch.uint8, device: str = "cpu") -> Tensor:
    """Random pixels (B, 3k, H, W) in channels_last memory, as the replay gives them; the same on every device."""
    drawn = torch.randint(256, shape, generator=generator(seed=seed)).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last).to(device)


def normal(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """Standard normal numbers, the same on every device."""
    return torch.randn(shape, generator=generator(seed=seed)).to(device)


def global_generators(device: str) -> list[Tensor]:
    """The states of the generators that code without one of its own would draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device == "cuda" else [])]


def assert_same_on(device: str, one: Any, other: Any, tolerance: float = 1e-4) -> None:
    """Tensors, or dicts of them, computed twice: equal bit for bit on the CPU, within `tolerance` elsewhere."""
    tolerance = 0 if device == "cpu" else tolerance
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


AFTER_UPDATES = 2e-2
"""Tolerance for weights and metrics after a few updates: where a gradient is nearly zero, rounding may turn Adam's step
of about the learning rate (1e-3) around. Another seed, or one draw more, shows
after the first update already."""


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's parameters and buffers, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two snapshots are equal, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def without_gradient(module: nn.Module) -> bool:
    return all(parameter.grad is None for parameter in module.parameters())


def with_gradient(module: nn.Module) -> bool:
    """Whether every parameter has a gradient and some of it is not zero."""
    gradients = [parameter.grad for parameter in module.parameters()]
    return all(g is not None for g in gradients) and any(bool(g.any()) for g in gradients if g is not None)
