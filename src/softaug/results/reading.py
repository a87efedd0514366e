"""Reading runs back: what they are, how they learned and what they reached. Needs neither torch nor a checkpoint.

    for path in find_runs(["results/small"]):
        record = read_run(path)
        record.final["video_easy"].mean        # after the last decision, without adaptation

A run that is still being written can be read at any time. A file that is damaged is a `UserError` that names it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from softaug.config import Config
from softaug.errors import UserError
from softaug.files import read_object
from softaug.media.comparability import OUTDATED, OUTDATED_NOTE, media_note, outdated
from softaug.results.records import Evaluation, PeriodicEval, Rate, RunRecord, TrainEpisode
from softaug.storage.run_files import RunFiles
from softaug.zoo import PolicyFolder, locate, outputs_of

REMEDY = "restore it or leave the run out"


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories and published policies among and below `paths`, each once, in order of their names."""
    given = [locate(path) for path in paths]
    found: dict[Path, Path] = {}
    for top in given:
        if not top.exists():
            raise UserError(f"{top} does not exist; give run directories or folders that hold some")
        runs = list(runs_below(top))
        if not runs:
            raise UserError(f"there is no run in {top}; give run directories or folders that hold some")
        for run in runs:
            found.setdefault(run.resolve(), run)
    if not found:
        raise UserError("give at least one run directory or a folder that holds some")
    return list(found.values())


def runs_below(top: Path) -> Iterator[Path]:
    """The run directories at and below `top`, in order of their names; none if there are none."""
    for folder, below, _ in os.walk(top):
        if is_run(Path(folder)):
            below.clear()  # a run's own folders hold no runs
            yield Path(folder)
        below[:] = sorted(name for name in below if not name.startswith("."))


def is_run(path: Path) -> bool:
    """Whether a run was begun in the directory `path`, or a policy published in it."""
    files = RunFiles(path)
    return files.exist and (files.facts.is_file() or files.published)


def read_run(path: str | Path) -> RunRecord:
    """Read the run directory or published policy `path`, finished or not."""
    path = locate(path)
    files = RunFiles(path)
    if files.published:
        return _published(path)
    if not files.exist:
        raise UserError(f"{path} holds no run; give the directory of a softaug run")
    config = _config(files.config)
    facts = read_object(files.facts, REMEDY)
    _check_media_facts(facts, files.facts)
    lines = list(_lines(files.metrics))
    with blaming(files.metrics):
        curve = tuple(
            TrainEpisode(int(line["decisions"]), _finite(line["return"]), int(line["frames"]))
            for line in lines
            if line["kind"] == "episode"
        )
        media = facts.get("media") or {}
        evals = tuple(_periodic(line, media) for line in lines if line["kind"] == "eval")
        rates = tuple(
            Rate(int(line["decisions"]), float(line["decisions_per_second"]))
            for line in lines
            if line["kind"] == "train"
        )
        decisions, frames = (int(lines[-1][name]) if lines else 0 for name in ("decisions", "frames"))
        seconds = max((_finite(line["seconds"]) for line in lines), default=0.0)
    evaluations: list[Evaluation] = []
    final_file = files.final_eval
    finished = final_file.is_file()
    if finished:
        final = read_object(final_file, REMEDY)
        with blaming(final_file):
            decisions, frames = int(final["decisions"]), int(final["frames"])
            evaluations += _final_evaluations(final, final_file, facts)
    for file in sorted(files.evaluations.glob("*.json")):
        report = read_object(file, REMEDY)
        with blaming(file):
            evaluations += _eval_results(report, file, config.decisions)
    return RunRecord(
        path=path,
        config=config,
        facts=facts,
        state="finished" if finished else "running or interrupted",
        decisions=decisions,
        frames=frames,
        seconds=seconds,
        curve=curve,
        evals=evals,
        evaluations=tuple(evaluations),
        rates=rates,
        videos=_videos(files.videos),
    )


def _published(path: Path) -> RunRecord:
    """A published policy: what results.json says, and what was measured with its weights here since."""
    files, folder = RunFiles(path), PolicyFolder(path)
    folder.read(files.config.name)
    config, results = _config(files.config), folder.results()
    here = RunFiles(outputs_of(path))
    with blaming(files.results):
        training = results["training"]
        curve = tuple(TrainEpisode(int(d), _finite(total), int(f)) for d, total, f in training["curve"])
        decisions, weights = int(results["decisions"]), str(results["weights_sha256"])
        evaluations = [
            _evaluation(row, row["source"], decisions, files.results) for row in results["results"]
        ]
        frames, seconds = int(results["frames"]), _finite(training["seconds"])
    _check_media_facts(training, files.results)
    for file in sorted(here.evaluations.glob("*.json")):
        report = read_object(file, REMEDY)
        with blaming(file):
            if report["weights_sha256"] == weights:
                evaluations += _results_of(report, file, decisions)
    return RunRecord(
        path=path,
        config=config,
        facts=training,
        state="finished",
        decisions=decisions,
        frames=frames,
        seconds=seconds,
        curve=curve,
        evals=(),
        evaluations=tuple(evaluations),
        rates=(),
        videos=_videos(here.videos),
    )


def _config(path: Path) -> Config:
    """A run's config. Fields that it does not know, because it is older than they are, have their defaults.

    Only for reading results: resuming goes through `config.read_config`, which wants every field.
    """
    values = read_object(path, REMEDY)
    if missing := {"task", "method", "preset", "seed", "decisions"} - values.keys():
        raise UserError(f"{path} holds no config (no {', '.join(sorted(missing))}); restore it")
    defaults = {f.name: f.default for f in dataclasses.fields(Config)}
    try:
        return Config.from_json({**defaults, **values})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check_media_facts(facts: Mapping[str, Any], path: Path) -> None:
    media = facts.get("media") or {}
    if not isinstance(media, dict) or not all(isinstance(value, dict) for value in media.values()):
        raise UserError(f"{path} is damaged (its media are no facts by mode); {REMEDY}")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl; of a run being written, not the unfinished last one."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it or leave the run out") from None
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            values = json.loads(line)
            json.dumps(values, ensure_ascii=False).encode()  # no lone surrogates: see `read_object`
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or "kind" not in values:
            raise UserError(f"line {number} of {path} is damaged; restore the file or leave the run out")
        yield values


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Within it, a value that is missing or of the wrong kind means that the file is damaged."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{path} is damaged (no {error}); restore it or leave the run out") from None
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or leave the run out") from None


def _periodic(line: Mapping[str, Any], media: Mapping[str, Any]) -> PeriodicEval:
    mode = str(line["mode"])
    return PeriodicEval(
        int(line["decisions"]),
        mode,
        finite_returns(line["returns"]),
        media_kind(line["media"], media.get(mode)),
        int(line["frames"]),
        bool(line["adapt"]),
    )


def finite_returns(values: Any) -> tuple[float, ...]:
    returns = tuple(_finite(value) for value in values)
    if not returns:
        raise ValueError("an evaluation without episodes")
    return returns


def media_kind(value: Any, facts: Any) -> str | None:
    """A kind of media, one of `MEDIA_ORDER` or None. facts: of where they came from."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.40} where a kind of media should be")
    return OUTDATED if value is not None and outdated(facts) else value


def _finite(value: Any) -> float:
    """Python's JSON knows NaN and infinity; no return is either, and one would spoil every mean it came into."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} where a finite number should be")
    return number


def _final_evaluations(
    final: Mapping[str, Any], file: Path, facts: Mapping[str, Any]
) -> Iterator[Evaluation]:
    media = facts.get("media") or {}
    for adapted, modes in ((False, final["modes"]), (True, final["adapted"])):
        for mode, values in modes.items():
            source = media.get(mode)
            kind = media_kind(values["media"], source)
            note = media_note(mode, kind, source)
            yield Evaluation(
                mode,
                finite_returns(values["returns"]),
                kind,
                int(final["decisions"]),
                adapted,
                note,
                source,
                file,
            )


def _eval_results(report: Mapping[str, Any], file: Path, last: int) -> Iterator[Evaluation]:
    """What `softaug eval` wrote, if it is of the weights after the `last` decision of training."""
    if report["checkpoint"] == "best" or report["decisions"] != last:
        return
    yield from _results_of(report, file, last)


def _results_of(report: Mapping[str, Any], file: Path, decisions: int) -> Iterator[Evaluation]:
    """The results in a file of `softaug eval`."""
    for row in report["results"]:
        yield _evaluation(row, report["media"].get(row["mode"]), decisions, file)


def _evaluation(row: Mapping[str, Any], source: Any, decisions: int, file: Path) -> Evaluation:
    mode, adapted = str(row["mode"]), bool(row["adapt"])
    returns, kind = finite_returns(row["returns"]), media_kind(row["media"], source)
    note = OUTDATED_NOTE if kind == OUTDATED else str(row["note"])
    return Evaluation(mode, returns, kind, decisions, adapted, note, source, file)


def _videos(folder: Path) -> dict[str, Path]:
    """The newest of each mode: the folders are named by their decisions, with leading zeros."""
    found: dict[str, Path] = {}
    for video in sorted(folder.glob("*/*.mp4")):
        if not video.name.startswith("."):  # still being written
            found[video.stem] = video
    return found
