"""The one place where auxiliary tasks are built by name. `register_auxiliary` adds one from outside the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from softaug import methods
from softaug.config import Config
from softaug.errors import UserError, unknown
from softaug.learning.augment import Augment
from softaug.learning.auxiliary import AuxiliaryTask
from softaug.learning.auxiliary.curl import CurlTask
from softaug.learning.auxiliary.sgqn import MaskDecoder, MaskTask
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.building import make_inverse_dynamics
from softaug.learning.networks import Encoder, ProjectedEncoder, feature_shape
from softaug.learning.sac import SAC


@dataclass(frozen=True)
class AuxiliaryParts:
    """What a task may be built from. All networks are on their device."""

    config: Config
    sac: SAC
    encoder: Encoder
    """RL's own, or, where the row says that only the trunk is shared, one on the same trunk."""
    weak: Augment
    strong: Augment | None
    """None unless the row says that the task sees it."""
    view_shape: Sequence[int]
    """(3k, h, w) of a weak view"""
    feature_dim: int
    """of the encoder's features, flattened"""
    action_dim: int
    device: torch.device
    prefetch: bool
    """whether threads may load data ahead"""


AuxiliaryBuilder = Callable[[AuxiliaryParts], AuxiliaryTask]


def make_soda(parts: AuxiliaryParts) -> SodaTask:
    if parts.strong is None:
        raise UserError(f"SODA needs a strong view; give {parts.config.method} auxiliary_sees='strong'")
    config, sac = parts.config, parts.sac
    encoder: nn.Module = parts.encoder
    if config.soda_projections:
        encoder = ProjectedEncoder(encoder, sac.critic.projection, sac.actor.projection)
    return SodaTask(
        encoder,
        parts.strong,
        obs_shape=parts.view_shape,
        weak=parts.weak,
        projection_dim=config.projection_dim,
        tau=config.soda_tau,
        # Where RL draws strong views too, the images drawn next are RL's.
        prefetch=parts.prefetch and not config.row.strong_in_rl,
    )


def make_curl(parts: AuxiliaryParts) -> CurlTask:
    sac = parts.sac
    return CurlTask(
        parts.encoder,
        sac.critic.projection,
        sac.target_encoder,
        sac.target_critic.projection,
        parts.weak,
        projection_dim=parts.config.projection_dim,
    )


def make_sgqn(parts: AuxiliaryParts) -> MaskTask:
    if parts.strong is None:
        raise UserError(
            f"SGQN's task needs a strong view; give {parts.config.method} auxiliary_sees='strong'"
        )
    config, sac = parts.config, parts.sac
    decoder = MaskDecoder(
        config.projection_dim,
        parts.action_dim,
        feature_shape(parts.encoder, parts.view_shape),
        parts.view_shape,
    )
    mask_of = partial(sac.saliency_mask, quantile=config.sgqn_quantile)
    return MaskTask(parts.encoder, sac.critic.projection, decoder, mask_of, parts.strong)


_BUILDERS: dict[str, AuxiliaryBuilder] = {
    "soda": make_soda,
    "curl": make_curl,
    "sgqn": make_sgqn,
    "inverse_dynamics": lambda parts: make_inverse_dynamics(
        parts.config, parts.encoder, parts.feature_dim, parts.action_dim
    ),
}


def register_auxiliary(name: str, build: AuxiliaryBuilder) -> AuxiliaryBuilder:
    """Add an auxiliary task that rows may name; a name registered before gets the new one."""
    methods.refuse_taken("auxiliary task", name, methods.BUILT_IN_TASKS)
    methods.AUXILIARY_TASKS.add(name)
    _BUILDERS[name] = build
    return build


def make_auxiliary(name: str, parts: AuxiliaryParts) -> AuxiliaryTask:
    """The auxiliary task called `name`."""
    if name not in _BUILDERS:
        raise unknown("auxiliary task", name, _BUILDERS)
    task = _BUILDERS[name](parts)
    if not isinstance(task, nn.Module):
        raise UserError(f"the auxiliary task {name} must be a torch.nn.Module, not {type(task).__name__}")
    task.to(parts.device)
    return task
