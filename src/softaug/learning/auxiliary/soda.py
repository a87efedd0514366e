"""SODA: soft data augmentation (the paper's Section III and Algorithm 1).

Symbols are the paper's: f encoder, g projection, h predictor; theta is learned by gradient, psi is its
exponential moving average; o an observation, o' = t(o) its strongly augmented view.

It works on anyone's encoder, inside this package's agent or next to another learner:

    task = SodaTask(encoder, RandomConv(), obs_shape=(9, 84, 84))
    ...                                     # your RL update, on clean observations
    loss = task.step(observations)          # SODA's: loss, Adam, moving average

If you use your own optimizer, call `loss`, then `update_target` after each of its steps, instead of `step`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from softaug.errors import UserError
from softaug.learning.augment import Augment, RandomOverlay
from softaug.learning.auxiliary import Needs
from softaug.learning.networks import ema_update, feature_shape, initialise


class SodaTask(nn.Module):
    """The auxiliary task on any encoder.

    encoder: f_theta, float32 pixels (B, C, H, W) -> features of any shape (B, ...); it is shared, not copied, and
        already on its device.
    augment: the strong augmentation t. weak: the view both branches get, drawn independently for each (None: the
        observation as it is).
    obs_shape: (C, H, W) as the encoder sees it, i.e. after `weak`.
    scale: what pixels in 0..255 are multiplied by before the encoder; 1/255 for one that expects 0..1.
    projection_dim: K. tau: step of the moving average psi. lr: of the Adam in `step`.
    seed: of the augmentations' draws where `loss` and `step` are called without a generator.
    prefetch: sample the next call's overlay images on a thread (see `fetch_ahead`); the results are the same.

    Observations are pixels in 0..255, uint8 or float, (B, C, H, W): what a replay holds, not augmented.
    """

    needs: Needs = "observations"

    def __init__(
        self,
        encoder: nn.Module,
        augment: Augment,
        *,
        obs_shape: Sequence[int],
        weak: Augment | None = None,
        scale: float = 1.0,
        projection_dim: int = 100,
        tau: float = 0.005,
        lr: float = 3e-4,
        seed: int = 0,
        prefetch: bool = False,
    ):
        super().__init__()
        if not 0 <= tau <= 1:
            raise UserError(f"tau must lie between 0 and 1, not {tau}")
        if any(isinstance(parameter, UninitializedParameter) for parameter in encoder.parameters()):
            raise UserError(
                "the encoder has lazy layers without weights yet; call it once on observations first"
            )
        if not any(parameter.requires_grad for parameter in encoder.parameters()):
            raise UserError("the encoder has no parameter that learns, so SODA has nothing to shape")
        feature_dim = 1
        for size in _feature_shape(encoder, obs_shape):
            feature_dim *= size
        device = next(encoder.parameters()).device
        self.f_theta = encoder
        self.g_theta = make_head(feature_dim, projection_dim).to(device)
        self.h_theta = make_head(projection_dim, projection_dim).to(device)
        initialise(self.g_theta)
        initialise(self.h_theta)
        self.f_psi = copy.deepcopy(self.f_theta).requires_grad_(False)
        self.g_psi = copy.deepcopy(self.g_theta).requires_grad_(False)
        self.weak, self.augment, self.scale, self.tau, self.prefetch = weak, augment, scale, tau, prefetch
        # Only `step` uses it. It holds no memory before the first step.
        self.optimiser = torch.optim.Adam(self.learned_parameters(), lr)
        self.generator = torch.Generator(device).manual_seed(seed)

    def loss(self, observations: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Algorithm 1, lines 6-9, for o ~ B: a scalar between 0 and 4."""
        return self.loss_of(self.prepare(observations, generator or self.generator))

    @torch.no_grad()  # no gradient into z*
    def prepare(self, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What needs no theta: the augmented o' and the target z* (lines 6 and 8)."""
        o = self._pixels(self._weak(observations, generator))
        o_prime = self._pixels(self.augment(self._weak(observations, generator), generator))
        z_star = self.g_psi(self.f_psi(o).flatten(1))
        if self.prefetch:
            self.fetch_ahead(observations, generator)
        return o_prime, z_star

    def fetch_ahead(self, observations: Tensor, generator: torch.Generator) -> None:
        """Start to sample the images that the next `prepare` will overlay on observations of this shape."""
        one_channel = observations[:, :1]  # only shapes matter to what is drawn

        def views(generator: torch.Generator) -> Tensor:
            self._weak(one_channel, generator)
            return self._weak(one_channel, generator)

        if isinstance(self.augment, RandomOverlay):
            self.augment.fetch_ahead(views, generator)

    def loss_of(self, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Lines 7 and 9 for what `prepare` made."""
        o_prime, z_star = prepared
        z_hat = self.h_theta(self.g_theta(self.f_theta(o_prime).flatten(1)))
        return consistency_loss(z_hat, z_star)

    def update_target(self) -> None:
        """Algorithm 1, line 10: psi <- (1 - tau) psi + tau theta, BatchNorm's buffers included."""
        ema_update(self.f_psi, self.f_theta, self.tau)
        ema_update(self.g_psi, self.g_theta, self.tau)

    def step(self, observations: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One whole SODA update by the task's own Adam, on the encoder's device; returns the loss, detached.

        Gradients that another optimiser has left on the encoder are there again afterwards, and SODA's are gone.
        """
        self._check(observations)
        parameters = self.learned_parameters()
        others = [parameter.grad for parameter in parameters]
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(observations.to(parameters[0].device), generator)
        loss.backward()
        self.optimiser.step()
        for parameter, gradient in zip(parameters, others, strict=True):
            parameter.grad = gradient
        self.update_target()
        return loss.detach()

    def learned_parameters(self) -> list[nn.Parameter]:
        """What an optimiser is to step: those of f_theta, g_theta and h_theta that require a gradient."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def training_state(self) -> dict[str, Any]:
        """All that the next `step` depends on: weights (f_theta's too), Adam, the generator.

        Tensors and plain values: `torch.save` it, and read it with `torch.load(..., weights_only=True)`.
        """
        return {
            "task": self.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue as if never stopped; the encoder's weights are set in place."""
        self.load_state_dict(state["task"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())

    def _weak(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        return observations if self.weak is None else self.weak(observations, generator)

    def _pixels(self, view: Tensor) -> Tensor:
        view = view.to(torch.float32)
        return view if self.scale == 1.0 else view * self.scale

    def _check(self, observations: Tensor) -> None:
        if observations.ndim != 4 or len(observations) < 2:
            raise UserError(
                f"observations have shape {tuple(observations.shape)}, but must be (B, C, H, W) with B of at least 2 "
                "(BatchNorm needs a batch)"
            )
        first = not self.optimiser.state
        if first and observations.is_floating_point() and 0 < float(observations.max()) <= 1:
            raise UserError(
                "the observations seem to lie in 0..1, but SODA's augmentations work on 0..255: give them times 255, "
                "and scale=1/255 if the encoder expects 0..1"
            )


def consistency_loss(z_hat: Tensor, z_star: Tensor) -> Tensor:
    """Eq. 2: squared distance of the normalised vectors (B, K), summed over K, mean over the batch."""
    return (F.normalize(z_hat, dim=1) - F.normalize(z_star, dim=1)).square().sum(1).mean()


def make_head(in_dim: int, projection_dim: int) -> nn.Sequential:
    """g and h: Linear, BatchNorm, ReLU, Linear."""
    return nn.Sequential(
        nn.Linear(in_dim, projection_dim),
        nn.BatchNorm1d(projection_dim),
        nn.ReLU(),
        nn.Linear(projection_dim, projection_dim),
    )


def _feature_shape(encoder: nn.Module, obs_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return feature_shape(encoder, obs_shape)
    except (RuntimeError, AttributeError) as error:  # wrong sizes; a tuple instead of a tensor
        raise UserError(
            f"the encoder must map one float tensor (B, {', '.join(map(str, obs_shape))}) to one tensor (B, ...), "
            f"but fails: {str(error).splitlines()[0]}"
        ) from error
