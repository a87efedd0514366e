"""How far features and actions move with the look of a state: what `softaug diagnose` found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from softaug.results.reading import RunRecord
from softaug.results.report import tables
from softaug.results.report.markup import Markup, breakable, element, join
from softaug.results.report.settings import as_dict


@dataclass(frozen=True)
class Diagnosed:
    """RUN/diagnosis.json and the data URI of its picture, if there is one."""

    record: RunRecord
    values: dict[str, Any]
    picture: str | None


def diagnosed_at(values: dict[str, Any]) -> int | None:
    """Decisions of training of the weights that a diagnosis.json is about; None if it does not say."""
    decisions = as_dict(values.get("checkpoint")).get("decisions")
    return decisions if isinstance(decisions, int) else None


MEASURES = (
    ("cosine_features", "Features", "cosine of the encoder's features; 1: unmoved"),
    ("cosine_projection", "Projection", "cosine of the actor's projection; 1: unmoved"),
    ("cosine_soda", "SODA's g", "cosine of SODA's projection; 1: unmoved"),
    ("action_distance", "Actions", "mean absolute difference of the actions; 0: unmoved"),
)


def invariance(diagnoses: Sequence[Diagnosed], shown_path: Callable[[RunRecord], str]) -> Markup | None:
    if not diagnoses:
        return None
    rows, pictures, notes, earlier = [], [], set(), []
    for found in diagnoses:
        path, config = shown_path(found.record), found.record.config
        said = found.values.get("notes")
        notes |= {str(note) for note in said} if isinstance(said, list) else set()
        measured, now = diagnosed_at(found.values), found.record.decisions
        if measured is not None and measured != now:
            earlier.append(f"{path} was measured after {measured:,} decisions; the run has {now:,} now.")
        lines = {**as_dict(found.values.get("modes")), "other states": as_dict(found.values.get("baseline"))}
        for mode, values in lines.items():
            row = [tables.name(breakable(path)), tables.cell(config.method), tables.cell(mode)]
            row += [_measure(as_dict(values).get(key)) for key, _, _ in MEASURES]
            share = as_dict(values).get("recognised")
            row.append(
                tables.cell(f"{100 * share:.0f} %", sort=share)
                if isinstance(share, float)
                else tables.empty()
            )
            rows.append(row)
        if found.picture:
            picture = element("img", src=found.picture, alt=f"What moves the action of {path}")
            pictures.append(element("figure", picture, element("figcaption", path), class_="wide"))
    columns = [tables.Column("Run"), tables.Column("Method"), tables.Column("Mode")]
    columns += [tables.Column(title, True, hint) for _, title, hint in MEASURES]
    columns.append(
        tables.Column("Recognised", True, "share of states whose nearest clean features are their own")
    )
    parts: list[Any] = [
        element(
            "p",
            "How far the network moves between the clean view of a state and the same state in a test mode (mean "
            "± standard deviation over states). Small print: that distance as a share of the distance between "
            "different states, so 0 is invariant and at 1 the appearance moves the network as far as another state would.",
        ),
        [element("p", note, class_="note") for note in [*sorted(notes), *earlier]],
        tables.table(columns, rows, "Invariance of features and actions"),
        pictures,
    ]
    if left := len(diagnoses) - len(pictures):
        parts.append(element("p", f"Images of {left} runs are left out or missing.", class_="note"))
    return join(parts)


def _measure(found: Any) -> Markup:
    mean, std, relative = (as_dict(found).get(key) for key in ("mean", "std", "relative"))
    if not isinstance(mean, int | float):
        return tables.empty()
    rest = element("span", f" ± {std:.3f}", class_="pm") if isinstance(std, int | float) else None
    share = element("small", f"{relative:.2f} of a state") if isinstance(relative, int | float) else None
    return tables.cell(element("span", f"{mean:.3f}", class_="value"), rest, share, sort=float(mean))
