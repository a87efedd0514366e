"""What the runs were made with: settings, versions, media; first what differs between them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from softaug.config import Config
from softaug.results.reading import RunRecord
from softaug.results.report import tables
from softaug.results.report.markup import Markup, element, join


def settings(records: Sequence[RunRecord]) -> Markup:
    """What differs between the runs first, then what they share."""
    fields = [f for f in dataclasses.fields(Config) if f.name not in ("task", "method", "seed")]
    harmless = {f.name for f in fields if f.metadata["runtime"]}
    values = _values(records, lambda r: {f.name: getattr(r.config, f.name) for f in fields})
    decisive = {name: by_value for name, by_value in values.items() if name not in harmless}
    differing = {name: by_value for name, by_value in decisive.items() if len(by_value) > 1}
    machine = ("git_commit", "device", "threads")
    versions = _values(
        records, lambda r: {**as_dict(r.facts.get("versions")), **{k: r.facts.get(k) for k in machine}}
    )
    media = _values(records, lambda r: as_dict(r.facts.get("media")))
    parts: list[Any] = []
    if differing:
        title = "Settings that differ between runs"
        parts = [element("h3", title), tables.value_table(title, "Setting", differing, records)]
    elif len(records) > 1:
        parts = [element("p", "The runs differ in task, method and seed only.")]
    for title, heading, found in (
        ("Settings that all runs share", "Setting", {k: decisive[k] for k in decisive if k not in differing}),
        ("Settings that cannot change results", "Setting", {k: values[k] for k in values if k in harmless}),
        ("Versions and machine", "What", versions),
        ("Images, videos and colors (media)", "For", media),
    ):
        if found:
            body = tables.value_table(title, heading, found, records)
            parts.append(element("details", element("summary", title), body))
    return join(parts)


def _values(
    records: Iterable[RunRecord], choose: Callable[[RunRecord], dict[str, Any]]
) -> dict[str, dict[str, list[RunRecord]]]:
    """name -> value, as text -> the runs that have it."""
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for record in records:
        for key, value in choose(record).items():
            found.setdefault(str(key), {}).setdefault(_value(value), []).append(record)
    return found


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
