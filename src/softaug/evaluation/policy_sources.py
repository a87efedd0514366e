"""Policies that were made elsewhere: an ONNX file, or a Python object, behind the same protocol as our own.

    source = onnx_source(Path("policy.onnx"))
    policy = source.make()                 # a `Policy`: begin_episode, act, observe
    source.image_size, source.frame_stack  # what it wants to see, where the file says so

A `PolicySource` can be pickled, so that worker processes make the policy again. `CheckedPolicy` turns whatever goes wrong
in such a policy into a `PolicyFault`, one sentence. Nothing from an ONNX file is executed but its graph.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softaug.envs.custom.loading import load_object, source_facts, spec_of
from softaug.envs.factory import hash_of
from softaug.errors import UserError
from softaug.evaluation.evaluate import callers_state_kept
from softaug.evaluation.onnx_weights import onnx_sha256
from softaug.evaluation.policy import Policy, PolicyFault

ONNX_INPUTS = {
    "tensor(uint8)": np.uint8,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}
DIGITS = 3
"""Of the actions that a policy without a file is recognized by: arithmetic on another processor differs by less."""


@dataclass(frozen=True)
class PolicySource:
    """A policy that was made elsewhere, and what is known of it."""

    make: Callable[[], Policy]
    """Picklable if the policy is to act in several processes."""
    title: str
    """What messages call it: a file, or module:callable."""
    name: str
    """What tables call it, unless the user says otherwise."""
    sha256: str | None = None
    """Of its files; None: it has none, and is recognized by what it does (`fingerprint`)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from, for the results; JSON."""
    task: str | None = None
    image_size: int | None = None
    frame_stack: int | None = None
    action_repeat: int | None = None
    render: str | None = None
    decisions: int | None = None
    """Of training. All of these: None if the file does not say."""


# ---- ONNX ------------------------------------------------------------------------------------------------------------


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
            f"onnxruntime cannot run {path} ({_first_line(error)}); export the policy again"
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


# ---- Python ----------------------------------------------------------------------------------------------------------


class CallablePolicy:
    """A function (observation -> action), or an object with `act`; with `begin_episode` and `observe` if it has them.

    Before each episode the global generators of Python, NumPy and PyTorch are seeded, so that a policy that draws from
    them acts the same in every evaluation.
    """

    def __init__(self, given: Any):
        self._act = given.act if hasattr(given, "act") else given
        self._begin = getattr(given, "begin_episode", None)
        self._observe = getattr(given, "observe", None)

    def begin_episode(self, seed: int = 0) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        if self._begin is not None:
            self._begin(seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        action = self._act(obs)
        return action.detach().cpu().numpy() if isinstance(action, torch.Tensor) else action

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        if self._observe is not None:
            self._observe(obs, action, next_obs)


@dataclass(frozen=True)
class NamedCallable:
    """Makes the policy that `module:callable` names; a class is called without arguments first."""

    spec: str

    def __call__(self) -> Policy:
        try:
            found = load_object(self.spec)
        except SystemExit as error:  # would end the command as if it had succeeded
            raise UserError(
                f"{self.spec} cannot be imported: its module raised {_described(error)}; name a module that "
                "does not exit when it is imported"
            ) from error
        try:
            given = found() if isinstance(found, type) else found
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(
                f"the policy {self.spec} cannot be made: {self.spec}() raised {_described(error)}; fix the class, or "
                "name a function or an object"
            ) from error
        if not callable(given) and not hasattr(given, "act"):
            raise UserError(
                f"{self.spec} is {type(given).__name__}, no policy; name a function that takes an observation and "
                "returns an action, or an object with `act`"
            )
        return CallablePolicy(given)


@dataclass(frozen=True)
class GivenObject:
    """Makes the policy of an object that was given in Python."""

    given: Any

    def __call__(self) -> Policy:
        return CallablePolicy(self.given)


def callable_source(spec: str) -> PolicySource:
    """The policy that `module:callable` names."""
    with callers_state_kept():
        NamedCallable(spec)()  # a name that is wrong shows here
    return PolicySource(
        make=NamedCallable(spec),
        title=spec,
        name=_as_name(spec.partition(":")[2]),
        facts=_code_facts(spec),
    )


def object_source(given: Any) -> PolicySource:
    """The policy of a function, or of an object with `act`."""
    if not callable(given) and not hasattr(given, "act"):
        raise UserError(
            f"{type(given).__name__} is no policy; give a function that takes an observation and returns an action, an "
            "object with `act`, an ONNX file or module:callable"
        )
    named = given if hasattr(given, "__qualname__") else type(given)
    spec = spec_of(named)
    return PolicySource(
        make=GivenObject(given),
        title=spec,
        name=_as_name(named.__qualname__),
        facts=_code_facts(spec),
    )


def _code_facts(spec: str) -> dict[str, Any]:
    return {"kind": "callable", "callable": spec, "module_sha256": source_facts(spec).get("module_sha256")}


def _as_name(text: str) -> str:
    """`Agent.act` -> `Agent.act`, `make.<locals>.<lambda>` -> `lambda`"""
    return re.sub(r"[^A-Za-z0-9._-]", "", text.split(".<locals>.")[-1]).strip("._-") or "policy"


# ---- what may go wrong -----------------------------------------------------------------------------------------------


class CheckedPolicy:
    """A policy whose mistakes are `PolicyFault`s: an exception, an action of another shape, one that is not finite."""

    def __init__(self, policy: Policy, title: str, action_shape: Sequence[int]):
        self._policy, self._title, self._shape = policy, title, tuple(action_shape)
        self._decision = 0

    def begin_episode(self, seed: int = 0) -> None:
        self._decision = 0
        self._call("begin_episode", seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        obs = obs.copy()  # what a policy does to its copy harms nobody
        action = self._call("act", obs)
        kind = type(action).__name__
        try:
            array = np.asarray(action)
            is_complex = np.iscomplexobj(array)
            action = array if is_complex else array.astype(np.float32)
        except (TypeError, ValueError):
            raise self._fault(f"returned {kind} instead of an action") from None
        except OverflowError:
            raise self._fault("returned an action with a number that is too large") from None
        except (Exception, SystemExit) as error:  # of its own __array__
            raise self._fault(
                f"returned {kind}, which raised {_described(error)} when read as an array"
            ) from error
        if is_complex:
            raise self._fault(f"returned complex numbers ({kind}) instead of an action")
        if action.shape != self._shape:
            raise self._fault(f"returned an action of shape {action.shape} instead of {self._shape}")
        if not np.isfinite(action).all():
            raise self._fault(f"returned the action {np.array2string(action, threshold=8, precision=3)}")
        return action

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        self._call("observe", obs, action, next_obs)
        self._decision += 1

    def _call(self, what: str, *arguments: Any) -> Any:
        try:
            return getattr(self._policy, what)(*arguments)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(f"raised {_described(error)}") from error

    def _fault(self, text: str) -> PolicyFault:
        return PolicyFault(f"the policy {self._title} {text} at decision {self._decision}")


@dataclass(frozen=True)
class CheckedMaker:
    """Makes the checked policy of a source. Picklable if the source is."""

    source: PolicySource
    action_shape: tuple[int, ...]

    def __call__(self) -> Policy:
        return CheckedPolicy(self.source.make(), self.source.title, self.action_shape)


def fingerprint(source: PolicySource, policy: Policy, obs_shape: Sequence[int]) -> str:
    """What an evaluation's episodes belong to: the checksum of the policy's file.

    A function has none: there it is its module's checksum and its actions on some random images, so that new weights
    in a file that the function reads are seen too.
    """
    if source.sha256 is not None:
        return source.sha256
    actions: list[Any] = []
    try:
        policy.begin_episode(0)
        for obs in _images(obs_shape):
            action = policy.act(obs)
            policy.observe(obs, action, obs)
            actions.append(np.round(action.astype(np.float64), DIGITS).tolist())
    except PolicyFault as fault:  # its first episode will say so, with mode and decision
        actions.append(str(fault))
    return hash_of([dict(source.facts), actions])


def _images(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Images that no policy is likely to answer all alike: noise, and large patches, each dim and bright."""
    rng = np.random.default_rng(0)
    channels, height, width = shape
    for brightest in (64, 128, 256):
        yield rng.integers(0, brightest, (channels, height, width), dtype=np.uint8)
        patches = rng.integers(0, brightest, (channels, 4, 4), dtype=np.uint8)
        large = np.kron(patches, np.ones((1, -(-height // 4), -(-width // 4)), np.uint8))
        yield np.ascontiguousarray(large[:, :height, :width])


def check_picklable(source: PolicySource) -> None:
    """Refuse a policy that cannot be sent to worker processes."""
    try:
        pickle.dumps(source.make)
    except Exception as error:  # whatever a class raises that cannot be pickled
        raise UserError(
            f"the policy {source.title} cannot be sent to other processes ({_first_line(error)}); use one worker, or "
            "define it at the top level of a module"
        ) from None


def _described(error: BaseException) -> str:
    """`ValueError: bad crop (agent.py, line 12)`: the place is where the policy's own code was left."""
    text = type(error).__name__ + (f": {_first_line(error)}" if str(error) else "")
    frames = traceback.extract_tb(error.__traceback__)[1:]
    foreign = [frame for frame in frames if frame.filename != __file__]
    own = [frame for frame in foreign if "site-packages" not in frame.filename] or foreign
    return text + (f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
