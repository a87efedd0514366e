"""Soft Actor-Critic from pixels: the one learner under every method.

Losses are methods that return tensors; `update_*` step the optimisers and return metrics for the caller to
log. All inputs are views, i.e. augmented pixels ready for the encoder. `bellman_target` takes a single view:
whatever a method does with strong augmentation elsewhere, only what is passed here can reach the target.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.learning.networks import Actor, Critic, Encoder, ema_update

Metrics = dict[str, Tensor]


class SAC(nn.Module):
    """Actor and critic on one shared encoder; the critic trains it, the actor's gradient stops before it."""

    def __init__(
        self,
        encoder: Encoder,
        actor: Actor,
        critic: Critic,
        *,
        action_dim: int,
        initial_temperature: float,
        actor_lr: float,
        critic_lr: float,
        alpha_lr: float,
        critic_tau: float,
        encoder_tau: float,
        share_features: bool = False,
    ):
        super().__init__()
        self.share_features = share_features
        self.encoder, self.actor, self.critic = encoder, actor, critic
        self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.target_critic = copy.deepcopy(critic).requires_grad_(False)
        device = next(encoder.parameters()).device
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial_temperature), device=device))
        self.target_entropy = -float(action_dim)
        self.critic_tau, self.encoder_tau = critic_tau, encoder_tau
        self.optimisers = {
            "actor": adam(actor.parameters(), actor_lr),
            "critic": adam([*encoder.parameters(), *critic.parameters()], critic_lr),
            "alpha": adam([self.log_alpha], alpha_lr, betas=(0.5, 0.999)),
        }

    @property
    def alpha(self) -> Tensor:
        """The temperature."""
        return self.log_alpha.detach().exp()

    @torch.no_grad()
    def bellman_target(
        self, next_view: Tensor, reward: Tensor, discount: Tensor, generator: torch.Generator
    ) -> Tensor:
        """r + gamma (min_i Q_i'(s', a') - alpha log pi(a' | s')), a' ~ pi: (B, 1)."""
        features = self.encoder(next_view)
        next_action, log_prob = self.actor.sample(features, generator)
        target_features = features if self.share_features else self.target_encoder(next_view)
        q1, q2 = self.target_critic(target_features, next_action)
        return reward + discount * (torch.minimum(q1, q2) - self.alpha * log_prob)

    def critic_values(
        self,
        view: Tensor,
        action: Tensor,
        strong_view: Tensor | None = None,
        features: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Both Q functions, (B, 1) each, on each view.

        features: the encoder's of `view`, with their graph, if they are known already.
        """
        encoded = [self.encoder(view) if features is None else features]
        if strong_view is not None:
            encoded.append(self.encoder(strong_view))
        return [self.critic(each, action) for each in encoded]

    def critic_loss(
        self,
        view: Tensor,
        action: Tensor,
        target: Tensor,
        strong_view: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Squared Bellman error of both Q functions; with a strong view, half of it on each view (SVEA)."""
        return bellman_error(self.critic_values(view, action, strong_view, features), target)

    def actor_losses(
        self, view: Tensor, generator: torch.Generator, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of policy and temperature, and the policy's mean entropy. The encoder receives no gradient.

        features: of `view`, from the critic's update; None: the encoder is asked again.
        """
        if features is None:
            with torch.no_grad():
                features = self.encoder(view)
        features = features.detach()
        action, log_prob = self.actor.sample(features, generator)
        q1, q2 = self.critic(features, action)
        actor_loss = (self.alpha * log_prob - torch.minimum(q1, q2)).mean()
        entropy = -log_prob.detach().mean()
        alpha_loss = self.log_alpha.exp() * (entropy - self.target_entropy)
        return actor_loss, alpha_loss, entropy

    def update_critic(
        self,
        view: Tensor,
        action: Tensor,
        target: Tensor,
        strong_view: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Metrics:
        """One step on the critic and the encoder."""
        return self.step_critic(self.critic_values(view, action, strong_view, features), target)

    def step_critic(self, values: list[tuple[Tensor, Tensor]], target: Tensor) -> Metrics:
        """The step for what `critic_values` returned."""
        loss = bellman_error(values, target)
        optimiser_step(self.optimisers["critic"], loss)
        return {"critic_loss": loss.detach(), "target_q": target.mean()}

    def update_actor(
        self, view: Tensor, generator: torch.Generator, features: Tensor | None = None
    ) -> Metrics:
        """One step on the actor and the temperature."""
        actor_loss, alpha_loss, entropy = self.actor_losses(view, generator, features)
        # Only the actor is stepped: the gradient its loss leaves in the critic must not be computed for weights.
        actor_parameters = list(self.actor.parameters())
        gradients = torch.autograd.grad(actor_loss, actor_parameters)
        for parameter, gradient in zip(actor_parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimisers["actor"].step()
        optimiser_step(self.optimisers["alpha"], alpha_loss)
        return {"actor_loss": actor_loss.detach(), "alpha": self.alpha, "entropy": entropy}

    def update_target(self) -> None:
        """Moving averages: the Q functions with critic_tau, encoder and projection with encoder_tau."""
        ema_update(self.target_critic.q1, self.critic.q1, self.critic_tau)
        ema_update(self.target_critic.q2, self.critic.q2, self.critic_tau)
        ema_update(self.target_critic.projection, self.critic.projection, self.encoder_tau)
        ema_update(self.target_encoder, self.encoder, self.encoder_tau)


def bellman_error(values: list[tuple[Tensor, Tensor]], target: Tensor) -> Tensor:
    """Squared error of both Q functions, averaged over the views they were computed on."""
    errors = [F.mse_loss(q1, target) + F.mse_loss(q2, target) for q1, q2 in values]
    return torch.stack(errors).mean()


def adam(
    parameters: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.Adam:
    """Adam, fused: one pass over all parameters instead of several per tensor."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, fused=True)


def optimiser_step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Gradients of `loss` for the optimiser's own parameters, then one step."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
