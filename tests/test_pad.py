"""PAD: what is shared, what adapts at test time, and that an episode's adaptation ends with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import (
    ACTION_DIM,
    generator,
    obs_shape,
    pixels,
    replay_for,
    same,
    snapshot,
    tiny_agent,
    tiny_method,
    with_gradient,
    without_gradient,
)
from torch import nn

from softaug.config import make_config
from softaug.errors import UserError
from softaug.evaluation.policy import AdaptivePolicy, MeanPolicy, make_policy
from softaug.learning.agent import make_encoders
from softaug.learning.auxiliary import BatchViews
from softaug.learning.networks import feature_shape
from softaug.learning.replay import Batch


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]


def observation(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, obs_shape(tiny_method("pad")), dtype=np.uint8)


def trained_policy(*, adapt: bool, device: str = "cpu") -> MeanPolicy | AdaptivePolicy:
    """A policy, on the CPU as all are, of an agent that learned on `device`."""
    agent = tiny_agent("pad", device=device)
    for _ in range(4):
        agent.update(replay_for("pad"))
    config = tiny_method("pad")
    return make_policy(config, agent.policy_weights(), obs_shape(config), ACTION_DIM, adapt=adapt)


def steps(policy: AdaptivePolicy, count: int) -> list[np.ndarray]:
    actions = []
    for t in range(count):
        actions.append(policy.act(observation(t)))
        policy.observe(observation(t), actions[-1], observation(t + 1))
    return actions


# --- the networks ----------------------------------------------------------------------------------------


def test_paper_split_is_8_shared_and_3_own_layers_each():
    encoder, auxiliary = make_encoders(make_config(method="pad"), 9)
    assert encoder.trunk is auxiliary.trunk and encoder.head is not auxiliary.head
    assert len(convolutions(encoder.trunk)) == 8
    assert len(convolutions(encoder.head)) == len(convolutions(auxiliary.head)) == 3
    assert feature_shape(encoder, (9, 84, 84)) == feature_shape(auxiliary, (9, 84, 84)) == (32, 21, 21)


def test_agent_shares_the_trunk_only(device):
    agent = tiny_agent("pad", device=device)
    assert agent.auxiliary.encoder.trunk is agent.sac.encoder.trunk
    ours = {id(p) for p in agent.auxiliary.parameters()}
    for part in (agent.sac.encoder.head, agent.sac.actor, agent.sac.critic):
        assert not ours & {id(p) for p in part.parameters()}


# --- the loss --------------------------------------------------------------------------------------------


def test_loss_is_the_mean_squared_error_of_the_predicted_action(device):
    agent = tiny_agent("pad", device=device)
    task = agent.auxiliary
    view, next_view = (pixels(5, 6, 12, 12, seed=seed, device=device) for seed in (0, 1))
    action = (torch.rand(5, ACTION_DIM, generator=generator(seed=2)) * 2 - 1).to(device)
    batch = BatchViews(pixels(5, 6, 16, 16, device=device), action, view, next_view)
    with torch.no_grad():
        one, two = task.projection(task.encoder(view)), task.projection(task.encoder(next_view))
        predicted = task.mlp(torch.cat([one, two], dim=1)).tolist()
        naive = sum(
            (predicted[i][j] - float(action[i, j])) ** 2 for i in range(5) for j in range(ACTION_DIM)
        ) / (5 * ACTION_DIM)
        loss = float(task.loss(batch, generator(device, 3)))
    assert loss == pytest.approx(naive, rel=1e-4)


def test_loss_reaches_the_shared_trunk_and_its_own_heads_but_not_the_rl_head(device):
    agent = tiny_agent("pad", device=device)
    views = (pixels(8, 6, 12, 12, seed=seed, device=device) for seed in (0, 1))
    action = torch.zeros(8, ACTION_DIM, device=device)
    batch = BatchViews(pixels(8, 6, 16, 16, device=device), action, *views)
    agent.auxiliary.loss(batch, generator(device)).backward()
    assert with_gradient(agent.auxiliary)
    assert with_gradient(agent.sac.encoder.trunk)
    for part in (agent.sac.encoder.head, agent.sac.actor, agent.sac.critic):
        assert without_gradient(part)


def watched_update(n_step: int, device: str) -> tuple[list[Batch], list[tuple], list[BatchViews]]:
    """One update's batches, what the critic and the Bellman target saw, and what the task was given."""
    agent, replay = tiny_agent("pad", n_step=n_step, device=device), replay_for("pad", n_step=n_step)
    sampled, rl, given = [], [], []
    sample, views, loss_of = replay.sample, agent._views, agent.auxiliary.loss_of
    replay.sample = lambda *args, **kwargs: sampled.append(sample(*args, **kwargs)) or sampled[-1]
    agent._views = lambda batch: rl.append(views(batch)) or rl[-1]
    agent.auxiliary.loss_of = lambda batch: given.append(batch) or loss_of(batch)
    agent.update(replay)
    return sampled, rl, given


def test_the_task_uses_rls_batch_and_crops(device):
    sampled, rl, given = watched_update(n_step=1, device=device)
    assert len(sampled) == len(given) == 1
    assert given[0].view is rl[0].critic and given[0].next_view is rl[0].target
    assert torch.equal(given[0].action.cpu(), sampled[0].action)


def test_with_n_step_returns_the_task_gets_one_step_transitions(device):
    """The action did not lead to RL's next observation there, so the task has a batch of its own."""
    sampled, rl, given = watched_update(n_step=3, device=device)
    assert len(sampled) == 2
    assert not torch.equal(given[0].next_view, rl[0].target)
    assert torch.equal(given[0].action.cpu(), sampled[1].action)
    discount = tiny_method("pad").discount
    steps = [{round(float(d), 6) for d in batch.discount} for batch in sampled]
    assert steps[1] <= {0.0, round(discount, 6)} and not steps[0] <= {0.0, round(discount, 6)}
    # Each crop lies somewhere in the observation of its own end.
    for raw, view in ((sampled[1].obs, given[0].view), (sampled[1].next_obs, given[0].next_view)):
        windows = raw.unfold(2, 12, 1).unfold(3, 12, 1)
        same_window = (windows == view.cpu()[:, :, None, None]).flatten(4).all(4).all(1)
        assert same_window.flatten(1).any(1).all()


# --- adaptation at test time -----------------------------------------------------------------------------


def test_adaptation_moves_the_encoder_and_leaves_the_rl_head_untouched(device):
    policy = trained_policy(adapt=True, device=device)
    mean_policy = policy.policy
    trunk, head, actor = (
        snapshot(part) for part in (mean_policy.encoder.trunk, mean_policy.encoder.head, mean_policy.actor)
    )
    before = policy.act(observation(9))
    steps(policy, 3)
    assert not same(snapshot(mean_policy.encoder.trunk), trunk)
    assert same(snapshot(mean_policy.encoder.head), head) and same(snapshot(mean_policy.actor), actor)
    assert not np.array_equal(policy.act(observation(9)), before)


def test_begin_episode_undoes_the_adaptation_bit_for_bit():
    policy = trained_policy(adapt=True)
    encoder, inverse = snapshot(policy.policy.encoder), snapshot(policy.inverse_dynamics)
    policy.begin_episode(seed=4)
    first = steps(policy, 4)
    assert not same(snapshot(policy.policy.encoder), encoder)
    policy.begin_episode(seed=4)
    assert same(snapshot(policy.policy.encoder), encoder)
    assert same(snapshot(policy.inverse_dynamics), inverse)
    # Adam's moments must not survive either: the same episode again is the same, bit for bit.
    assert all(np.array_equal(a, b) for a, b in zip(first, steps(policy, 4), strict=True))


def test_before_its_first_step_the_adaptive_policy_is_the_plain_one():
    obs = observation(0)
    assert np.array_equal(trained_policy(adapt=True).act(obs), trained_policy(adapt=False).act(obs))


def test_adaptation_lowers_the_inverse_dynamics_error_on_a_repeated_transition(device):
    policy = trained_policy(adapt=True, device=device)
    obs, next_obs, action = observation(0), observation(1), np.array([0.9, -0.9], np.float32)

    def error() -> float:
        with torch.no_grad():
            views = (policy._crops(pixels) for pixels in (obs, next_obs))
            return float((policy.inverse_dynamics(*views) - torch.from_numpy(action)).square().mean())

    before = error()
    for _ in range(30):
        policy.observe(obs, action, next_obs)
    assert error() < 0.5 * before


def test_one_observation_becomes_32_crops():
    policy = trained_policy(adapt=True)
    crops = policy._crops(observation(0))
    assert crops.shape == (32, 6, 12, 12)
    assert len(torch.unique(crops.flatten(1), dim=0)) > 10


def test_only_pad_adapts():
    config = tiny_method("sac")
    weights = tiny_agent("sac").policy_weights()
    with pytest.raises(UserError, match="does not adapt"):
        make_policy(config, weights, obs_shape(config), ACTION_DIM, adapt=True)
