"""The networks have the paper's shapes, weights and numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tiny import pixels, snapshot, tiny_method
from torch import Tensor, nn

from softaug.config import make_config
from softaug.learning.agent import make_agent
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.building import make_encoders
from softaug.learning.networks import (
    Actor,
    Critic,
    Encoder,
    FrameStack,
    ema_update,
    feature_shape,
    initialise,
)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def convolutions(encoder: Encoder) -> list[nn.Conv2d]:
    return [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]


def naive_features(encoder: Encoder, obs: Tensor) -> Tensor:
    x = obs.float() / 255
    for i, conv in enumerate(convolutions(encoder)):
        x = F.conv2d(F.relu(x) if i else x, conv.weight, conv.bias, stride=conv.stride)
    return x


def naive_motion_features(encoder: Encoder, obs: Tensor, layers: int) -> Tensor:
    """Frame by frame through the first `layers` convolutions, then the newest and the differences through the rest."""
    alone, together = convolutions(encoder)[:layers], convolutions(encoder)[layers:]
    seen = []
    for frame in obs.float().split(3, dim=1):
        x = frame / 255
        for conv in alone:
            x = F.relu(F.conv2d(x, conv.weight, conv.bias, stride=conv.stride))
        seen.append(x)
    parts = [seen[-1]] + [seen[i] - seen[i - 1] for i in reversed(range(1, len(seen)))]
    x = torch.cat(parts, dim=1)
    for i, conv in enumerate(together):
        x = F.conv2d(F.relu(x) if i else x, conv.weight, conv.bias, stride=conv.stride)
    return x


# --- the paper's sizes ----------------------------------------------------------------------------------


def test_paper_encoder_shape_layers_and_parameters():
    encoder, auxiliary_encoder = make_encoders(make_config(method="soda"), 9)
    assert auxiliary_encoder is encoder
    assert feature_shape(encoder, (9, 84, 84)) == (32, 21, 21)
    layers = convolutions(encoder)
    assert [layer.stride for layer in layers] == [(2, 2)] + [(1, 1)] * 10
    assert all(
        layer.kernel_size == (3, 3) and layer.out_channels == 32 and layer.padding == (0, 0)
        for layer in layers
    )
    assert count(encoder) == (9 * 32 * 9 + 32) + 10 * (32 * 32 * 9 + 32) == 95_104


def test_paper_encoder_for_the_robot_takes_one_frame():
    encoder, _ = make_encoders(make_config(method="soda", frame_stack=1), 3)
    assert feature_shape(encoder, (3, 84, 84)) == (32, 21, 21)


def test_paper_heads_parameters():
    features, k, hidden, actions = 32 * 21 * 21, 100, 1024, 6
    assert features == 14_112
    projection = features * k + k + 2 * k  # linear, LayerNorm
    mlp = hidden + hidden * hidden + hidden  # all but the first layer's weights and the last layer

    actor = Actor(features, k, hidden, actions)
    assert count(actor) == projection + k * hidden + mlp + hidden * 2 * actions + 2 * actions
    critic = Critic(features, k, hidden, actions)
    assert count(critic) == projection + 2 * ((k + actions) * hidden + mlp + hidden + 1)


def test_paper_soda_heads_parameters():
    encoder, _ = make_encoders(make_config(method="soda"), 9)
    task = SodaTask(encoder, lambda obs, generator: obs, obs_shape=(9, 84, 84))
    assert count(task.g_theta) == 14_112 * 100 + 100 + 200 + 100 * 100 + 100
    assert count(task.h_theta) == 100 * 100 + 100 + 200 + 100 * 100 + 100
    assert [type(layer) for layer in task.g_theta] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def test_small_preset_builds_on_the_same_path():
    config = make_config(method="soda", preset="small", device="cpu", images="procedural")
    agent = make_agent(config, (9, 72, 72), 2)
    assert len(convolutions(agent.sac.encoder)) == len(config.filters)


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sac", "pad"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("batch", [1, 3, 150])
def test_encoder_equals_plain_convolutions_in_values_and_gradients(method, dtype, batch):
    """Whatever the encoder does to be fast (pieces of a batch, memory order), it computes f."""
    encoder, _ = make_encoders(tiny_method(method, filters=(4, 5, 6), strides=(2, 1, 1)), 6)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    obs = pixels(batch, 6, 12, 12, dtype=dtype)
    weight = torch.randn(
        batch, *feature_shape(encoder, (6, 12, 12)), generator=torch.Generator().manual_seed(1)
    )
    ours, naive = encoder(obs), naive_features(encoder, obs)
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)
    parameters = list(encoder.parameters())
    for mine, theirs in zip(
        torch.autograd.grad((ours * weight).sum(), parameters),
        torch.autograd.grad((naive * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["sac", "pad"])
@pytest.mark.parametrize(("frames", "layers"), [(3, 1), (3, 2), (2, 2), (1, 1)])
@pytest.mark.parametrize(("dtype", "batch"), [(torch.uint8, 3), (torch.float32, 70)])
def test_frame_layers_equal_a_loop_over_frames(method, frames, layers, dtype, batch):
    """Values and gradients, also where PAD's own layers begin right after the frames' (relu must not come twice)."""
    config = tiny_method(
        method, frame_stack=frames, frame_layers=layers, filters=(4, 5, 6), strides=(2, 1, 1)
    )
    encoders = make_encoders(config, 3 * frames)
    obs = pixels(batch, 3 * frames, 12, 12, dtype=dtype)
    for encoder in encoders:
        for parameter in encoder.parameters():
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
        ours, naive = encoder(obs), naive_motion_features(encoder, obs, layers)
        torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-4)
        weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
        parameters = list(encoder.parameters())
        for mine, theirs in zip(
            torch.autograd.grad((ours * weight).sum(), parameters),
            torch.autograd.grad((naive * weight).sum(), parameters),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_still_scene_shows_no_motion():
    encoder, _ = make_encoders(tiny_method("sac", frame_stack=3, frame_layers=1), 9)
    frame = pixels(2, 3, 12, 12)
    seen = []
    assert isinstance(encoder.trunk, FrameStack)
    encoder.trunk.joint.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder(frame.repeat(1, 3, 1, 1))
    newest, *changes = seen[0].chunk(3, dim=1)
    assert newest.abs().sum() > 0
    assert all(not change.any() for change in changes)


def test_initial_weights_are_delta_orthogonal_and_orthogonal():
    encoder, _ = make_encoders(make_config(method="sac"), 9)
    actor = Actor(50, 10, 20, 2)
    initialise(actor)
    for conv in convolutions(encoder):
        weight = conv.weight.detach().double()
        centre = weight[:, :, 1, 1] / math.sqrt(2)  # the gain of ReLU
        outside = weight.clone()
        outside[:, :, 1, 1] = 0
        assert not outside.any()
        torch.testing.assert_close(centre.T @ centre, torch.eye(centre.shape[1]).double(), rtol=0, atol=1e-5)
        assert not conv.bias.any()
    for layer in actor.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().double()
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=1e-5)
            assert not layer.bias.any()


# --- policy ----------------------------------------------------------------------------------------------


def test_log_prob_equals_a_tanh_transformed_normal():
    actor = Actor(6, 4, 8, 3)
    features = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    action, log_prob = actor.sample(features, torch.Generator().manual_seed(1))
    mean, log_std = (value.double() for value in actor(features))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(1)).double()
    before_tanh = mean + noise * log_std.exp()
    normal = torch.distributions.Normal(mean, log_std.exp())
    transform = torch.distributions.TanhTransform()
    expected = normal.log_prob(before_tanh) - transform.log_abs_det_jacobian(before_tanh, before_tanh.tanh())
    torch.testing.assert_close(action.double(), before_tanh.tanh(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_prob.double(), expected.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
    assert log_prob.shape == (500, 1)


def test_log_prob_and_its_gradient_stay_finite_at_saturated_actions():
    """log(1 - tanh(u)^2) underflows in the naive form; no epsilon is added here."""
    actor = Actor(6, 4, 8, 1)
    with torch.no_grad():
        actor.mlp[-1].bias.copy_(torch.tensor([40.0, 0.0]))
    action, log_prob = actor.sample(torch.zeros(4, 6), torch.Generator().manual_seed(0))
    assert (action == 1).all()
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert all(torch.isfinite(p.grad).all() for p in actor.parameters() if p.grad is not None)
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u) = 2: the exact tail, not the 0 of a clipped one.
    assert float(actor.mlp[-1].bias.grad[0]) == pytest.approx(8, rel=1e-3)


def test_log_std_stays_between_its_limits():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        actor = Actor(6, 4, 8, 2)
    with torch.no_grad():
        actor.mlp[-1].weight.mul_(1e6)
    with torch.no_grad():
        _, log_std = actor(torch.randn(200, 6, generator=torch.Generator().manual_seed(0)))
    assert float(log_std.min()) == -10 and float(log_std.max()) == 2


def test_sampling_uses_only_its_generator():
    actor = Actor(6, 4, 8, 2)
    state = torch.get_rng_state()
    first = actor.sample(torch.ones(3, 6), torch.Generator().manual_seed(5))
    second = actor.sample(torch.ones(3, 6), torch.Generator().manual_seed(5))
    assert torch.equal(first[0], second[0]) and torch.equal(state, torch.get_rng_state())


# --- moving average --------------------------------------------------------------------------------------


def normed() -> nn.Module:
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    layers(torch.randn(8, 3))  # running statistics and the integer counter move
    return layers


@pytest.mark.parametrize("tau", [0.0, 0.005, 0.05, 0.7, 1.0])
def test_moving_average_is_exact_and_includes_buffers(tau):
    torch.manual_seed(0)
    online, target = normed(), normed()
    online(torch.randn(8, 3))
    before, theirs = snapshot(target), snapshot(online)
    ema_update(target, online, tau)
    after = snapshot(target)
    for name, old in before.items():
        if name.endswith("num_batches_tracked"):
            assert after[name] == theirs[name] == 2
            continue
        exact = (1 - tau) * old.double() + tau * theirs[name].double()
        torch.testing.assert_close(after[name].double(), exact, rtol=3e-7, atol=1e-8)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in snapshot(online).items())


def test_moving_average_at_one_is_a_copy_and_at_zero_nothing():
    online, target = normed(), normed()
    ema_update(target, online, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), online.parameters(), strict=True))
    other = normed()
    before = snapshot(target)
    ema_update(target, other, 0.0)
    floating = {name for name, tensor in before.items() if tensor.is_floating_point()}
    assert all(torch.equal(snapshot(target)[name], before[name]) for name in floating)


def test_orthogonal_convolutions_use_every_tap():
    conv = torch.nn.Conv2d(9, 16, 3)
    initialise(conv, "orthogonal")
    rows = conv.weight.detach().flatten(1)  # (16, 81)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(16))  # ReLU's gain is sqrt(2)
    assert (conv.weight.abs().sum((0, 1)) > 0.1).all()
    assert not conv.bias.any()
