"""The agent: every part of a method wired together, in one place.

`make_agent` reads the method's row and builds encoder, SAC, augmentations and auxiliary task. `Agent.update`
is one iteration of the paper's Algorithm 1; what a method does differently is visible in its few branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softaug.config import Config
from softaug.errors import UserError
from softaug.learning.augment import (
    Augment,
    Images,
    RandomConv,
    RandomCrop,
    RandomOverlay,
    RandomShift,
    center_crop,
    upload,
)
from softaug.learning.auxiliary import BatchViews
from softaug.learning.auxiliary.curl import CurlTask
from softaug.learning.auxiliary.inverse_dynamics import InverseDynamicsTask
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.building import choose_device, make_encoders, make_inverse_dynamics
from softaug.learning.networks import (
    Actor,
    Critic,
    channels_last,
    feature_shape,
    initialise,
)
from softaug.learning.overlap import Beside
from softaug.learning.replay import Batch, Replay
from softaug.learning.sac import SAC, Metrics, adam
from softaug.methods import Where


class Agent:
    """Acts, updates itself from a replay, and can save and restore its whole state."""

    def __init__(
        self,
        sac: SAC,
        *,
        weak: Augment,
        strong: Augment | None,
        strong_in: frozenset[Where],
        auxiliary: SodaTask | CurlTask | InverseDynamicsTask | None,
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
    ):
        self.sac, self.auxiliary = sac, auxiliary
        self.weak, self.strong, self.strong_in = weak, strong, strong_in
        self.crop_size, self.action_dim = crop_size, action_dim
        self.batch_size, self.n_step = batch_size, n_step
        self.actor_every, self.target_every = actor_every, target_every
        self.aux_batch_size, self.aux_every = aux_batch_size, aux_every
        self.device, self.autocast, self.prefetch = device, autocast, prefetch
        self.optimisers = dict(sac.optimisers)
        if auxiliary is not None:
            self.optimisers["auxiliary"] = adam(
                [p for p in auxiliary.parameters() if p.requires_grad], aux_lr
            )
        self.updates = 0
        # Separate streams: acting draws on the CPU, updates on the device, the replay with numpy. The auxiliary task has
        # its own, as its draws happen beside RL's.
        act_seed, update_seed, replay_seed, aux_seed = np.random.SeedSequence([seed, 1]).generate_state(4)
        self.act_generator = torch.Generator().manual_seed(int(act_seed))
        self.generator = torch.Generator(device).manual_seed(int(update_seed))
        self.aux_generator = torch.Generator(device).manual_seed(int(aux_seed))
        self.replay_rng = np.random.default_rng(int(replay_seed))
        self.beside = Beside(device)

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
        """One RL update and, when due, one of the auxiliary task; returns 0-dim tensors to log.

        What does not wait for each other's changes is computed side by side (see `Beside`): the Bellman target and the
        critic's forward pass; the auxiliary task's data and the critic's step; the actor's step and the task's
        gradients, both of which need the encoder as the critic's step left it.
        """
        auxiliary_is_due = self.auxiliary is not None and self.updates % self.aux_every == 0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            batch = replay.sample(self.batch_size, self.replay_rng, self.n_step).to(self.device)
            view, next_view, strong_view = self._views(batch)
            target = self.beside.start(
                self.sac.bellman_target, next_view, batch.reward, batch.discount, self.generator
            )
            if auxiliary_is_due:
                seen = BatchViews(batch.obs, batch.action, view, next_view)
                prepared = self.beside.start(self._prepare_auxiliary, replay, seen)
            # After this update's last draw from the replay; functions started run one after the other.
            ahead = self.beside.start(self._gather_ahead, replay)
            # Encoded once for critic and actor, as in DrQ-v2: the actor then sees the encoder of before its step.
            features = self.sac.encoder(view) if self.sac.share_features else None
            metrics = self.sac.update_critic(view, batch.action, target, strong_view, features)
            metrics["batch_reward"] = batch.reward.mean()
            if self.updates % self.target_every == 0:
                self.sac.update_target()
            actor_metrics = None
            if self.updates % self.actor_every == 0:
                actor_metrics = self.beside.start(self.sac.update_actor, view, self.generator, features)
            if auxiliary_is_due:
                metrics["aux_loss"] = self._auxiliary_gradients(prepared.result())
            if actor_metrics is not None:
                metrics |= actor_metrics.result()
            if auxiliary_is_due:
                self._step_auxiliary()
            ahead.result()
        self.updates += 1
        return metrics

    def _views(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """What actor and critic see of the observations, what the target sees of the next ones; and, for SVEA, what
        the critic sees beside the first."""
        view = self.weak(batch.obs, self.generator)
        next_view = self.weak(batch.next_obs, self.generator)
        strong_view = None
        if self.strong is not None and "rl" in self.strong_in:
            view, next_view = self.strong(view, self.generator), self.strong(next_view, self.generator)
        if self.strong is not None and "critic" in self.strong_in:
            strong_view = self.strong(view, self.generator)
        return view, next_view, strong_view

    def _prepare_auxiliary(self, replay: Replay, seen: BatchViews) -> Any:
        """What the auxiliary task makes of its data without the weights that RL changes. seen: RL's batch."""
        assert self.auxiliary is not None
        data: Any = seen
        if self.auxiliary.needs == "observations":
            data = upload(replay.sample_observations(self.aux_batch_size, self.replay_rng), self.device)
        elif self.auxiliary.needs == "one_step" and self.n_step > 1:
            batch = replay.sample(self.batch_size, self.replay_rng, n_step=1).to(self.device)
            views = (self.weak(pixels, self.aux_generator) for pixels in (batch.obs, batch.next_obs))
            data = BatchViews(batch.obs, batch.action, *views)
        prepared = self.auxiliary.prepare(data, self.aux_generator)
        if self.prefetch and isinstance(self.auxiliary, SodaTask) and self.strong_in == {"aux"}:
            self._fetch_overlay_ahead(data)
        return prepared

    def _fetch_overlay_ahead(self, observations: Tensor) -> None:
        """Start to sample the images that SODA will overlay next: after the two crops of `SodaTask.prepare`."""
        one_channel = observations[:, :1]  # only shapes matter to what is drawn

        def views(generator: torch.Generator) -> Tensor:
            self.weak(one_channel, generator)
            return self.weak(one_channel, generator)

        if isinstance(self.strong, RandomOverlay):
            self.strong.fetch_ahead(views, self.aux_generator)

    def _gather_ahead(self, replay: Replay) -> None:
        """Start to gather what the next update will sample (see `Replay.gather_ahead`)."""
        if not self.prefetch:
            return
        wanted = [(self.batch_size, self.n_step)]
        if self.auxiliary is not None and (self.updates + 1) % self.aux_every == 0:
            if self.auxiliary.needs == "observations":
                wanted.append((self.aux_batch_size, 0))
            elif self.auxiliary.needs == "one_step" and self.n_step > 1:
                wanted.append((self.batch_size, 1))
        replay.gather_ahead(self.replay_rng, wanted, pin=self.device.type == "cuda")

    def _auxiliary_gradients(self, prepared: Any) -> Tensor:
        assert self.auxiliary is not None
        self.optimisers["auxiliary"].zero_grad(set_to_none=True)
        loss = self.auxiliary.loss_of(prepared)
        loss.backward()
        return loss.detach()

    def _step_auxiliary(self) -> None:
        assert self.auxiliary is not None
        self.optimisers["auxiliary"].step()
        self.auxiliary.update_target()

    def policy_weights(self) -> dict[str, Tensor]:
        """What a policy needs at test time, on the CPU: encoder and actor, and the head that PAD adapts with."""
        parts: dict[str, nn.Module] = {"encoder": self.sac.encoder, "actor": self.sac.actor}
        if isinstance(self.auxiliary, InverseDynamicsTask):
            parts["auxiliary"] = self.auxiliary
        return {
            f"{part}.{name}": tensor.detach().cpu().clone().contiguous()
            for part, module in parts.items()
            for name, tensor in module.state_dict().items()
        }

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on: weights, optimisers, generators, counters."""
        return {
            "sac": _unshared(self.sac.state_dict()),
            "auxiliary": None if self.auxiliary is None else _unshared(self.auxiliary.state_dict()),
            "optimisers": {name: _optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "updates": self.updates,
            "act_generator": self.act_generator.get_state(),
            "generator": self.generator.get_state(),
            "aux_generator": self.aux_generator.get_state(),
            "replay_rng": self.replay_rng.bit_generator.state,
        }

    def load_state(self, tree: dict[str, Any]) -> None:
        """Inverse of `state`, in place: modules that share the encoder go on sharing it."""
        self.sac.load_state_dict(tree["sac"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(tree["auxiliary"])
        for name, optimiser in self.optimisers.items():
            _load_optimiser_state(optimiser, tree["optimisers"][name])
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
    if config.precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    row = config.row
    view_shape = (obs_shape[0], config.crop_size, config.crop_size)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        encoder, auxiliary_encoder = make_encoders(config, obs_shape[0])
        for part in (encoder, auxiliary_encoder):
            channels_last(part.to(device))
        feature_dim = int(np.prod(feature_shape(encoder, view_shape)))
        sizes = (feature_dim, config.projection_dim, config.hidden_dim, action_dim)
        actor, critic = Actor(*sizes).to(device), Critic(*sizes).to(device)
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
            share_features=config.share_features,
        )
        weak: Augment = RandomCrop(config.crop_size) if row.weak == "crop" else RandomShift()
        strong = _make_strong(config, images)
        auxiliary: SodaTask | CurlTask | InverseDynamicsTask | None = None
        if row.auxiliary == "soda":
            assert strong is not None
            auxiliary = SodaTask(
                encoder,
                strong,
                obs_shape=view_shape,
                weak=weak,
                projection_dim=config.projection_dim,
                tau=config.soda_tau,
            )
        elif row.auxiliary == "curl":
            auxiliary = CurlTask(
                encoder,
                critic.projection,
                sac.target_encoder,
                sac.target_critic.projection,
                weak,
                projection_dim=config.projection_dim,
            )
        elif row.auxiliary == "inverse_dynamics":
            auxiliary = make_inverse_dynamics(config, auxiliary_encoder, feature_dim, action_dim).to(device)
    if config.compile:
        for part in {id(e): e for e in (encoder, sac.target_encoder, auxiliary_encoder)}.values():
            part.compile()
    return Agent(
        sac,
        weak=weak,
        strong=strong,
        strong_in=row.strong_in,
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
        prefetch=config.prefetch == "on" or (config.prefetch == "auto" and device.type == "cuda"),
    )


def _make_strong(config: Config, images: Images | None) -> Augment | None:
    if config.row.strong is None:
        return None
    if config.row.strong == "conv":
        return RandomConv()
    if images is None:
        from softaug.media import image_source

        images = image_source(config.images or None)
    return RandomOverlay(images, config.overlay_alpha)


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}


def _optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        str(index): {
            name: torch.as_tensor(value).detach().cpu().clone().contiguous() for name, value in entry.items()
        }
        for index, entry in optimiser.state_dict()["state"].items()
    }


def _load_optimiser_state(optimiser: torch.optim.Optimizer, entries: dict[str, Any]) -> None:
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
