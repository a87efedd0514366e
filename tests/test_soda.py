"""SODA: Eq. 2, who gets gradients, the moving average psi, BatchNorm, and anyone's encoder."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import (
    generator,
    normal,
    pixels,
    replay_for,
    same,
    snapshot,
    tiny_agent,
    with_gradient,
    without_gradient,
)
from torch import Tensor, nn

from softaug.learning.augment import RandomConv, RandomCrop
from softaug.learning.auxiliary.soda import SodaTask, consistency_loss


def identity(obs: Tensor, generator: torch.Generator) -> Tensor:
    return obs


class VectorEncoder(nn.Module):
    """Someone else's encoder: a vector of features, BatchNorm and Dropout inside, pixels taken as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 4, 3, stride=3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(4 * 4 * 4, 10)
        self.flat_norm = nn.BatchNorm1d(10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.conv(pixels)))
        return self.flat_norm(self.linear(x.flatten(1)))


def tiny_task(device: str) -> SodaTask:
    task = tiny_agent("soda_conv", device=device).auxiliary
    assert isinstance(task, SodaTask)
    return task


# --- the loss --------------------------------------------------------------------------------------------


def naive_loss(z_hat: Tensor, z_star: Tensor) -> float:
    """Eq. 2, number by number."""
    total = 0.0
    for a, b in zip(z_hat.tolist(), z_star.tolist(), strict=True):
        norm_a, norm_b = math.sqrt(sum(x * x for x in a)), math.sqrt(sum(x * x for x in b))
        total += sum((x / norm_a - y / norm_b) ** 2 for x, y in zip(a, b, strict=True))
    return total / len(z_hat)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # one device for all examples
@given(st.integers(1, 12), st.integers(2, 20), st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_loss_equals_equation_2_and_lies_between_0_and_4(device, batch, k, seed, scale):
    z_hat, z_star = normal(2, batch, k, seed=seed)
    loss = float(consistency_loss(scale * z_hat.to(device), z_star.to(device)))
    assert loss == pytest.approx(naive_loss(z_hat, z_star), rel=1e-4, abs=1e-5)
    assert 0 <= loss <= 4 + 1e-5


def test_loss_at_its_ends(device):
    z = normal(6, 5, device=device)
    assert float(consistency_loss(z, z)) == 0
    assert float(consistency_loss(z, 3 * z)) == pytest.approx(0, abs=1e-10)
    assert float(consistency_loss(z, -z)) == pytest.approx(4)
    one, other = torch.tensor([[[1.0, 0.0]], [[0.0, 7.0]]], device=device)
    assert float(consistency_loss(one, other)) == pytest.approx(2)


def test_task_loss_is_algorithm_1(device):
    """z_hat from the strong view through theta, z* from the weak view through psi, each with its own crop."""
    task, obs = tiny_task(device), pixels(8, 6, 16, 16, device=device)
    for parameter in (*task.f_psi.parameters(), *task.g_psi.parameters()):
        parameter.data.mul_(1.3)  # psi differs from theta
    draws = generator(device, 3)
    o = RandomCrop(12)(obs, draws)
    o_prime = RandomConv()(RandomCrop(12)(obs, draws), draws)
    z_hat = task.h_theta(task.g_theta(task.f_theta(o_prime).flatten(1)))
    z_star = task.g_psi(task.f_psi(o).flatten(1))
    assert float(task.loss(obs, generator(device, 3)).detach()) == pytest.approx(
        naive_loss(z_hat.detach(), z_star.detach()), rel=1e-4
    )


def test_both_branches_are_cropped_independently(device):
    seen = []
    task = tiny_task(device)
    task.f_theta.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    task.f_psi.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    task.augment = identity  # what is left to differ are the crops
    task.loss(pixels(8, 6, 16, 16, device=device), generator(device))
    assert len(seen) == 2 and not torch.equal(seen[0].float(), seen[1].float())


# --- gradients -------------------------------------------------------------------------------------------


def test_theta_receives_gradients_and_psi_none(device):
    task = tiny_task(device)
    task.loss(pixels(8, 6, 16, 16, device=device), generator(device)).backward()
    assert with_gradient(task.f_theta) and with_gradient(task.g_theta) and with_gradient(task.h_theta)
    assert without_gradient(task.f_psi) and without_gradient(task.g_psi)
    assert not any(p.requires_grad for p in (*task.f_psi.parameters(), *task.g_psi.parameters()))


def test_no_gradient_flows_into_the_target_projection(device):
    """Even with a psi that could learn, z* is a constant."""
    task = tiny_task(device)
    task.f_psi.requires_grad_(True)
    task.g_psi.requires_grad_(True)
    task.loss(pixels(8, 6, 16, 16, device=device), generator(device)).backward()
    assert without_gradient(task.f_psi) and without_gradient(task.g_psi)


def test_the_auxiliary_optimiser_steps_the_shared_encoder_and_not_psi(device):
    agent = tiny_agent("soda_conv", device=device)
    task = agent.auxiliary
    assert task.f_theta is agent.sac.encoder
    held = {id(p) for group in agent.optimisers["auxiliary"].param_groups for p in group["params"]}
    expected = (*task.f_theta.parameters(), *task.g_theta.parameters(), *task.h_theta.parameters())
    assert held == {id(p) for p in expected}
    before = snapshot(agent.sac.encoder)
    replay = replay_for("soda_conv")
    data = agent.sample_for_auxiliary(replay, agent.sample(replay))
    agent.auxiliary_gradients(agent.prepare_auxiliary(data))
    agent.step_auxiliary()
    assert not same(snapshot(agent.sac.encoder), before)


@pytest.mark.parametrize("projections", [False, True])
def test_the_task_steps_the_projections_of_actor_and_critic_only_where_the_config_says_so(
    projections, device
):
    agent = tiny_agent("soda", soda_projections=projections, device=device)
    sac, replay = agent.sac, replay_for("soda")
    parts = {
        "encoder": sac.encoder,
        "critic": sac.critic.projection,
        "actor": sac.actor.projection,
        "q1": sac.critic.q1,
        "policy": sac.actor.mlp,
    }
    before = {name: snapshot(part) for name, part in parts.items()}
    seen = agent.sample(replay)
    agent.auxiliary_gradients(agent.prepare_auxiliary(agent.sample_for_auxiliary(replay, seen)))
    agent.step_auxiliary()
    moved = {name for name, part in parts.items() if not same(before[name], snapshot(part))}
    assert moved == ({"encoder", "critic", "actor"} if projections else {"encoder"})
    assert agent.auxiliary_shapes_actor == projections


def test_psi_starts_as_a_copy_of_theta_and_shares_nothing_with_it(device):
    task = tiny_task(device)
    assert same(snapshot(task.f_psi), snapshot(task.f_theta))
    assert same(snapshot(task.g_psi), snapshot(task.g_theta))
    theta = {t.data_ptr() for t in (*task.f_theta.parameters(), *task.g_theta.parameters())}
    psi = {t.data_ptr() for t in (*task.f_psi.parameters(), *task.g_psi.parameters())}
    assert not theta & psi


def test_minimising_the_loss_aligns_the_views(device):
    task, obs = tiny_task(device), pixels(16, 6, 16, 16, device=device)
    optimizer = torch.optim.Adam([p for p in task.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(60):
        loss = task.loss(obs, generator(device, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        task.update_target()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


# --- the moving average and BatchNorm --------------------------------------------------------------------


def test_moving_average_of_psi_is_exact_including_buffers(device):
    agent = tiny_agent("soda_conv", device=device)
    task = agent.auxiliary
    loss = task.loss(pixels(8, 6, 16, 16, device=device), generator(device))
    loss.backward()
    agent.optimisers["auxiliary"].step()
    before = {"f": snapshot(task.f_psi), "g": snapshot(task.g_psi)}
    task.update_target()
    for part, old in before.items():
        online, target = snapshot(getattr(task, f"{part}_theta")), snapshot(getattr(task, f"{part}_psi"))
        for name, new in target.items():
            if new.is_floating_point():
                exact = 0.995 * old[name].double() + 0.005 * online[name].double()
                torch.testing.assert_close(new.double(), exact, rtol=3e-7, atol=1e-7)
            else:
                assert torch.equal(new, online[name])
    names = {name for name, _ in task.g_psi.named_buffers()}
    assert names == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_batchnorm_in_the_target_branch_uses_the_batchs_own_statistics(device):
    task = tiny_task(device)
    assert task.g_psi.training and task.g_theta.training
    features = normal(16, task.g_psi[0].in_features, device=device)
    task.g_psi[1].running_mean.fill_(1e3)  # would show if running statistics were used
    with torch.no_grad():
        out = task.g_psi(features)
        hidden = task.g_psi[0](features)
        mean, variance = hidden.mean(0), hidden.var(0, unbiased=False)
        normed = (hidden - mean) / torch.sqrt(variance + 1e-5)
        torch.testing.assert_close(out, task.g_psi[3](torch.relu(normed)), rtol=1e-4, atol=1e-4)


# --- anyone's encoder ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_building_the_task_leaves_a_foreign_encoder_as_it_is(training, device):
    """Asking for its feature shape must not move BatchNorm's statistics, its mode, or the global generator."""
    torch.manual_seed(0)
    encoder = VectorEncoder().to(device).train(training)
    encoder.norm.eval()  # someone froze this one
    before, modes = snapshot(encoder), [module.training for module in encoder.modules()]
    SodaTask(encoder, RandomConv(), obs_shape=(6, 12, 12), projection_dim=5)
    assert same(snapshot(encoder), before)
    assert [module.training for module in encoder.modules()] == modes


@pytest.mark.parametrize("weak", [None, RandomCrop(12)])
def test_a_foreign_encoder_learns_from_raw_uint8_pixels(weak, device):
    torch.manual_seed(0)
    encoder = VectorEncoder().to(device)
    task = SodaTask(encoder, RandomConv(), obs_shape=(6, 12, 12), weak=weak, projection_dim=5, tau=0.01)
    size = 12 if weak is None else 16
    before = snapshot(encoder)
    optimizer = torch.optim.Adam([p for p in task.parameters() if p.requires_grad], lr=3e-4)
    loss = task.loss(pixels(8, 6, size, size, device=device), generator(device))
    loss.backward()
    assert 0 <= float(loss.detach()) <= 4
    assert with_gradient(task.g_theta) and with_gradient(task.h_theta) and without_gradient(task.f_psi)
    optimizer.step()
    task.update_target()
    assert not same(snapshot(encoder), before)
    assert int(task.f_psi.norm.num_batches_tracked) == int(encoder.norm.num_batches_tracked) == 1


def test_the_heads_fit_the_encoders_features(device):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6 * 12 * 12, 7)).to(device)
    task = SodaTask(encoder, RandomConv(), obs_shape=(6, 12, 12), projection_dim=3)
    assert task.g_theta[0].in_features == 7 and task.h_theta[-1].out_features == 3
