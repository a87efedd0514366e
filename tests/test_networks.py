"""The networks have the paper's shapes, weights and numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tiny import assert_same_on, generator, global_generators, normal, pixels, snapshot, tiny_method
from torch import Tensor, nn

from softaug.config import make_config
from softaug.learning.agent import make_agent
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.building import make_encoders
from softaug.learning.networks import (
    Actor,
    Critic,
    Encoder,
    PerFrameTrunk,
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


def naive_motion_features(encoder: Encoder, obs: Tensor, layers: int, join: str = "differences") -> Tensor:
    """Frame by frame through the first `layers` convolutions, then the newest and the differences through the rest."""
    alone, together = convolutions(encoder)[:layers], convolutions(encoder)[layers:]
    seen = []
    for frame in obs.float().split(3, dim=1):
        x = frame / 255
        for conv in alone:
            x = F.relu(F.conv2d(x, conv.weight, conv.bias, stride=conv.stride))
        seen.append(x)
    parts = [seen[-1]] + [seen[i] - seen[i - 1] for i in reversed(range(1, len(seen)))]
    x = torch.cat(seen if join == "features" else parts, dim=1)
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


def test_small_preset_builds_on_the_same_path(device):
    config = make_config(method="soda", preset="small", device=device, images="procedural")
    agent = make_agent(config, (9, 72, 72), 2)
    assert len(convolutions(agent.sac.encoder)) == len(config.filters)


# --- values ----------------------------------------------------------------------------------------------


def assert_equals_naive(
    encoder: Encoder, obs: Tensor, naive_of: Callable[[Encoder], Tensor], device: str
) -> None:
    """Features and gradients of the encoder on `device` are those of its naive version on the CPU."""
    plain = copy.deepcopy(encoder)
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator(seed=parameter.numel()))
    fast = copy.deepcopy(plain).to(device)
    ours, naive = fast(obs.to(device)), naive_of(plain)
    torch.testing.assert_close(ours.cpu(), naive, rtol=1e-4, atol=1e-4)
    weight = normal(*naive.shape, seed=1)
    for mine, theirs in zip(
        torch.autograd.grad((ours * weight.to(device)).sum(), list(fast.parameters())),
        torch.autograd.grad((naive * weight).sum(), list(plain.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["sac", "pad"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("batch", [1, 3, 150])
def test_encoder_equals_plain_convolutions_in_values_and_gradients(method, dtype, batch, device):
    """Whatever the encoder does to be fast (pieces of a batch, memory order), it computes f."""
    encoder, _ = make_encoders(tiny_method(method, filters=(4, 5, 6), strides=(2, 1, 1)), 6)
    obs = pixels(batch, 6, 12, 12, dtype=dtype)
    assert_equals_naive(encoder, obs, lambda plain: naive_features(plain, obs), device)


@pytest.mark.parametrize("method", ["sac", "pad"])
@pytest.mark.parametrize(("frames", "layers"), [(3, 1), (3, 2), (2, 2), (1, 1)])
@pytest.mark.parametrize(("dtype", "batch"), [(torch.uint8, 3), (torch.float32, 70)])
def test_frame_layers_equal_a_loop_over_frames(method, frames, layers, dtype, batch, device):
    """Values and gradients, also where PAD's own layers begin right after the frames' (relu must not come twice)."""
    config = tiny_method(
        method, frame_stack=frames, frame_layers=layers, filters=(4, 5, 6), strides=(2, 1, 1)
    )
    encoders = make_encoders(config, 3 * frames)
    obs = pixels(batch, 3 * frames, 12, 12, dtype=dtype)
    for encoder in encoders:
        assert_equals_naive(encoder, obs, lambda plain: naive_motion_features(plain, obs, layers), device)


@pytest.mark.parametrize("method", ["sac", "pad"])
@pytest.mark.parametrize("frames", [4, 3, 1])
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_frame_differences_equal_subtracted_frames(method, frames, offset, device):
    """Values and gradients: the weights are changed instead of the pixels."""
    config = tiny_method(
        method, frame_stack=frames, frame_differences=3.0, pixel_offset=offset, filters=(4, 5), strides=(2, 1)
    )
    obs = pixels(5, 3 * frames, 12, 12)

    def naive(plain: nn.Module) -> Tensor:
        each = [frame.float() / 255 - offset for frame in obs.split(3, dim=1)]
        seen = [each[-1]]
        for i in range(frames - 1, 0, -1):
            seen.append(3.0 * (each[i] - each[i - 1]))
        x = torch.cat(seen, dim=1)
        for i, conv in enumerate(convolutions(plain)):
            x = conv(x if i == 0 else torch.relu(x))
        return x

    for encoder in make_encoders(config, 3 * frames):
        assert_equals_naive(encoder, obs, naive, device)


@pytest.mark.parametrize("method", ["simgrl", "pad"])
@pytest.mark.parametrize("frames", [3, 1])
def test_joined_frame_features_equal_a_loop_over_frames(method, frames, device):
    """SimGRL's trunk: the oldest frame's features first, none of them subtracted."""
    config = tiny_method(
        method,
        frame_stack=frames,
        frame_layers=2,
        frame_join="features",
        filters=(4, 5, 6),
        strides=(2, 1, 1),
    )
    obs = pixels(5, 3 * frames, 12, 12)
    for encoder in make_encoders(config, 3 * frames):
        assert_equals_naive(
            encoder, obs, lambda plain: naive_motion_features(plain, obs, 2, "features"), device
        )


def test_simgrls_trunk_has_its_papers_layers():
    encoder, _ = make_encoders(make_config(method="simgrl"), 9)
    layers = [(conv.in_channels, conv.out_channels, conv.stride[0]) for conv in convolutions(encoder)]
    alone = [(3, 16, 2), (16, 16, 1), (16, 16, 1)]
    assert layers == [*alone, (48, 32, 1), *[(32, 32, 1)] * 7]
    assert feature_shape(encoder, (9, 84, 84)) == (32, 21, 21)


def test_a_still_scene_shows_no_motion(device):
    encoder, _ = make_encoders(tiny_method("sac", frame_stack=3, frame_layers=1), 9)
    encoder, frame = encoder.to(device), pixels(2, 3, 12, 12, device=device)
    seen = []
    assert isinstance(encoder.trunk, PerFrameTrunk)
    encoder.trunk.joint.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder(frame.repeat(1, 3, 1, 1))
    newest, *changes = seen[0].chunk(3, dim=1)
    assert newest.abs().sum() > 0
    for change in changes:
        assert_same_on(device, change, torch.zeros_like(change), 1e-5)


def test_critic_norm_normalizes_each_hidden_layer(device):
    """LayerNorm before each ReLU of both Q functions, and nothing else changes."""
    critic = Critic(20, 6, 10, 2, norm=True).to(device)
    features, action = normal(4, 20, device=device), normal(4, 2, seed=1, device=device)
    projected = torch.cat([critic.projection(features), action], dim=1)
    for q, layers in zip(critic(features, action), (critic.q1, critic.q2), strict=True):
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        x = projected
        for layer in linear[:2]:
            x = layer(x)
            x = torch.relu(
                (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
            )
        torch.testing.assert_close(q, linear[2](x), rtol=1e-4, atol=1e-4)


def test_initial_weights_are_delta_orthogonal_and_orthogonal(device):
    encoder, _ = make_encoders(make_config(method="sac"), 9)
    encoder, actor = encoder.to(device), Actor(50, 10, 20, 2).to(device)
    initialise(actor)
    for conv in convolutions(encoder):
        weight = conv.weight.detach().cpu().double()
        center = weight[:, :, 1, 1] / math.sqrt(2)  # the gain of ReLU
        outside = weight.clone()
        outside[:, :, 1, 1] = 0
        assert not outside.any()
        torch.testing.assert_close(center.T @ center, torch.eye(center.shape[1]).double(), rtol=0, atol=1e-5)
        assert not conv.bias.any()
    for layer in actor.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().cpu().double()
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=1e-5)
            assert not layer.bias.any()


# --- policy ----------------------------------------------------------------------------------------------


def test_log_prob_equals_a_tanh_transformed_normal(device):
    actor = Actor(6, 4, 8, 3).to(device)
    features = normal(500, 6, device=device)
    action, log_prob = (value.cpu() for value in actor.sample(features, generator(device, 1)))
    mean, log_std = (value.cpu().double() for value in actor(features))
    noise = torch.randn(mean.shape, generator=generator(device, 1), device=device).cpu().double()
    before_tanh = mean + noise * log_std.exp()
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    transform = torch.distributions.TanhTransform()
    expected = gaussian.log_prob(before_tanh) - transform.log_abs_det_jacobian(
        before_tanh, before_tanh.tanh()
    )
    torch.testing.assert_close(action.double(), before_tanh.tanh(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_prob.double(), expected.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
    assert log_prob.shape == (500, 1)


def test_log_prob_and_its_gradient_stay_finite_at_saturated_actions(device):
    """log(1 - tanh(u)^2) underflows in the naive form; no epsilon is added here."""
    actor = Actor(6, 4, 8, 1).to(device)
    with torch.no_grad():
        actor.mlp[-1].bias.copy_(torch.tensor([40.0, 0.0]))
    action, log_prob = actor.sample(torch.zeros(4, 6, device=device), generator(device))
    assert (action == 1).all()
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert all(torch.isfinite(p.grad).all() for p in actor.parameters() if p.grad is not None)
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u) = 2: the exact tail, not the 0 of a clipped one.
    assert float(actor.mlp[-1].bias.grad[0]) == pytest.approx(8, rel=1e-3)


def test_log_std_stays_between_its_limits(device):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        actor = Actor(6, 4, 8, 2).to(device)
    with torch.no_grad():
        actor.mlp[-1].weight.mul_(1e6)
    with torch.no_grad():
        _, log_std = actor(normal(200, 6, device=device))
    assert float(log_std.min()) == -10 and float(log_std.max()) == 2


def test_sampling_uses_only_its_generator(device):
    actor, features = Actor(6, 4, 8, 2).to(device), torch.ones(3, 6, device=device)
    states = global_generators(device)
    first, second = (actor.sample(features, generator(device, 5)) for _ in range(2))
    assert_same_on(device, first[0], second[0])
    assert all(map(torch.equal, states, global_generators(device)))


# --- moving average --------------------------------------------------------------------------------------


def normed(device: str) -> nn.Module:
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    layers(torch.randn(8, 3).to(device))  # running statistics and the integer counter move
    return layers


@pytest.mark.parametrize("tau", [0.0, 0.005, 0.05, 0.7, 1.0])
def test_moving_average_is_exact_and_includes_buffers(tau, device):
    torch.manual_seed(0)
    online, target = normed(device), normed(device)
    online(torch.randn(8, 3).to(device))
    before, theirs = snapshot(target), snapshot(online)
    ema_update(target, online, tau)
    after = snapshot(target)
    for name, old in before.items():
        if name.endswith("num_batches_tracked"):
            assert after[name] == theirs[name] == 2
            continue
        exact = (1 - tau) * old.double() + tau * theirs[name].double()
        torch.testing.assert_close(after[name].double(), exact, rtol=3e-7, atol=1e-7)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in snapshot(online).items())


def test_moving_average_at_one_is_a_copy_and_at_zero_nothing(device):
    online, target = normed(device), normed(device)
    ema_update(target, online, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), online.parameters(), strict=True))
    other = normed(device)
    before = snapshot(target)
    ema_update(target, other, 0.0)
    floating = {name for name, tensor in before.items() if tensor.is_floating_point()}
    assert all(torch.equal(snapshot(target)[name], before[name]) for name in floating)


def test_orthogonal_convolutions_use_every_tap(device):
    conv = torch.nn.Conv2d(9, 16, 3).to(device)
    initialise(conv, "orthogonal")
    rows = conv.weight.detach().cpu().flatten(1)  # (16, 81)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(16))  # ReLU's gain is sqrt(2)
    assert (conv.weight.abs().sum((0, 1)) > 0.1).all()
    assert not conv.bias.any()
