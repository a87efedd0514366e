"""What is written for each table and figure; every file appears whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.errors import UserError
from softaug.files import write_atomically
from softaug.media.comparability import OUTDATED
from softaug.results.model import LearningCurve
from softaug.results.reproduce import formats
from softaug.results.reproduce.collect import Selection, describe_runs
from softaug.results.reproduce.curves import curve_rows
from softaug.results.reproduce.figures import collect_curves, draw_curves, figure_files, profile_figure
from softaug.results.reproduce.grids import ROBOT, ROBOT_MODES, FigureItem, SamplesItem
from softaug.results.reproduce.latex import latex
from softaug.results.reproduce.tables import TableResult
from softaug.results.statistics import DDOF

SAMPLE_MODES = ("train", "color_easy", "color_hard", "video_easy", "video_hard")


@dataclass(frozen=True)
class WrittenItem:
    """The files of an item, what is said about it, and its content as JSON values."""

    name: str
    title: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    content: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**self.content, "notes": list(self.notes), "files": [str(file) for file in self.files]}


def write_table(table: TableResult, out: Path) -> WrittenItem:
    """NAME.csv, .md and .tex, NAME-aggregates.csv and, if there is anything to compare, NAME-profile.png and .svg.

    A table of later work also has NAME-published.csv: the numbers of others with their sources.
    """
    name = table.item.name
    files: dict[str, str | bytes] = {f"{name}.csv": formats.cells_csv(table)}
    images = []
    if (figure := profile_figure(table)) is not None:
        files |= {f"{name}-profile.{kind}": data for kind, data in figure_files(figure).items()}
        images.append(("performance profiles", f"{name}-profile.png"))
    if table.aggregates:
        files[f"{name}-aggregates.csv"] = formats.aggregates_csv(table)
    if table.item.references != "paper" and (published := formats.published_csv(table)):
        files[f"{name}-published.csv"] = published
    files[f"{name}.md"] = formats.markdown(table, images=images)
    files[f"{name}.tex"] = latex(table)
    return WrittenItem(name, table.item.title, _write(files, out), table.notes, formats.as_json(table))


def write_curves(
    item: FigureItem,
    selection: Selection,
    out: Path,
    *,
    media: str | None = None,
    asked_seeds: int | None = None,
    published: bool = False,
) -> WrittenItem:
    """NAME.png and .svg, the points as NAME.csv, and both with what must be said as NAME.md.

    media: the kind of test media to show; None: in each mode what most runs have. published: as in `learning_curves`.
    """
    curves, references, said = collect_curves(item, selection, media, published)
    notes = (
        *([item.remark] if item.remark else []),
        *describe_runs(selection, asked_seeds=asked_seeds),
        *curve_notes(curves, item),
        *said,
    )
    figure = draw_curves(curves, item, notes, references)
    files: dict[str, str | bytes] = {
        f"{item.name}.{kind}": data for kind, data in figure_files(figure).items()
    }
    rows = curve_rows(curves)
    files[f"{item.name}.csv"] = formats.write_csv(rows)
    listed = "\n".join(f"- {note}" for note in notes)
    files[f"{item.name}.md"] = (
        f"# {item.title}\n\n![{item.title}: learning curves]({item.name}.png)\n\n{listed}\n"
    )
    content = {"item": item.name, "preset": selection.preset, "points": rows}
    return WrittenItem(item.name, item.title, _write(files, out), notes, content)


def curve_notes(curves: Sequence[LearningCurve], item: FigureItem) -> list[str]:
    """Where the points come from."""
    if not curves:
        return []
    notes = [f"line: mean over seeds; shaded: ± standard deviation over seeds (ddof {DDOF})"]
    stand_in = sorted({curve.method for curve in curves if curve.source == "training episodes"})
    if stand_in:
        notes.append(f"training environment: returns of training episodes ({', '.join(stand_in)})")
    if len(stand_in) < len({curve.method for curve in curves}):
        notes.append("points: periodic evaluations during training")
    for mode in item.modes:
        if kinds := sorted({curve.media for curve in curves if curve.mode == mode and curve.media}):
            procedural = ": not comparable with the paper" if {"procedural", OUTDATED} & {*kinds} else ""
            notes.append(f"{mode}: {', '.join(kinds)} media{procedural}")
    expected = len(item.grid) * len(item.modes)
    if len(curves) < expected:
        notes.append(f"{expected - len(curves)} of {expected} curves are missing")
    return notes


def write_samples(item: SamplesItem, out: Path, said: Callable[[str], None]) -> WrittenItem:
    """samples.png: every task in every mode and every augmentation; samples-robot.png: the robot in its modes."""
    from softaug.evaluation.gallery import save_gallery

    pages = {
        "samples.png": ([task for task in item.tasks if task != ROBOT], SAMPLE_MODES, True),
        "samples-robot.png": ([task for task in item.tasks if task == ROBOT], tuple(ROBOT_MODES), False),
    }
    files: dict[str, str | bytes] = {}
    media: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (tasks, modes, augmentations) in pages.items():
            if tasks:
                page = Path(folder) / name
                media |= save_gallery(page, [(tasks, modes)], augmentations=augmentations, said=said)
                files[name] = page.read_bytes()
    notes = tuple(f"{mode}: {kind} media" for mode, kind in media.items())
    return WrittenItem(item.name, item.title, _write(files, out), notes, {"item": item.name, "media": media})


def _write(files: dict[str, str | bytes], out: Path) -> tuple[Path, ...]:
    for name, content in files.items():
        try:
            write_atomically(out / name, content)
        except OSError as error:
            raise UserError(f"cannot write {out / name} ({error.strerror}); give another --out") from None
    return tuple(out / name for name in files)
