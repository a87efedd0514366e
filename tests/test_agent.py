"""The agent: seeded runs are identical, its state is all of it, and schedules are the papers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeImages
from tiny import (
    ACTION_DIM,
    AFTER_UPDATES,
    assert_same_on,
    global_generators,
    obs_shape,
    replay_for,
    same,
    snapshot,
    tiny_agent,
    tiny_method,
    tiny_replay,
)
from torch import Tensor

from softaug.errors import UserError
from softaug.evaluation.policy import make_policy
from softaug.learning.agent import Agent, choose_device, make_agent
from softaug.learning.augment import center_crop
from softaug.methods import METHODS
from softaug.storage.checkpoint import load_tree, save_tree
from softaug.tasks import frame_stack

every_method = pytest.mark.parametrize("method", METHODS)


def observation(config: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, obs_shape(config), dtype=np.uint8)


def weights(agent: Agent) -> dict[str, Tensor]:
    parts = {"sac": agent.sac} | ({"aux": agent.auxiliary} if agent.auxiliary is not None else {})
    return {f"{part}.{name}": t for part, module in parts.items() for name, t in snapshot(module).items()}


# --- determinism -----------------------------------------------------------------------------------------


@every_method
def test_two_seeded_agents_are_identical_bit_for_bit(method, device):
    replay, agents = replay_for(method), [tiny_agent(method, seed=3, device=device) for _ in range(2)]
    assert_same_on(device, *(weights(agent) for agent in agents))
    for _ in range(5):
        assert_same_on(device, *(agent.update(replay) for agent in agents), AFTER_UPDATES)
    assert_same_on(device, *(weights(agent) for agent in agents), AFTER_UPDATES)


def test_another_seed_is_another_agent():
    assert not same(weights(tiny_agent("soda", seed=0)), weights(tiny_agent("soda", seed=1)))


@every_method
def test_global_generators_neither_matter_nor_move(method, device):
    torch.manual_seed(1)
    states = global_generators(device)
    one = tiny_agent(method, device=device)
    one.update(replay_for(method))
    assert all(map(torch.equal, global_generators(device), states))
    torch.manual_seed(2)
    two = tiny_agent(method, device=device)
    two.update(replay_for(method))
    assert_same_on(device, weights(one), weights(two), AFTER_UPDATES)


def test_acting_does_not_change_what_updates_draw(device):
    """Evaluating or acting more must not change training's draws: the streams are separate."""
    replay, config = replay_for("soda"), tiny_method("soda")
    quiet, busy = (tiny_agent("soda", device=device) for _ in range(2))
    for _ in range(3):
        busy.act(observation(config))
        busy.random_action()
        assert_same_on(device, quiet.update(replay), busy.update(replay), AFTER_UPDATES)


# --- state -----------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize(
    ("updates", "options"), [(0, {}), (3, {}), (3, {"share_features": True, "frame_layers": 1})]
)
def test_a_restored_agent_goes_on_bit_for_bit(method, updates, options, tmp_path):
    """Through real files, into an agent that has meanwhile gone elsewhere (another seed, other updates)."""
    config, replay = tiny_method(method, **options), replay_for(method)
    agent = tiny_agent(method, **options)
    for _ in range(updates):
        agent.update(replay)
    agent.act(observation(config))
    save_tree(tmp_path / "checkpoint", agent.state())
    expected = [agent.update(replay) for _ in range(4)], agent.act(observation(config)), agent.random_action()

    other = tiny_agent(method, seed=99, **options)
    for _ in range(5):
        other.update(replay)
    other.load_state(load_tree(tmp_path / "checkpoint"))
    assert other.updates == updates
    got = [other.update(replay) for _ in range(4)], other.act(observation(config)), other.random_action()
    for before, after in zip(expected[0], got[0], strict=True):
        assert_same_on("cpu", before, after)
    assert np.array_equal(expected[1], got[1]) and np.array_equal(expected[2], got[2])
    assert same(weights(agent), weights(other))


@every_method
def test_a_saved_state_is_all_there_after_loading(method, device, tmp_path):
    """What is loaded is what was saved, to the last bit on every device; and so are the next update's draws."""
    agent, other, replay = (
        tiny_agent(method, device=device),
        tiny_agent(method, seed=9, device=device),
        replay_for(method),
    )
    for _ in range(3):
        agent.update(replay)
    other.update(replay)
    save_tree(tmp_path / "checkpoint", agent.state())
    other.load_state(load_tree(tmp_path / "checkpoint"))
    assert same(weights(agent), weights(other))
    saved, loaded = agent.state(), other.state()
    torch.testing.assert_close(loaded["optimisers"], saved["optimisers"], rtol=0, atol=0)
    for stream in ("act_generator", "generator", "aux_generator"):
        assert torch.equal(loaded[stream], saved[stream]), stream
    assert_same_on(device, agent.update(replay), other.update(replay), AFTER_UPDATES)


def test_state_is_a_copy(device):
    agent, replay = tiny_agent("soda", device=device), replay_for("soda")
    agent.update(replay)
    state = agent.state()
    before = {name: tensor.clone() for name, tensor in state["sac"].items()}
    moments = state["optimisers"]["critic"]["0"]["exp_avg"].clone()
    agent.update(replay)
    assert same(before, state["sac"])
    assert torch.equal(moments, state["optimisers"]["critic"]["0"]["exp_avg"])


def test_loading_keeps_the_encoder_shared(device):
    agent = tiny_agent("soda", device=device)
    agent.load_state(tiny_agent("soda", seed=5, device=device).state())
    assert agent.auxiliary.f_theta is agent.sac.encoder
    held = {id(p) for group in agent.optimisers["critic"].param_groups for p in group["params"]}
    assert {id(p) for p in agent.sac.encoder.parameters()} <= held


# --- schedules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "auxiliary"),
    [("sac", []), ("curl", [0, 1, 2, 3, 4, 5]), ("pad", [0, 2, 4]), ("soda", [0, 2, 4])],
)
def test_schedules(method, auxiliary, monkeypatch, device):
    """Critic every update, actor and targets every second, the auxiliary task as its paper says."""
    agent, replay, targets = tiny_agent(method, device=device), replay_for(method), []
    update_target = agent.sac.update_target
    monkeypatch.setattr(agent.sac, "update_target", lambda: (targets.append(agent.updates), update_target()))
    metrics = [agent.update(replay) for _ in range(6)]

    def due(name: str) -> list[int]:
        return [i for i, entry in enumerate(metrics) if name in entry]

    assert due("critic_loss") == due("target_q") == due("batch_reward") == [0, 1, 2, 3, 4, 5]
    assert due("actor_loss") == due("alpha") == due("entropy") == targets == [0, 2, 4]
    assert due("aux_loss") == auxiliary
    assert agent.updates == 6


@every_method
def test_metrics_are_finite_scalars(method, device):
    agent, replay = tiny_agent(method, device=device), replay_for(method)
    for _ in range(2):
        for name, value in agent.update(replay).items():
            assert value.shape == () and not value.requires_grad and torch.isfinite(value), name
            assert value.device.type == device, name


@every_method
def test_the_robots_single_frames_train_every_method(method, device):
    """k = 1, as `robot_push` has it: views of three channels, several gradient steps, all losses finite."""
    config = tiny_method(method, task="robot_push", frame_stack=frame_stack("robot_push"), device=device)
    assert obs_shape(config)[0] == 3
    agent, replay = (
        make_agent(config, obs_shape(config), ACTION_DIM, images=FakeImages()),
        tiny_replay(config),
    )
    before = weights(agent)
    for _ in range(3):
        assert all(torch.isfinite(value) for value in agent.update(replay).values())
    moved = {name for name, tensor in weights(agent).items() if not torch.equal(tensor, before[name])}
    assert any("encoder" in name for name in moved) and any("actor" in name for name in moved)


@pytest.mark.parametrize(("method", "size"), [("soda", 5), ("curl", 8), ("pad", 8)])
def test_soda_has_a_batch_of_its_own_size_and_the_others_have_rls(method, size, device):
    agent, sizes = tiny_agent(method, aux_batch_size=5, device=device), []
    prepare = agent.auxiliary.prepare

    def recording(data: Any, generator: torch.Generator) -> Any:
        sizes.append(len(data if isinstance(data, Tensor) else data.obs))
        return prepare(data, generator)

    agent.auxiliary.prepare = recording
    agent.update(replay_for(method))
    assert sizes == [size]


# --- acting ----------------------------------------------------------------------------------------------


def test_acting_samples_from_the_policy_at_the_centre_crop(device):
    config, agent = tiny_method("sac"), tiny_agent("sac", device=device)
    obs = observation(config)
    with torch.no_grad():
        view = center_crop(torch.from_numpy(obs)[None], config.crop_size).to(device)
        mean, log_std = (value[0].cpu().double() for value in agent.sac.actor(agent.sac.encoder(view)))
    raw = np.stack([np.arctanh(agent.act(obs).astype(np.float64)) for _ in range(800)])
    std = log_std.exp().numpy()
    np.testing.assert_allclose(raw.mean(0), mean.numpy(), atol=4 * std.max() / 800**0.5 + 1e-3)
    np.testing.assert_allclose(raw.std(0), std, rtol=0.1)


def test_acting_ignores_the_border_that_the_crop_removes():
    config, policy_agent = tiny_method("sac"), tiny_agent("sac")
    obs = observation(config)
    framed = obs.copy()
    framed[:, :2] = framed[:, -2:] = framed[:, :, :2] = framed[:, :, -2:] = 0  # 16 -> 12: two pixels a side
    policy = make_policy(config, policy_agent.policy_weights(), obs_shape(config), ACTION_DIM)
    assert np.array_equal(policy.act(obs), policy.act(framed))


def test_random_actions_are_uniform():
    agent = tiny_agent("sac")
    actions = np.stack([agent.random_action() for _ in range(3000)])
    assert actions.shape == (3000, ACTION_DIM) and actions.dtype == np.float32
    counts = np.histogram(actions, bins=10, range=(-1, 1))[0]
    assert counts.sum() == 6000 and ((counts - 600) ** 2 / 600).sum() < 30  # 99.95 % of chi-square(9)


@every_method
def test_the_policy_is_the_agents_mean_action(method, device):
    """At test time only f_theta and pi_theta are used; the weights file says all there is to know."""
    config, agent = tiny_method(method), tiny_agent(method, device=device)
    agent.update(replay_for(method))
    obs = observation(config)
    stored = agent.policy_weights()
    policy = make_policy(config, stored, obs_shape(config), ACTION_DIM)
    with torch.no_grad():
        view = center_crop(torch.from_numpy(obs)[None], config.crop_size).to(device)
        expected = torch.tanh(agent.sac.actor(agent.sac.encoder(view))[0])[0].cpu()
    np.testing.assert_allclose(policy.act(obs), expected, rtol=1e-4, atol=1e-6)
    parts = {name.split(".")[0] for name in stored}
    assert parts == ({"encoder", "actor", "auxiliary"} if method == "pad" else {"encoder", "actor"})


def test_policy_weights_are_a_copy(device):
    agent = tiny_agent("sac", device=device)
    stored = agent.policy_weights()
    assert all(tensor.device.type == "cpu" for tensor in stored.values())
    before = {name: tensor.clone() for name, tensor in stored.items()}
    agent.update(replay_for("sac"))
    agent.update(replay_for("sac"))
    assert same(stored, before)


def test_weights_of_another_network_are_an_error():
    stored = tiny_agent("sac").policy_weights()
    config = tiny_method("sac", hidden_dim=17)
    with pytest.raises(UserError, match="do not fit"):
        make_policy(config, stored, obs_shape(config), ACTION_DIM)


# --- wiring ----------------------------------------------------------------------------------------------


def test_overlay_images_are_asked_for_at_the_crops_size(device):
    class Recording(FakeImages):
        asked: list[tuple[int, int, int]] = []  # noqa: RUF012

        def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
            self.asked.append((count, height, width))
            return super().sample(count, height, width, rng)

    images, config = Recording(), tiny_method("soda_overlay", device=device, prefetch="off")
    make_agent(config, obs_shape(config), ACTION_DIM, images=images).update(replay_for("soda_overlay"))
    assert images.asked == [(8, 12, 12)]


def test_a_device_that_is_not_there_lists_the_ones_that_are():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match="cpu"):
        choose_device("cuda")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_reduced_precision_is_for_cuda(precision):
    with pytest.raises(UserError, match="needs CUDA"):
        tiny_agent("sac", precision=precision)


def test_it_learns_a_bandit_from_pixels(device):
    """One-decision episodes: reward is the first action's sign agreement with the image's brightness."""
    from softaug.learning.replay import Replay

    config = tiny_method("sac", device=device, batch_size=32, actor_lr=3e-3, critic_lr=3e-3, alpha_lr=1e-2)
    agent = make_agent(config, obs_shape(config), ACTION_DIM)
    rng, size = np.random.default_rng(0), config.image_size
    replay = Replay(
        None, capacity=2000, slack=1, episode_decisions=1, frame_shape=(size, size, 3), frame_stack=2,
        action_dim=ACTION_DIM, discount=0.99,
    )  # fmt: skip
    for _ in range(600):
        bright = bool(rng.integers(2))
        frame = rng.integers(120 * bright, 120 * bright + 100, (size, size, 3), dtype=np.uint8)
        action = agent.random_action()
        replay.begin_episode(frame)
        replay.add(action, float(action[0] if bright else -action[0]), True, frame)
    for _ in range(250):
        agent.update(replay)
    policy = make_policy(config, agent.policy_weights(), obs_shape(config), ACTION_DIM)
    bright, dark = (np.full(obs_shape(config), level, np.uint8) for level in (170, 50))
    assert policy.act(bright)[0] > 0.3 and policy.act(dark)[0] < -0.3
