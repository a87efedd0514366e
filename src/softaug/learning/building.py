"""Networks as a config describes them; what training and a policy at test time build alike."""

from __future__ import annotations

import torch

from softaug.config import Config
from softaug.errors import UserError
from softaug.learning.auxiliary.inverse_dynamics import InverseDynamicsTask
from softaug.learning.networks import ConvStack, Encoder, Projection, initialise


def make_encoders(config: Config, in_channels: int) -> tuple[Encoder, Encoder]:
    """RL's encoder and the auxiliary task's: the same object, but for PAD, which shares only the trunk."""
    shared = len(config.filters)
    if config.row.auxiliary == "inverse_dynamics":
        shared -= config.pad_own_layers
    trunk = ConvStack(in_channels, config.filters[:shared], config.strides[:shared], pixels=True)
    if shared == len(config.filters):
        encoder = auxiliary_encoder = Encoder(trunk)
    else:
        own = (config.filters[shared - 1], config.filters[shared:], config.strides[shared:])
        encoder = Encoder(trunk, ConvStack(*own, pixels=False))
        auxiliary_encoder = Encoder(trunk, ConvStack(*own, pixels=False))
        initialise(auxiliary_encoder, config.conv_init)
    initialise(encoder, config.conv_init)
    return encoder, auxiliary_encoder


def make_inverse_dynamics(
    config: Config, encoder: Encoder, feature_dim: int, action_dim: int
) -> InverseDynamicsTask:
    """PAD's auxiliary task with its own projection and head."""
    projection = Projection(feature_dim, config.projection_dim)
    task = InverseDynamicsTask(
        encoder,
        projection,
        projection_dim=config.projection_dim,
        hidden_dim=config.hidden_dim,
        action_dim=action_dim,
    )
    for head in (task.projection, task.mlp):
        initialise(head)
    return task


def choose_device(name: str) -> torch.device:
    """`auto`: CUDA, then Apple's MPS, then the CPU. A device that is not there is an error."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(device for device in ("cuda", "mps", "cpu") if available[device])
    if not available.get(name, False):
        raise UserError(
            f"device {name!r} is not available here; use one of {', '.join(d for d, ok in available.items() if ok)}"
        )
    return torch.device(name)
