"""Reading run directories: which checkpoint, what is enough, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import SIZE, tiny_config

from softaug.config import Config, write_config
from softaug.errors import UserError
from softaug.evaluation.policy import AdaptivePolicy, MeanPolicy
from softaug.evaluation.runs import action_dim, load_policy, load_run
from softaug.learning.agent import Agent, make_agent
from softaug.storage.checkpoint import save_best, save_checkpoint

SHAPE = (6, SIZE, SIZE)


def agent_of(config: Config, seed: int) -> Agent:
    return make_agent(tiny_config(method=config.method, seed=seed), SHAPE, 2)


def save_run(directory: Path, config: Config) -> Path:
    """Checkpoints of 100 and 200 decisions and a best one of 150, with different weights."""
    directory.mkdir()
    write_config(config, directory / "config.json")
    checkpoints = directory / "checkpoints"
    for seed, decisions in ((1, 100), (2, 200)):
        save_checkpoint(checkpoints, decisions, {}, agent_of(config, seed).policy_weights(), keep=2)
    save_best(checkpoints, agent_of(config, 3).policy_weights(), {"decisions": 150, "return": 7.5})
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", tiny_config())


def observation(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SHAPE, dtype=np.uint8)


@pytest.mark.parametrize(("name", "seed", "decisions"), [("last", 2, 200), ("100", 1, 100), ("best", 3, 150)])
def test_the_chosen_checkpoint_is_read(run: Path, name: str, seed: int, decisions: int) -> None:
    loaded = load_run(run, name)
    assert loaded.config == tiny_config()
    assert loaded.decisions == decisions
    expected = agent_of(loaded.config, seed).policy_weights()
    assert loaded.weights.keys() == expected.keys()
    assert all(torch.equal(loaded.weights[key], expected[key]) for key in expected)
    assert load_run(run, "last").sha256 != load_run(run, "best").sha256


def test_the_policy_takes_the_agents_mean_action(run: Path) -> None:
    policy = load_policy(run)
    agent = agent_of(tiny_config(), 2)
    crop = observation()[:, 1:-1, 1:-1].copy()  # the center crop of 12 to 10
    with torch.no_grad():
        mean, _ = agent.sac.actor(agent.sac.encoder(torch.from_numpy(crop)[None]))
    np.testing.assert_allclose(policy.act(observation()), torch.tanh(mean)[0].numpy(), atol=1e-6)


def test_observations_of_another_size_are_refused(run: Path) -> None:
    for shape in ((6, SIZE + 2, SIZE + 2), (3, SIZE, SIZE)):
        with pytest.raises(UserError, match=r"trained on observations of shape \(6, 12, 12\), not"):
            load_policy(run).act(np.zeros(shape, np.uint8))


def test_config_policy_file_and_checksums_are_enough(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "checkpoints" / "000000200").mkdir(parents=True)
    shutil.copy(run / "config.json", bare)
    policy_file = "checkpoints/000000200/policy.safetensors"
    shutil.copy(run / policy_file, bare / policy_file)
    shutil.copy((run / policy_file).with_name("SHA256SUMS"), (bare / policy_file).with_name("SHA256SUMS"))
    np.testing.assert_array_equal(load_policy(bare).act(observation()), load_policy(run).act(observation()))


def test_loading_draws_nothing_from_the_global_generator(run: Path) -> None:
    before = torch.get_rng_state()
    load_policy(run)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_pad_adapts_and_does_so_by_default(run: Path, tmp_path: Path) -> None:
    assert isinstance(load_policy(run), MeanPolicy)
    with pytest.raises(UserError, match="only PAD"):
        load_policy(run, adapt=True)
    pad = save_run(tmp_path / "pad", tiny_config(method="pad"))
    assert isinstance(load_policy(pad), AdaptivePolicy)
    assert isinstance(load_policy(pad, adapt=False), MeanPolicy)


def test_the_action_dimension_is_read_off_the_weights() -> None:
    weights = make_agent(tiny_config(), SHAPE, 5).policy_weights()
    assert action_dim(weights) == 5
    with pytest.raises(UserError, match="no actor"):
        action_dim({"encoder.trunk.convs.0.bias": torch.zeros(8)})


def test_what_is_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        load_run(tmp_path / "empty")
    with pytest.raises(UserError, match="last, best, 100, 200"):
        load_run(run, "first")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        load_run(run)


@pytest.mark.parametrize("name", ["200", "best"])
def test_damaged_weights_are_refused(run: Path, name: str) -> None:
    path = load_run(run, name).checkpoint / "policy.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for damaged in (b"", whole[:4], whole[: len(whole) // 2], whole[:-1], flipped):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            load_run(run, name)
    path.unlink()
    with pytest.raises(UserError):
        load_run(run, name)


@pytest.mark.parametrize("damage", ["weights", "checksums", "missing weights", "missing checksums"])
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(run: Path, damage: str, caplog) -> None:
    checkpoints = run / "checkpoints"
    for name in ("000000200", "000000100"):
        file = checkpoints / name / ("policy.safetensors" if "weights" in damage else "SHA256SUMS")
        if "missing" in damage:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
        if name == "000000200":
            assert load_run(run).decisions == 100
            (message,) = (record.getMessage() for record in caplog.records)
            assert file.name in message and "000000100 instead" in message
    with pytest.raises(UserError, match="--checkpoint best"):
        load_run(run)
    (checkpoints / "best" / "policy.safetensors").unlink()
    with pytest.raises(UserError, match="use another checkpoint or train the run again"):
        load_run(run)


def test_weights_of_another_network_are_refused(run: Path) -> None:
    other = make_agent(tiny_config(hidden_dim=16), SHAPE, 2).policy_weights()
    save_checkpoint(run / "checkpoints", 200, {}, other, keep=2)
    with pytest.raises(UserError, match="do not fit the run's config"):
        load_policy(run)


def test_a_damaged_config_is_refused(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(UserError, match="is damaged"):
        load_run(run)
