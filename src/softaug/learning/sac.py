"""Soft Actor-Critic from pixels: the one learner under every method.

Losses are methods that return tensors; `update_*` step the optimisers and return metrics for the caller to
log. All inputs are views, i.e. augmented pixels ready for the encoder. `bellman_target` takes a single view:
whatever a method does with strong augmentation elsewhere, only what is passed here can reach the target.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.learning.networks import Actor, Critic, Encoder, ema_update
from softaug.learning.saliency import q_gradient, saliency_mask
from softaug.methods import CriticLoss

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
        alpha_beta: float = 0.5,
        critic_weight_decay: float = 0.0,
        share_features: bool = False,
        critic_loss: CriticLoss = "sum",
        reward_scale: float = 1.0,
    ):
        super().__init__()
        self.share_features, self.reward_scale = share_features, reward_scale
        self.critic_error = CRITIC_ERRORS[critic_loss]
        self.encoder, self.actor, self.critic = encoder, actor, critic
        self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
        if getattr(encoder, "masker", None) is not None:
            # The target sees through the online masker (MaDi). Its moving average with itself changes nothing.
            self.target_encoder.masker = encoder.masker
        self.target_critic = copy.deepcopy(critic).requires_grad_(False)
        device = next(encoder.parameters()).device
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial_temperature), device=device))
        self.target_entropy = -float(action_dim)
        self.critic_tau, self.encoder_tau = critic_tau, encoder_tau
        self.optimisers = {
            "actor": adam(actor.parameters(), actor_lr),
            "critic": adam(
                [*encoder.parameters(), *critic.parameters()], critic_lr, weight_decay=critic_weight_decay
            ),
            "alpha": adam([self.log_alpha], alpha_lr, betas=(alpha_beta, 0.999)),
        }

    @property
    def alpha(self) -> Tensor:
        """The temperature."""
        return self.log_alpha.detach().exp()

    @torch.no_grad()
    def bellman_target(
        self, next_view: Tensor, reward: Tensor, discount: Tensor, generator: torch.Generator
    ) -> Tensor:
        """r + gamma (min_i Q_i'(s', a') - alpha log pi(a' | s')), a' ~ pi: (B, 1); r times `reward_scale`."""
        features, target_features = self._encode_next(next_view)
        next_action, log_prob = self.actor.sample(features, generator)
        q1, q2 = self.target_critic(target_features, next_action)
        return self.reward_scale * reward + discount * (torch.minimum(q1, q2) - self.alpha * log_prob)

    def _encode_next(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """By the online encoder and by its target."""
        if self.share_features:
            return (features := self.encoder(view)), features
        if getattr(self.encoder, "masker", None) is None:  # an encoder of another kind has none
            return self.encoder(view), self.target_encoder(view)
        view = self.encoder.mask(view)  # once for both
        return self.encoder(view, masked=True), self.target_encoder(view, masked=True)

    def saliency_mask(self, view: Tensor, action: Tensor, quantile: float) -> Tensor:
        """Which pixels of the view matter most to Q1 now: bool, of the view's shape (SGQN)."""
        return saliency_mask(q_gradient(self.encoder, self.critic, view, action), quantile)

    def encode(self, view: Tensor, strong_view: Tensor | None = None) -> list[Tensor]:
        """The encoder's features of each view."""
        return [self.encoder(each) for each in (view, strong_view) if each is not None]

    def critic_values(
        self,
        view: Tensor,
        action: Tensor,
        strong_view: Tensor | None = None,
        features: Sequence[Tensor] | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Both Q functions, (B, 1) each, on each view.

        features: what `encode` made of the views, with its graph, if they are known already.
        """
        encoded = self.encode(view, strong_view) if features is None else features
        return [self.critic(each, action) for each in encoded]

    def critic_loss(
        self,
        view: Tensor,
        action: Tensor,
        target: Tensor,
        strong_view: Tensor | None = None,
        features: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Squared Bellman error of both Q functions; with a strong view, half of it on each view (SVEA)."""
        return self.critic_error(self.critic_values(view, action, strong_view, features), target)

    def actor_losses(
        self,
        view: Tensor,
        generator: torch.Generator,
        features: Sequence[Tensor] | None = None,
        strong_view: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of policy and temperature, and the policy's mean entropy. The encoder receives no gradient.

        features: of the critic's views, from its update; None: the encoder is asked again.
        strong_view: the actor acts on it too, and Q judges these actions on `view` (SADA).
        """
        if features is None:
            with torch.no_grad():
                features = self.encode(view, strong_view)
        weak = features[0].detach()
        seen_by_actor = seen_by_critic = weak
        if strong_view is not None:
            seen_by_actor = torch.cat([weak, features[1].detach()])
            seen_by_critic = torch.cat([weak, weak])
        action, log_prob = self.actor.sample(seen_by_actor, generator)
        q1, q2 = self.critic(seen_by_critic, action)
        actor_loss = (self.alpha * log_prob - torch.minimum(q1, q2)).mean()
        entropy = -log_prob.detach().mean()
        alpha_loss = self.log_alpha.exp() * (entropy - self.target_entropy)
        return actor_loss, alpha_loss, entropy

    def update_critic(self, values: list[tuple[Tensor, Tensor]], target: Tensor) -> Metrics:
        """One step on the critic and the encoder. values: of `critic_values`, with their graph."""
        loss = self.critic_error(values, target)
        optimiser_step(self.optimisers["critic"], loss)
        return {"critic_loss": loss.detach(), "target_q": target.mean()}

    def update_actor(
        self,
        view: Tensor,
        generator: torch.Generator,
        features: Sequence[Tensor] | None = None,
        strong_view: Tensor | None = None,
    ) -> Metrics:
        """One step on the actor and the temperature."""
        actor_loss, alpha_loss, entropy = self.actor_losses(view, generator, features, strong_view)
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


def mean_bellman_error(values: list[tuple[Tensor, Tensor]], target: Tensor) -> Tensor:
    """The mean over both Q functions instead of their sum: SADA's scale."""
    return 0.5 * bellman_error(values, target)


def consistency_error(values: list[tuple[Tensor, Tensor]], target: Tensor) -> Tensor:
    """The Bellman error on the first view, and half the squared difference between the views (SGQN)."""
    first, second = values
    between = sum(
        (F.mse_loss(q, other) for q, other in zip(first, second, strict=True)), target.new_zeros(())
    )
    return bellman_error([first], target) + 0.5 * between


CRITIC_ERRORS: dict[CriticLoss, Callable[[list[tuple[Tensor, Tensor]], Tensor], Tensor]] = {
    "sum": bellman_error,
    "mean": mean_bellman_error,
    "consistency": consistency_error,
}
"""By the name in a method's row: the critic's loss, of what `SAC.critic_values` returned and the Bellman target."""


def adam(
    parameters: Iterable[Tensor],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> torch.optim.Adam:
    """Adam, fused: one pass over all parameters instead of several per tensor."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)


def optimiser_step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Gradients of `loss` for the optimiser's own parameters, then one step."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
