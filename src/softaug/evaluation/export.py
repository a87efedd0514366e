"""Export: encoder and policy alone as one ONNX or TorchScript file, raw pixels in, action out.

    pixels: uint8 (B, 3k, H, W)  ->  action: float32 (B, A) in [-1, 1]

The center crop and the scaling of pixels are part of the file, so running it needs neither softaug nor
PyTorch (ONNX). The file is written only after its actions were compared with the original's.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError, unknown
from softaug.evaluation.evaluate import EnvFactory, Task
from softaug.evaluation.policy import MeanPolicy
from softaug.evaluation.runs import Run, action_dim, observation_shape
from softaug.files import output_file, read_object
from softaug.learning.augment import center_crop
from softaug.storage.run_files import RunFiles
from softaug.versions import VERSION, versions

FORMATS = ("onnx", "torchscript")
TOLERANCE = 1e-4
"""Largest difference of an action in [-1, 1] that float32 arithmetic in another order may explain."""
METADATA_FILE = "softaug.json"
"""Name of the metadata inside a TorchScript file (`_extra_files` of torch.jit.load)."""


class ExportExamples(NamedTuple):
    """What an export is checked on: observations of the policy's environment, and its action range."""

    observations: np.ndarray
    """uint8 (B, 3k, H, W)"""
    action_low: list[float] | None
    """(A,): where the environment's own action is when the policy's is -1; a Box of more dimensions is flattened.
    None: the run does not say."""
    action_high: list[float] | None
    """(A,): the same for 1."""


class ExportedPolicy(nn.Module):
    """`MeanPolicy.forward` without the encoder's split of large batches, which would fix the batch size."""

    def __init__(self, policy: MeanPolicy):
        super().__init__()
        self.encoder, self.actor, self.crop_size = policy.encoder, policy.actor, policy.crop_size

    def forward(self, pixels: Tensor) -> Tensor:
        mean, _ = self.actor(self.encoder.features(center_crop(pixels, self.crop_size)))
        return torch.tanh(mean)


def check_format(format: str) -> None:
    """Refuse an unknown format, or one whose packages are not installed."""
    if format not in FORMATS:
        raise unknown("export format", format, FORMATS)
    needed = ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"exporting to ONNX needs {' and '.join(missing)}; install with `pip install softaug[export]`"
        )


def export_policy(
    run: Run, path: Path, format: str, examples: ExportExamples
) -> tuple[float, dict[str, Any]]:
    """Write `run`'s policy to `path`; returns the largest difference to the original's actions, and the metadata.

    examples: see `export_examples`; the actions are compared on its observations, and on random pixels.
    """
    check_format(format)
    path = output_file(path)
    original = run.policy(adapt=False)()
    assert isinstance(original, MeanPolicy)
    metadata = describe(run, examples)
    example = torch.from_numpy(examples.observations[:2])
    # torch.jit.save wants a name with a suffix.
    temporary = path.with_name(f".writing-{os.getpid()}{path.suffix or '.tmp'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise UserError(f"cannot write to {path} ({error.strerror}); choose another place") from None
    try:
        write = _write_onnx if format == "onnx" else _write_torchscript
        write(ExportedPolicy(original).eval(), example, metadata, temporary)
        difference = _largest_difference(original, temporary, format, examples.observations)
        if not difference <= TOLERANCE:
            raise RuntimeError(
                f"the exported policy's actions differ by {difference:.2g} from the original's (at most "
                f"{TOLERANCE:.0e} is rounding); nothing was written"
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return difference, metadata


def describe(run: Run, examples: ExportExamples) -> dict[str, Any]:
    """What is needed to feed the file."""
    config = run.config
    return {
        "task": config.task,
        "method": config.method,
        "decisions": run.decisions,
        "observation_shape": list(observation_shape(config)),
        "observation": "uint8 pixels, channels first; the RGB frames of a stack from oldest to newest",
        "frame_stack": config.frame_stack,
        "action_dim": action_dim(run.weights),
        "action": "float32 in [-1, 1]; the actuators' command is low + (action + 1) / 2 * (high - low)",
        "action_low": examples.action_low,
        "action_high": examples.action_high,
        "render": config.render,
        "action_repeat": config.frames_per_decision,
        "softaug": VERSION,
        "versions": versions(),
        "trained_with": trained_with(run),
    }


def trained_with(run: Run) -> dict[str, Any]:
    """The versions and the GL renderer that the run was trained with, as run.json has them."""
    file = RunFiles(run.path).facts
    facts = read_object(file, "restore it") if file.is_file() else {}
    return {"versions": facts.get("versions"), "gl_renderer": facts.get("gl_renderer")}


def collect_examples(
    run: Run, env_factory: EnvFactory, modes: Sequence[str] | None = None, count: int = 8
) -> ExportExamples:
    """`count` observations the policy meets at the start of an episode in each of `modes`, and its actions' range.

    modes: by default two that differ in appearance.
    """
    policy = run.policy(adapt=False)()
    collected = []
    for mode in modes or ("train", "color_hard"):
        env_seed, _ = Task(mode, 0).seeds(0)
        env = env_factory(mode, env_seed)
        try:
            obs, _ = env.reset(seed=env_seed, options={"episode": 0})
            for _ in range(count):
                collected.append(obs)
                obs, _, terminated, truncated, _ = env.step(policy.act(obs))
                if terminated or truncated:
                    break
        finally:
            env.close()
    low, high = env.action_space.low.flatten().tolist(), env.action_space.high.flatten().tolist()  # type: ignore[attr-defined]
    return ExportExamples(np.stack(collected), low, high)


def export_examples(run: Run) -> ExportExamples:
    """What the export is checked on: observations of softaug's own tasks; for an environment of the user's own
    images that need no environment, since making it would import code that the run names.
    """
    if not run.config.own_env:
        return collect_examples(run, ConfigEnvs(run.config))
    low, high = _recorded_range(run)
    return ExportExamples(_drawn_images(observation_shape(run.config)), low, high)


def _recorded_range(run: Run) -> tuple[list[float] | None, list[float] | None]:
    """The range of the environment's own actions, as training wrote it to run.json; (None, None) in older runs."""
    file = RunFiles(run.path).facts
    found = read_object(file, "restore it").get("action_range") if file.is_file() else None
    sides = [found.get(name) for name in ("low", "high")] if isinstance(found, dict) else [None, None]
    for side in sides if found is not None else ():
        right = isinstance(side, list) and len(side) == action_dim(run.weights)
        if not right or not all(isinstance(v, int | float) and math.isfinite(v) for v in side or ()):
            raise UserError(f"{file} is damaged (its action_range is {found}); restore it")
    return sides[0], sides[1]


def _drawn_images(shape: tuple[int, int, int], count: int = 8) -> np.ndarray:
    """uint8 (count, *shape): smooth gradients of random colors and directions, as different as camera images are."""
    rng = np.random.default_rng(0)
    channels, height, width = shape
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    start, right, down = rng.uniform(-1, 1, (3, count, channels, 1, 1))
    return (255 * (0.5 + 0.5 * np.sin(6 * (start + right * x + down * y)))).astype(np.uint8)


def _write_onnx(module: nn.Module, example: Tensor, metadata: Mapping[str, Any], path: Path) -> None:
    import onnx

    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["pixels"],
            output_names=["action"],
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}},
        )
    assert program is not None
    model = program.model_proto
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _write_torchscript(module: nn.Module, example: Tensor, metadata: Mapping[str, Any], path: Path) -> None:
    # Traced, not scripted: the networks have no data-dependent control flow, and the batch size stays free.
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # TorchScript is frozen, but still runs everywhere
        traced = torch.jit.trace(module, example)
        torch.jit.save(traced, str(path), _extra_files={METADATA_FILE: json.dumps(metadata)})


def _largest_difference(original: MeanPolicy, path: Path, format: str, observations: np.ndarray) -> float:
    """Over real observations, one of them alone, and a random batch larger than any the encoder takes whole."""
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def exported(pixels: np.ndarray) -> np.ndarray:
            return session.run(["action"], {"pixels": pixels})[0]

    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script = torch.jit.load(str(path))

        def exported(pixels: np.ndarray) -> np.ndarray:
            return script(torch.from_numpy(pixels)).numpy()

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (70, *observations.shape[1:]), dtype=np.uint8)
    differences = []
    with torch.inference_mode():
        for pixels in (observations, observations[-1:], noise):
            expected = original(torch.from_numpy(pixels)).numpy()
            differences.append(float(np.abs(exported(pixels) - expected).max()))
    return max(differences)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter tells of optional packages it does not find and of its own deprecations: not the user's concern."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
