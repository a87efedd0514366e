"""SODA next to Stable-Baselines3's learners, with the real library at tiny sizes."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from fakes import DotEnv
from tiny import same, snapshot
from torch import Tensor, nn

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from softaug.errors import UserError
from softaug.integrations.sb3 import OnGreyFrames, SodaCallback, find_extractors
from softaug.learning.augment import RandomConv, RandomShift

SIZE = 36  # the smallest that NatureCNN takes
SMALL = {"features_extractor_kwargs": {"features_dim": 12}, "net_arch": [8]}


class Discrete(gymnasium.ActionWrapper):
    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, action: Any) -> np.ndarray:
        return np.array([0, int(action) - 1], np.float32)


class Seen(gymnasium.ObservationWrapper):
    """Observations in another form."""

    def __init__(self, env: gymnasium.Env, change: Any, space: gymnasium.spaces.Space):
        super().__init__(env)
        self.change, self.observation_space = change, space

    def observation(self, observation: np.ndarray) -> Any:
        return self.change(observation)


def box(shape: tuple[int, ...], high: float = 255, dtype: Any = np.uint8) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(0, high, shape, dtype)


def dot(seed: int = 0) -> gymnasium.Env:
    return DotEnv("train", seed, frame_stack=1, size=SIZE)


def channels_last(seed: int = 0) -> gymnasium.Env:
    return Seen(dot(seed), lambda o: o.transpose(1, 2, 0), box((SIZE, SIZE, 3)))


def floats(seed: int = 0) -> gymnasium.Env:
    return Seen(dot(seed), lambda o: o.astype(np.float32) / 255, box((3, SIZE, SIZE), 1.0, np.float32))


def gray(seed: int = 0) -> gymnasium.Env:
    env = DotEnv("train", seed, frame_stack=2, size=SIZE)
    return Seen(env, lambda o: o[:4], box((4, SIZE, SIZE)))


def vector_env(make: Any = dot, count: int = 1) -> DummyVecEnv:
    return DummyVecEnv([lambda seed=seed: Monitor(make(seed)) for seed in range(count)])


OFF_POLICY = {"buffer_size": 60, "learning_starts": 8, "batch_size": 4, "policy_kwargs": SMALL}
PPO_SIZES = {"n_steps": 12, "batch_size": 6, "n_epochs": 2, "policy_kwargs": SMALL}


def make_model(kind: str, env: Any = None, **overrides: Any) -> Any:
    env = vector_env() if env is None else env
    algorithm, _, shared = kind.partition("_")
    settings: dict[str, Any] = {"seed": 0, "device": "cpu"}
    settings |= {"ppo": PPO_SIZES, "a2c": {"n_steps": 5, "policy_kwargs": SMALL}}.get(algorithm, OFF_POLICY)
    if shared:
        settings["policy_kwargs"] = {**SMALL, "share_features_extractor": shared == "shared"}
    classes = {"sac": SAC, "td3": TD3, "ppo": PPO, "a2c": A2C, "dqn": DQN}
    if algorithm == "dqn":
        env = vector_env(lambda seed: Discrete(dot(seed)))
        settings["train_freq"] = 1
    # A copy: the library adds to the policy's settings.
    return classes[algorithm]("CnnPolicy", env, **copy.deepcopy({**settings, **overrides}))


def make_soda(**overrides: Any) -> SodaCallback:
    settings: dict[str, Any] = {"batch_size": 6, "projection_dim": 8, "lr": 1e-3}
    return SodaCallback(RandomConv(), **{**settings, **overrides})


def parts(module: nn.Module, inside: bool) -> dict[str, Tensor]:
    """The policy's weights inside its (online) features extractors, or outside."""
    return {
        name: tensor
        for name, tensor in snapshot(module).items()
        if "target" not in name and ("features_extractor" in name) is inside
    }


KINDS = {
    "sac": 2,
    "sac_shared": 1,
    "td3": 2,
    "td3_shared": 1,
    "ppo": 1,
    "ppo_separate": 2,
    "a2c": 1,
    "dqn": 1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_encoders_move_by_soda_alone(kind):
    """With a learning rate of 0 for RL nothing but the features extractors changes, and all of them do."""
    model, soda = make_model(kind, learning_rate=0.0), make_soda()
    inside, outside = parts(model.policy, True), parts(model.policy, False)
    model.learn(30, callback=soda)
    assert len(soda.tasks) == KINDS[kind] and soda.soda_updates > 0
    for name, old in inside.items():
        assert not torch.equal(old, snapshot(model.policy)[name]), name
    assert same(parts(model.policy, False), outside)


def test_a_discrete_ppo_with_several_environments_learns_with_soda():
    env = vector_env(lambda seed: Discrete(dot(seed)), 2)
    with pytest.warns(UserWarning, match="truncated mini-batch"):
        model = make_model("ppo", env, batch_size=10)  # two of 10 and one of 4
    soda = make_soda()
    before = snapshot(model.policy)
    model.learn(48, callback=soda)
    assert (
        soda.soda_updates == soda.rl_updates // 2 == 2 * 2 * 3 // 2
    )  # rollouts x epochs x minibatches / every
    assert not same(snapshot(model.policy), before)


@pytest.mark.parametrize("kind", ["sac", "td3", "ppo", "a2c", "dqn"])
def test_a_soda_that_learns_nothing_changes_nothing_for_rl(kind):
    """lr 0: all weights, all data and all random draws of RL are those of a run without the callback."""

    def run(callback: SodaCallback | None) -> tuple[dict[str, Tensor], np.ndarray]:
        model = make_model(kind)
        model.learn(30, callback=callback)
        buffer = model.rollout_buffer if kind in ("ppo", "a2c") else model.replay_buffer
        return snapshot(model.policy), buffer.observations

    soda = make_soda(lr=0.0)
    (plain, plain_data), (with_soda, data) = run(None), run(soda)
    assert soda.soda_updates > 0
    assert same(plain, with_soda)
    np.testing.assert_array_equal(plain_data, data)


class Watching(SodaCallback):
    """Keeps what the encoders get and what SODA might do to the buffer."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.views: list[Tensor] = []
        self.buffers: list[tuple[dict, dict]] = []
        self.weights: list[dict[str, Tensor]] = []
        for task in self.tasks.values():
            task.f_psi.register_forward_pre_hook(lambda module, args: self.views.append(args[0].clone()))

    def arrays(self) -> dict[str, np.ndarray]:
        buffer = getattr(self.model, "replay_buffer", None) or self.model.rollout_buffer
        return {k: v.copy() for k, v in vars(buffer).items() if isinstance(v, np.ndarray)}

    def _catch_up(self) -> None:
        before = self.arrays()
        super()._catch_up()
        self.buffers.append((before, self.arrays()))

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        self.weights.append(snapshot(self.model.policy))

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        self.weights.append(snapshot(self.model.policy))


class Remembering(gymnasium.Wrapper):
    """Keeps every observation it gives."""

    seen: list[np.ndarray]

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        obs, info = self.env.reset(**kwargs)
        self.seen = [*getattr(self, "seen", []), obs.copy()]
        return obs, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.seen.append(result[0].copy())
        return result


@pytest.mark.parametrize("kind", ["sac", "ppo"])
def test_soda_reads_the_learners_clean_data_and_leaves_it_as_it_is(kind):
    env = Remembering(dot())
    model = make_model(kind, DummyVecEnv([lambda: Monitor(env)]))
    watching = Watching(RandomConv(), batch_size=6, projection_dim=8)
    model.learn(36, callback=watching)
    given = {obs.tobytes() for obs in env.seen}
    views = torch.cat(watching.views)
    assert len(views) > 6
    for view in (views * 255).round().to(torch.uint8):
        assert view.numpy().tobytes() in given  # not augmented, not normalized twice, not an empty slot
    for before, after in watching.buffers:
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


def test_ppo_trains_the_policy_that_collected():
    """SODA moves the encoder between an update and the next rollout, never between a rollout and its update."""
    model = make_model("ppo", learning_rate=0.0)
    watching = Watching(RandomConv(), batch_size=6, projection_dim=8, lr=1e-2)
    model.learn(36, callback=watching)
    rollouts = list(zip(watching.weights[::2], watching.weights[1::2], strict=True))
    assert len(rollouts) == 3
    assert all(same(start, end) for start, end in rollouts)
    assert not same(rollouts[0][0], rollouts[1][0])


@pytest.mark.parametrize(("every", "expected"), [(1, 22), (2, 11), (5, 4)])
def test_every_counts_gradient_steps(every, expected):
    model, soda = make_model("sac"), make_soda(every=every)
    model.learn(30, callback=soda)  # learning starts after 8
    assert model._n_updates == soda.rl_updates == 22 and soda.soda_updates == expected
    model.learn(10, callback=soda, reset_num_timesteps=False)
    assert soda.soda_updates == 32 // every


def test_only_the_actors_extractor():
    model, soda = make_model("sac", learning_rate=0.0), make_soda(extractors="actor")
    before = snapshot(model.policy)
    model.learn(20, callback=soda)
    after = {name: t for name, t in snapshot(model.policy).items() if "target" not in name}
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved and all(name.startswith("actor.features_extractor") for name in moved)
    assert list(find_extractors(make_model("ppo_separate"), "actor")) == ["features_extractor"]


# --- images in every form --------------------------------------------------------------------------------


def test_channels_last_images_and_stacked_frames_of_several_environments():
    env = VecFrameStack(vector_env(channels_last, 2), 2)
    model = make_model("sac", env)
    watching = Watching(RandomConv(), batch_size=6, projection_dim=8, weak=RandomShift(2))
    model.learn(30, callback=watching)
    views = torch.cat(watching.views)
    assert views.shape[1:] == (6, SIZE, SIZE) and float(views.max()) == 1 and len(views) > 6


def test_float_images_are_taken_as_they_are():
    settings = {**PPO_SIZES, "policy_kwargs": {**SMALL, "normalize_images": False}}
    settings["policy_kwargs"]["features_extractor_kwargs"] = {"features_dim": 12, "normalized_image": True}
    model = make_model("ppo", vector_env(floats), **settings)
    watching = Watching(RandomConv(), batch_size=6, projection_dim=8)
    model.learn(12, callback=watching)
    seen = torch.cat(watching.views)
    assert float(seen.min()) > 0 and float(seen.max()) == pytest.approx(1)
    np.testing.assert_allclose(
        np.unique(seen.numpy().round(5)), np.unique((np.array([30, 60, 255]) / 255).round(5))
    )


def test_grey_frames():
    model, soda = make_model("ppo", vector_env(gray)), make_soda()
    model.learn(12, callback=soda)
    assert soda.soda_updates == 2
    obs = torch.randint(256, (5, 4, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    unchanged = OnGreyFrames(lambda obs, generator: obs)(obs, torch.Generator())
    assert torch.equal(unchanged, obs.float())
    assert OnGreyFrames(RandomConv())(obs, torch.Generator()).shape == obs.shape


def test_the_default_augmentation_is_the_overlay():
    model, soda = make_model("a2c"), SodaCallback(batch_size=4, projection_dim=8, every=3)
    model.learn(20, callback=soda)
    assert soda.soda_updates == 1


# --- saving ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sac", "ppo"])
def test_learning_goes_on_after_saving_and_loading(kind, tmp_path):
    model, soda = make_model(kind), make_soda(seed=3)
    model.learn(24, callback=soda)
    model.save(tmp_path / "model")
    soda.save(tmp_path / "soda.pt")
    done = soda.soda_updates

    loaded = type(model).load(tmp_path / "model", env=vector_env(), device="cpu")
    again = make_soda(seed=77)
    again.load(tmp_path / "soda.pt")
    again.init_callback(loaded)
    assert again.soda_updates == done and again.rl_updates == soda.rl_updates
    observations = torch.from_numpy(np.stack([dot().reset(seed=i)[0] for i in range(6)]))
    for name, task in again.tasks.items():
        assert task.f_theta is dict(loaded.policy.named_modules())[name]
        assert same(snapshot(task), snapshot(soda.tasks[name]))
        for _ in range(3):  # weights, Adam and draws: the next updates are the same
            assert torch.equal(task.step(observations), soda.tasks[name].step(observations))
        assert same(snapshot(task), snapshot(soda.tasks[name]))

    before = snapshot(loaded.policy)
    loaded.learn(24, callback=again, reset_num_timesteps=False)
    assert again.soda_updates > done and not same(snapshot(loaded.policy), before)


@pytest.mark.parametrize(("before", "after", "more"), [(4, 1, 12), (1, 4, (22 % 4 + 12) // 4)])
def test_another_frequency_and_learning_rate_hold_after_loading(before, after, more, tmp_path):
    model, soda = make_model("sac"), make_soda(every=before)
    model.learn(30, callback=soda)
    model.save(tmp_path / "model")
    soda.save(tmp_path / "soda.pt")
    loaded = SAC.load(tmp_path / "model", env=vector_env(), device="cpu")
    again = make_soda(every=after, lr=7e-4)
    again.load(tmp_path / "soda.pt")
    loaded.learn(12, callback=again, reset_num_timesteps=False)
    assert (soda.rl_updates, again.rl_updates) == (22, 34)
    assert again.soda_updates == 22 // before + more
    assert {group["lr"] for task in again.tasks.values() for group in task.optimiser.param_groups} == {7e-4}


def test_the_same_callback_goes_on_with_a_loaded_model(tmp_path):
    model, soda = make_model("ppo"), make_soda()
    model.learn(12, callback=soda)
    task = next(iter(soda.tasks.values()))
    psi, done = snapshot(task.f_psi), soda.soda_updates
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=vector_env(), device="cpu")
    with pytest.warns(UserWarning, match="for a new one make a new callback"):
        soda.init_callback(loaded)
    new = next(iter(soda.tasks.values()))
    assert new is not task and new.f_theta is loaded.policy.features_extractor
    assert same(snapshot(new.f_psi), psi) and soda.soda_updates == done


# --- refusals --------------------------------------------------------------------------------------------


def learn_with(model: Any, **settings: Any) -> None:
    model.learn(8, callback=make_soda(**settings))


def test_policies_and_observations_without_an_encoder_are_refused():
    with pytest.raises(UserError, match="use CnnPolicy"):
        learn_with(PPO("MlpPolicy", vector_env(), n_steps=8, batch_size=8, device="cpu"))
    with pytest.raises(UserError, match="augments images"):
        learn_with(PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu"))
    space = gymnasium.spaces.Dict({"image": box((3, SIZE, SIZE))})
    env = vector_env(lambda seed: Seen(dot(seed), lambda o: {"image": o}, space))
    with pytest.raises(UserError, match="augments images"):
        learn_with(PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, device="cpu"))


def test_normalized_observations_are_refused():
    env = VecNormalize(vector_env(floats), norm_obs=True)
    model = make_model("ppo", env, policy_kwargs={
        **SMALL, "normalize_images": False,
        "features_extractor_kwargs": {"features_dim": 12, "normalized_image": True},
    })  # fmt: skip
    with pytest.raises(UserError, match="norm_obs=False"):
        learn_with(model)
    below = vector_env(lambda seed: Seen(dot(seed), lambda o: o / np.float32(128) - 1,
                                         gymnasium.spaces.Box(-1, 1, (3, SIZE, SIZE), np.float32)))  # fmt: skip
    model = make_model("ppo", below, policy_kwargs={
        **SMALL, "normalize_images": False,
        "features_extractor_kwargs": {"features_dim": 12, "normalized_image": True},
    })  # fmt: skip
    with pytest.raises(UserError, match="from 0 to one highest value"):
        learn_with(model)


def test_bad_settings_and_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="at least 1"):
        SodaCallback(every=0)
    with pytest.raises(UserError, match="choose one of all, actor"):
        SodaCallback(extractors="critic")
    with pytest.raises(UserError, match="nothing to save"):
        make_soda().save(tmp_path / "soda.pt")
    with pytest.raises(UserError, match="does not exist"):
        make_soda().load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("no state")
    with pytest.raises(UserError, match="cannot be read"):
        make_soda().load(tmp_path / "text.pt")
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"no SodaCallback's state"):
        make_soda().load(tmp_path / "other.pt")


def test_a_state_that_does_not_fit_is_refused(tmp_path):
    soda = make_soda()
    make_model("ppo").learn(12, callback=soda)
    soda.save(tmp_path / "soda.pt")
    other = make_soda()
    other.load(tmp_path / "soda.pt")
    with pytest.raises(UserError, match="use the same algorithm"):
        make_model("sac").learn(8, callback=other)
    other = make_soda(projection_dim=9)
    other.load(tmp_path / "soda.pt")
    with pytest.raises(UserError, match="does not fit"):
        make_model("ppo").learn(8, callback=other)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.callbacks", None)
    monkeypatch.delitem(sys.modules, "softaug.integrations.sb3")
    with pytest.raises(UserError, match=r"softaug\[sb3\]"):
        importlib.import_module("softaug.integrations.sb3")
