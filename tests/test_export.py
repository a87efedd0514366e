"""Exported files act as the original does, say what they need, and run without softaug."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import SIZE, DotEnv, tiny_config

import softaug.envs
import softaug.evaluation.export
from softaug.cli import main
from softaug.config import write_config
from softaug.errors import UserError
from softaug.evaluation.export import ExportExamples, check_format, collect_examples, export_policy
from softaug.evaluation.runs import Run, load_policy, load_run
from softaug.learning.agent import make_agent
from softaug.storage.checkpoint import save_checkpoint

onnxruntime = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parent.parent / "examples" / "run_exported_policy.py"


def save_run(directory: Path, method: str = "sac", **options: Any) -> Path:
    config = tiny_config(method=method, **options)
    directory.mkdir()
    write_config(config, directory / "config.json")
    weights = make_agent(config, (6, SIZE, SIZE), 2).policy_weights()
    save_checkpoint(directory / "checkpoints", 240, {}, weights, keep=1)
    return directory


MASKED = {
    "crop_size": SIZE,
    "frame_layers": 1,
    "frame_join": "features",
    "pixel_offset": 0.5,
    "final_relu": True,
}


@pytest.fixture(
    scope="module",
    params=[("sac", {"frame_differences": 3.0}), ("sac", {"frame_layers": 1}), ("pad", {}), ("madi", MASKED)],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run and its ONNX file; two policies see each frame alone first, one of them through a masker."""
    method, options = request.param
    run = load_run(save_run(tmp_path_factory.mktemp("export") / "run", method, **options))
    path = run.path / "policy.onnx"
    difference, _ = export_policy(run, path, "onnx", examples(8))
    assert difference < 1e-5
    return run, path


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 6, SIZE, SIZE), dtype=np.uint8)


def examples(count: int) -> ExportExamples:
    return ExportExamples(pixels(count), [-0.2, 0.0], [0.2, 5.0])


@pytest.mark.parametrize("batch", [1, 3, 70])
def test_onnx_acts_like_the_original(exported: tuple[Run, Path], batch: int) -> None:
    run, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    actions = session.run(["action"], {"pixels": pixels(batch)})[0]
    policy = load_policy(run.path, adapt=False)
    expected = np.stack([policy.act(obs) for obs in pixels(batch)])
    assert actions.dtype == np.float32 and actions.shape == (batch, 2)
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_onnx_says_what_it_needs(exported: tuple[Run, Path]) -> None:
    run, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("pixels", "tensor(uint8)", ["batch", 6, SIZE, SIZE])
    facts = session.get_modelmeta().custom_metadata_map
    assert {"torch", "mujoco", "dm_control"} <= json.loads(facts["versions"]).keys()
    trained_with = json.loads(facts["trained_with"])
    assert trained_with.keys() == {"versions", "gl_renderer"}
    assert facts["task"] == "walker_walk" and facts["method"] == run.config.method
    assert json.loads(facts["observation_shape"]) == [6, SIZE, SIZE]
    assert (facts["frame_stack"], facts["action_repeat"], facts["decisions"]) == ("2", "4", "240")
    assert (json.loads(facts["action_low"]), json.loads(facts["action_high"])) == ([-0.2, 0.0], [0.2, 5.0])


def test_torchscript_acts_like_the_original(tmp_path: Path) -> None:
    run = load_run(save_run(tmp_path / "run"))
    path = tmp_path / "policy.pt"
    export_policy(run, path, "torchscript", examples(4))
    extra = {"softaug.json": ""}
    script = torch.jit.load(str(path), _extra_files=extra)
    policy = load_policy(run.path)
    for batch in (1, 70):
        expected = np.stack([policy.act(obs) for obs in pixels(batch)])
        with torch.no_grad():
            actions = script(torch.from_numpy(pixels(batch))).numpy()
        np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert json.loads(extra["softaug.json"])["observation_shape"] == [6, SIZE, SIZE]


def test_a_file_that_acts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(save_run(tmp_path / "run"))

    class Wrong(softaug.evaluation.export.ExportedPolicy):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(pixels) + 0.01

    monkeypatch.setattr(softaug.evaluation.export, "ExportedPolicy", Wrong)
    with pytest.raises(RuntimeError, match="nothing was written"):
        export_policy(run, tmp_path / "out" / "policy.pt", "torchscript", examples(4))
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_packages_and_unknown_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="onnx, torchscript"):
        check_format("tflite")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install softaug\[export\]"):
        check_format("onnx")
    check_format("torchscript")


def test_real_observations_are_what_the_policy_meets(tmp_path: Path) -> None:
    run = load_run(save_run(tmp_path / "run"))
    observations, low, high = collect_examples(run, lambda mode, seed: DotEnv(mode, seed), count=5)
    assert observations.shape == (10, 6, SIZE, SIZE) and observations.dtype == np.uint8
    assert len(np.unique(observations.reshape(10, -1), axis=0)) > 2
    np.testing.assert_array_equal(observations[1][:3], observations[0][3:])  # consecutive frames
    assert (low, high) == ([-1, -1], [1, 1])


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    def make_env(task: str, mode: str, seed: int, **_: Any) -> DotEnv:
        return DotEnv(mode, seed)

    monkeypatch.setattr(softaug.envs, "make_env", make_env)
    run = save_run(tmp_path / "run")
    out = tmp_path / "robot" / "policy.bin"
    assert main(["export", str(run), "--format", format, "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == out.stat().st_size
    assert facts["max_difference"] < 1e-5
    assert facts["observations_checked"] == 16
    assert [path.name for path in out.parent.iterdir()] == ["policy.bin"]


def test_the_example_needs_only_numpy_and_onnxruntime(exported: tuple[Run, Path]) -> None:
    run, path = exported
    check = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0]); "
        "print(sorted({'softaug', 'torch', 'mujoco', 'dm_control', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, str(EXAMPLE), str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    first = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8).transpose(2, 0, 1)
    expected = load_policy(run.path, adapt=False).act(np.concatenate([first, first]))
    shown = np.array(lines[0].strip("[]").split(), dtype=float)
    np.testing.assert_allclose(shown, expected, atol=1e-3)
    assert len(lines) == 11
