"""The agent: every part of a method wired together, in one place.

`make_agent` reads the method's row and builds encoder, SAC, views and auxiliary task. `Agent.update` is one iteration
of the paper's Algorithm 1 in four phases: critic, actor, targets, auxiliary task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softaug.config import Config
from softaug.errors import UserError
from softaug.learning.augment import Augment, Images, center_crop, upload
from softaug.learning.auxiliary import AuxiliaryTask, BatchViews
from softaug.learning.auxiliary.registry import AuxiliaryParts, make_auxiliary
from softaug.learning.beside import Beside, overlaps
from softaug.learning.building import choose_device, make_encoders
from softaug.learning.networks import (
    Actor,
    Critic,
    channels_last,
    feature_shape,
    initialise,
)
from softaug.learning.replay import Batch, Replay
from softaug.learning.sac import SAC, Metrics, adam
from softaug.learning.saliency import keep_masked
from softaug.learning.saved_state import load_optimiser_state, optimiser_state, unshared
from softaug.learning.views import make_view
from softaug.methods import Method


class Seen(NamedTuple):
    """RL's batch and what each part of the update sees of it."""

    batch: Batch
    critic: Tensor
    """(B, 3k, h, w), of the observations"""
    critic_too: Tensor | None
    """a second view, if the critic sees both"""
    actor: Tensor
    """of the observations"""
    target: Tensor
    """of the next observations"""
    actor_too: Tensor | None = None
    """a second view of the observations, if the actor sees both"""


class Agent:
    """Acts, updates itself from a replay, and can save and restore its whole state."""

    def __init__(
        self,
        sac: SAC,
        *,
        row: Method,
        weak: Augment,
        strong: Augment | None,
        auxiliary: AuxiliaryTask | None,
        crop_size: int,
        action_dim: int,
        batch_size: int,
        n_step: int,
        actor_every: int,
        target_every: int,
        aux_batch_size: int,
        aux_every: int,
        aux_lr: float,
        seed: int,
        device: torch.device,
        autocast: bool = False,
        prefetch: bool = False,
        overlap: bool = False,
        saliency_quantile: float = 0.95,
    ):
        self.sac, self.auxiliary = sac, auxiliary
        self.row, self.weak, self.strong = row, weak, strong
        self.crop_size, self.action_dim = crop_size, action_dim
        self.batch_size, self.n_step = batch_size, n_step
        self.actor_every, self.target_every = actor_every, target_every
        self.aux_batch_size, self.aux_every = aux_batch_size, aux_every
        self.device, self.autocast, self.prefetch = device, autocast, prefetch
        self.saliency_quantile = saliency_quantile
        self.beside = Beside(overlap)
        self.optimisers = dict(sac.optimisers)
        if auxiliary is not None:
            self.optimisers["auxiliary"] = adam(
                [p for p in auxiliary.parameters() if p.requires_grad], aux_lr
            )
        shaped = {id(parameter) for parameter in auxiliary.parameters()} if auxiliary is not None else set()
        self.auxiliary_shapes_actor = any(id(parameter) in shaped for parameter in sac.actor.parameters())
        self.updates = 0
        # Separate streams: acting draws on the CPU, updates on the device, the replay with numpy. The auxiliary task has
        # its own: what RL draws does not depend on it, and they may draw at the same time.
        act_seed, update_seed, replay_seed, aux_seed = np.random.SeedSequence([seed, 1]).generate_state(4)
        self.act_generator = torch.Generator().manual_seed(int(act_seed))
        self.generator = torch.Generator(device).manual_seed(int(update_seed))
        self.aux_generator = torch.Generator(device).manual_seed(int(aux_seed))
        self.replay_rng = np.random.default_rng(int(replay_seed))

    @torch.inference_mode()
    def act(self, obs: np.ndarray) -> np.ndarray:
        """An action (A,) sampled from the policy at obs, uint8 (3k, H, W)."""
        view = center_crop(torch.from_numpy(obs)[None], self.crop_size).to(self.device)
        mean, log_std = self.sac.actor(self.sac.encoder(view.contiguous(memory_format=torch.channels_last)))
        noise = torch.randn(mean.shape, generator=self.act_generator).to(self.device)
        return torch.tanh(mean + noise * log_std.exp())[0].cpu().numpy()

    def random_action(self) -> np.ndarray:
        """An action (A,), uniform in [-1, 1]."""
        return (torch.rand(self.action_dim, generator=self.act_generator) * 2 - 1).numpy()

    def update(self, replay: Replay) -> Metrics:
        """One iteration: critic, actor, targets and, when due, the auxiliary task; returns 0-dim tensors to log.

        What does not wait for each other is computed side by side (see `Beside`): the Bellman target and the critic's values,
        then the critic's step and what the auxiliary task prepares; the actor's step and the auxiliary gradients, which
        both read the encoder as the critic's step left it (unless the task shapes the actor too).
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            metrics = self._update(replay)
        self.updates += 1
        return metrics

    def _update(self, replay: Replay) -> Metrics:
        seen = self.sample(replay)
        auxiliary_data = self.sample_for_auxiliary(replay, seen)
        self.gather_ahead(replay)

        critic_pass = self.beside.start(self.critic_pass, seen)
        auxiliary_is_due = self.auxiliary_is_due()
        if auxiliary_is_due:
            prepared = self.beside.start(self.prepare_auxiliary, auxiliary_data)
        target = self.bellman_target(seen)
        values, features = critic_pass.result()
        metrics = self.sac.update_critic(values, target)
        metrics["batch_reward"] = seen.batch.reward.mean()

        actor_is_due = self.is_due(self.actor_every)
        if actor_is_due:
            actor_metrics = self.beside.start(self.update_actor, seen, features)
            if self.auxiliary_shapes_actor:
                actor_metrics.result()

        if self.is_due(self.target_every):
            self.sac.update_target()

        if auxiliary_is_due:
            auxiliary_loss = self.auxiliary_gradients(prepared.result())
        if actor_is_due:
            metrics |= actor_metrics.result()
        if auxiliary_is_due:
            self.step_auxiliary()
            metrics["aux_loss"] = auxiliary_loss
        return metrics

    def is_due(self, every: int) -> bool:
        """Whether what happens every `every` updates happens in this one."""
        return self.updates % every == 0

    def auxiliary_is_due(self) -> bool:
        return self.auxiliary is not None and self.is_due(self.aux_every)

    def sample(self, replay: Replay) -> Seen:
        """RL's batch, and its views as the method's row says."""
        batch = replay.sample(self.batch_size, self.replay_rng, self.n_step).to(self.device)
        return self._views(batch)

    def _views(self, batch: Batch) -> Seen:
        row, strong = self.row, self.strong
        weak_view = self.weak(batch.obs, self.generator)
        if row.target_sees == "raw":
            next_view = center_crop(batch.next_obs, self.crop_size)
        else:
            next_view = self.weak(batch.next_obs, self.generator)
        critic = actor = weak_view
        critic_too = actor_too = None
        if strong is not None and not {"strong", "both"}.isdisjoint((row.critic_sees, row.actor_sees)):
            strong_view = strong(weak_view, self.generator)
            critic = strong_view if row.critic_sees == "strong" else weak_view
            critic_too = strong_view if row.critic_sees == "both" else None
            actor = strong_view if row.actor_sees == "strong" else weak_view
            actor_too = strong_view if row.actor_sees == "both" else None
        if row.critic_sees == "masked":
            critic_too = self._salient(weak_view, batch.action)
        if strong is not None and row.target_sees == "strong":
            next_view = strong(next_view, self.generator)
        return Seen(batch, critic, critic_too, actor, next_view, actor_too)

    def _salient(self, view: Tensor, action: Tensor) -> Tensor:
        """The view with nothing but the pixels that matter most to the critic (SGQN)."""
        share = torch.rand(1, generator=self.generator, device=self.device)
        return keep_masked(view, self.sac.saliency_mask(view, action, self.saliency_quantile), share)

    def critic_pass(self, seen: Seen) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor] | None]:
        """Both Q functions on each of the critic's views, and the features that the actor shares with them."""
        features = self.shared_features(seen)
        return self.sac.critic_values(seen.critic, seen.batch.action, seen.critic_too, features), features

    def shared_features(self, seen: Seen) -> list[Tensor] | None:
        """The encodings that critic and actor share, as in DrQ-v2: the actor then sees the encoder of before the critic's
        step. None: each encodes for itself."""
        return self.sac.encode(seen.critic, seen.critic_too) if self.sac.share_features else None

    def update_actor(self, seen: Seen, features: list[Tensor] | None) -> Metrics:
        return self.sac.update_actor(seen.actor, self.generator, features, seen.actor_too)

    def bellman_target(self, seen: Seen) -> Tensor:
        batch = seen.batch
        return self.sac.bellman_target(seen.target, batch.reward, batch.discount, self.generator)

    def sample_for_auxiliary(self, replay: Replay, seen: Seen) -> Any:
        """What the auxiliary task needs, if it is due: raw observations, RL's batch or a batch of its own."""
        if self.auxiliary is None or not self.auxiliary_is_due():
            return None
        if self.auxiliary.needs == "observations":
            return upload(replay.sample_observations(self.aux_batch_size, self.replay_rng), self.device)
        if self.auxiliary.needs == "one_step" and self.n_step > 1:
            return replay.sample(self.batch_size, self.replay_rng, n_step=1).to(self.device)
        return BatchViews(seen.batch.obs, seen.batch.action, seen.critic, seen.target)

    def prepare_auxiliary(self, data: Any) -> Any:
        """What the auxiliary task makes of its data without the weights that RL changes."""
        assert self.auxiliary is not None
        if isinstance(data, Batch):
            views = (self.weak(pixels, self.aux_generator) for pixels in (data.obs, data.next_obs))
            data = BatchViews(data.obs, data.action, *views)
        return self.auxiliary.prepare(data, self.aux_generator)

    def auxiliary_gradients(self, prepared: Any) -> Tensor:
        assert self.auxiliary is not None
        self.optimisers["auxiliary"].zero_grad(set_to_none=True)
        loss = self.auxiliary.loss_of(prepared)
        loss.backward()
        return loss.detach()

    def step_auxiliary(self) -> None:
        assert self.auxiliary is not None
        self.optimisers["auxiliary"].step()
        self.auxiliary.update_target()

    def gather_ahead(self, replay: Replay) -> None:
        """Start to gather what the next update will sample (see `Replay.gather_ahead`); after this update's last draw."""
        if not self.prefetch:
            return
        wanted = [(self.batch_size, self.n_step)]
        if self.auxiliary is not None and (self.updates + 1) % self.aux_every == 0:
            if self.auxiliary.needs == "observations":
                wanted.append((self.aux_batch_size, 0))
            elif self.auxiliary.needs == "one_step" and self.n_step > 1:
                wanted.append((self.batch_size, 1))
        replay.gather_ahead(self.replay_rng, wanted, pin=self.device.type == "cuda")

    def policy_weights(self) -> dict[str, Tensor]:
        """What a policy needs at test time, on the CPU: encoder and actor, and the task that it adapts with (PAD)."""
        parts: dict[str, nn.Module | AuxiliaryTask] = {"encoder": self.sac.encoder, "actor": self.sac.actor}
        if self.row.adapts and self.auxiliary is not None:
            parts["auxiliary"] = self.auxiliary
        return {
            f"{part}.{name}": tensor.detach().cpu().clone().contiguous()
            for part, module in parts.items()
            for name, tensor in module.state_dict().items()
        }

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on: weights, optimisers, generators, counters."""
        return {
            "sac": unshared(self.sac.state_dict()),
            "auxiliary": None if self.auxiliary is None else unshared(self.auxiliary.state_dict()),
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "updates": self.updates,
            "act_generator": self.act_generator.get_state(),
            "generator": self.generator.get_state(),
            "aux_generator": self.aux_generator.get_state(),
            "replay_rng": self.replay_rng.bit_generator.state,
        }

    def load_state(self, tree: dict[str, Any]) -> None:
        """Inverse of `state`, in place: modules that share the encoder continue to share it."""
        self.sac.load_state_dict(tree["sac"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(tree["auxiliary"])
        for name, optimiser in self.optimisers.items():
            load_optimiser_state(optimiser, tree["optimisers"][name])
        self.updates = tree["updates"]
        self.act_generator.set_state(tree["act_generator"].cpu())
        self.generator.set_state(tree["generator"].cpu())
        if "aux_generator" in tree:  # checkpoints of before there was one have the seeded one
            self.aux_generator.set_state(tree["aux_generator"].cpu())
        self.replay_rng.bit_generator.state = tree["replay_rng"]


def make_agent(
    config: Config, obs_shape: Sequence[int], action_dim: int, *, images: Images | None = None
) -> Agent:
    """Build the agent of `config` for raw observations of obs_shape (3k, H, W).

    images: the overlay's image source; by default the one that config.images names.
    """
    device = choose_device(config.device)
    if config.precision != "fp32" and device.type != "cuda":
        # bf16 on a CPU is slower, and traps on virtual machines that advertise instructions they lack.
        raise UserError(f"precision {config.precision} needs CUDA, but the device is {device}; use fp32")
    if device.type == "cuda":
        # Both ways: PyTorch lets convolutions use TF32 unless it is told not to.
        allowed = config.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    row = config.row
    view_shape = (obs_shape[0], config.crop_size, config.crop_size)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        encoder, auxiliary_encoder = make_encoders(config, obs_shape[0])
        for part in (encoder, auxiliary_encoder):
            channels_last(part.to(device))
        feature_dim = int(np.prod(feature_shape(encoder, view_shape)))
        sizes = (feature_dim, config.projection_dim, config.hidden_dim, action_dim)
        actor, critic = Actor(*sizes).to(device), Critic(*sizes, norm=config.critic_norm).to(device)
        for module in (actor, critic):
            initialise(module)
        sac = SAC(
            encoder,
            actor,
            critic,
            action_dim=action_dim,
            initial_temperature=config.initial_temperature,
            actor_lr=config.actor_lr,
            critic_lr=config.critic_lr,
            alpha_lr=config.alpha_lr,
            critic_tau=config.critic_tau,
            encoder_tau=config.encoder_tau,
            alpha_beta=config.alpha_beta,
            critic_weight_decay=config.critic_weight_decay,
            share_features=config.share_features,
            critic_loss=row.critic_loss,
            reward_scale=config.reward_scale,
        )
        prefetch = config.prefetch == "on" or (config.prefetch == "auto" and device.type == "cuda")
        weak = make_view(row.weak, config, images)
        strong = None if row.strong is None else make_view(row.strong, config, images)
        auxiliary = None
        if row.auxiliary is not None:
            parts = AuxiliaryParts(
                config=config,
                sac=sac,
                encoder=auxiliary_encoder,
                weak=weak,
                strong=strong if row.auxiliary_sees == "strong" else None,
                view_shape=view_shape,
                feature_dim=feature_dim,
                action_dim=action_dim,
                device=device,
                prefetch=prefetch,
            )
            auxiliary = make_auxiliary(row.auxiliary, parts)
    if config.compile:
        for part in {id(e): e for e in (encoder, sac.target_encoder, auxiliary_encoder)}.values():
            part.compile()
    return Agent(
        sac,
        row=row,
        weak=weak,
        strong=strong,
        auxiliary=auxiliary,
        crop_size=config.crop_size,
        action_dim=action_dim,
        batch_size=config.batch_size,
        n_step=config.n_step,
        actor_every=config.actor_every,
        target_every=config.target_every,
        aux_batch_size=config.aux_batch_size,
        aux_every=config.aux_every,
        aux_lr=config.aux_lr,
        seed=config.seed,
        device=device,
        autocast=config.precision == "bf16",
        prefetch=prefetch,
        overlap=overlaps(config.overlap, device, torch.get_num_threads()),
        saliency_quantile=config.sgqn_quantile,
    )
