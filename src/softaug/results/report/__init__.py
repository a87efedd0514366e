"""One self-contained HTML page about runs: tables, leaderboard, curves, gaps, profiles, videos, images, settings.

    Reporter(["runs"]).write(Path("report.html"))

`softaug.results.model` decides which runs may be averaged, `sections` what the page shows, `payload` what its script draws;
`page` puts them together with page.css, charts.js and page.js.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from softaug.errors import UserError
from softaug.files import output_file, read_object, write_atomically
from softaug.results.groups import make_groups
from softaug.results.reading import find_runs, read_run
from softaug.results.records import RunRecord
from softaug.results.report.invariance import Diagnosed, diagnosed_at
from softaug.results.report.media import choose_videos, image_file_uri
from softaug.results.report.page import render
from softaug.results.report.payload import make_payload, points_of_a_curve
from softaug.results.report.samples import Samples
from softaug.results.report.sections import Content
from softaug.results.report.settings import as_dict
from softaug.storage.run_files import RunFiles
from softaug.zoo import PolicyFolder, outputs_of

__all__ = ["Reporter", "WrittenPage"]

DIAGNOSIS_IMAGES = 12
"""More than these are left out of a page."""


@dataclass(frozen=True)
class WrittenPage:
    """What a page that was written holds."""

    out: Path
    size: int
    content: Content

    def to_json(self) -> dict[str, Any]:
        content = self.content
        return {
            "out": str(self.out),
            "bytes": self.size,
            "runs": [str(record.path) for record in content.records],
            "results": [
                {
                    "task": group.task, "method": group.method, "variant": group.variant, "adapted": group.adapted,
                    "mode": mode, "media": cell.media, "decisions": cell.decisions, "final": cell.final,
                    "mean": cell.mean, "scores": {str(seed): score for seed, score in cell.scores.items()},
                }
                for group in content.groups for mode, cells in group.cells.items() for cell in cells
            ],
            "leaderboard": [entry.to_json() for entry in content.leaderboard.entries],
            "videos_left_out": [str(record.path) for record in content.videos_left_out],
            "problems": list(content.problems),
        }  # fmt: skip


@dataclass
class Reporter:
    """Reads runs and writes the page, again and again if need be: what did not change is not read twice.

    samples: render observations. diagnose: measure invariance first, of runs that have no diagnosis of their
    last weights. say: told what takes long.
    """

    paths: Sequence[str | Path]
    samples: bool = True
    diagnose: bool = False
    say: Callable[[str], None] = lambda text: None
    _samples: Samples = field(default_factory=Samples)
    _read: dict[Path, tuple[tuple, RunRecord]] = field(default_factory=dict)

    def state(self) -> tuple:
        """Changes when a run does: cheap enough to ask every few seconds."""
        return tuple((path, _stamp(path)) for path in find_runs(self.paths))

    def collect(self) -> Content:
        """Everything the page shows. A run that cannot be read is named in the page; if none can, that is an error."""
        records, problems = [], []
        for path in find_runs(self.paths):
            try:
                records.append(self._record(path))
            except UserError as error:
                problems.append(str(error))
        if not records:
            raise UserError(
                problems[0] if len(problems) == 1 else f"no run can be read; the first: {problems[0]}"
            )
        diagnoses = self._diagnoses(records, problems)
        groups, not_counted = make_groups(records, points_of_a_curve(len(records)))
        videos, videos_left_out = choose_videos(groups)
        samples, samples_left_out = self._samples.of(groups) if self.samples else (None, [])
        return Content(
            records, groups, videos, videos_left_out, samples, samples_left_out, diagnoses, [*problems, *not_counted]
        )  # fmt: skip

    def write(self, out: Path, *, reload_seconds: float | None = None) -> WrittenPage:
        """Write the page to `out`, atomically. reload_seconds: how often the page loads itself again."""
        output_file(out)
        content = self.collect()
        payload = make_payload(content.groups, content.modes, content.videos)
        now = datetime.now().astimezone()
        page = render(
            content, payload, written=f"Written {now:%Y-%m-%d %H:%M:%S %Z}", reload_seconds=reload_seconds
        )
        data = page.encode()
        try:
            write_atomically(out, data)
        except OSError as error:
            raise UserError(f"cannot write to {out} ({error.strerror}); give --out another place") from None
        return WrittenPage(out, len(data), content)

    def _record(self, path: Path) -> RunRecord:
        stamp = _stamp(path)
        if path not in self._read or self._read[path][0] != stamp:
            self._read[path] = (stamp, read_run(path))
        return self._read[path][1]

    def _diagnoses(self, records: Sequence[RunRecord], problems: list[str]) -> list[Diagnosed]:
        found: list[Diagnosed] = []
        for record in records:
            values = _diagnosis(record.path, problems)
            if self.diagnose and diagnosed_at(as_dict(values)) not in _last_weights(record):
                self.say(f"diagnosing {record.path}")
                values = _measure(record, problems) or values
            if values is not None:
                wanted = sum(d.image is not None for d in found) < DIAGNOSIS_IMAGES
                found.append(Diagnosed(record, values, _image(record.path, problems) if wanted else None))
        return found


def _last_weights(record: RunRecord) -> set[int]:
    """Decisions of the last weights. Those of a run in progress are its newest checkpoint's, behind its last metrics."""
    from softaug.storage.checkpoint import complete_checkpoints

    saved = complete_checkpoints(RunFiles(record.path).checkpoints)  # a published policy has none
    return {record.decisions, *(int(path.name) for path in saved[-1:])}


def _measure(record: RunRecord, problems: list[str]) -> dict[str, Any] | None:
    from softaug.evaluation.diagnose import diagnose

    modes = [mode for mode in record.config.eval_modes if mode != "train"]
    if not modes:
        problems.append(f"{record.path} was not diagnosed: its eval_modes name no test mode.")
        return None
    try:
        diagnosis = diagnose(record.path, modes=modes)
        diagnosis.save(outputs_of(record.path))
    except UserError as error:
        problems.append(f"{record.path} was not diagnosed: {error}")
        return None
    return diagnosis.to_json()


def _diagnosis(path: Path, problems: list[str]) -> dict[str, Any] | None:
    file = RunFiles(outputs_of(path)).diagnosis
    if not file.is_file():
        return None
    try:
        values = read_object(file, "make it again with softaug diagnose.")
        about = as_dict(values.get("checkpoint")).get("weights_sha256")
        # A file that somebody copied there.
        if (
            about is not None
            and RunFiles(path).published
            and about != PolicyFolder(path).results()["weights_sha256"]
        ):
            raise UserError(f"{file} is about other weights; make it again with softaug diagnose.")
    except UserError as error:
        problems.append(str(error))
        return None
    return values


def _image(path: Path, problems: list[str]) -> str | None:
    file = outputs_of(path) / "diagnosis.png"
    if not file.is_file():
        return None
    try:
        return image_file_uri(file)
    except UserError as error:
        problems.append(f"{error}.")
        return None


def _stamp(path: Path) -> tuple:
    """Size and time of every file the page is made from."""
    run = RunFiles(path)
    try:
        here = RunFiles(outputs_of(path))
    except UserError:  # a damaged policy, which `collect` names
        here = run
    files = [run.config, run.facts, run.metrics, run.final_eval, run.results, here.diagnosis]
    files += sorted(here.evaluations.glob("*.json")) + sorted(here.videos.glob("*/*.mp4"))
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        stamps.append((file.name, status.st_mtime_ns, status.st_size))
    return tuple(stamps)
