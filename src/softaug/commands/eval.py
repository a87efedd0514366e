"""``softaug eval RUN``: returns of a trained agent in the training look and the test distributions.

Each finished episode is kept as a line of JSON beside the results. The same evaluation started again (same weights,
seed, media and settings) takes what is there and plays the rest, whether it was interrupted or asks for more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import softaug
from softaug.config import Config, parse_test_env
from softaug.envs import Mode
from softaug.envs.factory import (
    ConfigEnvs,
    check_own_envs,
    hash_of,
    media_facts,
    modes_of,
    own_spec,
)
from softaug.errors import UserError
from softaug.evaluation import Episode, Task, play_episodes, summarise, tasks_of
from softaug.files import output_file, write_atomically
from softaug.media.notes import media_note
from softaug.runs import Run, load_run
from softaug.trust import add_trust_argument, require_trust
from softaug.versions import versions

DEFAULT_MODES = "train,color_easy,color_hard,video_easy,video_hard"
PLAIN_SECONDS = 30.0
"""Time between lines of progress when stderr is not a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="directory of a run")
    add_optional(
        parser,
        "--modes",
        metavar="A,B",
        help=f"modes, comma-separated (default: {DEFAULT_MODES}; of your own environment all)",
    )
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="episodes per mode")
    parser.add_argument(
        "--workers",
        type=int,
        default=default_workers(),
        metavar="N",
        help="processes; results do not depend on it",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes")
    add_optional(parser, "--out", type=Path, metavar="FILE", help="results (default: a file in RUN/eval)")
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `eval` and `play` share."""
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="last, best or a number of decisions"
    )
    add_optional(
        parser, "--videos", metavar="DIR", help="test videos: a folder or 'procedural' (default: the run's)"
    )
    add_optional(
        parser,
        "--colors",
        metavar="FILE",
        help="test colours: an official .pt file or the folder of both (default: the run's)",
    )
    add_optional(
        parser,
        "--test-env",
        metavar="NAME=MODULE:CALLABLE",
        help="your own environment: further modes, comma-separated (default: the run's)",
    )
    add_optional(
        parser,
        "--adapt",
        action=argparse.BooleanOptionalAction,
        help="PAD: adapt during each episode (default: play does, eval reports both)",
    )
    add_trust_argument(parser)


def add_optional(parser: argparse.ArgumentParser, flag: str, **settings: Any) -> None:
    """A flag that is None if not given, whose help says itself what happens then (not "default: None")."""
    parser.set_defaults(**{flag.removeprefix("--").replace("-", "_"): None})
    parser.add_argument(flag, default=argparse.SUPPRESS, **settings)


def run(args: argparse.Namespace) -> int:
    report, out = evaluate_run(args)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        _print_table(report, report["results"], out)
    return 0


def evaluate_run(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Play what is missing and write the results; also the file they are in."""
    with RunEvaluation(args) as evaluation, EpisodeProgress(evaluation.total) as progress:
        for episode in evaluation.reused:
            progress.advance(episode, reused=True)
        try:
            for adapt in evaluation.variants:
                with contextlib.closing(_play(evaluation, adapt, args.workers)) as played:
                    for episode in played:
                        evaluation.add(adapt, episode)
                        progress.advance(episode)
        except KeyboardInterrupt:
            progress.say(
                f"{progress.done} of {progress.total} episodes are kept in {evaluation.journal.path}; "
                "start the same command again to go on"
            )
            raise
    return evaluation.write(), evaluation.out


class RunEvaluation:
    """The evaluation of one run: which episodes there are, which are missing, and the results of all of them.

    Who plays the missing ones (`todo`) hands each to `add`; `write` then writes the results. Closing it closes the
    journal.
    """

    def __init__(self, args: argparse.Namespace):
        trained = load_run(args.run_dir, args.checkpoint)
        require_trust(trained.path, trained.config, trust=args.trust)
        trained = with_media(trained, args)
        modes = (
            default_modes(trained.config) if args.modes is None else parse_modes(args.modes, trained.config)
        )
        check_adapt(trained, args.adapt)
        tasks = tasks_of(modes, args.episodes)
        check_own_envs(trained.config, modes)
        self.trained, self.modes, self.seed = trained, modes, args.seed
        self.out: Path = output_file(args.out or _default_path(trained, args, modes))
        self.variants = (
            [args.adapt] if args.adapt is not None else [False, True][: 1 + trained.config.row.adapts]
        )
        """with and without adaptation at test time"""
        self.total = len(tasks) * len(self.variants)
        self.sources = {mode: media_facts(trained.config, mode) for mode in modes}
        self._given_path = args.run_dir
        self._keys = {
            (adapt, mode): episode_key(trained, args.seed, adapt, self.sources[mode])
            for adapt in self.variants
            for mode in modes
        }
        self.journal = self._open_journal(args)
        self._played: dict[bool, list[Episode]] = {adapt: [] for adapt in self.variants}
        self._todo: dict[bool, list[Task]] = {adapt: [] for adapt in self.variants}
        for adapt in self.variants:
            for task in tasks:
                found = self.journal.get(self._keys[adapt, task.mode], task.mode, task.episode)
                if found is None:
                    self._todo[adapt].append(task)
                else:
                    self._played[adapt].append(found)

    def _open_journal(self, args: argparse.Namespace) -> Journal:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            return Journal(output_file(journal_path(self.out, self.trained, args)))
        except OSError as error:
            raise UserError(
                f"cannot write to {self.out} ({error.strerror}); give --out another place"
            ) from None

    @property
    def reused(self) -> list[Episode]:
        """Every episode that need not be played (any more)."""
        return [episode for adapt in self.variants for episode in self._played[adapt]]

    def todo(self, adapt: bool) -> list[Task]:
        """The episodes that were missing at the start."""
        return self._todo[adapt]

    def add(self, adapt: bool, episode: Episode) -> None:
        """Keep an episode that was played, on the disk at once."""
        self.journal.add(self._keys[adapt, episode.mode], episode)
        self._played[adapt].append(episode)

    def write(self) -> dict[str, Any]:
        """Write the results of all episodes to `out` and return them."""
        rows: list[dict[str, Any]] = []
        for adapt in self.variants:
            for mode, summary in summarise(self._played[adapt], self.modes).items():
                note = media_note(mode, summary["media"], self.sources[mode])
                rows.append({"mode": mode, "adapt": adapt, "note": note, **summary})
        report = {
            "run": str(self._given_path),
            "task": self.trained.config.task,
            "method": self.trained.config.method,
            "train_seed": self.trained.config.seed,
            "checkpoint": self.trained.checkpoint.name,
            "decisions": self.trained.decisions,
            "weights_sha256": self.trained.sha256,
            "eval_seed": self.seed,
            "softaug": softaug.__version__,
            "versions": versions(),
            "gl_renderers": sorted({e.gl_renderer for e in self.reused if e.gl_renderer}),
            "media": self.sources,
            "results": rows,
        }
        write_atomically(self.out, json.dumps(report, indent=1) + "\n")
        return report

    def __enter__(self) -> RunEvaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.__exit__()


def _play(evaluation: RunEvaluation, adapt: bool, workers: int) -> Generator[Episode, None, None]:
    """The missing episodes, played in this process or in `workers`."""
    todo, trained = evaluation.todo(adapt), evaluation.trained
    if not todo:
        return
    with contextlib.closing(
        play_episodes(
            trained.policy(adapt), ConfigEnvs(trained.config), todo, evaluation.seed, workers=workers
        )
    ) as episodes:
        yield from episodes


def with_media(trained: Run, args: argparse.Namespace) -> Run:
    """The run with the test media that the user gave instead of its own, or further test environments."""
    given = {name: getattr(args, name) for name in ("videos", "colors") if getattr(args, name) is not None}
    if getattr(args, "test_env", None) is not None:
        entries = [entry.strip() for entry in args.test_env.split(",") if entry.strip()]
        modes = dict(map(parse_test_env, [*trained.config.test_env, *entries]))  # a known name is replaced
        given["test_env"] = tuple(f"{name}={spec}" for name, spec in modes.items())
    return dataclasses.replace(trained, config=dataclasses.replace(trained.config, **given))


def check_adapt(trained: Run, adapt: bool | None) -> None:
    if adapt and not trained.config.row.adapts:
        raise UserError(f"{trained.config.method} does not adapt at test time; leave --adapt out")


def default_modes(config: Config) -> list[str]:
    """The benchmark's five, or all that the user's own environment has."""
    return list(modes_of(config)) if config.own_env else DEFAULT_MODES.split(",")


def parse_modes(text: str, config: Config | None = None) -> list[str]:
    """Known modes, comma-separated: those of the config's task, or of the benchmark."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if config is not None and config.own_env:
            own_spec(config, name)
        else:
            Mode.parse(name)
    return names


def default_workers() -> int:
    """The CPUs this process may use, but no more than eight: each worker takes some hundred MB."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


def episode_key(trained: Run, seed: int, adapt: bool, media: dict[str, Any] | None) -> str:
    """A hash of everything an episode's return depends on besides its mode and number."""
    names: tuple[str, ...] = (
        "task", "method", "image_size", "crop_size", "frame_stack", "action_repeat", "render",
    )  # fmt: skip
    if trained.config.own_env:
        names += ("image_key", "episode_decisions")
    settings = {name: getattr(trained.config, name) for name in names}
    return hash_of([trained.sha256, seed, adapt, media, settings, softaug.__version__])


def _default_path(trained: Run, args: argparse.Namespace, modes: Sequence[str]) -> Path:
    """In RUN/eval, so that other checkpoints, seeds, modes or media get files of their own."""
    name = f"{trained.checkpoint.name}-seed{args.seed}-{args.episodes}ep"
    if modes != default_modes(trained.config):
        name += "-" + "+".join(modes)
    given = [args.videos, args.colors, *([] if args.test_env is None else [args.test_env])]
    if any(value is not None for value in given):
        name += "-media" + hash_of(given)[:8]
    if args.adapt is not None:
        name += "-adapt" if args.adapt else "-no_adapt"
    return args.run_dir / "eval" / f"{name}.json"


def journal_path(out: Path, trained: Run, args: argparse.Namespace) -> Path:
    """Beside the output; one for all default-named results of a checkpoint and seed, which share episodes."""
    name = out.stem if args.out is not None else f"{trained.checkpoint.name}-seed{args.seed}"
    return out.with_name(f"{name}.episodes.jsonl")


class Journal:
    """Finished episodes, one JSON line each; a line that a killed process left unfinished is passed over."""

    def __init__(self, path: Path):
        self.path = path
        self._episodes: dict[tuple[str, str, int], Episode] = {}
        text = path.read_text(errors="replace") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                values = json.loads(line)
            except json.JSONDecodeError:
                continue
            try:
                key = values.pop("key")
                episode = Episode(**values)
            except (AttributeError, KeyError, TypeError):
                raise UserError(
                    f"line {number} of {path} is no episode of an evaluation; move the file away"
                ) from None
            self._episodes[key, episode.mode, episode.episode] = episode
        self._file = path.open("a")
        if text and not text.endswith("\n"):
            self._file.write("\n")

    def get(self, key: str, mode: str, episode: int) -> Episode | None:
        return self._episodes.get((key, mode, episode))

    def add(self, key: str, episode: Episode) -> None:
        self._file.write(json.dumps({"key": key, **episode.to_json()}) + "\n")
        self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class EpisodeProgress:
    """On stderr: a bar with rate and time left on a terminal, else a line now and then."""

    def __init__(self, total: int, *, quiet: bool = False):
        self.total, self.done, self._played, self._decisions = total, 0, 0, 0
        self._start = self._last_line = time.monotonic()
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet)
        self._bar = Progress(
            TextColumn("[bold]{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes  {task.fields[rate]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=total, rate="")

    def advance(self, episode: Episode, *, reused: bool = False) -> None:
        self.done += 1
        if not reused:
            self._played += 1
            self._decisions += episode.decisions
        text = f"{episode.mode} {episode.episode}: {episode.total:.1f}"
        self._bar.update(self._task, completed=self.done, description=text, rate=self._rate())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            self.say(f"{self.done}/{self.total} episodes  {self._rate()}  {text}")

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _rate(self) -> str:
        if not self._played:
            return ""
        seconds = time.monotonic() - self._start
        left = timedelta(seconds=round(seconds / self._played * (self.total - self.done)))
        return f"{self._decisions / seconds:.0f} decisions/s  ETA {left}"

    def __enter__(self) -> EpisodeProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()


def _print_table(report: dict[str, Any], rows: Sequence[dict[str, Any]], out: Path) -> None:
    console = Console(highlight=False)
    adapts = any(row["adapt"] for row in rows)
    table = Table(
        title=f"{report['task']}, {report['method']}, {report['decisions']} decisions of training",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("mode")
    if adapts:
        table.add_column("adaptation")
    table.add_column("return ± std", justify="right")
    for name in ("episodes", "decisions"):
        table.add_column(name, justify="right")
    table.add_column("media")
    for row in _by_mode(rows):
        cells = [row["mode"], *([("yes" if row["adapt"] else "no")] if adapts else [])]
        cells += [f"{row['mean']:.1f} ± {row['std']:.1f}", str(row["episodes"]), f"{row['decisions']:,}"]
        table.add_row(*cells, row["media"] or "–")
    console.print(table)
    for note in sorted({row["note"] for row in rows if row["note"]}):
        console.print(note)
    console.print(f"written to {out}", markup=False, soft_wrap=True)


def _by_mode(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """With and without adaptation side by side."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        yield from (row for row in rows if row["mode"] == mode)
