"""SAC: who gets gradients, what reaches the Bellman target, and the arithmetic of both."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny import (
    ACTION_DIM,
    AFTER_UPDATES,
    assert_same_on,
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

from softaug.config import make_config
from softaug.learning.sac import SAC
from softaug.methods import METHODS


def tiny_sac(device: str) -> SAC:
    return tiny_agent("sac", device=device).sac


def view(device: str, batch: int = 5, seed: int = 0) -> Tensor:
    return pixels(batch, 6, 12, 12, seed=seed, device=device)


def actions(device: str, batch: int = 5) -> Tensor:
    return (torch.rand(batch, ACTION_DIM, generator=generator(seed=7)) * 2 - 1).to(device)


def nudge(module: nn.Module, device: str) -> None:
    """Move every parameter a little, so that online and target networks differ."""
    for parameter in module.parameters():
        parameter.data.add_(0.05 * normal(*parameter.shape, seed=parameter.numel(), device=device))


# --- gradients -------------------------------------------------------------------------------------------


def test_critic_loss_reaches_encoder_projection_and_both_q_functions_only(device):
    sac = tiny_sac(device)
    sac.critic_loss(view(device), actions(device), normal(5, 1, device=device)).backward()
    assert with_gradient(sac.encoder)
    assert (
        with_gradient(sac.critic.projection) and with_gradient(sac.critic.q1) and with_gradient(sac.critic.q2)
    )
    assert without_gradient(sac.actor) and without_gradient(sac.target_encoder)
    assert without_gradient(sac.target_critic) and sac.log_alpha.grad is None


def test_actor_loss_leaves_the_encoder_without_gradient(device):
    sac = tiny_sac(device)
    actor_loss, alpha_loss, _ = sac.actor_losses(view(device), generator(device))
    (actor_loss + alpha_loss).backward()
    assert without_gradient(sac.encoder)
    assert with_gradient(sac.actor.projection) and with_gradient(sac.actor.mlp)
    assert sac.log_alpha.grad is not None


def test_actor_update_moves_actor_and_temperature_only(device):
    sac = tiny_sac(device)
    before = {name: snapshot(part) for name, part in sac.named_children()}
    log_alpha = sac.log_alpha.detach().clone()
    sac.update_actor(view(device), generator(device))
    assert without_gradient(sac.encoder) and without_gradient(sac.critic)
    for name, part in sac.named_children():
        assert same(snapshot(part), before[name]) == (name != "actor"), name
    assert not torch.equal(sac.log_alpha.detach(), log_alpha)


def test_critic_update_moves_encoder_and_critic_only(device):
    sac = tiny_sac(device)
    before = {name: snapshot(part) for name, part in sac.named_children()}
    sac.update_critic(sac.critic_values(view(device), actions(device)), normal(5, 1, device=device))
    for name, part in sac.named_children():
        assert same(snapshot(part), before[name]) == (name not in ("encoder", "critic")), name


def test_the_actors_gradient_is_its_losss_gradient(device):
    """update_actor takes gradients by hand; they must be those of a plain backward."""
    sac = tiny_sac(device)
    twin = copy.deepcopy(sac.actor)
    actor_loss, _, _ = sac.actor_losses(view(device), generator(device, 3))
    expected = torch.autograd.grad(actor_loss, list(sac.actor.parameters()))
    sac.update_actor(view(device), generator(device, 3))
    for parameter, old, gradient in zip(sac.actor.parameters(), twin.parameters(), expected, strict=True):
        assert_same_on(device, parameter.grad, gradient, 1e-5)
        # Adam's first step is the learning rate times the sign of the gradient.
        large = gradient.abs() > 1e-4
        torch.testing.assert_close((old - parameter)[large], 1e-3 * gradient.sign()[large], rtol=0, atol=2e-6)


def test_the_bellman_target_carries_no_gradient(device):
    sac = tiny_sac(device)
    target = sac.bellman_target(
        view(device), torch.zeros(5, 1, device=device), torch.ones(5, 1, device=device), generator(device)
    )
    assert not target.requires_grad and target.shape == (5, 1)


# --- arithmetic ------------------------------------------------------------------------------------------


def test_bellman_target_by_hand(monkeypatch, device):
    """r + discount (min(q1, q2) - alpha log pi): 1 + 0.9 (2 - 0.1 * 3) = 2.53; a real end keeps only r."""
    sac = tiny_sac(device)

    def sample(features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, ACTION_DIM, device=device), torch.tensor([[3.0], [3.0]], device=device)

    def q_functions(features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor([[2.0], [5.0]], device=device), torch.tensor([[4.0], [1.0]], device=device)

    monkeypatch.setattr(sac.actor, "sample", sample)
    monkeypatch.setattr(sac.target_critic, "forward", q_functions)
    reward, discount = (torch.tensor(pair, device=device)[:, None] for pair in ([1.0, -2.0], [0.9, 0.0]))
    target = sac.bellman_target(view(device, 2), reward, discount, generator(device))
    torch.testing.assert_close(target.cpu(), torch.tensor([[2.53], [-2.0]]))


def test_bellman_target_uses_the_online_policy_and_the_target_q_functions(device):
    sac = tiny_sac(device)
    nudge(sac.target_encoder, device)
    nudge(sac.target_critic, device)
    next_view, reward = view(device), normal(5, 1, seed=1, device=device)
    discount = torch.full((5, 1), 0.97, device=device)
    with torch.no_grad():
        action, log_prob = sac.actor.sample(sac.encoder(next_view), generator(device, 2))
        q1, q2 = sac.target_critic(sac.target_encoder(next_view), action)
        expected = [
            float(reward[i]) + 0.97 * (min(float(q1[i]), float(q2[i])) - 0.1 * float(log_prob[i]))
            for i in range(5)
        ]
    target = sac.bellman_target(next_view, reward, discount, generator(device, 2))
    torch.testing.assert_close(target[:, 0].cpu(), torch.tensor(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "repeat", "scale"),
    [
        ("cartpole_swingup", 0, 1 / 8),
        ("walker_walk", 0, 1 / 4),
        ("walker_walk", 2, 1 / 2),
        ("robot_push", 0, 1.0),
    ],
)
def test_mean_reward_divides_by_a_decisions_frames(task, repeat, scale, device):
    tiny = tiny_agent("sac", device=device)
    config = make_config(task, "sac", mean_reward=True, action_repeat=repeat)
    assert config.reward_scale == scale
    next_view, reward = view(device), normal(5, 1, seed=1, device=device)
    nothing = torch.zeros(5, 1, device=device)
    tiny.sac.reward_scale = config.reward_scale
    target = tiny.sac.bellman_target(next_view, reward, nothing, generator(device))
    torch.testing.assert_close(target, scale * reward)


def test_agents_learn_from_the_sum_of_rewards_unless_told_otherwise():
    assert tiny_agent("sac").sac.reward_scale == 1.0
    assert tiny_agent("sac", mean_reward=True, action_repeat=5).sac.reward_scale == 0.2


def test_shared_features_take_the_target_from_the_online_encoder(device):
    sac = tiny_agent("sac", share_features=True, device=device).sac
    nudge(sac.target_critic, device)
    for parameter in sac.target_encoder.parameters():
        parameter.data.fill_(torch.nan)
    next_view, reward = view(device), normal(5, 1, seed=1, device=device)
    discount = torch.full((5, 1), 0.97, device=device)
    with torch.no_grad():
        features = sac.encoder(next_view)
        action, log_prob = sac.actor.sample(features, generator(device, 2))
        smaller = torch.minimum(*sac.target_critic(features, action))
    target = sac.bellman_target(next_view, reward, discount, generator(device, 2))
    torch.testing.assert_close(target, reward + 0.97 * (smaller - 0.1 * log_prob))


def test_shared_features_update_equals_a_naive_one(device):
    """Critic on fresh features; then the actor on the same features, from before the step, with the stepped critic."""
    agent, naive = (tiny_agent("sac", share_features=True, device=device) for _ in range(2))
    replay = replay_for("sac")
    agent.update(replay)
    sac, draws = naive.sac, naive.generator
    batch = replay.sample(naive.batch_size, naive.replay_rng).to(naive.device)
    seen, next_seen = naive.weak(batch.obs, draws), naive.weak(batch.next_obs, draws)
    target = sac.bellman_target(next_seen, batch.reward, batch.discount, draws)
    with torch.no_grad():
        features = sac.encoder(seen)
    q1, q2 = sac.critic(sac.encoder(seen), batch.action)
    sac.optimisers["critic"].zero_grad()
    (F.mse_loss(q1, target) + F.mse_loss(q2, target)).backward()
    sac.optimisers["critic"].step()
    sac.update_target()
    action, log_prob = sac.actor.sample(features, draws)
    loss = (sac.alpha * log_prob - torch.minimum(*sac.critic(features, action))).mean()
    sac.optimisers["actor"].zero_grad()
    loss.backward()
    sac.optimisers["actor"].step()
    for part in ("encoder", "actor", "critic", "target_critic"):
        ours, theirs = snapshot(getattr(agent.sac, part)), snapshot(getattr(sac, part))
        for name in ours:
            # Rounding elsewhere may turn a first step of Adam (the learning rate, 1e-3) around.
            rtol, atol = (1e-5, 1e-6) if device == "cpu" else (1e-3, 2.1e-3)
            torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol)


def test_critic_loss_is_the_sum_of_both_mean_squared_errors(device):
    sac, target = tiny_sac(device), normal(5, 1, seed=1, device=device)
    with torch.no_grad():
        q1, q2 = sac.critic(sac.encoder(view(device)), actions(device))
        naive = sum((float(q[i]) - float(target[i])) ** 2 / 5 for q in (q1, q2) for i in range(5))
        assert float(sac.critic_loss(view(device), actions(device), target)) == pytest.approx(naive, rel=1e-5)


def test_actor_and_temperature_losses(device):
    sac = tiny_sac(device)
    with torch.no_grad():
        features = sac.encoder(view(device))
        action, log_prob = sac.actor.sample(features, generator(device, 4))
        q1, q2 = sac.critic(features, action)
        actor_loss, alpha_loss, entropy = sac.actor_losses(view(device), generator(device, 4))
        naive = sum(0.1 * float(log_prob[i]) - min(float(q1[i]), float(q2[i])) for i in range(5)) / 5
    assert float(actor_loss) == pytest.approx(naive, rel=1e-4, abs=1e-5)
    assert float(entropy) == pytest.approx(-float(log_prob.mean()), rel=1e-5)
    assert float(alpha_loss) == pytest.approx(0.1 * (-float(log_prob.mean()) + ACTION_DIM), rel=1e-5)
    assert sac.target_entropy == -ACTION_DIM
    assert float(sac.alpha) == pytest.approx(0.1)


def test_the_temperature_rises_when_entropy_is_below_its_target(monkeypatch, device):
    sac = tiny_sac(device)

    def certain(features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        mean, _ = sac.actor(features)
        return torch.tanh(mean), mean.sum(1, keepdim=True) * 0 + 10.0  # entropy -10 < -2

    monkeypatch.setattr(sac.actor, "sample", certain)
    sac.update_actor(view(device), generator(device))
    assert float(sac.alpha) > 0.1


def test_targets_move_with_their_own_tau(device):
    sac = tiny_sac(device)
    sac.update_critic(sac.critic_values(view(device), actions(device)), normal(5, 1, device=device))
    taus = {"encoder": 0.05, "critic.projection": 0.05, "critic.q1": 0.01, "critic.q2": 0.01}
    for name, tau in taus.items():
        online, target = sac.get_submodule(name), sac.get_submodule(f"target_{name}")
        taus[name] = (tau, snapshot(online), snapshot(target), target)
    sac.update_target()
    for tau, online, old, target in taus.values():
        for key, new in snapshot(target).items():
            exact = (1 - tau) * old[key].double() + tau * online[key].double()
            torch.testing.assert_close(new.double(), exact, rtol=3e-7, atol=1e-7)


def test_optimisers_have_the_papers_rates_and_betas():
    optimisers = tiny_agent("soda").optimisers
    found = {name: (o.param_groups[0]["lr"], o.param_groups[0]["betas"]) for name, o in optimisers.items()}
    assert found == {
        "actor": (1e-3, (0.9, 0.999)),
        "critic": (1e-3, (0.9, 0.999)),
        "alpha": (1e-4, (0.5, 0.999)),
        "auxiliary": (3e-4, (0.9, 0.999)),
    }


# --- where strong views go -------------------------------------------------------------------------------


class Poison:
    """A strong augmentation whose views are NaN: whatever they touch shows."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        self.calls += 1
        return torch.full_like(obs, torch.nan, dtype=torch.float32)


WITH_STRONG = [name for name, row in METHODS.items() if row.strong is not None]


@pytest.mark.parametrize("method", WITH_STRONG)
def test_strong_views_reach_exactly_what_the_row_says(method, monkeypatch, device):
    row, agent, poison = METHODS[method], tiny_agent(method, device=device), Poison()
    agent.strong = poison
    if agent.auxiliary is not None:
        agent.auxiliary.augment = poison
    actor_views = []
    monkeypatch.setattr(
        agent.sac, "update_actor", lambda view, generator, *features: actor_views.append(view) or {}
    )
    metrics = agent.update(replay_for(method))
    in_rl, both = row.target_sees == "strong", row.critic_sees == "both"
    assert bool(metrics["target_q"].isnan()) == in_rl
    assert bool(metrics["critic_loss"].isnan()) == (in_rl or both)
    assert bool(actor_views[0].float().isnan().any()) == in_rl
    if agent.auxiliary is not None:
        assert metrics["aux_loss"].isnan()
    assert poison.calls == 2 * in_rl + both + (row.auxiliary_sees == "strong")


@pytest.mark.parametrize("shares", [True, False])
def test_sadas_q_judges_actions_on_the_weak_view_alone(shares, monkeypatch, device):
    """With a strong view of NaN, critic and actor lose their way; with finite actions the actor's Q is finite."""
    agent = tiny_agent("sada", share_features=shares, device=device)
    agent.strong = Poison()
    batch = agent.sample(replay_for("sada"))
    assert agent.bellman_target(batch).isfinite().all()
    arguments = (batch.actor, agent.generator, agent.shared_features(batch), batch.actor_too)
    actor_loss, _, entropy = agent.sac.actor_losses(*arguments)
    assert actor_loss.isnan() and entropy.isnan()
    seen_by_actor = []

    def blind(features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seen_by_actor.append(features)
        return torch.zeros(len(features), ACTION_DIM, device=device), torch.ones(
            len(features), 1, device=device
        )

    monkeypatch.setattr(agent.sac.actor, "sample", blind)
    assert agent.sac.actor_losses(*arguments)[0].isfinite()
    weak, strong = seen_by_actor[0].chunk(2)
    assert weak.isfinite().all() and strong.isnan().all()
    values = agent.sac.critic_values(batch.critic, batch.batch.action, batch.critic_too)
    assert [bool(q1.isnan().all()) for q1, _ in values] == [False, True]


def test_sadas_losses_by_hand(device):
    sac, draws = tiny_agent("sada", device=device).sac, (generator(device, 4), generator(device, 4))
    weak, strong, target = view(device, seed=0), view(device, seed=1), normal(5, 1, seed=1, device=device)
    with torch.no_grad():
        errors = [
            float(F.mse_loss(q, target)) for each in (weak, strong) for q in sac.critic(sac.encoder(each), actions(device))
        ]  # fmt: skip
        loss = sac.critic_loss(weak, actions(device), target, strong_view=strong)
        assert float(loss) == pytest.approx(0.5 * (sum(errors[:2]) / 2 + sum(errors[2:]) / 2), rel=1e-5)
        # The actor: each action, of whichever view, is judged on the weak one; alpha's loss is over both halves.
        features = [sac.encoder(each) for each in (weak, strong)]
        action, log_prob = sac.actor.sample(torch.cat(features), draws[0])
        naive = 0.0
        for i in range(10):
            one = slice(i % 5, i % 5 + 1)
            q1, q2 = sac.critic(features[0][one], action[i : i + 1])
            naive += (0.1 * float(log_prob[i]) - min(float(q1), float(q2))) / 10
        actor_loss, alpha_loss, _ = sac.actor_losses(weak, draws[1], strong_view=strong)
    assert float(actor_loss) == pytest.approx(naive, rel=1e-4, abs=1e-5)
    assert float(alpha_loss) == pytest.approx(0.1 * (-float(log_prob.mean()) + ACTION_DIM), rel=1e-5)


def test_strong_rl_views_are_drawn_for_observation_and_next_observation_apart(device):
    """The same pixels would look different in both: each call takes new draws from the generator."""
    agent = tiny_agent("sac_conv", device=device)
    same_pixels, drawn = pixels(3, 6, 12, 12, device=device), []
    strong = agent.strong

    def record(obs: Tensor, generator: torch.Generator) -> Tensor:
        copy_of_generator = torch.Generator(generator.device).set_state(generator.get_state())
        drawn.append(strong(same_pixels, copy_of_generator))
        return strong(obs, generator)

    agent.strong = record
    agent.update(replay_for("sac_conv"))
    assert len(drawn) == 2 and not torch.allclose(drawn[0], drawn[1], rtol=0, atol=1)  # of 255


def test_svea_loss_is_half_clean_and_half_strong(device):
    sac, target = tiny_sac(device), normal(5, 1, seed=1, device=device)
    with torch.no_grad():
        clean = sac.critic_loss(view(device, seed=0), actions(device), target)
        strong = sac.critic_loss(view(device, seed=1), actions(device), target)
        both = sac.critic_loss(
            view(device, seed=0), actions(device), target, strong_view=view(device, seed=1)
        )
    assert not torch.allclose(clean, strong, rtol=1e-3)
    torch.testing.assert_close(both, 0.5 * clean + 0.5 * strong)


def after_updates(agent, method: str, updates: int = 5) -> dict[str, Tensor]:
    replay = replay_for(method)
    for _ in range(updates):
        agent.update(replay)
    return snapshot(agent.sac)


def test_svea_without_its_strong_view_is_drq_bit_for_bit(device):
    svea = tiny_agent("svea_conv", device=device)
    svea.strong = None
    drq = after_updates(tiny_agent("drq", device=device), "drq")
    assert_same_on(device, after_updates(svea, "drq"), drq, AFTER_UPDATES)


def test_svea_with_an_identical_strong_view_is_drq_up_to_rounding(device):
    """Half of the loss twice is the loss; only the order of sums in the gradient may differ."""
    svea = tiny_agent("svea_conv", device=device)
    svea.strong = lambda obs, generator: obs
    expected = after_updates(tiny_agent("drq", device=device), "drq", updates=1)
    for name, tensor in after_updates(svea, "drq", updates=1).items():
        atol = 1e-4 if device == "cpu" else 2.1e-3  # one step of Adam the other way
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=atol)


def test_svea_with_its_strong_view_is_not_drq():
    assert not same(after_updates(tiny_agent("svea_conv"), "drq"), after_updates(tiny_agent("drq"), "drq"))


def test_sac_is_what_soda_does_without_its_auxiliary_task(device):
    """The RL half of SODA is SAC: same draws, same weights, when the auxiliary task is taken away."""
    soda = tiny_agent("soda_conv", device=device)
    soda.auxiliary = None
    sac = after_updates(tiny_agent("sac", device=device), "sac")
    assert_same_on(device, after_updates(soda, "sac"), sac, AFTER_UPDATES)


def test_mse_target_is_not_broadcast(device):
    """(B, 1) against (B,) would silently become (B, B); shapes of everything that meets in the loss."""
    sac = tiny_sac(device)
    q1, q2 = sac.critic(sac.encoder(view(device)), actions(device))
    target = sac.bellman_target(
        view(device), torch.zeros(5, 1, device=device), torch.ones(5, 1, device=device), generator(device)
    )
    assert q1.shape == q2.shape == target.shape == (5, 1)
    assert F.mse_loss(q1, target, reduction="none").shape == (5, 1)
