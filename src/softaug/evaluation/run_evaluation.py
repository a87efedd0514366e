"""The evaluation of one run in a file of results: which episodes there are, which are missing, and a journal of them.

An interrupted evaluation continues: every finished episode is in the journal, under a key of everything its return
depends on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from softaug.config import Config
from softaug.config.own_environment import parse_test_env
from softaug.envs import Mode
from softaug.envs.factory import ConfigEnvs, check_own_envs, hash_of, media_facts, modes_of, own_spec
from softaug.envs.modes import expand_groups
from softaug.errors import UserError
from softaug.evaluation.evaluate import Episode, Task, play_episodes, summarize, tasks_of
from softaug.evaluation.policy import Policy, PolicyFailed
from softaug.evaluation.runs import Run, load_run
from softaug.files import output_file, write_atomically
from softaug.machine import available_cores
from softaug.media.comparability import media_note
from softaug.progress import Bars
from softaug.storage.run_files import RunFiles
from softaug.trust import require_trust
from softaug.versions import VERSION, versions
from softaug.zoo import outputs_of

DEFAULT_MODES = ("train", "color_easy", "color_hard", "video_easy", "video_hard")


def default_workers() -> int:
    """The CPUs this process may use, but no more than eight: each worker takes some hundred MB."""
    return min(available_cores(), 8)


@dataclass(frozen=True)
class EvaluationOptions:
    """What to play, and where the results go; `softaug eval` has a flag for each."""

    run_dir: Path
    modes: Sequence[str] | None = None
    """None: the benchmark's five, or all modes of the user's own environment."""
    episodes: int = 10
    workers: int = field(default_factory=default_workers)
    seed: int = 0
    out: Path | None = None
    """None: a file in RUN/eval; for a published policy, in runs/zoo/NAME-CHECKSUM/eval."""
    checkpoint: str = "last"
    videos: str | None = None
    colors: str | None = None
    test_env: str | None = None
    adapt: bool | None = None
    """None: with and without adaptation, if the method adapts."""
    trust: bool = False
    video: bool = False
    """Record the first episode of each mode; one that was played before without a video is played again."""


class Tested(Protocol):
    """What is evaluated: a run, or a policy that was made elsewhere (`policy_evaluation.py`)."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Config: ...
    @property
    def checkpoint(self) -> Path: ...
    @property
    def decisions(self) -> int | None: ...
    @property
    def sha256(self) -> str: ...

    def policy(self, adapt: bool = False) -> Callable[[], Policy]:
        """What makes the policy, here or in another process."""


def evaluate_run(options: EvaluationOptions) -> tuple[dict[str, Any], Path]:
    """Play what is missing and write the results; also the file they are in."""
    return play_missing(options, chosen_run(options))


def chosen_run(options: EvaluationOptions) -> Run:
    """The run that the options name, with the test media that they give."""
    trained = load_run(options.run_dir, options.checkpoint)
    require_trust(trained.path, trained.config, trust=options.trust)
    return with_media(trained, options.videos, options.colors, options.test_env)


def play_missing(
    options: EvaluationOptions, tested: Tested, *, kept: bool = True, quiet: bool = False
) -> tuple[dict[str, Any], Path]:
    """`evaluate_run` of what was loaded already. kept: whether the files stay, so that it can be continued."""
    with (
        RunEvaluation(options, tested) as evaluation,
        EpisodeProgress(evaluation.total, quiet=quiet) as progress,
    ):
        for episode in evaluation.reused:
            progress.advance(episode, reused=True)
        try:
            for adapt in evaluation.variants:
                with contextlib.closing(_play(evaluation, adapt, options.workers)) as played:
                    for episode in played:
                        evaluation.add(adapt, episode)
                        progress.advance(episode)
        except KeyboardInterrupt:
            if kept:
                progress.say(
                    f"{progress.done} of {progress.total} episodes are kept in {evaluation.journal.path}; "
                    "start the same command again to continue"
                )
            raise
        except PolicyFailed as error:
            remark = f" ({progress.done} of {progress.total} episodes are kept in {evaluation.journal.path})"
            raise PolicyFailed(
                f"{error}; fix the policy{remark if kept and progress.done else ''}"
            ) from error
    return evaluation.write(), evaluation.out


class RunEvaluation:
    """The evaluation of one run: which episodes there are, which are missing, and the results of all of them.

    Who plays the missing ones (`todo`) hands each to `add`; `write` then writes the results. Closing it closes the
    journal.
    """

    def __init__(self, options: EvaluationOptions, trained: Tested):
        modes = (
            default_modes(trained.config)
            if options.modes is None
            else check_modes(options.modes, trained.config)
        )
        check_adapt(trained, options.adapt)
        tasks = tasks_of(modes, options.episodes)
        check_own_envs(trained.config, modes)
        self.trained, self.modes, self.seed = trained, modes, options.seed
        self.out: Path = output_file(options.out or _default_path(trained, options, modes))
        self.variants = (
            [options.adapt] if options.adapt is not None else [False, True][: 1 + trained.config.row.adapts]
        )
        """with and without adaptation at test time"""
        self.total = len(tasks) * len(self.variants)
        self.sources = {mode: media_facts(trained.config, mode) for mode in modes}
        self._given_path = options.run_dir
        self.video_dir = _video_dir(trained, options.run_dir) if options.video else None
        self._keys = {
            (adapt, mode): episode_key(trained, options.seed, adapt, self.sources[mode])
            for adapt in self.variants
            for mode in modes
        }
        self.journal = self._open_journal(options)
        self._played: dict[bool, list[Episode]] = {adapt: [] for adapt in self.variants}
        self._todo: dict[bool, list[Task]] = {adapt: [] for adapt in self.variants}
        for adapt in self.variants:
            for task in tasks:
                found = self.journal.get(self._keys[adapt, task.mode], task.mode, task.episode)
                if found is None or self._lacks_video(adapt, task):
                    self._todo[adapt].append(task)
                else:
                    self._played[adapt].append(found)

    def videos_of(self, adapt: bool) -> Path | None:
        """Where this variant's videos go: one of a mode is enough."""
        return self.video_dir if adapt == self.variants[0] else None

    def _lacks_video(self, adapt: bool, task: Task) -> bool:
        folder = self.videos_of(adapt)
        return folder is not None and task.episode == 0 and not (folder / f"{task.mode}.mp4").is_file()

    def _open_journal(self, options: EvaluationOptions) -> Journal:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            return Journal(output_file(journal_path(self.out, self.trained, options)))
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
            for mode, summary in summarize(self._played[adapt], self.modes).items():
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
            "softaug": VERSION,
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
            trained.policy(adapt),
            ConfigEnvs(trained.config),
            todo,
            evaluation.seed,
            workers=workers,
            video_dir=evaluation.videos_of(adapt),
        )
    ) as episodes:
        yield from episodes


def _video_dir(trained: Tested, run_dir: Path) -> Path:
    """Next to the videos of training, which are sorted by decisions too."""
    return RunFiles(outputs_of(run_dir)).videos / f"{trained.decisions or 0:09d}"


AnyTested = TypeVar("AnyTested", bound=Any)
"""A dataclass with a config: `Run`, or a policy that was made elsewhere."""


def with_media(
    trained: AnyTested, videos: str | None = None, colors: str | None = None, test_env: str | None = None
) -> AnyTested:
    """The run with the test media that the user gave instead of its own, or further test environments."""
    given: dict[str, Any] = {
        name: value for name, value in (("videos", videos), ("colors", colors)) if value is not None
    }
    if test_env is not None:
        entries = [entry.strip() for entry in test_env.split(",") if entry.strip()]
        modes = dict(map(parse_test_env, [*trained.config.test_env, *entries]))  # a known name is replaced
        given["test_env"] = tuple(f"{name}={spec}" for name, spec in modes.items())
    return dataclasses.replace(trained, config=dataclasses.replace(trained.config, **given))


def check_adapt(trained: Tested, adapt: bool | None) -> None:
    if adapt and not trained.config.row.adapts:
        raise UserError(f"{trained.config.method} does not adapt at test time; leave --adapt out")


def default_modes(config: Config) -> list[str]:
    """The benchmark's five, or all that the user's own environment has."""
    return list(modes_of(config)) if config.own_env else list(DEFAULT_MODES)


def check_modes(names: Sequence[str], config: Config | None = None) -> list[str]:
    """The names, if they are modes of the config's task, or of the benchmarks; `distracting(...)` written in full.

    A benchmark's name (`MODE_GROUPS`) stands for its modes, except for the user's own environment.
    """
    if config is None or not config.own_env:
        return [Mode.parse(name).name for name in expand_groups(names)]
    for name in names:
        own_spec(config, name)
    return list(names)


def episode_key(trained: Tested, seed: int, adapt: bool, media: dict[str, Any] | None) -> str:
    """A hash of everything an episode's return depends on apart from its mode and number."""
    names: tuple[str, ...] = (
        "task", "method", "image_size", "crop_size", "frame_stack", "action_repeat", "render",
    )  # fmt: skip
    if trained.config.own_env:
        names += ("image_key", "episode_decisions")
    settings = {name: getattr(trained.config, name) for name in names}
    return hash_of([trained.sha256, seed, adapt, media, settings, VERSION])


def _default_path(trained: Tested, options: EvaluationOptions, modes: Sequence[str]) -> Path:
    """In RUN/eval, so that other checkpoints, seeds, modes or media get files of their own."""
    name = f"{trained.checkpoint.name}-seed{options.seed}-{options.episodes}ep"
    if modes != default_modes(trained.config):
        named = "+".join(modes)
        # File systems take 255 bytes; the rest of the name needs some too.
        name += f"-{named}" if len(named) <= 120 else f"-{len(modes)}modes-{hash_of(list(modes))[:8]}"
    given = [options.videos, options.colors, *([] if options.test_env is None else [options.test_env])]
    if any(value is not None for value in given):
        name += "-media" + hash_of(given)[:8]
    if options.adapt is not None:
        name += "-adapt" if options.adapt else "-no_adapt"
    return RunFiles(outputs_of(options.run_dir)).evaluations / f"{name}.json"


def journal_path(out: Path, trained: Tested, options: EvaluationOptions) -> Path:
    """Next to the output; one for all default-named results of a checkpoint and seed, which share episodes."""
    name = out.stem if options.out is not None else f"{trained.checkpoint.name}-seed{options.seed}"
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


class EpisodeProgress(Bars):
    """On stderr: a bar with rate and time left on a terminal, else a line now and then."""

    def __init__(self, total: int, *, quiet: bool = False):
        super().__init__("episodes", quiet=quiet)
        self.total, self.done, self._played, self._decisions = total, 0, 0, 0
        self._start = time.monotonic()
        self.stage("episodes", 0, total, title="starting")

    def advance(self, episode: Episode, *, reused: bool = False) -> None:
        self.done += 1
        if not reused:
            self._played += 1
            self._decisions += episode.decisions
        text = f"{episode.mode} {episode.episode}: {episode.total:.1f}"
        seconds = time.monotonic() - self._start
        rate = f"{self._decisions / seconds:.0f} decisions/s" if self._played else ""
        if reused:  # these took no time
            self.restart("episodes", self.done)
        self.stage("episodes", self.done, self.total, title=text, rate=rate)
        if self.due():
            left = timedelta(seconds=round(seconds / max(self._played, 1) * (self.total - self.done)))
            self.say(f"{self.done}/{self.total} episodes  {rate}  ETA {left}  {text}")
