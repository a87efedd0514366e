"""CURL and PAD on the RL batch and its crops: equal to naive losses in float64, over several updates.

The naive losses are written here from the papers' descriptions, one sample after another; the RL part around them is
the plain learner's (`softaug.benchmarks.plain`), which `test_benchmarks.py` compares with every method.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from tiny import tiny_agent, tiny_method, tiny_replay
from torch import Tensor

from softaug.benchmarks import plain
from softaug.benchmarks.plain import PlainLearner, encode
from softaug.benchmarks.plain_data import crop
from softaug.learning.replay import Batch, Replay

UPDATES = 6


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class NaiveLearner(PlainLearner):
    """The order of the public code: critic, actor, temperature, targets, and last the auxiliary task on RL's batch."""

    def auxiliary_loss(self, replay: Replay, batch: Batch, view: Tensor, next_view: Tensor) -> Tensor:
        task = self.auxiliary
        if hasattr(task, "W"):
            # Anchors: the critic's crops. Positives: another crop of the same observations, through the target.
            positive = crop(batch.obs, view.shape[2], self.aux_generator)
            with torch.no_grad():
                keys = self.sac.target_critic.projection(encode(self.sac.target_encoder, positive))
            queries = self.sac.critic.projection(encode(self.sac.encoder, view))
            losses = []
            for i, query in enumerate(queries):
                logits = torch.stack([query @ (task.W @ key) for key in keys])
                losses.append(logits.logsumexp(0) - logits[i])
            return torch.stack(losses).mean()
        pairs = [task.projection(encode(task.encoder, pixels)) for pixels in (view, next_view)]
        errors = [
            task.mlp(torch.cat(pair)) - action for *pair, action in zip(*pairs, batch.action, strict=True)
        ]
        return torch.stack([(error**2).mean() for error in errors]).mean()


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))


def in_float64(batch: Batch) -> Batch:
    """Rewards and discounts are stored in float32: the same numbers for both, then computed with in float64."""
    return Batch(*(t.float().double() if t.is_floating_point() else t for t in batch))


@pytest.mark.parametrize("method", ["sac", "curl", "pad"])
def test_updates_equal_naive_ones_in_the_public_codes_order(method, float64, monkeypatch):
    config = tiny_method(method)
    agent, replay = tiny_agent(method), tiny_replay(config)
    # Moved weights: at their starting values biases, and the target's distance, are zero.
    draws = torch.Generator().manual_seed(5)
    for parameter in [*agent.sac.parameters(), *(agent.auxiliary.parameters() if agent.auxiliary else ())]:
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=draws))
    naive = NaiveLearner(agent)
    sample, plain_sample = replay.sample, plain.sample
    numpy_rng = copy.deepcopy(agent.replay_rng)
    replay.sample = lambda *args: in_float64(sample(*args))
    monkeypatch.setattr(plain, "sample", lambda *args: in_float64(plain_sample(*args)))
    for update in range(UPDATES):
        metrics, losses = agent.update(replay), naive.update(replay)
        assert {name for name in metrics if name.endswith("_loss")} == losses.keys()
        for name, loss in losses.items():
            assert relative(metrics[name], loss) < 1e-10, (update, name)
    # One draw from the replay per update: the auxiliary task has no batch of its own.
    for _ in range(UPDATES):
        sample(config.batch_size, numpy_rng, 1)
    assert numpy_rng.bit_generator.state == agent.replay_rng.bit_generator.state
    for part in ("sac", "auxiliary"):
        ours, theirs = getattr(agent, part), getattr(naive, part)
        for name, tensor in ours.state_dict().items() if ours is not None else ():
            assert relative(tensor, theirs.state_dict()[name]) < 1e-8, f"{part}.{name}"
