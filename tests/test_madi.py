"""MaDi's masker: one soft mask per frame, before the encoder wherever it is used, moved by the critic alone."""

from __future__ import annotations

import numpy as np
import torch
from tiny import (
    ACTION_DIM,
    generator,
    normal,
    obs_shape,
    pixels,
    replay_for,
    same,
    snapshot,
    tiny_agent,
    tiny_method,
)
from torch import Tensor, nn

from softaug.config import make_config
from softaug.evaluation.policy import make_policy
from softaug.learning.building import make_encoders
from softaug.learning.networks import Encoder, Masker


def test_the_masker_has_its_papers_layers_and_one_mask_per_frame(device):
    encoder, _ = make_encoders(make_config(method="madi"), 9)
    assert encoder.masker is not None
    layers = [
        (conv.in_channels, conv.out_channels, conv.kernel_size, conv.padding) for conv in encoder.masker.convs
    ]
    assert layers == [(3, 32, (3, 3), (1, 1)), (32, 32, (3, 3), (1, 1)), (32, 1, (3, 3), (1, 1))]
    for conv in encoder.masker.convs:
        around = conv.weight.detach().clone()
        around[:, :, 1, 1] = 0
        assert not around.any() and conv.weight[:, :, 1, 1].any()  # delta-orthogonal
    masker, stack = encoder.masker.to(device), pixels(4, 9, 10, 10, device=device)
    out = masker(stack)
    for frame in range(3):
        rgb = slice(3 * frame, 3 * frame + 3)
        share = out[:, rgb] / stack[:, rgb].clamp(min=1)
        seen = stack[:, rgb] > 0
        assert (share[seen] > 0).all() and (share[seen] < 1).all()
        alone = Masker(1).to(device)
        alone.load_state_dict(masker.state_dict())
        torch.testing.assert_close(out[:, rgb], alone(stack[:, rgb]), rtol=1e-5, atol=1e-3)


def test_the_small_presets_masker_is_as_small_as_its_encoder():
    encoder, _ = make_encoders(make_config(method="madi", preset="small"), 9)
    assert encoder.masker is not None
    assert [conv.out_channels for conv in encoder.masker.convs] == [8, 8, 1]


def blacked_out(encoder: Encoder) -> None:
    """A masker that leaves nothing."""
    assert encoder.masker is not None
    nn.init.zeros_(encoder.masker.convs[-1].weight)
    nn.init.constant_(encoder.masker.convs[-1].bias, -100.0)


def test_acting_and_the_policy_see_through_the_masker(device):
    config, agent = tiny_method("madi"), tiny_agent("madi", device=device)
    assert any(name.startswith("encoder.masker.") for name in agent.policy_weights())
    black = np.zeros(obs_shape(config), np.uint8)
    bright = np.random.default_rng(0).integers(100, 256, obs_shape(config), dtype=np.uint8)

    def actions(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        policy = make_policy(config, agent.policy_weights(), obs_shape(config), ACTION_DIM)
        agent.act_generator.manual_seed(1)
        return agent.act(obs), policy.act(obs)

    assert not any(
        np.allclose(*pair, atol=1e-3) for pair in zip(actions(black), actions(bright), strict=True)
    )
    blacked_out(agent.sac.encoder)
    for dark, light in zip(actions(black), actions(bright), strict=True):
        np.testing.assert_allclose(dark, light, atol=1e-5)


def test_the_target_sees_through_the_online_masker(device):
    """The target's convolutions are its own; its masker is the online one, before and after a moving average."""
    agent = tiny_agent("madi", device=device)
    sac = agent.sac
    for parameter in sac.target_encoder.trunk.parameters():
        parameter.data.add_(0.1 * normal(*parameter.shape, seed=parameter.numel(), device=device))
    view, reward = pixels(5, 6, 12, 12, device=device), normal(5, 1, device=device)
    discount = torch.full((5, 1), 0.9, device=device)
    with torch.no_grad():
        masked = sac.encoder.masker(view)
        action, log_prob = sac.actor.sample(sac.encoder.trunk(masked), generator(device, 2))
        smaller = torch.minimum(*sac.target_critic(sac.target_encoder.trunk(masked), action))
    expected = reward + 0.9 * (smaller - 0.1 * log_prob)
    torch.testing.assert_close(sac.bellman_target(view, reward, discount, generator(device, 2)), expected)
    before = snapshot(sac.encoder.masker)
    sac.update_target()
    assert same(before, snapshot(sac.encoder.masker)) and sac.target_encoder.masker is sac.encoder.masker


def test_the_critics_loss_alone_moves_the_masker():
    agent = tiny_agent("madi")
    seen, before = agent.sample(replay_for("madi")), snapshot(agent.sac.encoder.masker)
    agent.update_actor(seen, agent.shared_features(seen))
    assert same(before, snapshot(agent.sac.encoder.masker))
    agent.sac.update_critic(agent.critic_pass(seen)[0], agent.bellman_target(seen))
    moved = snapshot(agent.sac.encoder.masker)
    assert not any(torch.equal(before[name], moved[name]) for name in before if name.endswith("2.bias"))
    assert not same(before, moved)


def test_the_next_observation_is_not_shifted():
    agent = tiny_agent("madi")
    seen = agent.sample(replay_for("madi"))
    assert torch.equal(seen.target, seen.batch.next_obs)
    assert not torch.equal(seen.critic, seen.batch.obs)


def test_the_strong_view_is_masked_after_the_overlay():
    agent = tiny_agent("madi")
    masked: list[Tensor] = []
    agent.sac.encoder.masker.register_forward_pre_hook(lambda module, inputs: masked.append(inputs[0]))
    seen = agent.sample(replay_for("madi"))
    assert not masked  # the views themselves are not masked
    agent.sac.critic_values(seen.critic, seen.batch.action, seen.critic_too)
    assert masked[0] is seen.critic and masked[1] is seen.critic_too
