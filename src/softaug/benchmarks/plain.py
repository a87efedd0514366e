"""The learner's step written as plainly as possible: what the fast one must equal, and what it is timed against.

Whole batches at once, contiguous NCHW, pixels divided by 255, one loop over samples per augmentation, an
ordinary Adam, moving averages tensor by tensor, `backward` into everything, and each network calling the encoder
for itself, as the first public code of the paper does. `PlainLearner(agent)` copies the agent's weights and draws
from equal generators in the same order, so both take the same step up to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.benchmarks.plain_data import augmented, sample, sample_observations
from softaug.learning.agent import Agent
from softaug.learning.augment import center_crop
from softaug.learning.auxiliary.curl import CurlTask
from softaug.learning.auxiliary.inverse_dynamics import InverseDynamicsTask
from softaug.learning.auxiliary.sgqn import MaskTask
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.networks import Masker, PerFrameTrunk, ProjectedEncoder
from softaug.learning.replay import Batch, Replay
from softaug.learning.sac import SAC

Relu = Callable[[Tensor], Tensor]


def project(encoder: nn.Module, obs: Tensor) -> Tensor:
    """What SODA's task takes for features."""
    if not isinstance(encoder, ProjectedEncoder):
        return encode(encoder, obs)
    features = encode(encoder.encoder, obs)
    critics, actors = encoder.projections
    return torch.cat([critics(features), actors(features)], dim=1)


def encode(encoder: nn.Module, obs: Tensor, relu: Relu = torch.relu) -> Tensor:
    """Features, flat (B, F): every convolution in turn, ReLU between them."""
    masker = getattr(encoder, "masker", None)
    if masker is not None:
        obs = masked(masker, obs, relu)
    trunk = getattr(encoder, "trunk", None)
    first = trunk.frame if isinstance(trunk, PerFrameTrunk) else trunk
    x = obs / 255 - getattr(first, "pixel_offset", 0.0)
    others = set() if masker is None else set(masker.modules())
    convs = [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d) and layer not in others]
    if scale := getattr(trunk, "frame_differences", 0.0):
        frames = x.split(3, dim=1)
        x = torch.cat([frames[-1], *(scale * (b - a) for a, b in reversed(list(pairwise(frames))))], dim=1)
    if isinstance(trunk, PerFrameTrunk):
        alone = len(trunk.frame.convs)
        each = [frame_features(convs[:alone], frame, relu) for frame in x.split(3, dim=1)]
        changes = [b - a for a, b in reversed(list(pairwise(each)))]
        x = torch.cat(each if trunk.join == "features" else [each[-1], *changes], dim=1)
        convs = convs[alone:]
    for i, conv in enumerate(convs):
        x = conv(x if i == 0 else relu(x))
    return (relu(x) if getattr(encoder, "final_relu", False) else x).flatten(1)


def frame_features(convs: Sequence[nn.Module], frame: Tensor, relu: Relu) -> Tensor:
    for conv in convs:
        frame = relu(conv(frame))
    return frame


def masked(masker: Masker, obs: Tensor, relu: Relu) -> Tensor:
    """Frame by frame, times its mask."""
    frames = []
    for frame in obs.split(3, dim=1):
        x = frame / 255
        for i, conv in enumerate(masker.convs):
            x = conv(x if i == 0 else relu(x))
        frames.append(frame / (1 + torch.exp(-x)))
    return torch.cat(frames, dim=1)


def guided_relu(x: Tensor) -> Tensor:
    """ReLU that passes no negative gradient on."""
    y = torch.relu(x)
    y.register_hook(lambda gradient: gradient.clamp(min=0))
    return y


def saliency_mask(sac: SAC, obs: Tensor, action: Tensor, quantile: float) -> Tensor:
    """SGQN's mask (B, 3k, h, w) of zeros and ones, image by image and frame by frame."""
    pixels = obs.clone().requires_grad_(True)
    x = torch.cat([sac.critic.projection(encode(sac.encoder, pixels, guided_relu)), action], dim=1)
    for layer in sac.critic.q1:
        x = guided_relu(x) if isinstance(layer, nn.ReLU) else layer(x)
    (gradient,) = torch.autograd.grad(x.sum(), pixels)
    mask = torch.zeros_like(obs)
    for i in range(len(obs)):
        for first in range(0, obs.shape[1], 3):
            size = gradient[i, first : first + 3].abs().max(dim=0).values
            threshold = float(np.quantile(size.cpu().numpy(), quantile))
            mask[i, first : first + 3] = (size >= threshold).to(mask)
    return mask


def move_average(target: nn.Module, online: nn.Module, tau: float) -> None:
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.data.copy_((1 - tau) * old.data + tau * new.data)
    for mine, other in zip(target.buffers(), online.buffers(), strict=True):
        moved = (1 - tau) * mine + tau * other if mine.is_floating_point() else other
        mine.copy_(moved)


class PlainLearner:
    """One agent's updates, plainly, on the agent's device."""

    def __init__(self, agent: Agent):
        # One deepcopy, so that what the agent's parts share (the encoder) is shared here too.
        self.sac, self.auxiliary = copy.deepcopy((agent.sac, agent.auxiliary))
        for module in (self.sac, self.auxiliary):
            if isinstance(module, torch.nn.Module):
                module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.agent = agent  # its settings; its weights and generators are not touched
        self.updates = agent.updates
        self.generator = torch.Generator(agent.device)
        self.generator.set_state(agent.generator.get_state())
        self.aux_generator = torch.Generator(agent.device)
        self.aux_generator.set_state(agent.aux_generator.get_state())
        self.replay_rng = copy.deepcopy(agent.replay_rng)
        owned = {
            "actor": [*self.sac.actor.parameters()],
            "critic": [*self.sac.encoder.parameters(), *self.sac.critic.parameters()],
            "alpha": [self.sac.log_alpha],
            "auxiliary": [] if self.auxiliary is None else [*self.auxiliary.parameters()],
        }
        self.optimisers = {}
        for name, theirs in agent.optimisers.items():
            group = theirs.param_groups[0]
            parameters = [parameter for parameter in owned[name] if parameter.requires_grad]
            # foreach=False: tensor by tensor.
            self.optimisers[name] = torch.optim.Adam(
                parameters,
                lr=group["lr"],
                betas=group["betas"],
                weight_decay=group["weight_decay"],
                foreach=False,
            )

    def weak(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        return augmented(self.agent.weak, obs, generator)

    def strong(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        assert self.agent.strong is not None
        return augmented(self.agent.strong, obs, generator)

    def bellman_target(self, next_view: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        with torch.no_grad():
            action, log_prob = self.sac.actor.sample(encode(self.sac.encoder, next_view), self.generator)
            encoder = self.sac.encoder if self.sac.share_features else self.sac.target_encoder
            q1, q2 = self.sac.target_critic(encode(encoder, next_view), action)
            return self.sac.reward_scale * reward + discount * (
                torch.min(q1, q2) - self.sac.log_alpha.exp() * log_prob
            )

    def masked_view(self, view: Tensor, action: Tensor) -> Tensor:
        share = torch.rand(1, generator=self.generator, device=self.generator.device)
        mask = saliency_mask(self.sac, view, action, self.agent.saliency_quantile)
        color = view.min() + share * (view.max() - view.min())
        return mask * view + (1 - mask) * color

    def consistency_loss(self, view: Tensor, action: Tensor, target: Tensor, masked: Tensor) -> Tensor:
        loss = torch.tensor(0.0, device=view.device)
        values, others = (
            self.sac.critic(encode(self.sac.encoder, pixels), action) for pixels in (view, masked)
        )
        for q, other in zip(values, others, strict=True):
            loss = loss + ((q - target) ** 2).mean() + 0.5 * ((q - other) ** 2).mean()
        return loss

    def critic_loss(self, view: Tensor, action: Tensor, target: Tensor, strong_view: Tensor | None) -> Tensor:
        if self.agent.row.critic_loss == "consistency":
            assert strong_view is not None
            return self.consistency_loss(view, action, target, strong_view)
        losses = []
        for pixels in [view] if strong_view is None else [view, strong_view]:
            q1, q2 = self.sac.critic(encode(self.sac.encoder, pixels), action)
            losses.append(F.mse_loss(q1, target) + F.mse_loss(q2, target))
        scale = {"sum": 1.0, "mean": 0.5}[self.agent.row.critic_loss]
        return scale * sum(losses, torch.tensor(0.0)) / len(losses)

    def actor_losses(self, views: list[Tensor], shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        """views: the weak (or only) one, and the strong one if the actor acts on both."""
        features = [encode(self.sac.encoder, view).detach() for view in views] if shared is None else shared
        action, log_prob = self.sac.actor.sample(torch.cat(features[: len(views)]), self.generator)
        q1, q2 = self.sac.critic(torch.cat([features[0]] * len(views)), action)
        alpha = self.sac.log_alpha.exp()
        actor_loss = (alpha.detach() * log_prob - torch.min(q1, q2)).mean()
        alpha_loss = (alpha * (-log_prob - self.sac.target_entropy).detach()).mean()
        return actor_loss, alpha_loss

    def soda_loss(self, observations: Tensor) -> Tensor:
        task = self.auxiliary
        assert isinstance(task, SodaTask)
        generator = self.aux_generator
        o = self.weak(observations, generator)
        o_prime = self.strong(self.weak(observations, generator), generator)
        z_hat = task.h_theta(task.g_theta(project(task.f_theta, o_prime)))
        with torch.no_grad():
            z_star = task.g_psi(project(task.f_psi, o))
        z_hat = z_hat / z_hat.norm(dim=1, keepdim=True)
        z_star = z_star / z_star.norm(dim=1, keepdim=True)
        return ((z_hat - z_star) ** 2).sum(dim=1).mean()

    def curl_loss(self, observations: Tensor, view: Tensor) -> Tensor:
        task = self.auxiliary
        assert isinstance(task, CurlTask)
        query = task.projection(encode(task.encoder, view))
        with torch.no_grad():
            key = task.key_projection(encode(task.key_encoder, self.weak(observations, self.aux_generator)))
        logits = torch.matmul(query, torch.matmul(task.W, key.T))
        return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))

    def mask_loss(self, view: Tensor, action: Tensor) -> Tensor:
        task = self.auxiliary
        assert isinstance(task, MaskTask)
        mask = saliency_mask(self.sac, view, action, self.agent.saliency_quantile)
        strong_view = self.strong(view, self.aux_generator)
        predicted = torch.sigmoid(
            task.decoder(task.projection(encode(task.encoder, strong_view)), action)
        ).clamp(1e-7, 1 - 1e-7)
        return -(mask * predicted.log() + (1 - mask) * (1 - predicted).log()).mean()

    def inverse_dynamics_loss(self, view: Tensor, next_view: Tensor, action: Tensor) -> Tensor:
        task = self.auxiliary
        assert isinstance(task, InverseDynamicsTask)
        here, there = (task.projection(encode(task.encoder, pixels)) for pixels in (view, next_view))
        return F.mse_loss(task.mlp(torch.cat([here, there], dim=1)), action)

    def auxiliary_loss(self, replay: Replay, batch: Batch, view: Tensor, next_view: Tensor) -> Tensor:
        if isinstance(self.auxiliary, SodaTask):
            observations = sample_observations(replay, self.agent.aux_batch_size, self.replay_rng)
            return self.soda_loss(observations.to(self.agent.device))
        if isinstance(self.auxiliary, MaskTask):
            return self.mask_loss(view, batch.action)
        if isinstance(self.auxiliary, CurlTask):
            return self.curl_loss(batch.obs, view)
        if self.agent.n_step > 1:  # RL's next view is not the one that the action led to
            batch = sample(replay, self.agent.batch_size, self.replay_rng).to(self.agent.device)
            view, next_view = (self.weak(obs, self.aux_generator) for obs in (batch.obs, batch.next_obs))
        return self.inverse_dynamics_loss(view, next_view, batch.action)

    def update(self, replay: Replay) -> dict[str, Tensor]:
        """What `Agent.update` does; returns the losses."""
        agent, losses = self.agent, {}
        batch = sample(replay, agent.batch_size, self.replay_rng, agent.n_step).to(agent.device)
        row = agent.row
        view = self.weak(batch.obs, self.generator)
        if row.target_sees == "raw":
            next_view = center_crop(batch.next_obs, agent.crop_size)
        else:
            next_view = self.weak(batch.next_obs, self.generator)
        if row.target_sees == "strong":  # in our rows: critic and actor too
            view, next_view = (self.strong(pixels, self.generator) for pixels in (view, next_view))
        strong_view = self.strong(view, self.generator) if row.critic_sees == "both" else None
        if row.critic_sees == "masked":
            strong_view = self.masked_view(view, batch.action)
        target = self.bellman_target(next_view, batch.reward, batch.discount)
        actor_views = [view]
        if row.actor_sees == "both":
            assert strong_view is not None  # in our rows the critic sees it too
            actor_views.append(strong_view)
        shared = None
        if self.sac.share_features:
            shared = [encode(self.sac.encoder, pixels).detach() for pixels in actor_views]
        losses["critic_loss"] = self.critic_loss(view, batch.action, target, strong_view)
        self._step("critic", losses["critic_loss"])
        if self.updates % agent.actor_every == 0:
            losses["actor_loss"], alpha_loss = self.actor_losses(actor_views, shared)
            self._step("actor", losses["actor_loss"])
            self._step("alpha", alpha_loss)
        if self.updates % agent.target_every == 0:
            self._update_target()
        if self.auxiliary is not None and self.updates % agent.aux_every == 0:
            losses["aux_loss"] = self.auxiliary_loss(replay, batch, view, next_view)
            self._step("auxiliary", losses["aux_loss"])
            if isinstance(self.auxiliary, SodaTask):
                task = self.auxiliary
                move_average(task.f_psi, task.f_theta, task.tau)
                move_average(task.g_psi, task.g_theta, task.tau)
        self.updates += 1
        return {name: loss.detach() for name, loss in losses.items()}

    def _step(self, name: str, loss: Tensor) -> None:
        self.optimisers[name].zero_grad()
        loss.backward()
        self.optimisers[name].step()

    def _update_target(self) -> None:
        sac = self.sac
        move_average(sac.target_critic.q1, sac.critic.q1, sac.critic_tau)
        move_average(sac.target_critic.q2, sac.critic.q2, sac.critic_tau)
        move_average(sac.target_critic.projection, sac.critic.projection, sac.encoder_tau)
        move_average(sac.target_encoder, sac.encoder, sac.encoder_tau)
