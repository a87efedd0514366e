"""Networks as a config describes them; what training and a policy at test time build alike."""

from __future__ import annotations

from functools import partial

import torch

from softaug.config import Config
from softaug.errors import UserError
from softaug.learning.auxiliary.inverse_dynamics import InverseDynamicsTask
from softaug.learning.networks import ConvStack, Encoder, Masker, PerFrameTrunk, Projection, initialise


def make_encoders(config: Config, in_channels: int) -> tuple[Encoder, Encoder]:
    """RL's encoder and the auxiliary task's: the same object, unless the row says that they share only the trunk (PAD)."""
    shared = len(config.filters)
    if config.row.auxiliary_shares == "trunk":
        shared -= config.pad_own_layers
    trunk, channels = make_trunk(config, in_channels, shared)
    masker = Masker(in_channels // 3, config.masker_filters) if config.row.masker else None
    if shared == len(config.filters):
        encoder = auxiliary_encoder = Encoder(trunk, final_relu=config.final_relu, masker=masker)
    else:
        # What a frame's layers end with are features already past their ReLU, or differences of them.
        own = partial(
            ConvStack,
            channels,
            config.filters[shared:],
            config.strides[shared:],
            pixels=False,
            relu_first=config.frame_layers != shared,
        )
        encoder, auxiliary_encoder = (
            Encoder(trunk, own(), final_relu=config.final_relu, masker=masker) for _ in range(2)
        )
        initialise(auxiliary_encoder, config.conv_init)
    initialise(encoder, config.conv_init)
    return encoder, auxiliary_encoder


def make_trunk(config: Config, in_channels: int, layers: int) -> tuple[ConvStack | PerFrameTrunk, int]:
    """The first `layers` convolutions, and the channels they end with."""
    filters, strides, alone = config.filters[:layers], config.strides[:layers], config.frame_layers
    first = partial(ConvStack, pixels=True, pixel_offset=config.pixel_offset)
    if not alone:
        return first(in_channels, filters, strides, frame_differences=config.frame_differences), filters[-1]
    frame = first(3, filters[:alone], strides[:alone])
    frames = in_channels // 3
    joint = ConvStack(
        frames * filters[alone - 1], filters[alone:], strides[alone:], pixels=False, relu_first=False
    )
    return PerFrameTrunk(frames, frame, joint, config.frame_join), filters[
        -1
    ] if alone < layers else frames * filters[-1]


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
