"""Policies: what acts at test time. PAD's adaptation is a policy too, so evaluation has no special case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.config import Config
from softaug.errors import UserError
from softaug.learning.augment import RandomCrop, center_crop
from softaug.learning.building import make_encoders, make_inverse_dynamics
from softaug.learning.memory import check_memory
from softaug.learning.networks import Actor, Encoder, channels_last, feature_shape
from softaug.learning.sac import adam, optimiser_step

ADAPTATION_CROPS = 32
ADAPTATION_LR = 1e-3


class Policy(Protocol):
    """Acts on raw observations, uint8 (3k, H, W). Call order: begin_episode, then act and observe in turn."""

    def begin_episode(self, seed: int = 0) -> None:
        """Forget the last episode. `seed` fixes whatever the policy draws during the next one."""

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The action (A,) at obs."""

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        """What the last action led to."""


class PolicyFault(Exception):
    """What is wrong with a policy that was made elsewhere: words that the mode and the episode are added to."""


class PolicyFailed(UserError):
    """The sentence for a `PolicyFault`, with mode, episode and decision."""


class MeanPolicy(nn.Module):
    """The policy's mean action at the center crop: f_theta and pi_theta alone, as the paper tests."""

    def __init__(self, encoder: Encoder, actor: Actor, crop_size: int, obs_shape: Sequence[int]):
        super().__init__()
        self.encoder, self.actor, self.crop_size = encoder, actor, crop_size
        self.obs_shape = tuple(obs_shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Raw pixels (B, 3k, H, W) -> actions (B, A)."""
        mean, _ = self.actor(self.encoder(center_crop(obs, self.crop_size)))
        return torch.tanh(mean)

    def begin_episode(self, seed: int = 0) -> None:
        """Nothing to forget."""

    @torch.inference_mode()
    def act(self, obs: np.ndarray) -> np.ndarray:
        # The center crop would take a larger image without complaint, and show the networks another scale.
        if obs.shape != self.obs_shape:
            raise UserError(
                f"the policy was trained on observations of shape {self.obs_shape}, not {obs.shape}; make the "
                "environment with its run's image_size and frame_stack"
            )
        return self(torch.from_numpy(obs)[None])[0].numpy()

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        """Nothing to learn."""


class AdaptivePolicy:
    """PAD at test time: after each step, one Adam step on the inverse-dynamics loss of 32 random crops.

    The shared trunk and the auxiliary head move; every episode starts again from the trained weights.
    """

    def __init__(self, policy: MeanPolicy, inverse_dynamics: nn.Module):
        self.policy, self.inverse_dynamics = policy, inverse_dynamics
        self.crop = RandomCrop(policy.crop_size)
        self._trained = {name: tensor.clone() for name, tensor in inverse_dynamics.state_dict().items()}
        self.begin_episode()

    def begin_episode(self, seed: int = 0) -> None:
        self.inverse_dynamics.load_state_dict(self._trained)
        self._optimiser = adam(self.inverse_dynamics.parameters(), ADAPTATION_LR)
        self._generator = torch.Generator().manual_seed(seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.policy.act(obs)

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        view, next_view = (self._crops(pixels) for pixels in (obs, next_obs))
        predicted = self.inverse_dynamics(view, next_view)
        target = torch.as_tensor(action, dtype=torch.float32).expand_as(predicted)
        optimiser_step(self._optimiser, F.mse_loss(predicted, target))

    def _crops(self, obs: np.ndarray) -> Tensor:
        stack = torch.from_numpy(obs)[None].expand(ADAPTATION_CROPS, -1, -1, -1)
        return self.crop(stack.contiguous(memory_format=torch.channels_last), self._generator)


def make_policy(
    config: Config,
    weights: Mapping[str, Tensor],
    obs_shape: Sequence[int],
    action_dim: int,
    *,
    adapt: bool = False,
) -> MeanPolicy | AdaptivePolicy:
    """The policy of `Agent.policy_weights`, on the CPU. `adapt` is for methods that adapt at test time (PAD)."""
    if adapt and not config.row.adapts:
        raise UserError(f"{config.method} does not adapt at test time; only PAD does")
    check_memory(config, action_dim, training=False)
    with torch.random.fork_rng(
        devices=[]
    ):  # initial weights, overwritten below, must not move the global generator
        encoder, auxiliary_encoder = make_encoders(config, obs_shape[0])
        feature_dim = int(np.prod(feature_shape(encoder, (obs_shape[0], config.crop_size, config.crop_size))))
        actor = Actor(feature_dim, config.projection_dim, config.hidden_dim, action_dim)
        task = make_inverse_dynamics(config, auxiliary_encoder, feature_dim, action_dim) if adapt else None
    _load(encoder, weights, "encoder")
    _load(actor, weights, "actor")
    policy = channels_last(MeanPolicy(encoder, actor, config.crop_size, obs_shape)).eval()
    if task is None:
        return policy
    _load(task, weights, "auxiliary")
    return AdaptivePolicy(policy, channels_last(task))


def _load(module: nn.Module, weights: Mapping[str, Tensor], part: str) -> None:
    prefix = part + "."
    mine = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    try:
        module.load_state_dict(mine)
    except RuntimeError as error:
        raise UserError(
            f"the weights do not fit the run's config ({part}: {str(error).splitlines()[-1].strip()}); give those "
            "that belong to it"
        ) from None
