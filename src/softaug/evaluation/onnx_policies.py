"""The policy in an ONNX file. Nothing from the file is executed but its graph."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.evaluation.onnx_weights import onnx_sha256
from softaug.evaluation.policy import Policy
from softaug.evaluation.policy_sources import PolicySource, first_line

ONNX_INPUTS = {
    "tensor(uint8)": np.uint8,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}


class OnnxPolicy:
    """The actions of an ONNX graph: pixels (1, 3k, H, W) in, one action (1, A) or (A,) out."""

    def __init__(self, session: Any, title: str):
        self._session = session
        (given,) = session.get_inputs()
        self._input, self._type = given.name, ONNX_INPUTS[given.type]
        self._output = _action_output(session, title)

    def begin_episode(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, obs: np.ndarray) -> np.ndarray:
        action = np.asarray(self._session.run([self._output], {self._input: obs[None].astype(self._type)})[0])
        return action[0] if action.ndim > 1 and len(action) == 1 else action

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class OnnxFile:
    """Makes the policy of an ONNX file, if the file is still the one that was looked at first."""

    path: Path
    sha256: str

    def __call__(self) -> Policy:
        if onnx_sha256(self.path) != self.sha256:
            raise UserError(f"{self.path} has changed since the start; start again")
        return OnnxPolicy(_open_session(self.path), str(self.path))


def onnx_source(path: Path) -> PolicySource:
    """The policy in an ONNX file. A file of `softaug export` also says which task and images it is for."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UserError("ONNX policies need onnxruntime; install it with `pip install 'softaug[onnx]'`")
    if not path.is_file():
        raise UserError(f"{path} does not exist; give an ONNX file, or module:callable of your own policy")
    sha256 = onnx_sha256(path)
    session = _open_session(path)
    channels, size = _onnx_image(session, path)
    _action_output(session, str(path))
    said = _onnx_facts(session, path)
    return PolicySource(
        make=OnnxFile(path.absolute(), sha256),
        title=str(path),
        name=path.stem,
        sha256=sha256,
        facts={"kind": "onnx", "file": path.name, "sha256": sha256},
        task=said.get("task") if isinstance(said.get("task"), str) else None,
        image_size=size,
        frame_stack=channels // 3,
        action_repeat=_count(said.get("action_repeat")),
        render=said.get("render") if isinstance(said.get("render"), str) else None,
        decisions=_count(said.get("decisions")),
    )


def _open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # As torch in an evaluation: one thread, so that results do not depend on the number of processors.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes, which it does not publish
        raise UserError(
            f"onnxruntime cannot run {path} ({first_line(error)}); export the policy again"
        ) from None


def _onnx_image(session: Any, path: Path) -> tuple[int, int]:
    """(3k, H) of the graph's only input, pixels (B, 3k, H, H)."""
    inputs = session.get_inputs()
    wanted = "one input of pixels (1, 3k, H, H), k RGB frames with the channels first"
    remedy = "or wrap the file in a function and give its module:callable"
    if len(inputs) != 1:
        raise UserError(f"{path} has {len(inputs)} inputs; export a policy with {wanted}, {remedy}")
    shape, kind = list(inputs[0].shape), inputs[0].type
    fits = (
        len(shape) == 4
        and not (isinstance(shape[0], int) and shape[0] != 1)  # a name: any number of images
        and all(isinstance(length, int) and length > 0 for length in shape[1:])
        and shape[1] % 3 == 0
        and shape[2] == shape[3]
    )
    if not fits:
        raise UserError(f"the input of {path} has shape {shape}; export a policy with {wanted}, {remedy}")
    if kind not in ONNX_INPUTS:
        raise UserError(
            f"the input of {path} is {kind}; give pixels from 0 to 255 as uint8 or float, {remedy}"
        )
    return shape[1], shape[2]


def _action_output(session: Any, title: str) -> str:
    names = [output.name for output in session.get_outputs()]
    if len(names) == 1:
        return names[0]
    if "action" in names:
        return "action"
    raise UserError(f"{title} has the outputs {', '.join(names)}; name the one with the action `action`")


def _onnx_facts(session: Any, path: Path) -> dict[str, Any]:
    """The metadata that `softaug export` writes; nothing else in them is used."""
    found = {}
    for key, text in session.get_modelmeta().custom_metadata_map.items():
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
        except RecursionError:
            raise UserError(
                f"the metadata {key!r:.80} of {path} is nested too deeply; export the policy again"
            ) from None
    return found if "softaug" in found else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
