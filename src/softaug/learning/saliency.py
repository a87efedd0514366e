"""What matters to the critic: gradients of Q with respect to pixels, and the mask that SGQN makes of them.

Guided backpropagation (Springenberg et al., 2015) lets only positive gradients pass each ReLU, of the encoder and of the
Q function, so that what remains are the pixels that speak *for* the value; the plain gradient is noisier.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softaug.learning.networks import CPU_PIECE, Actor, Critic, Encoder


class GuidedReLU(torch.autograd.Function):
    """ReLU whose backward pass also drops negative gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0].clamp(min=0) * (y > 0)


def q_gradient(
    encoder: Encoder, critic: Critic, view: Tensor, action: Tensor, *, guided: bool = True
) -> Tensor:
    """d Q1(view, action) / d pixel: float (B, 3k, h, w). Weights receive no gradient.

    guided: by guided backpropagation instead of the plain gradient.
    """
    relu = GuidedReLU.apply if guided else None
    size = CPU_PIECE if view.device.type == "cpu" else max(len(view), 1)
    gradients = []
    for piece, actions in zip(view.split(size), action.split(size), strict=True):
        pixels = piece.detach().to(torch.float32).requires_grad_(True)
        with torch.enable_grad():
            x = torch.cat([critic.projection(encoder.features(pixels, relu)), actions.detach()], dim=-1)
            for layer in critic.q1:
                x = relu(x) if relu is not None and isinstance(layer, nn.ReLU) else layer(x)
        gradients.append(torch.autograd.grad(x.sum(), pixels)[0])
    return torch.cat(gradients)


def action_gradient(encoder: Encoder, actor: Actor, view: Tensor, *, guided: bool = True) -> Tensor:
    """The size of d action / d pixel, summed over the action's dimensions (before tanh): float (B, 3k, h, w), not negative.

    For networks whose critic was not kept.
    """
    relu = GuidedReLU.apply if guided else None
    pixels = view.detach().to(torch.float32).requires_grad_(True)
    with torch.enable_grad():
        x = actor.projection(encoder.features(pixels, relu))
        for layer in actor.mlp:
            x = relu(x) if relu is not None and isinstance(layer, nn.ReLU) else layer(x)
        mean = x.chunk(2, dim=-1)[0].sum(0)
    return torch.stack([torch.autograd.grad(each, pixels, retain_graph=True)[0].abs() for each in mean]).sum(
        0
    )


def saliency(gradient: Tensor) -> Tensor:
    """Of each pixel of each frame: the gradient's largest size over red, green and blue. (B, 3k, h, w) -> (B, k, h, w)."""
    return gradient.abs().unflatten(1, (-1, 3)).amax(2)


def saliency_mask(gradient: Tensor, quantile: float) -> Tensor:
    """Which pixels of each frame are at or above the quantile of its saliency: bool (B, 3k, h, w)."""
    each = saliency(gradient)
    threshold = torch.quantile(each.flatten(2), quantile, dim=2)
    return (each >= threshold[..., None, None]).repeat_interleave(3, dim=1)


def keep_masked(view: Tensor, mask: Tensor, share: Tensor) -> Tensor:
    """The view inside the mask; outside it one number for the batch, `share` of the way from its darkest to its brightest
    pixel. share: (1,) in 0..1."""
    pixels = view.to(torch.float32)
    darkest, brightest = pixels.aminmax()
    return torch.where(mask, pixels, darkest + share * (brightest - darkest)).contiguous(
        memory_format=torch.channels_last
    )
