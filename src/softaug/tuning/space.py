"""The search space: fields of `Config` with a range or choices. `read_space` reads one from JSON or TOML.

{"actor_lr": {"low": 1e-4, "high": 3e-3, "log": true},
 "batch_size": {"choices": [64, 128, 256]},
 "filters": {"choices": [[16, 32, 32], [32, 32, 32]]}}
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from softaug.config import Config, is_a
from softaug.errors import UserError, unknown
from softaug.files import read_object

# What a run is about, how long it is, and what cannot change its training curve.
FIXED = frozenset(
    ("task", "method", "preset", "seed", "decisions", "test_env", "image_key", "episode_decisions", "images", "videos",
     "colors", "eval_every", "eval_episodes", "eval_modes", "eval_video", "checkpoint_every", "keep_checkpoints",
     "log_every", "tensorboard", "wandb", "device", "workers", "replay_memory")
)  # fmt: skip
KEYS = ("low", "high", "log", "choices", "type")
LARGEST = 1e300
"""Of low and high: JSON has infinities, and integers that no float can hold."""

# Of the learner, not of the auxiliary tasks: these serve generalisation, which a training curve does not show, and
# a search by that curve would weaken them.
DEFAULT_SPACE: dict[str, dict[str, Any]] = {
    "actor_lr": {"low": 1e-4, "high": 3e-3, "log": True},
    "critic_lr": {"low": 1e-4, "high": 3e-3, "log": True},
    "alpha_lr": {"low": 3e-5, "high": 1e-3, "log": True},
    "batch_size": {"choices": [64, 128, 256]},
    "discount": {"low": 0.95, "high": 0.995},
    "n_step": {"low": 1, "high": 5},
    "critic_tau": {"low": 0.005, "high": 0.05, "log": True},
    "initial_temperature": {"low": 0.01, "high": 0.3, "log": True},
    "update_every": {"choices": [1, 2]},
}


class Suggester(Protocol):
    """What `Space.suggest` needs of an Optuna trial."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int: ...

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True)
class Parameter:
    """One field: a range of numbers or a list of choices."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: Suggester) -> Any:
        """Its value in `trial`: drawn now, or what it was given before."""
        if self.choices:
            named = {said(choice): choice for choice in self.choices}
            return named[trial.suggest_categorical(self.name, list(named))]
        if self.integer:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def contains(self, value: Any) -> bool:
        return value in self.choices if self.choices else self.low <= value <= self.high

    def encoded(self, value: Any) -> Any:
        """As Optuna stores it: a choice by its name, because Optuna's choices cannot be lists."""
        return said(value) if self.choices else value


@dataclass(frozen=True)
class Space:
    """The parameters of a study, in their order."""

    parameters: tuple[Parameter, ...]

    def suggest(self, trial: Suggester) -> dict[str, Any]:
        return {parameter.name: parameter.suggest(trial) for parameter in self.parameters}

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """`values` as Optuna stores them; None if they do not lie in the space."""
        if not all(p.contains(values[p.name]) for p in self.parameters):
            return None
        return {p.name: p.encoded(values[p.name]) for p in self.parameters}

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]


def said(value: Any) -> str:
    """A choice as a string: 16,32,32 for a tuple."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def default_space() -> Space:
    """What is searched unless the user gives a space; docs/tune.md lists it."""
    return make_space(DEFAULT_SPACE, "the default space")


def read_space(path: Path) -> tuple[Space, dict[str, Any]]:
    """A space from a JSON or TOML file, and the file's content."""
    content = (
        _read_toml(path) if path.suffix == ".toml" else read_object(path, "give a space in JSON or TOML")
    )
    return make_space(content, str(path)), content


def make_space(content: Any, origin: str) -> Space:
    """Check a space as a file holds it; what is wrong is named, with the nearest valid name."""
    if not isinstance(content, dict) or not content:
        raise UserError(f"{origin} must name at least one field, as {{field: {{low, high}}}}")
    return Space(tuple(_parameter(name, entry, origin) for name, entry in content.items()))


def _parameter(name: str, entry: Any, origin: str) -> Parameter:
    types = get_type_hints(Config)
    if name not in types:
        raise UserError(f"{origin}: {unknown('config field', name, sorted(set(types) - FIXED))}")
    if name in FIXED:
        raise UserError(
            f"{origin}: {name} cannot be searched; give it as --{name.replace('_', '-')} or leave it out"
        )
    if not isinstance(entry, dict):
        raise UserError(f"{origin}: {name} must have low and high or choices, not {entry!r}")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"{origin}: {name}: {unknown('key', key, KEYS)}")
    if ("choices" in entry) == ("low" in entry or "high" in entry):
        raise UserError(f"{origin}: {name} must have either low and high, or choices")
    if "choices" in entry:
        return _with_choices(name, entry, types[name], origin)
    return _with_range(name, entry, types[name], origin)


def _with_choices(name: str, entry: dict[str, Any], kind: Any, origin: str) -> Parameter:
    choices = entry["choices"]
    if not isinstance(choices, list) or len(choices) < 2:
        raise UserError(f"{origin}: {name} needs a list of at least two choices")
    if "log" in entry or "type" in entry:
        raise UserError(f"{origin}: {name} has choices, for which log and type mean nothing; remove them")
    values = tuple(tuple(choice) if isinstance(choice, list) else choice for choice in choices)
    for value in values:
        if not is_a(value, kind):
            raise UserError(f"{origin}: {name} cannot be {value!r}; correct the choice")
    if len({said(value) for value in values}) < len(values):
        raise UserError(f"{origin}: {name} has the same choice twice; remove one")
    return Parameter(name, choices=values)


def _with_range(name: str, entry: dict[str, Any], kind: Any, origin: str) -> Parameter:
    if kind not in (int, float):
        raise UserError(f"{origin}: {name} is no number; give choices instead of low and high")
    asked = entry.get("type", kind.__name__)
    if asked not in ("int", "float") or (asked == "float" and kind is int):
        raise UserError(f"{origin}: {name} is of type {kind.__name__}, not {asked!r}; leave type out")
    integer = asked == "int"
    low, high, log = entry.get("low"), entry.get("high"), entry.get("log", False)
    for value in (low, high):
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
        if not number or (integer and value != int(value)):  # type: ignore[arg-type]
            raise UserError(
                f"{origin}: low and high of {name} must be {'integers' if integer else 'numbers'}, not {value!r}"
            )
    assert low is not None and high is not None
    if not isinstance(log, bool):
        raise UserError(f"{origin}: log of {name} must be true or false, not {log!r}")
    if low >= high:
        raise UserError(f"{origin}: low of {name} ({low}) must be smaller than high ({high})")
    if log and low <= 0:
        raise UserError(f"{origin}: {name} is searched in log, so low must be positive, not {low}")
    return Parameter(name, low, high, log, integer)


def searchable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a config's `values` that belong into a preset."""
    return {name: value for name, value in values.items() if name not in FIXED}


def _read_toml(path: Path) -> Any:
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:
        raise UserError("a space in TOML needs Python 3.11 or newer; write it as JSON") from None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{path} cannot be read ({reason}); give a space in JSON or TOML") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML (nested too deeply); correct it") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML ({error}); correct it") from None
