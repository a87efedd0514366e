"""Which runs and evaluations stand behind a number, and what must be said about them.

Nothing is mixed that does not belong together: presets; lengths of training, settings and overlay images within a
task; test media within a mode. What cannot be decided is refused with a sentence; what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softaug.config import Config
from softaug.errors import UserError, unknown
from softaug.methods import get_method
from softaug.presets import PRESETS
from softaug.results.model import ModeResult, by_prevalence, departures, mode_result
from softaug.results.records import RunRecord, overlay_images, overlay_media


@dataclass(frozen=True)
class Selection:
    """The finished runs of one preset: at most one for each (task, method, seed)."""

    preset: str
    runs: tuple[RunRecord, ...]
    unfinished: int
    """runs left out because they are not finished"""
    policies: tuple[RunRecord, ...] = ()
    """results of policies that were made elsewhere: of no preset, shown next to the runs"""

    def of(self, task: str, method: str) -> list[RunRecord]:
        """The runs of one cell, in order of their seeds."""
        found = [
            r for r in (*self.runs, *self.policies) if (r.config.task, r.config.method) == (task, method)
        ]
        return sorted(found, key=lambda record: record.config.seed)


def select(
    records: Iterable[RunRecord],
    grid: Iterable[tuple[str, str]],
    *,
    preset: str | None = None,
    decisions: int | None = None,
    seeds: Sequence[int] | None = None,
) -> Selection:
    """The runs for a grid of (task, method).

    preset, decisions, seeds: take only these; None takes what there is if that leaves one choice.
    """
    order = {cell: number for number, cell in enumerate(grid)}
    runs = [
        record
        for record in records
        if (record.config.task, record.config.method) in order
        and (decisions is None or record.config.decisions == decisions)
        and (seeds is None or record.config.seed in seeds)
    ]
    preset = _one_preset(runs, preset)
    runs.sort(key=lambda r: (order[r.config.task, r.config.method], r.config.seed))
    runs = [record for record in runs if record.config.preset == preset]
    finished = [record for record in runs if record.finished]
    places: dict[tuple[str, str, int], RunRecord] = {}
    _check_same_overlays(finished)
    for record in finished:
        config = record.config
        _check_same_experiment(config, next(r.config for r in finished if r.config.task == config.task))
        key = (config.task, config.method, config.seed)
        if key in places:
            raise UserError(
                f"{places[key].path} and {record.path} are both {config.task}, {config.method}, seed {config.seed}; "
                "leave one of them out of --runs"
            )
        places[key] = record
    return Selection(preset, tuple(finished), len(runs) - len(finished))


def select_policies(
    records: Iterable[RunRecord], cells: Iterable[tuple[str, str, str]]
) -> tuple[RunRecord, ...]:
    """Results of policies that were made elsewhere, in a task and mode of a table's (mode, task, method)."""
    wanted = {(task, mode) for mode, task, _ in cells}
    found: dict[tuple[str, str, int], RunRecord] = {}
    for record in records:
        config = record.config
        tested = {(config.task, evaluation.mode) for evaluation in record.evaluations}
        if not (config.row.foreign and record.finished and tested & wanted):
            continue
        key = (config.task, config.method, config.seed)
        if key in found:
            raise UserError(
                f"{found[key].path} and {record.path} are both {config.row.title} on {config.task} with train seed "
                f"{config.seed}; leave one of them out of --runs"
            )
        found[key] = record
    return tuple(found[key] for key in sorted(found))


def make_cell(
    selection: Selection, mode: str, task: str, method: str, media: str | None = None
) -> ModeResult | None:
    """The number for a mode, task and method; None if no run has it. `media`: only evaluations on these."""
    # All methods of the task: what is compared must have been tested on the same folder or list.
    tested = [
        (record, evaluation.media, evaluation.source)
        for record in (*selection.runs, *selection.policies)
        if record.config.task == task and (evaluation := record.evaluation(mode, media=media)) is not None
    ]
    check_same_source(mode, tested)
    kinds = None if media is None else (None, media)
    return mode_result(selection.of(task, method), mode, adapted=get_method(method).adapts, media=kinds)


def choose_media(records: Iterable[RunRecord], mode: str) -> list[str]:
    """The kinds of media on which `mode` was evaluated: the one that most runs have first."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update({e.media for e in record.evaluations if e.mode == mode and e.media is not None})
    return by_prevalence(counts)


def describe_runs(selection: Selection, *, asked_seeds: int | None = None) -> list[str]:
    """Sentences on the runs behind a table or figure: preset, seeds, length, settings, overlay images."""
    return [*_describe_own(selection, asked_seeds), *_describe_policies(selection.policies)]


def _describe_policies(policies: Sequence[RunRecord]) -> Iterator[str]:
    by_name: dict[str, list[RunRecord]] = {}
    for record in policies:
        by_name.setdefault(record.config.row.title, []).append(record)
    for name, records in by_name.items():
        seeds = Counter(record.config.task for record in records)
        trained = sorted({record.decisions for record in records})
        length = " and ".join(f"{n:,} decisions" if n else "an unknown number of decisions" for n in trained)
        yield (
            f"{name}: a policy made elsewhere ({count(seeds.values(), 'seed')}), trained for {length} outside this "
            "comparison of methods"
        )


def _describe_own(selection: Selection, asked_seeds: int | None) -> list[str]:
    runs = selection.runs
    if not runs:
        return ["no finished run yet"]
    seeds = Counter((record.config.task, record.config.method) for record in runs)
    asked = (
        "" if asked_seeds is None or min(seeds.values()) >= asked_seeds else f" of {asked_seeds} asked for"
    )
    said = [f"preset {selection.preset}; {count(seeds.values(), 'seed')}{asked}{_fewer(seeds)}"]
    lengths: dict[int, dict[int, dict[str, None]]] = {}  # decisions -> frames -> tasks
    for record in runs:
        frames = lengths.setdefault(record.config.decisions, {}).setdefault(record.frames, {})
        frames[record.config.task] = None
    for decisions, by_frames in lengths.items():
        single = len(lengths) == len(by_frames) == 1
        parts = [
            f"{frames:,} frames" + ("" if single else f" ({', '.join(tasks)})")
            for frames, tasks in by_frames.items()
        ]
        said.append(f"{decisions:,} decisions of training = {', '.join(parts)}")
    if selection.preset != "paper":
        said.append(
            f"preset {selection.preset} has smaller networks and less training than the paper: "
            "its numbers are for orientation only"
        )
    elif any(record.config.decisions != Config.decisions for record in runs):
        said.append(f"the paper trains for {Config.decisions:,} decisions")
    changed: dict[str, list[str]] = {}
    for record in runs:
        for name, (value, usual) in departures(record.config).items():
            tasks = changed.setdefault(f"{name} {_shown(value)} (preset: {_shown(usual)})", [])
            if record.config.task not in tasks:
                tasks.append(record.config.task)
    if changed:
        every = {record.config.task for record in runs}
        parts = [
            text + ("" if set(tasks) == every else f" in {', '.join(tasks)}")
            for text, tasks in changed.items()
        ]
        said.append("other settings than the preset's: " + "; ".join(parts))
    said += [f"overlay images: {kind}" for kind in sorted({overlay_media(r) for r in runs} - {None, ""})]  # type: ignore[type-var]
    if selection.unfinished:
        said.append(f"{count([selection.unfinished], 'unfinished run')} left out")
    return said


def describe_fewer(
    selection: Selection,
    have: Mapping[tuple[str, str, str], int],
    media: Mapping[str, str | None],
    *,
    during: str = "",
) -> list[str]:
    """Where a number or curve has fewer seeds than there are runs, because the others were not evaluated for it.

    have: (mode, task, method) -> its seeds. media: mode -> the kind of test media that is reported. during: which
    evaluations count, if not all do.
    """
    runs = Counter((record.config.task, record.config.method) for record in selection.runs)
    found: dict[tuple[str, int, int], list[str]] = {}
    for (mode, task, method), seeds in have.items():
        if seeds < runs[task, method]:
            found.setdefault((mode, seeds, runs[task, method]), []).append(f"{task} {method}")
    return [
        f"{mode}: only {seeds} of {count([number], 'seed')} in {', '.join(where)}; the others have no evaluation"
        + (f" {during}" if during else "")
        + (f" on {kind} media" if (kind := media.get(mode)) and mode != "train" else "")
        for (mode, seeds, number), where in found.items()
    ]


def _one_preset(runs: Sequence[RunRecord], preset: str | None) -> str:
    found = list(dict.fromkeys(record.config.preset for record in runs))
    if preset is None:
        if len(found) > 1:
            raise UserError(
                f"the runs are of the presets {' and '.join(found)}, which are never mixed; give --preset"
            )
        return found[0] if found else "paper"
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return preset


def _check_same_experiment(config: Config, first: Config) -> None:
    """Methods and seeds may be compared only after the same training, each with its method's own numbers."""
    if config.decisions != first.decisions:
        raise UserError(
            f"the runs of {config.task} have {first.decisions:,} and {config.decisions:,} decisions, which are never "
            "mixed; give --decisions"
        )
    ours, theirs = departures(config), departures(first)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            values = [_shown(side[name][0]) if name in side else "the preset's" for side in (theirs, ours)]
            raise UserError(
                f"the runs of {config.task} differ in {name} ({values[0]} in {first.method} seed {first.seed}, "
                f"{values[1]} in {config.method} seed {config.seed}); give --runs those that belong together"
            )


def _check_same_overlays(runs: Sequence[RunRecord]) -> None:
    """Random overlay is a method's own augmentation: other images are another experiment."""
    first: dict[str, RunRecord] = {}
    for record in runs:
        ours = overlay_images(record)
        if ours is None:
            continue
        config, other = record.config, first.setdefault(record.config.task, record)
        theirs = overlay_images(other)
        if ours != theirs:
            raise UserError(
                f"the runs of {config.task} were trained on different overlay images ({theirs} in "
                f"{other.config.method} seed {other.config.seed}, {ours} in {config.method} seed {config.seed}), which "
                "are never mixed; give --runs those that belong together"
            )


def check_same_source(
    mode: str, tested: Sequence[tuple[RunRecord, str | None, Mapping[str, Any] | None]]
) -> None:
    """Refuse runs of one task that were tested in `mode` on different folders or lists.

    tested: each run with the kind of its media and the facts on them. Only the user's own media can differ
    within a kind.
    """
    for record, kind, facts in tested[1:]:
        other, its_kind, its_facts = tested[0]
        if kind == its_kind and _source(kind, facts) != _source(its_kind, its_facts):
            config = record.config
            raise UserError(
                f"the runs of {config.task} were tested in {mode} on different media "
                f"({_shown_source(its_kind, its_facts)} in {other.config.method} seed {other.config.seed}, "
                f"{_shown_source(kind, facts)} in {config.method} seed {config.seed}), which are never mixed; give "
                "--runs those that belong together, or --media another kind"
            )


def _source(kind: str | None, facts: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """What tells two media apart: the kind, and of the user's own all that is known."""
    return (kind, dict(facts) if facts else None) if kind in ("folder", "list") else (kind,)


def _shown_source(kind: str | None, facts: Mapping[str, Any] | None) -> str:
    """`folder /data/videos`, or what else tells it from others of its kind"""
    known = facts or {}
    number = next(
        (f"{known[name]:,} {name}" for name in ("videos", "images", "settings") if name in known), ""
    )
    checksum = f"sha256 {known['sha256'][:8]}" if "sha256" in known else ""
    parts = [part for part in (str(known.get("path", "")), number, checksum) if part]
    return " ".join([str(kind), ", ".join(parts) if kind in ("folder", "list") else ""]).strip()


def _fewer(seeds: Counter[tuple[str, str]]) -> str:
    """Which tasks and methods have fewer seeds than the others, if some have."""
    most = max(seeds.values())
    few = {key: number for key, number in seeds.items() if number < most}
    parts = []
    for task in dict.fromkeys(task for task, _ in few):
        methods = {method: number for (name, method), number in few.items() if name == task}
        every = all(key in few for key in seeds if key[0] == task) and len(set(methods.values())) == 1
        which = task if every else f"{task} {', '.join(methods)}"
        parts.append(f"{span(methods.values())} in {which}")
    return f" ({'; '.join(parts)})" if parts else ""


def span(numbers: Iterable[int]) -> str:
    """`5`, or `2–5`"""
    values = sorted(set(numbers))
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"


def count(numbers: Iterable[int], noun: str) -> str:
    """`1 seed`, `5 seeds`, `2–5 seeds`"""
    shown = span(numbers)
    return f"{shown} {noun}{'' if shown == '1' else 's'}"


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
