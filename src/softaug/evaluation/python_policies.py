"""The policy of a Python function or object, given as it is or named as `module:callable`."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softaug.envs.custom.loading import load_object, source_facts, spec_of
from softaug.errors import UserError
from softaug.evaluation.evaluate import callers_state_kept
from softaug.evaluation.policy import Policy
from softaug.evaluation.policy_sources import PolicySource, described


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
                f"{self.spec} cannot be imported: its module raised {described(error)}; name a module that "
                "does not exit when it is imported"
            ) from error
        try:
            given = found() if isinstance(found, type) else found
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(
                f"the policy {self.spec} cannot be made: {self.spec}() raised {described(error)}; fix the class, or "
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
