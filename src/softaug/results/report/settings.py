"""What the runs were made with: settings, versions, media; first what differs between them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from softaug.config import Config
from softaug.results.records import RunRecord

OF_OBSERVATIONS = frozenset(("image_size", "frame_stack", "action_repeat", "render", "test_env", "image_key"))

Values = dict[str, dict[str, list[RunRecord]]]
"""name -> value, as text -> the runs that have it, the most common value first"""


@dataclass(frozen=True)
class RunSettings:
    """What runs were made with."""

    differing: Values
    shared: Values
    harmless: Values
    """cannot change results"""
    versions: Values
    media: Values


def settings_of(records: Sequence[RunRecord]) -> RunSettings:
    fields = [f for f in dataclasses.fields(Config) if f.name not in ("task", "method", "seed")]
    harmless = {f.name for f in fields if f.metadata["runtime"]}
    values = _values(
        records, lambda r: {f.name: getattr(r.config, f.name) for f in fields if _applies(f.name, r)}
    )
    decisive = {name: by_value for name, by_value in values.items() if name not in harmless}
    machine = ("git_commit", "device", "threads")
    return RunSettings(
        differing={name: by_value for name, by_value in decisive.items() if len(by_value) > 1},
        shared={name: by_value for name, by_value in decisive.items() if len(by_value) == 1},
        harmless={name: by_value for name, by_value in values.items() if name in harmless},
        versions=_values(
            records, lambda r: {**as_dict(r.facts.get("versions")), **{k: r.facts.get(k) for k in machine}}
        ),
        media=_values(records, lambda r: as_dict(r.facts.get("media"))),
    )


def _applies(name: str, record: RunRecord) -> bool:
    """Whether a setting says something about the run: a policy made elsewhere has none of training."""
    return not record.config.row.foreign or name in OF_OBSERVATIONS


def _values(records: Iterable[RunRecord], choose: Callable[[RunRecord], dict[str, Any]]) -> Values:
    found: Values = {}
    for record in records:
        for key, value in choose(record).items():
            found.setdefault(str(key), {}).setdefault(_value(value), []).append(record)
    return {
        key: dict(sorted(by_value.items(), key=lambda item: -len(item[1]))) for key, by_value in found.items()
    }


def _value(value: Any) -> str:
    """A setting or fact in one line."""
    if value is None or value == "":
        return "–"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{k} {_value(v)}" for k, v in value.items())
    return str(value) if isinstance(value, str | bool | int | float) else json.dumps(value, default=str)


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a dict, else an empty one: run.json may hold anything."""
    return value if isinstance(value, dict) else {}
