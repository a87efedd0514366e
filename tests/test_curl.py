"""CURL: the positives lie on the diagonal, and only the query branch learns."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import (
    generator,
    pixels,
    replay_for,
    same,
    snapshot,
    tiny_agent,
    with_gradient,
    without_gradient,
)
from torch import Tensor

from softaug.learning.auxiliary import BatchViews
from softaug.learning.auxiliary.curl import CurlTask


def tiny_task(device: str) -> CurlTask:
    task = tiny_agent("curl", device=device).auxiliary
    assert isinstance(task, CurlTask)
    return task


def seen(task: CurlTask, obs: Tensor, seed: int = 100) -> BatchViews:
    """A batch of `obs` with the critic's crops."""
    view = task.weak(obs, generator(obs.device.type, seed))
    return BatchViews(obs, torch.zeros(len(obs), 2, device=obs.device), view, view)


def query_and_key(task: CurlTask, batch: BatchViews, seed: int) -> tuple[Tensor, Tensor]:
    query = task.projection(task.encoder(batch.view))
    key_view = task.weak(batch.obs, generator(batch.obs.device.type, seed))
    return query, task.key_projection(task.key_encoder(key_view))


def test_loss_is_cross_entropy_with_the_positives_on_the_diagonal(device):
    """-log of softmax over q_i^T W k_j at j = i, number by number; the two crops differ."""
    task = tiny_task(device)
    batch = seen(task, pixels(6, 6, 16, 16, device=device))
    with torch.no_grad():
        query, key = query_and_key(task, batch, 2)
        logits = [[float(q @ task.W @ k) for k in key] for q in query]
        loss = float(task.loss(batch, generator(device, 2)))
    naive = sum(math.log(sum(math.exp(x) for x in row)) - row[i] for i, row in enumerate(logits)) / 6
    assert loss == pytest.approx(naive, rel=1e-4)


def test_the_query_is_the_critics_crop_and_the_key_another_crop_of_the_same_observations(device):
    agent = tiny_agent("curl", device=device)
    critic_views, crops, prepared = [], [], []
    critic_values, weak, loss_of = agent.sac.critic_values, agent.auxiliary.weak, agent.auxiliary.loss_of
    agent.sac.critic_values = lambda view, *rest: critic_views.append(view) or critic_values(view, *rest)
    agent.auxiliary.weak = lambda obs, draws: crops.append((obs, weak(obs, draws))) or crops[-1][1]
    agent.auxiliary.loss_of = lambda views: prepared.append(views) or loss_of(views)
    sampled, replay = [], replay_for("curl")
    sample = replay.sample
    replay.sample = lambda *args: sampled.append(sample(*args)) or sampled[-1]
    agent.update(replay)
    assert len(sampled) == len(crops) == 1  # RL's batch, and one crop more
    assert torch.equal(crops[0][0].cpu(), sampled[0].obs)
    query_view, key_view = prepared[0]
    assert query_view is critic_views[0] and key_view is crops[0][1]
    assert not torch.equal(query_view, key_view)


def test_training_finds_the_positives(device):
    """With the keys fixed, training puts each query's largest logit on its own observation (plain colors here)."""
    task, obs = tiny_task(device), pixels(8, 6, 1, 1, device=device).expand(-1, -1, 16, 16)
    optimizer = torch.optim.Adam([p for p in task.parameters() if p.requires_grad], lr=1e-2)
    for step in range(150):
        loss = task.loss(seen(task, obs, step), generator(device, step + 5000))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits = [
            task.logits(*query_and_key(task, seen(task, obs, seed), -seed)).cpu()
            for seed in range(1000, 1010)
        ]
    right = sum(int((each.argmax(1) == torch.arange(8)).sum()) for each in logits)
    assert right >= 60  # of 80; chance finds 10


def test_keys_receive_no_gradient(device):
    """Even keys that could learn are constants to the loss."""
    task = tiny_task(device)
    assert not any(
        p.requires_grad for p in (*task.key_encoder.parameters(), *task.key_projection.parameters())
    )
    task.key_encoder.requires_grad_(True)
    task.key_projection.requires_grad_(True)
    task.loss(seen(task, pixels(6, 6, 16, 16, device=device)), generator(device)).backward()
    assert with_gradient(task.encoder) and with_gradient(task.projection) and task.W.grad is not None
    assert without_gradient(task.key_encoder) and without_gradient(task.key_projection)


def test_queries_share_the_critics_encoder_and_keys_its_target(device):
    agent = tiny_agent("curl", device=device)
    task, sac = agent.auxiliary, agent.sac
    assert task.encoder is sac.encoder and task.projection is sac.critic.projection
    assert task.key_encoder is sac.target_encoder and task.key_projection is sac.target_critic.projection
    assert task.W.shape == (8, 8)
    held = {id(p) for group in agent.optimisers["auxiliary"].param_groups for p in group["params"]}
    expected = {id(p) for p in (*sac.encoder.parameters(), *sac.critic.projection.parameters(), task.W)}
    assert held == expected


def test_an_update_moves_the_encoder_and_w_but_neither_keys_nor_q_functions(device):
    agent = tiny_agent("curl", device=device)
    parts = {
        "encoder": agent.sac.encoder,
        "target_encoder": agent.sac.target_encoder,
        "target_critic": agent.sac.target_critic,
        "q1": agent.sac.critic.q1,
        "actor": agent.sac.actor,
    }
    before = {name: snapshot(part) for name, part in parts.items()}
    w = agent.auxiliary.W.detach().clone()
    batch = seen(agent.auxiliary, pixels(8, 6, 16, 16, device=device))
    agent.auxiliary_gradients(agent.prepare_auxiliary(batch))
    agent.step_auxiliary()
    assert not torch.equal(agent.auxiliary.W.detach(), w)
    for name, part in parts.items():
        assert same(snapshot(part), before[name]) == (name != "encoder"), name
