"""The feature probe: R² says what it claims, states have names, and a run goes through the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from test_diagnose import tiny_run

from softaug.cli import main
from softaug.config import write_config
from softaug.evaluation.diagnose.physics_state import physics_state
from softaug.evaluation.diagnose.probe import Collected, _collect, _network, _untrained
from softaug.evaluation.diagnose.ridge import fit_ridge, score
from softaug.evaluation.runs import load_run

NAMES = ["a", "b", "still"]
SAMPLES = 400
PART = np.arange(SAMPLES) % 4
SMALL: dict[str, Any] = {
    "render": "aliased", "action_repeat": 100, "filters": (8, 8), "strides": (1, 1), "conv_init": "orthogonal"
}  # fmt: skip
"""Ten decisions an episode; features that keep most of the image."""


def targets(rng: np.random.Generator) -> np.ndarray:
    """Two components that vary, on very different scales, and one that does not."""
    return np.column_stack(
        [rng.normal(size=SAMPLES), 3 + 100 * rng.normal(size=SAMPLES), np.full(SAMPLES, 2.0)]
    )


def scores_of(x: np.ndarray, y: np.ndarray, seen: np.ndarray | None = None) -> dict:
    """Held-out R² of a probe from x to y; seen: what the features are at test time."""
    ridge = fit_ridge(x, y, PART < 2, PART == 2)
    return score(ridge, (x if seen is None else seen)[PART == 3], y[PART == 3], NAMES)


# --- the regression --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 1_000], ids=["fewer features than samples", "more"])
def test_features_that_hold_the_state_linearly_give_one_and_noise_gives_zero(width):
    rng = np.random.default_rng(0)
    y = targets(rng)
    mixed = (y[:, :2] / [1, 100]) @ rng.normal(size=(2, width)) + 7
    found = scores_of(mixed + 0.01 * rng.normal(size=mixed.shape), y)
    assert found["components"]["a"] > 0.99 and found["components"]["b"] > 0.99 and found["mean"] > 0.99
    noise = scores_of(rng.normal(size=(SAMPLES, width)), y)
    assert abs(noise["components"]["a"]) < 0.1 and abs(noise["components"]["b"]) < 0.1 and noise["mean"] < 0.1


def test_a_component_that_does_not_vary_has_no_r2_and_stays_out_of_the_mean():
    rng = np.random.default_rng(1)
    y = targets(rng)
    found = scores_of(y.copy(), y)
    assert found["components"]["still"] is None and found["mean"] > 0.99
    for varies in (PART == 3, PART < 3):  # only where it is tested, only where it is fitted
        y[:, 2] = np.where(varies, rng.normal(size=SAMPLES), 2.0)
        assert scores_of(y.copy(), y)["components"]["still"] is None
    nothing = np.ones((SAMPLES, 1)) * [1.0, 2.0, 3.0]
    assert scores_of(y, nothing) == {"mean": None, "components": dict.fromkeys(NAMES)}


def test_a_feature_that_the_appearance_moves_loses_its_component_alone():
    rng = np.random.default_rng(2)
    y = targets(rng)
    x = y[:, :2] / [1, 100]
    moved = x + np.array([0.0, 3.0])
    found = scores_of(x, y, moved)
    assert found["components"]["a"] > 0.99 and found["components"]["b"] < -1
    assert found["mean"] == pytest.approx(found["components"]["a"] / 2)  # what is below 0 counts as 0


def test_a_collapsed_encoder_explains_nothing():
    y = targets(np.random.default_rng(3))
    found = scores_of(np.full((SAMPLES, 30), 0.3), y)
    assert all(-0.1 < found["components"][name] <= 0 for name in "ab")


def test_the_fit_is_the_primal_ridge_regression_with_the_best_strength():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(60, 5)), rng.normal(size=(60, 1))
    y += x[:, :1]
    part = np.arange(60) % 4
    ridge = fit_ridge(x, y, part < 2, part == 2)

    def primal(rows: np.ndarray, strength: float) -> np.ndarray:
        centered, wanted = x[rows] - x[rows].mean(0), y[rows] - y[rows].mean(0)
        scale = np.square(centered).sum() / len(centered)
        return np.linalg.solve(centered.T @ centered + strength * scale * np.eye(5), centered.T @ wanted)

    def error(strength: float) -> float:
        guess = (x[part == 2] - x[part < 2].mean(0)) @ primal(part < 2, strength) + y[part < 2].mean(0)
        return float(np.square(guess - y[part == 2]).sum())

    best = min(10.0 ** np.arange(-6, 4), key=error)
    np.testing.assert_allclose(ridge.weights, primal(part < 3, best), rtol=1e-6)


# --- the state -------------------------------------------------------------------------------------------


def test_the_state_has_names_and_no_jumps():
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody>
        <body name="goal" mocap="true"/>
        <body><joint name="cart" type="slide"/><geom size=".1"/><body><joint name="pole" type="hinge"/><geom size=".1"/></body></body>
        <body><freejoint name="cube"/><geom size=".1"/></body>
        <body><joint name="hip" type="ball"/><geom size=".1"/></body>
        </worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    data.mocap_pos[0] = 7, 8, 9
    turned = np.array([np.cos(0.5), 0, 0, np.sin(0.5)])  # by 1 rad around z
    data.qpos[:] = [0.5, 3.0, 1, 2, 3, *turned, 1, 0, 0, 0]
    data.qvel[:] = np.arange(1, 12)
    state = physics_state(model, data)
    expected = {
        "cart.pos": 0.5, "pole.sin": np.sin(3), "pole.cos": np.cos(3), "cart.vel": 1, "pole.vel": 2, "goal.y": 8,
        "cube.z": 3, "cube.front.x": np.cos(1), "cube.front.y": np.sin(1), "cube.left.x": -np.sin(1), "cube.vel.x": 3,
        "cube.turn.z": 8, "hip.front.x": 1, "hip.left.y": 1, "hip.turn.x": 9,
    }  # fmt: skip
    assert {name: state[name] for name in expected} == pytest.approx(expected)
    assert len(state) == 1 + 2 + 9 + 6 + 3 + model.nv
    data.qpos[1] += 2 * np.pi
    data.qpos[5:9] *= -1  # the same angle, and the same orientation
    assert physics_state(model, data) == pytest.approx(state)


# --- runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probe") / "run"
    tiny_run(path, "sac", "pendulum_swingup", **SMALL)
    return path


@pytest.fixture(scope="module")
def data(run: Path) -> Collected:
    return _collect(load_run(run), 48, 0, lambda what, done, total: None)


def test_held_out_episodes_are_nobodys_training_data_and_both_policies_act(data):
    assert (data.fitted.astype(int) + data.validation + data.test == 1).all()
    assert data.fitted.any() and data.validation.any() and data.test.any()
    episodes = [{s.episode for s, part in zip(data.paired, mask, strict=True) if part}
                for mask in (data.fitted | data.validation, data.test)]  # fmt: skip
    assert not episodes[0] & episodes[1]
    mine, random = data.paired[:24], data.paired[24:]
    assert {s.episode for s in mine} == {s.episode for s in random} == set(range(12))
    assert [s.decision for s in mine] == [s.decision for s in random]
    assert not any(np.array_equal(a.end, b.end) for a, b in zip(mine, random, strict=True))
    assert data.names == ["hinge.sin", "hinge.cos", "hinge.vel"]


def test_the_baseline_is_the_encoder_before_training(run):
    """The run's weights are those that training begins with."""
    loaded = load_run(run)
    mine, untrained = _network(loaded).state_dict(), _untrained(loaded).state_dict()
    assert {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in untrained.items()}
    assert all(torch.equal(mine[name], untrained[name]) for name in mine if name.startswith("encoder."))


def test_the_command_probes_runs_in_every_mode_and_writes_what_it_prints(run, tmp_path, capsys):
    tiny_run(tmp_path / "other", "soda_conv", "pendulum_swingup", image_size=28, crop_size=24, **SMALL)
    command = ["diagnose", str(run), "--probe", "--states", "120", "--modes", "color_hard", "--json"]
    assert main([*command, "--against", str(tmp_path / "other"), "--out", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "probe.json").read_text())
    assert printed["modes"] == ["train", "color_hard"] and sum(printed["states"].values()) == 120
    assert [each["method"] for each in printed["runs"]] == ["sac", "soda_conv"]
    for each in printed["runs"]:
        assert each["r2"].keys() == {"features", "actor_projection", "critic_projection"}
        assert each["untrained"].keys() == {"features", "actor_projection"}
        for stage in (*each["r2"].values(), *each["untrained"].values()):
            assert list(stage) == ["train", "color_hard"]
            for mode in stage.values():
                assert list(mode["components"]) == printed["components"]
        features = each["r2"]["features"]
        # Even random features show where the pole is, as long as the colors are those of the regression.
        assert features["train"]["components"]["hinge.sin"] > 0.5
        assert features["color_hard"]["mean"] < features["train"]["mean"]


def test_the_table_fits_a_terminal_and_says_what_is_missing(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ["diagnose", str(run), "--probe", "--states", "24", "--modes", "train", "--checkpoint", "best"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "hinge.vel" in out and "mean, actor projection" in out and "untrained" in out
    assert "the critic's projection is not probed" in out and "mean, critic" not in out
    assert max(map(len, out.splitlines()[:14])) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--states", "23"], "states must be a number from 24"),
        (["--modes", "train,train"], "each mode once"),
        (["--against", "{stacked}"], "the same frame_stack"),
        (["--against", "{own}"], "the physics state, which is not known of your own environment"),
    ],
)
def test_what_cannot_be_probed_is_refused_in_a_sentence(run, tmp_path, capsys, arguments, message):
    tiny_run(tmp_path / "stacked", "sac", "pendulum_swingup", frame_stack=2, **SMALL)
    config = tiny_run(tmp_path / "own", "sac")
    modes = {"test_env": ("other=never_imported:env",), "eval_modes": ("train", "other")}
    own = dataclasses.replace(
        config, task="never_imported:env", episode_decisions=20, action_repeat=1, **modes
    )
    write_config(own, tmp_path / "own" / "config.json")
    places = {"stacked": tmp_path / "stacked", "own": tmp_path / "own"}
    assert main(["diagnose", str(run), "--probe", *(each.format(**places) for each in arguments)]) == 2
    assert message in capsys.readouterr().err
