"""Invariance diagnostics: the same physics in every appearance, and measures that say what they claim."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
import torch
from fakes import DotEnv
from PIL import Image
from tiny import snapshot
from torch import Tensor, nn

from softaug.cli import main
from softaug.config import Config, make_config, write_config
from softaug.envs import make_env
from softaug.errors import UserError
from softaug.evaluation.diagnose import diagnose, soda_projection
from softaug.evaluation.diagnose.figure import BLUR, attention
from softaug.evaluation.diagnose.measures import Encoded, baseline, compare, cosines, encode
from softaug.evaluation.diagnose.paired_states import collect_states, render_states
from softaug.evaluation.diagnose.saliency import load_network
from softaug.evaluation.policy import MeanPolicy
from softaug.evaluation.runs import load_run, observation_shape
from softaug.learning.agent import make_agent
from softaug.learning.augment import center_crop
from softaug.learning.networks import Actor
from softaug.storage import checkpoint

SIZE, STACK, CROP = 16, 2, 14


class RecoloredEnv(gymnasium.Env):
    """A white dot that moves by the action; everything but the dot has the color of the episode's appearance."""

    action_repeat = 2
    episode_decisions = 20

    def __init__(self, mode: str, ends_after: int = 20):
        self.observation_space = gymnasium.spaces.Box(0, 255, (3 * STACK, SIZE, SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.mode, self.ends_after = mode, ends_after
        self.colors: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        rng = np.random.default_rng(seed)
        self._position = rng.uniform(-0.9, 0.9, 2)
        self._color = np.full(3, 40) if self.mode == "train" else rng.integers(0, 200, 3)
        self.colors.append(self._color)
        self._decisions = 0
        self._stack = np.concatenate([self._frame()] * STACK)
        return self._stack.copy(), {"media": None if self.mode == "train" else "procedural"}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._position = np.clip(self._position + 0.3 * np.asarray(action), -1, 1)
        self._decisions += 1
        self._stack = np.concatenate([self._stack[3:], self._frame()])
        return self._stack.copy(), 0.0, self._decisions >= self.ends_after, False, {}

    def get_state(self) -> dict[str, Any]:
        task = {"integration": self._position.copy(), "decisions": self._decisions}
        return {"task": task, "color": self._color, "stack": self._stack.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._position, self._decisions = state["task"]["integration"].copy(), state["task"]["decisions"]
        self._color, self._stack = state["color"], state["stack"].copy()

    def _frame(self) -> np.ndarray:
        frame = np.empty((3, SIZE, SIZE), np.uint8)
        frame[:] = self._color[:, None, None]
        row, column = np.round((self._position + 1) / 2 * (CROP - 6)).astype(int) + 2
        frame[:, row : row + 4, column : column + 4] = 255
        return frame


class DotOnly(nn.Module):
    """Features of the dot alone: what is not white is 0."""

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.to(torch.float32) - 254).clamp(min=0)


class Colors(nn.Module):
    """Features of the colors: the mean of every channel, and where the dot is."""

    def forward(self, pixels: Tensor) -> Tensor:
        values = pixels.to(torch.float32) / 255
        return torch.cat([values.mean((2, 3)), values[:, 0].amax(1), values[:, 0].amax(2)], 1)


class Nothing(nn.Module):
    """A collapsed encoder: one point for every observation."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.ones(len(pixels), 8)


def policy_with(encoder: nn.Module) -> MeanPolicy:
    torch.manual_seed(0)
    features = encoder(torch.zeros(1, 3 * STACK, CROP, CROP)).numel()
    return MeanPolicy(encoder, Actor(features, 6, 16, 2), CROP, (3 * STACK, SIZE, SIZE)).eval()


def measured(encoder: nn.Module, mode: str, states: int = 20) -> tuple[dict[str, Any], dict[str, Any]]:
    policy = policy_with(encoder)
    paired = collect_states(RecoloredEnv("train"), policy, states, seed=0)
    clean = encode(policy, np.stack([state.obs for state in paired]))
    base = baseline(clean)
    seen = encode(policy, render_states(RecoloredEnv(mode), mode, paired, seed=0).obs)
    return compare(clean, seen, base), base


# --- meaning ---------------------------------------------------------------------------------------------


def test_an_encoder_that_ignores_the_background_is_invariant_exactly():
    result, base = measured(DotOnly(), "video_easy")
    for name in ("cosine_features", "cosine_projection"):
        assert result[name]["mean"] == 1 and result[name]["std"] == 0 and result[name]["relative"] == 0
    assert result["action_distance"]["mean"] == 0 and result["action_distance"]["relative"] == 0
    assert base["cosine_features"]["mean"] < 0.9 and base["action_distance"]["mean"] > 0


def test_an_encoder_of_colors_is_not_invariant():
    result, _ = measured(Colors(), "video_easy")
    assert result["cosine_features"]["mean"] < 0.99 and result["cosine_features"]["std"] > 0
    assert result["cosine_features"]["relative"] > 0.1
    assert result["action_distance"]["mean"] > 0.001 and result["action_distance"]["relative"] > 0.1
    assert len(result["cosine_features"]["values"]) == 20


@pytest.mark.parametrize("encoder", [DotOnly(), Colors()])
def test_the_training_appearance_gives_exactly_one_and_zero(encoder):
    result, _ = measured(encoder, "train")
    assert set(result["cosine_features"]["values"]) == {1.0}
    assert set(result["cosine_projection"]["values"]) == {1.0}
    assert set(result["action_distance"]["values"]) == {0.0}


def test_a_collapsed_encoder_is_not_called_invariant():
    result, base = measured(Nothing(), "video_easy")
    assert result["cosine_features"]["mean"] == 1 and base["cosine_features"]["mean"] == pytest.approx(1)
    assert result["cosine_features"]["relative"] is None and result["action_distance"]["relative"] is None
    assert result["recognised"] == pytest.approx(1 / 20)  # chance


def test_measures_equal_naive_ones():
    generator = torch.Generator().manual_seed(0)

    def draw() -> Encoded:
        return Encoded(*(torch.randn(5, d, generator=generator, dtype=torch.float64) for d in (7, 4, 2, 3)))

    def cosine(a: Tensor, b: Tensor) -> float:
        return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))

    clean, seen = draw(), draw()
    base = baseline(clean)
    result = compare(clean, seen, base)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    assert clean.soda is not None and seen.soda is not None
    for name, a, b in (
        ("cosine_features", clean.features, seen.features),
        ("cosine_projection", clean.projection, seen.projection),
        ("cosine_soda", clean.soda, seen.soda),
    ):
        others = [cosine(a[i], a[j]) for i, j in pairs]
        own = [cosine(a[i], b[i]) for i in range(5)]
        assert base[name]["mean"] == pytest.approx(np.mean(others))
        assert base[name]["std"] == pytest.approx(np.std(others))
        assert result[name]["values"] == pytest.approx(own)
        assert result[name]["mean"] == pytest.approx(np.mean(own))
        assert result[name]["relative"] == pytest.approx((1 - np.mean(own)) / (1 - np.mean(others)))
    own = [float(sum(abs(x - y) for x, y in zip(clean.actions[i], seen.actions[i], strict=True))) / 2 for i in range(5)]  # fmt: skip
    others = [float((clean.actions[i] - clean.actions[j]).abs().mean()) for i, j in pairs]
    assert result["action_distance"]["values"] == pytest.approx(own)
    assert result["action_distance"]["relative"] == pytest.approx(np.mean(own) / np.mean(others))
    nearest = [max(range(5), key=lambda j: cosine(seen.features[i], clean.features[j])) for i in range(5)]
    assert result["recognised"] == np.mean([nearest[i] == i for i in range(5)])


def test_equal_vectors_have_cosine_exactly_one():
    vectors = torch.randn(50, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(cosines(vectors, vectors.clone()), torch.ones(50, dtype=torch.float64))
    assert cosines(vectors, -vectors).numpy() == pytest.approx(-1)


def test_attention_is_where_the_action_comes_from():
    class OnePixel(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return torch.stack([pixels[:, 3, 16, 18], -pixels[:, 0, 16, 18]], 1).to(torch.float32) / 255

    torch.manual_seed(0)
    policy = MeanPolicy(OnePixel(), Actor(2, 6, 16, 2), 36, (6, 40, 40)).eval()
    obs = np.random.default_rng(0).integers(0, 256, (3, 6, 40, 40), dtype=np.uint8)
    row, column, reach = 16 + 2, 18 + 2, 2 * (BLUR // 2)  # the crop begins at 2
    window = np.zeros((40, 40), bool)
    window[row - reach : row + reach + 1, column - reach : column + reach + 1] = True
    for heat in attention(policy, obs):
        assert heat[row, column] == heat.max() and (heat[window] > 0).all() and not heat[~window].any()


# --- the same states in every appearance -----------------------------------------------------------------------


def test_states_are_spread_over_episodes_and_each_has_its_own_appearance():
    policy = policy_with(Colors())
    paired = collect_states(RecoloredEnv("train"), policy, 20, seed=3)
    assert len(paired) == 20 and [m.episode for m in paired] == sorted(m.episode for m in paired)
    assert {m.episode for m in paired} >= {0, 1}
    assert all(STACK <= m.decision <= RecoloredEnv.episode_decisions for m in paired)
    assert len({(m.episode, m.decision) for m in paired}) == 20
    env = RecoloredEnv("video_easy")
    rendered = render_states(env, "video_easy", paired, seed=3)
    assert rendered.media == "procedural" and len({tuple(c) for c in env.colors}) == 20
    for obs, state, color in zip(rendered.obs, paired, env.colors, strict=True):
        dot = state.obs == 255
        assert (obs == np.where(dot, 255, np.tile(color, STACK)[:, None, None])).all()


def test_episodes_that_end_early_still_give_all_states():
    paired = collect_states(RecoloredEnv("train", ends_after=6), policy_with(Colors()), 12, seed=0)
    assert len(paired) == 12 and max(m.decision for m in paired) <= 6


def test_an_environment_without_state_is_refused():
    class Stateless(RecoloredEnv):
        def get_state(self) -> None:  # type: ignore[override]
            return None

    with pytest.raises(UserError, match="cannot show a given physics state in another appearance"):
        collect_states(Stateless("train"), policy_with(Colors()), 2, seed=0)


class Waving:
    """A policy for any environment."""

    def __init__(self, dims: int):
        self.dims, self.t = dims, 0

    def begin_episode(self, seed: int = 0) -> None:
        self.t = 0

    def act(self, obs: np.ndarray) -> np.ndarray:
        self.t += 1
        return np.sin(self.t + np.arange(self.dims)).astype(np.float32)

    def observe(self, *_: np.ndarray) -> None:
        pass


@pytest.mark.parametrize("task", ["cartpole_swingup", "reacher_easy"])
def test_physics_of_pairs_is_equal_and_every_frame_has_the_new_appearance(task):
    """reacher moves its target by editing the model, which colors edit too: neither may undo the other."""
    env = make_env(task, "train", image_size=32, render="aliased", action_repeat=40)
    paired = collect_states(env, Waving(env.action_space.shape[0]), 3, seed=1)
    clean = np.stack([state.obs for state in paired])
    again = render_states(env, "train", paired, seed=1)
    np.testing.assert_array_equal(again.obs, clean)
    physics, target = env.get_state()["task"]["integration"], env.unwrapped.physics.model.geom_pos.copy()
    env.close()
    for mode in ("color_hard", "video_hard", "camera_hard"):
        other = make_env(task, mode, image_size=32, render="aliased", action_repeat=40)
        rendered = render_states(other, mode, paired, seed=1)
        np.testing.assert_array_equal(other.get_state()["task"]["integration"], physics)
        np.testing.assert_array_equal(paired[-1].end, physics)
        np.testing.assert_array_equal(other.unwrapped.physics.model.geom_pos, target)
        if mode == "color_hard":  # the last state's colors are those shown, in the model as on the screen
            setting = other.get_state()["color"]
            materials = other.unwrapped.physics.model.mat_rgba[:, :3]
            assert any(np.allclose(rgb, setting["self_rgb"]) for rgb in materials)
        other.close()
        changed = (rendered.obs != clean).reshape(3, 3, 3, -1).mean((2, 3))  # (state, frame)
        assert (changed > 0.1).all(), mode


# --- runs ------------------------------------------------------------------------------------------------


def tiny_run(path: Path, method: str = "soda_conv", task: str = "cartpole_balance", **options: Any) -> Config:
    """A run directory with an untrained agent's checkpoint, as training writes it."""
    values: dict[str, Any] = {
        "image_size": 24, "crop_size": 20, "filters": (4, 4), "strides": (2, 2), "projection_dim": 8, "hidden_dim": 16,
        "action_repeat": 40, "videos": "procedural", "images": "procedural", "device": "cpu",
    }  # fmt: skip
    config = make_config(task, method, "small", **{**values, **options})
    agent = make_agent(config, observation_shape(config), 1)
    write_config(config, path / "config.json")
    weights = agent.policy_weights()
    checkpoint.save_checkpoint(path / "checkpoints", 120, {"agent": agent.state()}, weights, keep=2)
    checkpoint.save_best(path / "checkpoints", weights, {"decisions": 120, "return": 1.0})
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnose") / "run"
    tiny_run(path)
    return path


def test_the_command_writes_what_it_prints(run, capsys):
    assert main(["diagnose", str(run), "--states", "3", "--modes", "train,video_hard", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run / "diagnosis.json").read_text())
    assert list(printed["modes"]) == ["train", "video_hard"] and printed["states"] == 3
    assert printed["checkpoint"]["name"] == "000000120" and printed["checkpoint"]["decisions"] == 120
    measures = {"cosine_features", "cosine_projection", "cosine_soda", "action_distance"}
    assert set(printed["baseline"]) == measures
    for mode, result in printed["modes"].items():
        assert set(result) == measures | {"recognised", "media"}
        assert all(set(result[name]) == {"mean", "std", "relative", "values"} for name in measures)
        exact = mode == "train"
        assert (result["cosine_soda"]["mean"] == 1) is exact
        assert (result["action_distance"]["mean"] == 0) is exact
    assert printed["modes"]["video_hard"]["media"] == "procedural"
    assert printed["notes"] == ["procedural media: not comparable with the paper"]
    with Image.open(run / printed["image"]) as image:
        assert image.width >= 3 * 128 and image.height >= 6 * 128


def test_the_same_seed_gives_the_same_and_another_other_states(run, tmp_path, capsys):
    arguments = ["diagnose", str(run), "--states", "2", "--modes", "video_easy", "--json"]
    outputs = []
    for seed in ("0", "0", "1"):
        assert main([*arguments, "--out", str(tmp_path / "new"), "--seed", seed]) == 0
        outputs.append(json.loads(capsys.readouterr().out)["modes"])
    assert outputs[0] == outputs[1] != outputs[2]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["diagnosis.json", "diagnosis.png"]


def test_the_table_fits_a_terminal(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ["diagnose", str(run), "--states", "2", "--modes", "train", "--checkpoint", "best"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (
        "other states" in out and "1.00 ± 0.00" in out and "cos g" not in out
    )  # `best` keeps no training state
    assert max(map(len, out.splitlines()[:12])) <= 80


def test_sodas_projection_is_the_checkpoints(tmp_path):
    config = tiny_run(tmp_path / "run")
    agent = make_agent(config, observation_shape(config), 1)
    head = soda_projection(load_run(tmp_path / "run"))
    assert head is not None and not head.training
    expected, found = snapshot(agent.auxiliary.g_theta), snapshot(head)  # type: ignore[union-attr]
    assert expected.keys() == found.keys() and all(torch.equal(found[k], expected[k]) for k in found)
    tiny_run(tmp_path / "sac", "sac")
    assert soda_projection(load_run(tmp_path / "sac")) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--states", "1"], "states must be a number from 2"),
        (["--modes", "video_medium"], "unknown mode"),
        (["--modes", "train,train"], "each mode once"),
        (["--modes", ","], "at least one mode"),
        (["--checkpoint", "77"], "no checkpoint '77'"),
        (["--seed", "-1"], "must not be negative"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(run, capsys, arguments, message):
    assert main(["diagnose", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_run_and_no_directory_is_refused(run, tmp_path, capsys):
    assert main(["diagnose", str(tmp_path / "none")]) == 2
    (tmp_path / "file").write_text("")
    assert main(["diagnose", str(run), "--out", str(tmp_path / "file")]) == 2
    assert "is a file; give --out a directory" in capsys.readouterr().err
    with pytest.raises(UserError, match="each mode once"):
        diagnose(run, modes=[])


def own_env() -> gymnasium.Env:
    return DotEnv(frame_stack=1)


def test_an_own_environment_is_refused_in_a_sentence(tmp_path, capsys):
    """Its modes are its user's business; nothing guarantees the same physics in both."""
    config = tiny_run(tmp_path / "run")
    config = dataclasses.replace(
        config,
        task="test_diagnose:own_env",
        test_env=("other=test_diagnose:own_env",),
        eval_modes=("train", "other"),
        episode_decisions=20,
        action_repeat=1,
    )
    write_config(config, tmp_path / "run" / "config.json")
    assert main(["diagnose", str(tmp_path / "run"), "--trust"]) == 2
    assert "cannot show a given physics state in another appearance" in capsys.readouterr().err


# --- what the critic looks at ----------------------------------------------------------------------------


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def test_saliency_of_two_runs_is_a_video_and_an_image_per_mode(run, tmp_path, capsys):
    """The second run has another image size; `best` keeps no critic, and that is said."""
    tiny_run(tmp_path / "other", "drq", image_size=20)
    arguments = ["diagnose", str(run), "--against", str(tmp_path / "other"), "--saliency", "--states", "3"]
    for checkpoint_name, missing in (("last", 0), ("best", 2)):
        out = tmp_path / checkpoint_name
        assert (
            main(
                [
                    *arguments,
                    "--modes",
                    "video_hard",
                    "--checkpoint",
                    checkpoint_name,
                    "--out",
                    str(out),
                    "--json",
                ]
            )
            == 0
        )
        printed = json.loads(capsys.readouterr().out)
        assert printed["files"] == [str(out / f"saliency_video_hard{kind}") for kind in (".mp4", ".png")]
        assert len(printed["notes"]) == missing and all(
            "keeps the policy only" in note for note in printed["notes"]
        )
        frames = frames_of(out / "saliency_video_hard.mp4")
        assert len(frames) == 3 and not np.array_equal(frames[0], frames[1])
        with Image.open(out / "saliency_video_hard.png") as image:
            assert image.width == frames[0].shape[1]


def test_the_checkpoints_critic_is_the_agents(tmp_path):
    config = tiny_run(tmp_path, "sac")
    agent = make_agent(config, observation_shape(config), 1)
    network = load_network(load_run(tmp_path))
    obs = np.random.default_rng(0).integers(0, 256, observation_shape(config), dtype=np.uint8)
    action = np.array([0.3], np.float32)
    maps = network.maps(obs, action)
    view = center_crop(torch.from_numpy(obs)[None], config.crop_size)
    with torch.no_grad():
        q1, _ = agent.sac.critic(agent.sac.encoder(view), torch.from_numpy(action)[None])
    assert maps.value == pytest.approx(float(q1), rel=1e-4, abs=1e-5)
    mask = agent.sac.saliency_mask(view, torch.from_numpy(action)[None], config.sgqn_quantile)
    assert np.array_equal(maps.mask, mask[0, -1].numpy())
    assert maps.frame.shape == (20, 20, 3) and maps.guided.shape == maps.plain.shape == (20, 20)
    assert load_network(load_run(tmp_path, "best")).maps(obs, action).value is None


def test_saliency_of_runs_that_cannot_see_the_same_states_is_refused(run, tmp_path, capsys):
    tiny_run(tmp_path / "other", "sac", action_repeat=20)
    assert main(["diagnose", str(run), "--against", str(tmp_path / "other"), "--saliency"]) == 2
    assert "give runs that can see the same states" in capsys.readouterr().err
    assert main(["diagnose", str(run), "--against", str(run)]) == 2
    assert "--against is for --saliency" in capsys.readouterr().err
