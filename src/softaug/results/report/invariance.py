"""How far features and actions move with the appearance of a state: what `softaug diagnose` found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from softaug.results.records import RunRecord
from softaug.results.report.settings import as_dict

MEASURES = ("cosine_features", "cosine_projection", "cosine_soda", "action_distance")


class DiagnosisLine(NamedTuple):
    """One mode of a diagnosis; None where the file has no number."""

    mode: str
    measures: list[tuple[float | None, float | None, float | None]]
    """mean, standard deviation and share of the distance between states, of each of `MEASURES`"""
    recognised: float | None


@dataclass(frozen=True)
class Diagnosed:
    """RUN/diagnosis.json and the data URI of its image, if there is one."""

    record: RunRecord
    values: dict[str, Any]
    image: str | None

    @property
    def notes(self) -> list[str]:
        notes = self.values.get("notes")
        return [str(note) for note in notes] if isinstance(notes, list) else []

    def lines(self) -> Iterator[DiagnosisLine]:
        lines = {**as_dict(self.values.get("modes")), "other states": as_dict(self.values.get("baseline"))}
        for mode, values in lines.items():
            found = [as_dict(as_dict(values).get(name)) for name in MEASURES]
            share = as_dict(values).get("recognised")
            yield DiagnosisLine(
                mode,
                [(_number(m.get("mean")), _number(m.get("std")), _number(m.get("relative"))) for m in found],
                share if isinstance(share, float) else None,
            )


def diagnosed_at(values: dict[str, Any]) -> int | None:
    """Decisions of training of the weights that a diagnosis.json is about; None if it does not say."""
    decisions = as_dict(values.get("checkpoint")).get("decisions")
    return decisions if isinstance(decisions, int) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
