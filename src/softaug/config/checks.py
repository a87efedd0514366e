"""Which values of a config cannot work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from softaug.config.own_environment import check_own_environment
from softaug.errors import UserError, unknown
from softaug.presets import LABEL, PRESETS

if TYPE_CHECKING:
    from softaug.config import Config

AT_LEAST_ONE = (
    "decisions", "image_size", "crop_size", "frame_stack", "masker_filters", "projection_dim", "hidden_dim",
    "batch_size", "n_step", "replay_capacity", "update_every", "updates_at_once", "actor_every", "target_every",
    "aux_batch_size", "aux_every", "eval_episodes", "checkpoint_every", "keep_checkpoints", "log_every", "workers",
)  # fmt: skip
NOT_NEGATIVE = (
    "random_decisions", "initial_updates", "eval_every", "action_repeat", "episode_decisions", "threads", "seed",
)  # fmt: skip
AT_MOST = {
    "decisions": 10**12, "replay_capacity": 10**12, "random_decisions": 10**12, "initial_updates": 10**12,
    "checkpoint_every": 10**12, "log_every": 10**12, "eval_every": 10**12, "eval_episodes": 10**6, "seed": 2**32 - 1,
    "image_size": 4096, "masker_filters": 4096, "frame_stack": 100, "action_repeat": 1000,
    "episode_decisions": 10**9, "n_step": 10**4, "keep_checkpoints": 10**6, "workers": 1024, "threads": 1024,
    "batch_size": 10**9, "aux_batch_size": 10**9,
    "update_every": 10**9, "updates_at_once": 10**6, "actor_every": 10**9, "target_every": 10**9, "aux_every": 10**9,
}  # fmt: skip
"""Far beyond any use, within what PyTorch, NumPy and the operating system can count."""
SHARES = (
    "discount", "critic_tau", "encoder_tau", "soda_tau", "overlay_alpha", "pixel_offset", "sgqn_quantile",
)  # fmt: skip
POSITIVE = ("actor_lr", "critic_lr", "alpha_lr", "aux_lr", "initial_temperature")
CHOICES = {
    "replay_memory": ("disk", "ram"), "render": ("exact", "fast", "coarse", "aliased"),
    "conv_init": ("delta_orthogonal", "orthogonal"), "device": ("auto", "cpu", "cuda", "mps"), "precision": ("fp32", "tf32", "bf16"),
    "prefetch": ("auto", "on", "off"), "overlap": ("auto", "on", "off"), "frame_join": ("differences", "features"),
}  # fmt: skip


def check(config: Config) -> None:
    """Refuse values that cannot work, in one sentence each."""
    for name in AT_LEAST_ONE:
        if name == "decisions" and config.row.foreign and config.decisions == 0:
            continue  # nobody said how long it was trained
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1, not {getattr(config, name)}")
    for name in NOT_NEGATIVE:
        if getattr(config, name) < 0:
            raise UserError(f"{name} must not be negative, but is {getattr(config, name)}")
    for name, most in AT_MOST.items():
        if getattr(config, name) > most:
            raise UserError(f"{name} must be at most {most}, not {getattr(config, name)}")
    for name in SHARES:
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"{name} must lie between 0 and 1, not {getattr(config, name)}")
    for name in POSITIVE:
        if not 0 < getattr(config, name) < math.inf:
            raise UserError(f"{name} must be positive, not {getattr(config, name)}")
    if config.preset not in PRESETS and not LABEL.fullmatch(config.preset):
        raise unknown("preset", config.preset, PRESETS)
    for name, valid in CHOICES.items():
        if getattr(config, name) not in valid:
            raise unknown(name, getattr(config, name), valid)
    if config.crop_size > config.image_size:
        raise UserError(
            f"crop_size {config.crop_size} is larger than image_size {config.image_size}; make it smaller"
        )
    if not config.row.crops and config.crop_size != config.image_size:
        raise UserError(
            f"{config.method} does not crop, so image_size {config.image_size} and crop_size "
            f"{config.crop_size} must be equal; give only one of them"
        )
    if len(config.filters) != len(config.strides) or not config.filters:
        raise UserError(
            f"filters ({len(config.filters)}) and strides ({len(config.strides)}) must have the same length, at least 1"
        )
    for name in ("filters", "strides"):
        if min(getattr(config, name)) < 1:
            raise UserError(
                f"{name} must be at least 1 each, not {','.join(map(str, getattr(config, name)))}"
            )
    size = config.crop_size
    for stride in () if config.row.foreign else config.strides:  # 3x3 convolutions without padding
        size = (size - 3) // stride + 1
        if size < 1:
            raise UserError(
                f"crop_size {config.crop_size} is too small for {len(config.strides)} convolutions with strides "
                f"{','.join(map(str, config.strides))}; make it larger or use fewer --filters and --strides"
            )
    check_own_environment(config)
    if not config.eval_modes or len(set(config.eval_modes)) < len(config.eval_modes):
        raise UserError(
            f"eval_modes must name at least one mode, and each once, not {list(config.eval_modes)}"
        )
    if config.row.auxiliary_shares == "trunk" and not 0 < config.pad_own_layers < len(config.filters):
        raise UserError(
            f"pad_own_layers must lie between 1 and {len(config.filters) - 1} for {len(config.filters)} layers"
        )
    together = len(config.filters) - 1
    if config.row.auxiliary_shares == "trunk":
        together = len(config.filters) - config.pad_own_layers
    if not 0 <= config.frame_layers <= together:
        raise UserError(
            f"frame_layers must lie between 0 and {together}, not {config.frame_layers}: a later layer of the "
            f"{len(config.filters)} has to see the frames together"
        )
    if not 0 <= config.frame_differences < math.inf:
        raise UserError(f"frame_differences must not be negative, but is {config.frame_differences}")
    if config.frame_differences and config.frame_layers:
        raise UserError(
            "frame_differences are of pixels and frame_layers of features, which cannot be combined; set one of them to 0"
        )
    if not 0 <= config.alpha_beta < 1:
        raise UserError(f"alpha_beta must be at least 0 and below 1, not {config.alpha_beta}")
    if not 0 <= config.critic_weight_decay < math.inf:
        raise UserError(f"critic_weight_decay must not be negative, but is {config.critic_weight_decay}")
    first_view = "weak" if config.row.critic_sees == "masked" else config.row.critic_sees
    if config.share_features and first_view not in ("both", config.row.actor_sees):
        raise UserError(
            f"the actor of {config.method} sees a view that its critic does not, so they cannot share features; leave "
            "out share_features"
        )
    if config.random_decisions < config.batch_size // 4 + config.n_step:
        raise UserError(
            f"random_decisions {config.random_decisions} is too few for a batch of {config.batch_size}; raise it"
        )
