"""Policies that were made elsewhere behind the same protocol as our own: what is known of them, and what may go wrong.

`onnx_policies` makes a `PolicySource` from an ONNX file, `python_policies` from a function or an object:

    source = onnx_source(Path("policy.onnx"))
    policy = source.make()                 # a `Policy`: begin_episode, act, observe
    source.image_size, source.frame_stack  # what it wants to see, where the file says so

A `PolicySource` can be pickled, so that worker processes make the policy again. `CheckedPolicy` turns whatever goes wrong
in such a policy into a `PolicyFault`, one sentence.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from softaug.envs.factory import hash_of
from softaug.errors import UserError
from softaug.evaluation.policy import Policy, PolicyFault

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
                f"returned {kind}, which raised {described(error)} when read as an array"
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
            raise self._fault(f"raised {described(error)}") from error

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
            f"the policy {source.title} cannot be sent to other processes ({first_line(error)}); use one worker, or "
            "define it at the top level of a module"
        ) from None


def described(error: BaseException) -> str:
    """`ValueError: bad crop (agent.py, line 12)`: the place is where the policy's own code was left."""
    text = type(error).__name__ + (f": {first_line(error)}" if str(error) else "")
    frames = traceback.extract_tb(error.__traceback__)[1:]
    foreign = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    own = [frame for frame in foreign if "site-packages" not in frame.filename] or foreign
    return text + (f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else "")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
