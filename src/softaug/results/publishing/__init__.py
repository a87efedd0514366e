"""A run's policy as a folder that anybody can use: see `softaug.zoo.folder` for its files.

    publish(Path("runs/first"), Path("zoo"))       # zoo/walker_stand-soda_overlay
    update(Path("zoo/walker_stand-soda_overlay"))  # with what was measured of it since

Weights are copied byte for byte, and results are those of exactly these weights. Paths of this machine, and names of
accounts, stay here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import jinja2
import numpy as np

from softaug.config import Config, read_config, write_config
from softaug.errors import UserError
from softaug.evaluation.animation import panels, save_animation
from softaug.evaluation.runs import Run, load_run
from softaug.evaluation.tour import TourFrame, play_tour
from softaug.files import read_object, sync, temporary_directory
from softaug.media.comparability import OUTDATED_NOTE, media_note, outdated
from softaug.results.publishing.card import make_card
from softaug.results.reading import REMEDY, blaming, finite_returns, media_kind, read_run
from softaug.results.records import RunRecord
from softaug.storage.checkpoint import read_weights, remove_directory
from softaug.storage.checksums import SUMS_FILE, sums_text
from softaug.storage.run_files import RunFiles
from softaug.training.loop import evaluation_seed
from softaug.zoo.folder import (
    CARD_FILE,
    CONFIG_FILE,
    FORMAT,
    POLICY_FILE,
    REPLAY_FILE,
    RESULTS_FILE,
    PolicyFolder,
)
from softaug.zoo.places import ZOO, check_policy_name, outputs_of, shown

TRAINING_FACTS = ("versions", "gl_renderer", "git_commit", "device", "threads", "media")
REPLAY_BYTES, REPLAY_SIZE, REPLAY_FPS, REPLAY_DECISIONS, REPLAY_MODES = 300_000, 192, 15, 125, 5
REFERENCE = re.compile(r"^softaug eval (\S+)", re.MULTILINE)
"""In a card: what users give to softaug's commands."""
Row = dict[str, Any]


def publish(
    path: Path,
    out: Path,
    *,
    name: str | None = None,
    checkpoint: str = "last",
    replay: bool = True,
    replace: bool = False,
    reference: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Make the folder `out`/`name` of a run that has test results; it appears when it is complete.

    name: TASK-METHOD unless given. checkpoint: `last`, `best` or a number of decisions. replay: record the policy in
    the modes it was tested in. replace: instead of a folder of that name. reference: what the card
    tells users to give to softaug's commands; ``zoo:NAME`` unless given. say: told what is left out, and why.
    """
    run = load_run(path, checkpoint)
    if RunFiles(run.path).published:
        raise UserError(f"{path} is published already; copy it with: softaug zoo get")
    record = read_run(run.path)
    name = check_policy_name(
        re.sub(r"[^\w.+-]", "_", f"{run.config.task}-{run.config.method}") if name is None else name
    )
    target = out / name
    if target.is_symlink():
        raise UserError(f"{target} is a link, which is not replaced; remove it or give --name another value")
    if target.exists() and not replace:
        raise UserError(
            f"{target} exists already; give --name or --out another value, or --replace to make it again"
        )
    if target.exists() and not RunFiles(target).published:
        raise UserError(f"{target} is not a published policy and is not replaced; give --name another value")
    results = _results(name, run, record)
    config = _portable(run.config)
    with _making(target) as temporary:
        (temporary / POLICY_FILE).write_bytes(read_weights(run.checkpoint))
        write_config(config, temporary / CONFIG_FILE)
        if replay:
            _record_replay(run, results["results"], temporary / REPLAY_FILE, say)
        _describe(temporary, config, results, reference or f"{ZOO}{name}")
    return target


def update(path: Path) -> list[Row]:
    """Add to the published policy at `path` what `softaug eval` measured of its weights in the current directory, and
    return these results. Weights, settings and replay stay; the card is written anew."""
    if path.is_symlink():
        raise UserError(f"{path} is a link, which is not replaced; name the folder that it leads to")
    path = path.resolve()
    if not RunFiles(path).published:
        raise UserError(
            f"{path} is not a published policy; name one, or publish a run with: softaug zoo add RUN"
        )
    folder = PolicyFolder(path)
    folder.verify()
    files = folder.files()
    if others := sorted({entry.name for entry in path.iterdir()} - {*files}):
        raise UserError(f"{path} has files that no policy has ({', '.join(others)}); move them away first")
    results, config = folder.results(), read_config(path / CONFIG_FILE)
    published = results["results"]
    measured = [*_measured_rows(outputs_of(path), str(results["weights_sha256"]))]
    with blaming(path / RESULTS_FILE):
        rows = _best_rows([*published, *measured])
    new = [row for row in rows if row not in published]
    if not new:
        raise UserError(
            f"no result in {outputs_of(path)} is new, or has more episodes than the published one; "
            f"test the policy first with: softaug eval {shown(path)}"
        )
    with _making(path) as temporary, blaming(path / RESULTS_FILE):
        for name in (POLICY_FILE, CONFIG_FILE, REPLAY_FILE):
            if name in files:
                shutil.copyfile(files[name], temporary / name)
        reference = REFERENCE.search(files[CARD_FILE].read_text()) if CARD_FILE in files else None
        try:
            _describe(
                temporary,
                config,
                {**results, "results": rows},
                f"{ZOO}{folder.name}" if reference is None else reference[1],
            )
        except jinja2.UndefinedError as error:
            raise ValueError(error) from None
    return new


@contextmanager
def _making(target: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `target` once it is complete and a policy that can be used."""
    temporary = temporary_directory(target.parent)
    replaced = temporary.with_name(f"{temporary.name}-replaced")
    try:
        yield temporary
        PolicyFolder(temporary).verify()
        for file in temporary.iterdir():
            sync(file)
        try:
            if target.exists():
                target.rename(replaced)
            temporary.rename(target)
        except BaseException:
            if replaced.exists() and not target.exists():
                replaced.rename(target)
            raise
        sync(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    remove_directory(replaced)


def _describe(folder: Path, config: Config, results: Mapping[str, Any], reference: str) -> None:
    """Write the results, the checksums of all files so far, and the card, which has none."""
    (folder / RESULTS_FILE).write_text(_compact_lists(json.dumps(results, indent=1)) + "\n")
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    (folder / SUMS_FILE).write_text(sums_text(sums))
    (folder / CARD_FILE).write_text(make_card(str(results["name"]), config, results, reference=reference))


def _results(name: str, run: Run, record: RunRecord) -> dict[str, Any]:
    with blaming(RunFiles(run.path).final_eval):
        rows = [*_final_rows(run)]
    rows = _best_rows([*rows, *_measured_rows(run.path, run.sha256)])
    if not rows:
        raise UserError(
            f"{run.path} has no test results of these weights; test them first with: softaug eval {run.path}"
            + ("" if run.checkpoint.name != "best" else " --checkpoint best")
        )
    decisions = record.decisions if run.decisions is None else run.decisions
    facts = _without_paths({key: record.facts.get(key) for key in TRAINING_FACTS})
    curve = [[e.decisions, round(e.total, 3), e.frames] for e in record.curve if e.decisions <= decisions]
    return {
        "format": FORMAT,
        "name": name,
        "task": run.config.task,
        "method": run.config.method,
        "preset": run.config.preset,
        "train_seed": run.config.seed,
        "decisions": decisions,
        "frames": record.frames
        if decisions == record.decisions
        else decisions * run.config.frames_per_decision,
        "weights_sha256": run.sha256,
        "results": rows,
        "training": {**facts, "seconds": round(record.seconds, 1), "curve": curve},
    }


def _best_rows(rows: Iterable[Row]) -> list[Row]:
    """A result for each mode, kind of media, and with and without adaptation: the one with the most episodes; those on procedural
    videos that are not today's come last, and say so."""

    def rank(row: Row) -> tuple[bool, int]:
        return not outdated(row["source"]), len(row["returns"])

    chosen: dict[tuple[str, bool, str | None], Row] = {}
    for row in rows:
        key = (row["mode"], row["adapt"], row["media"])
        if key not in chosen or rank(row) > rank(chosen[key]):
            chosen[key] = row
    return [{**row, "note": OUTDATED_NOTE} if outdated(row["source"]) else row for row in chosen.values()]


def _final_rows(run: Run) -> Iterator[Row]:
    """The evaluation at the end of training, if that is what the weights are of."""
    files = RunFiles(run.path)
    if not files.finished or run.checkpoint.name == "best":
        return
    final, facts = read_object(files.final_eval, REMEDY), read_object(files.facts, REMEDY)
    if final["decisions"] != run.decisions:
        return
    measured = {
        "eval_seed": evaluation_seed(run.config.seed),
        "versions": facts.get("versions"),
        "gl_renderers": [facts["gl_renderer"]] if facts.get("gl_renderer") else [],
    }
    for adapt, modes in ((False, final["modes"]), (True, final["adapted"])):
        for mode, values in modes.items():
            source = (facts.get("media") or {}).get(mode)
            note = media_note(mode, values["media"], source)
            yield _row({**values, "mode": mode, "adapt": adapt, "note": note}, source, measured)


def _measured_rows(outputs: Path, weights_sha256: str) -> Iterator[Row]:
    """What `softaug eval` wrote to `outputs` about exactly these weights."""
    for file in sorted(RunFiles(outputs).evaluations.glob("*.json")):
        report = read_object(file, REMEDY)
        if report.get("weights_sha256") == weights_sha256:
            measured = {key: report.get(key) for key in ("eval_seed", "versions", "gl_renderers")}
            with blaming(file):
                rows = [_row(row, report["media"].get(row["mode"]), measured) for row in report["results"]]
            yield from rows


def _row(values: Mapping[str, Any], source: Any, measured: Mapping[str, Any]) -> Row:
    """A result as it is published. Its media are called what they were then: readers decide by `source` what is outdated."""
    returns = list(finite_returns(values["returns"]))
    videos = [info["video"] for info in values.get("episode_info") or [] if info.get("video")]
    return {
        "mode": str(values["mode"]),
        "adapt": bool(values["adapt"]),
        "media": (media := media_kind(values["media"], None)),
        "procedural": media == "procedural",
        "note": str(values["note"]),
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "returns": returns,
        "episodes": len(returns),
        "decisions": values.get("decisions"),
        "frames": values.get("frames"),
        "videos": [PurePosixPath(str(video)).name for video in videos],
        "source": _without_paths(source),
        **measured,
    }


def _portable(config: Config) -> Config:
    """Without the names of folders, registered media and accounts, which mean nothing elsewhere."""
    media: dict[str, Any] = {
        name: value if (value := getattr(config, name)) == "procedural" else ""
        for name in ("images", "videos", "colors")
    }
    return dataclasses.replace(config, wandb="", **media)


def _without_paths(value: Any) -> Any:
    """JSON facts without this machine's paths."""
    if isinstance(value, Mapping):
        return {key: _without_paths(item) for key, item in value.items() if key != "path"}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str) and (
        PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    ):
        return PureWindowsPath(value).name
    return value


def _compact_lists(text: str) -> str:
    """Lists of numbers on one line each: a training curve has a thousand entries."""
    return re.sub(
        r"\[[\d\s.,eE+-]*\]",
        lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"),
        text,
    )


def _record_replay(run: Run, rows: list[Row], path: Path, say: Callable[[str], None]) -> None:
    modes = list(dict.fromkeys(row["mode"] for row in rows))[:REPLAY_MODES]

    def play(modes: list[str], decisions: int | None) -> list[TourFrame]:
        adapt = run.config.row.adapts
        return list(play_tour(run, modes, seed=0, size=REPLAY_SIZE, decisions=decisions, adapt=adapt))

    try:
        tour = play(modes, max(1, REPLAY_DECISIONS // len(modes)))
        if {frame.mode for frame in tour} != set(
            modes
        ):  # the episode is too short for all of them: one for each
            tour = [frame for mode in modes for frame in play([mode], None)]
        frames = list(panels([iter(tour)], [run.config.row.label], 0.0))
    except UserError as error:
        say(f"no replay was recorded: {error}")
        return
    save_animation(path, frames, REPLAY_FPS, REPLAY_BYTES)
