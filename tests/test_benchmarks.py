"""The fast learner takes the plain one's step: same losses, same gradients, for every method."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from fakes import FakeImages
from tiny import ACTION_DIM, obs_shape, tiny_agent, tiny_method, tiny_replay
from torch import nn

from softaug.benchmarks import plain_data
from softaug.benchmarks.plain import PlainLearner
from softaug.benchmarks.update import (
    MATMUL_SIZE,
    compare,
    layer_flops,
    ratios,
    replay_share,
    show,
    summary,
    useful_gflop,
)
from softaug.cli import main
from softaug.config import Config, make_config
from softaug.envs.modes import MODE_NAMES
from softaug.learning.agent import Agent, make_agent
from softaug.learning.replay import Replay
from softaug.methods import METHODS

every_method = pytest.mark.parametrize("method", METHODS)


class NoiseImages(FakeImages):
    """Images of noise, so that a wrong pixel shows."""

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def make_pair(config: Config) -> tuple[Agent, PlainLearner]:
    agent = make_agent(config, obs_shape(config), ACTION_DIM, images=NoiseImages())
    # Moved biases, targets and temperature: at their starting values too much would be equal or zero.
    draws = torch.Generator().manual_seed(5)
    for parameter in [*agent.sac.parameters(), *(agent.auxiliary.parameters() if agent.auxiliary else ())]:
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=draws).to(agent.device))
    return agent, PlainLearner(agent)


class Gradients:
    """Every optimizer's gradients at its steps, by optimizer and step number."""

    def __init__(self, optimisers: dict[str, torch.optim.Optimizer]):
        self.steps: dict[str, list[list[torch.Tensor]]] = {name: [] for name in optimisers}
        for name, optimizer in optimisers.items():
            optimizer.register_step_pre_hook(
                lambda optimizer, args, kwargs, name=name: self._keep(name, optimizer)
            )

    def _keep(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.steps[name].append([gradient.clone() for gradient in gradients])


# Adam turns a gradient's rounding into whole steps, so gradients are compared where every step is too small to
# move a weight; test_learning_goes_the_same_way covers the steps.
STILL = {"actor_lr": 1e-30, "critic_lr": 1e-30, "alpha_lr": 1e-30, "aux_lr": 1e-30}


def check_gradients(config: Config, replay: Replay, *, updates: int, rtol: float = 1e-3) -> None:
    agent, learner = make_pair(config)
    ours, theirs = Gradients(agent.optimisers), Gradients(learner.optimisers)
    for _ in range(updates):
        check_losses(agent.update(replay), learner.update(replay), rtol=1e-4)
    for name, steps in theirs.steps.items():
        assert len(steps) == len(ours.steps[name]) > 0, name
        for our_step, their_step in zip(ours.steps[name], steps, strict=True):
            overall = max(float(gradient.norm()) for gradient in their_step)
            assert overall > 0, name
            for mine, naive in zip(our_step, their_step, strict=True):
                # A bias before BatchNorm has a gradient of nothing but rounding: hence the second term.
                assert float((mine - naive).norm()) <= rtol * float(naive.norm()) + 1e-6 * overall, name


def check_losses(metrics: dict[str, torch.Tensor], losses: dict[str, torch.Tensor], *, rtol: float) -> None:
    assert losses.keys() == {name for name in metrics if name.endswith("_loss")}
    for name, loss in losses.items():
        torch.testing.assert_close(metrics[name], loss, rtol=rtol, atol=1e-5, msg=name)


@every_method
def test_losses_and_gradients_equal_the_plain_ones(method, device):
    config = tiny_method(method, device=device, n_step=2, **STILL)
    check_gradients(config, tiny_replay(config), updates=3)


@every_method
@pytest.mark.parametrize("motion", [{"frame_layers": 1}, {"frame_layers": 0, "frame_differences": 3.0}])
def test_losses_and_gradients_equal_the_plain_ones_with_shared_features_and_motion(method, motion):
    config = tiny_method(method, share_features=True, critic_norm=True, mean_reward=True, **motion, **STILL)
    check_gradients(config, tiny_replay(config), updates=3)


@pytest.mark.parametrize("method", ["soda_overlay", "soda_both_conv"])
def test_losses_and_gradients_equal_the_plain_ones_through_the_projections(method, device):
    config = tiny_method(method, device=device, soda_projections=True, **STILL)
    check_gradients(config, tiny_replay(config), updates=3)


@every_method
def test_a_batch_in_pieces_equals_the_plain_whole(method, monkeypatch):
    monkeypatch.setattr("softaug.learning.networks.CPU_PIECE", 3)
    config = tiny_method(method, **STILL)
    check_gradients(config, tiny_replay(config), updates=1)


@every_method
def test_learning_goes_the_same_way(method, device):
    config = tiny_method(method, device=device)
    replay = tiny_replay(config)
    agent, learner = make_pair(config)
    for _ in range(4):
        check_losses(agent.update(replay), learner.update(replay), rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["soda_conv", "svea_overlay", "pad", "curl"])
def test_losses_and_gradients_equal_the_plain_ones_at_paper_size(method):
    """The paper's images and networks, and a quarter of its batches.

    Of millions of units a few lie so near ReLU's kink that rounding puts them on its other side, which moves
    the gradients of the layers below by some 0.2 % at once (in float64 as well); all others agree to 1e-5."""
    config = make_config(method=method, device="cpu", batch_size=32, aux_batch_size=64, **STILL)
    check_gradients(config, tiny_replay(config, episodes=3, length=20), updates=1, rtol=1e-2)


@pytest.mark.parametrize("n_step", [1, 3])
def test_plain_sampling_equals_the_replays(n_step):
    replay = tiny_replay(tiny_method("sac"), episodes=5, length=7)
    for seed in range(5):
        ours = replay.sample(16, np.random.default_rng(seed), n_step)
        theirs = plain_data.sample(replay, 16, np.random.default_rng(seed), n_step)
        for mine, naive in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.float(), naive.float())
        assert torch.equal(
            replay.sample_observations(16, np.random.default_rng(seed)).float(),
            plain_data.sample_observations(replay, 16, np.random.default_rng(seed)),
        )


def test_the_plain_learner_leaves_the_agent_alone():
    agent = tiny_agent("soda")
    before = agent.state()
    PlainLearner(agent).update(tiny_replay(tiny_method("soda")))
    after = agent.state()
    assert (
        torch.equal(before["generator"], after["generator"]) and before["replay_rng"] == after["replay_rng"]
    )
    assert all(torch.equal(before["sac"][name], tensor) for name, tensor in after["sac"].items())


def test_the_plain_learner_is_plain():
    """Contiguous NCHW weights and an unfused Adam; the encoder still shared by all that share it in the agent."""
    agent = tiny_agent("pad")
    learner = PlainLearner(agent)
    convolutions = [layer for layer in learner.sac.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions and all(layer.weight.is_contiguous() for layer in convolutions)
    assert learner.auxiliary.encoder.trunk is learner.sac.encoder.trunk
    assert learner.sac.encoder.trunk is not agent.sac.encoder.trunk
    assert not any(optimizer.param_groups[0]["fused"] for optimizer in learner.optimisers.values())


# --- what the benchmark says ------------------------------------------------------------------------------


def test_useful_work_of_shared_features_and_frames_by_hand():
    """Next view once, one trained pass; two layers on each of three frames, the third on 3 x 16 channels."""
    config = make_config(
        method="sac",
        preset="small",
        share_features=True,
        frame_layers=2,
        filters=(8, 16, 32),
        strides=(2, 2, 1),
    )
    layers = [3 * 2 * 24**2 * 8 * 27, 3 * 2 * 11**2 * 16 * 8 * 9, 2 * 9**2 * 32 * 48 * 9]
    assert layer_flops(config) == layers
    assert useful_gflop(config) == pytest.approx(config.batch_size * (4 * sum(layers) - layers[0]) / 1e9)


def test_useful_work_by_hand():
    """The paper's encoder: 41, 39, .. 21 pixels wide. SAC: two forwards, half an actor's, one trained pass."""
    config = make_config(method="sac")
    layers = [2 * 41**2 * 32 * 9 * 9] + [2 * width**2 * 32 * 32 * 9 for width in range(39, 20, -2)]
    assert layer_flops(config) == layers and sum(layers) == 180_684_864
    sac = 128 * (2.5 * sum(layers) + 3 * sum(layers) - layers[0]) / 1e9
    assert useful_gflop(config) == pytest.approx(sac)
    # SODA at 256 every second update: a target's forward and a trained pass, so another 4 x 128 forwards' worth.
    soda = sac + 128 * (4 * sum(layers) - layers[0]) / 1e9
    assert useful_gflop(make_config(method="soda")) == pytest.approx(soda)
    assert useful_gflop(make_config(method="curl")) == pytest.approx(soda)
    svea = make_config(method="svea")
    assert useful_gflop(svea) == pytest.approx(sac + 128 * (3 * sum(layers) - layers[0]) / 1e9)
    assert useful_gflop(make_config(method="pad")) == pytest.approx(useful_gflop(svea))


def test_summary_arithmetic():
    config = make_config(method="sac")
    matmul_seconds = 2 * MATMUL_SIZE**3 / 100e9  # 100 GFLOP/s
    seconds = useful_gflop(config) / 80  # 80 GFLOP/s
    times = {
        "matmul": [matmul_seconds, matmul_seconds / 2, 3 * matmul_seconds],
        "ours": [seconds] * 3,
        "plain": [2 * seconds] * 3,
    }
    row = summary(config, times, [0.01, 0.02, 0.5], 1.5)
    assert row["gflops"] == pytest.approx(80) and row["peak_gflops"] == pytest.approx(100)
    assert row["fraction_of_peak"] == pytest.approx(0.8) and row["fraction_of_peak_best"] == pytest.approx(
        0.4
    )
    assert row["speedup"] == pytest.approx(2) and row["plain_fraction_of_peak"] == pytest.approx(0.4)
    assert row["ms_per_decision"] == pytest.approx(1e3 * seconds)
    assert row["replay_fraction"] == 0.02 and row["peak_rss_gb"] == 1.5


def test_ratios_are_medians_of_the_ratios_within_a_round():
    """A round in which the machine was busy slows both, and leaves their ratio."""
    madi, svea = make_config(method="madi"), make_config(method="svea_overlay")
    row = ratios(madi, [(3.0, 4.0), (30.0, 4.4), (2.0, 3.6)], svea, [(1.0, 2.0), (10.0, 2.0), (1.0, 2.0)])
    assert row["time_ratio"] == pytest.approx(3) and row["processor_ratio"] == pytest.approx(2)
    assert row["ms_per_decision"] == pytest.approx(3000) and row["rounds"] == 3
    assert row["useful_ratio"] == pytest.approx(useful_gflop(madi) / useful_gflop(svea))


def test_methods_are_compared_with_the_first_of_them(capsys):
    configs = [tiny_method("svea_overlay", images="procedural"), tiny_method("sac")]
    rows = compare(configs, rounds=2)
    assert [row["method"] for row in rows] == ["svea_overlay", "sac"]
    assert rows[0]["time_ratio"] == rows[0]["processor_ratio"] == rows[0]["useful_ratio"] == 1
    assert all(row["rounds"] == 2 and row["processor_ratio"] > 0 for row in rows)
    show({"preset": "small", "device": "cpu", "threads": 1, "against": "svea_overlay", "methods": rows})
    assert "sac" in capsys.readouterr().out


def test_bench_env_takes_groups_of_modes(monkeypatch):
    asked: list[list[str]] = []
    monkeypatch.setattr(
        "softaug.benchmarks.env.measure", lambda tasks, modes, *rest: asked.append(modes) or {}
    )
    for words in (["all"], ["train", "distracting"]):
        assert main(["bench", "env", "--modes", *words, "--json"]) == 0
    assert asked == [
        list(MODE_NAMES),
        ["train", "distracting_easy", "distracting_medium", "distracting_hard"],
    ]


def test_replay_share_is_a_share_and_changes_no_result():
    timed, other = tiny_agent("soda_conv"), tiny_agent("soda_conv")
    replay = tiny_replay(tiny_method("soda_conv"))
    weak = timed.weak
    assert 0 < replay_share(timed, replay, 2) < 1
    assert timed.weak is weak and timed.auxiliary.weak is weak
    for _ in range(2):
        other.update(replay)
    for name, tensor in timed.sac.state_dict().items():
        torch.testing.assert_close(tensor, other.sac.state_dict()[name], msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (
            ["update", "--methods", "sac,curl", "--preset", "small", "--updates", "2", "--threads", "1"],
            {"ms_per_decision", "gflops", "fraction_of_peak", "plain_ms_per_decision", "speedup"}
            | {"replay_fraction", "peak_rss_gb"},
        ),
        (["replay", "--decisions", "300", "--repeats", "2"], {"total_ms", "naive_ms", "speedup"}),
    ],
)
def test_the_commands_print_json(command, keys):
    arguments = [sys.executable, "-m", "softaug.cli", "bench", *command, "--json"]
    output = subprocess.run(arguments, capture_output=True, text=True, check=True)
    result = json.loads(output.stdout)
    rows = result["methods"] if command[0] == "update" else result["batches"]
    assert len(rows) == 2
    for row in rows:
        assert all(row[key] > 0 for key in keys)


def test_a_wrong_option_is_one_sentence_with_the_nearest(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "update", "--method", "sac", "--updatess", "1"])
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "did you mean --updates" in error


def test_an_unknown_method_is_named(capsys):
    assert main(["bench", "update", "--methods", "sodda"]) == 2
    assert "sodda" in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["paper", "small"])
def test_the_table_fits_a_terminal(preset, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    config = make_config(method="soda_both_overlay")
    row = summary(config, {"matmul": [0.1], "ours": [1.6], "plain": [4.2]}, [0.019], 1.22)
    show({"preset": preset, "device": "cpu", "threads": 2, "methods": [row]})
    output = capsys.readouterr().out
    assert "…" not in output
    line = next(line for line in output.splitlines() if line.startswith("soda_both_overlay"))
    assert "2.62x" in line and "1.9%" in line and "1.2" in line


def test_a_device_that_is_not_there_is_one_sentence(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert main(["bench", "update", "--device", "cuda"]) == 2
    assert "device 'cuda' is not available here" in capsys.readouterr().err
