"""What the critic looks at: guided backpropagation, SGQN's mask, what it is filled with, and the losses that use it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import ACTION_DIM, generator, normal, pixels, replay_for, snapshot, tiny_agent, without_gradient
from torch import Tensor

from softaug.benchmarks import plain
from softaug.learning.auxiliary import BatchViews
from softaug.learning.auxiliary.sgqn import MaskDecoder
from softaug.learning.saliency import GuidedReLU, keep_masked, q_gradient, saliency_mask


def actions(batch: int, device: str = "cpu") -> Tensor:
    return (torch.rand(batch, ACTION_DIM, generator=generator(seed=7)) * 2 - 1).to(device)


def test_guided_relu_passes_positive_gradients_of_positive_inputs(device):
    x = torch.tensor([-1.0, 2.0, 3.0, -4.0], device=device, requires_grad=True)
    y = GuidedReLU.apply(x)
    assert torch.equal(y.detach().cpu(), torch.tensor([0.0, 2.0, 3.0, 0.0]))
    y.backward(torch.tensor([1.0, 1.0, -1.0, -1.0], device=device))
    assert torch.equal(x.grad.cpu(), torch.tensor([0.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize("method", ["sgqn", "simgrl", "pad", "sada"])
def test_the_plain_gradient_is_autograds(method):
    """With every kind of trunk; a batch in pieces (70 > 64) is the same."""
    agent = tiny_agent(method)
    sac, view, action = agent.sac, pixels(70, 6, 12, 12), actions(70)
    x = view.float().requires_grad_(True)
    (expected,) = torch.autograd.grad(sac.critic(sac.encoder(x), action)[0].sum(), x)
    gradient = q_gradient(sac.encoder, sac.critic, view, action, guided=False)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)
    assert without_gradient(sac)


@pytest.mark.parametrize("method", ["sgqn", "simgrl", "pad", "sada"])
def test_the_mask_equals_a_loop_with_hooks(method, device):
    sac, view, action = (
        tiny_agent(method, device=device).sac,
        pixels(9, 6, 12, 12, device=device),
        actions(9, device),
    )
    for parameter in sac.parameters():  # at the start biases are zero and much is alike
        parameter.data.add_(0.05 * normal(*parameter.shape, seed=parameter.numel(), device=device))
    for quantile in (0.5, 0.95):
        mask = sac.saliency_mask(view, action, quantile)
        expected = plain.saliency_mask(sac, view.float(), action, quantile)
        assert mask.dtype == torch.bool and mask.shape == view.shape
        assert float((mask.float() != expected).float().mean()) < (1e-9 if device == "cpu" else 0.01)
    guided, unguided = (q_gradient(sac.encoder, sac.critic, view, action, guided=g) for g in (True, False))
    assert not torch.allclose(guided, unguided)


def test_the_mask_keeps_each_frames_share_of_pixels_and_goes_over_colors():
    gradient = normal(4, 9, 20, 20)
    mask = saliency_mask(gradient, 0.95)
    for frame in mask.split(3, dim=1):
        assert torch.equal(frame[:, 0], frame[:, 1]) and torch.equal(frame[:, 0], frame[:, 2])
        assert (frame[:, 0].flatten(1).sum(1) == 20).all()  # 5 % of 400
    largest = gradient[:, :3].abs().amax(1).flatten(1).argmax(1)
    assert mask[:, 0].flatten(1).gather(1, largest[:, None]).all()


def test_a_pixel_at_the_quantile_itself_belongs_to_the_mask():
    """Where nothing has a gradient, that is the whole frame."""
    assert saliency_mask(torch.zeros(1, 3, 5, 5), 0.95).all()
    gradient = torch.arange(5.0).repeat(1, 3, 1, 1)  # a frame of 1 x 5 pixels; the median is 2
    assert saliency_mask(gradient, 0.5)[0, 0, 0].tolist() == [False, False, True, True, True]


def test_outside_the_mask_there_is_one_number_for_the_batch():
    view = pixels(3, 6, 5, 5).clamp(20, 220)
    view[0, 0, 0, 0], view[1, 2, 3, 4] = 20, 220
    mask = torch.rand(view.shape, generator=generator()) < 0.5
    out = keep_masked(view, mask, torch.tensor([0.25]))
    assert torch.equal(out[mask], view[mask].float())
    assert (out[~mask] == 70).all()


def test_sgqns_critic_loss_by_hand():
    """Neither side of the consistency term is detached."""
    sac, target = tiny_agent("sgqn").sac, normal(5, 1, seed=1)
    view, masked, action = pixels(5, 6, 12, 12), pixels(5, 6, 12, 12, seed=1), actions(5)
    values, others = (sac.critic(sac.encoder(each), action) for each in (view, masked))
    expected = sum(F.mse_loss(q, target) for q in values)
    expected = expected + 0.5 * sum(F.mse_loss(q, other) for q, other in zip(values, others, strict=True))
    loss = sac.critic_loss(view, action, target, strong_view=masked)
    torch.testing.assert_close(loss, expected)
    parameters = [*sac.encoder.parameters(), *sac.critic.parameters()]
    for ours, naive in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-6)


def test_the_critics_second_view_is_its_first_inside_the_mask():
    agent = tiny_agent("sgqn")
    seen = agent.sample(replay_for("sgqn"))
    mask = agent.sac.saliency_mask(seen.critic, seen.batch.action, agent.saliency_quantile)
    assert 0 < float(mask.float().mean()) < 1
    assert torch.equal(seen.critic_too[mask], seen.critic[mask].float())
    assert len(seen.critic_too[~mask].unique()) == 1
    assert seen.actor is seen.critic and not torch.equal(seen.target.float(), seen.critic.float())


def test_the_auxiliary_step_moves_encoder_projection_and_decoder_but_no_q_function():
    agent = tiny_agent("sgqn")
    before = snapshot(agent.sac)
    seen = agent.sample(replay_for("sgqn"))
    views = BatchViews(seen.batch.obs, seen.batch.action, seen.critic, seen.target)
    agent.auxiliary_gradients(agent.prepare_auxiliary(views))
    agent.step_auxiliary()
    moved = {
        name.rpartition(".")[0]
        for name, tensor in snapshot(agent.sac).items()
        if not torch.equal(tensor, before[name])
    }
    assert moved and all(name.startswith(("encoder.", "critic.projection")) for name in moved)
    assert "critic.projection.linear" in moved


@pytest.mark.parametrize(("features", "view"), [((32, 21, 21), (9, 84, 84)), ((4, 9, 9), (6, 50, 50))])
def test_the_decoder_makes_masks_of_the_views_size(features, view):
    decoder = MaskDecoder(100, 2, features, view)
    assert decoder(torch.zeros(2, 100), torch.zeros(2, 2)).shape == (2, *view)
    layers = [(conv.in_channels, conv.out_channels) for conv in (decoder.conv1, decoder.conv2, decoder.conv3)]
    filters = features[0]
    assert layers == [(filters, 4 * filters), (4 * filters, 2 * filters), (2 * filters, view[0])]
    assert decoder.linear.out_features == int(np.prod(features))
