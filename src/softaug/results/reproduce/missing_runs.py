"""The runs that a table or figure lacks: planned as a sweep, trained, and evaluated like `softaug eval` does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softaug.errors import UserError
from softaug.results.reading import is_run, read_run
from softaug.results.records import RunRecord, overlay_images, shown_images
from softaug.results.reproduce.grids import Item, SamplesItem, TableItem

if TYPE_CHECKING:
    from softaug.evaluation.run_evaluation import EvaluationOptions, RunEvaluation
    from softaug.sweep import PlannedRun

EPISODES = {"paper": 100, "small": 10, "gb2": 100}
"""Episodes per mode of the last evaluation, where the user does not say."""


@dataclass(frozen=True)
class Evaluating:
    """A finished run and the modes in which it lacks episodes."""

    path: Path
    modes: tuple[str, ...]
    adapt: bool
    problem: str = ""
    """why these modes cannot be played on this machine; empty if they can"""


def plan_runs(
    items: Iterable[Item],
    records: Sequence[RunRecord],
    seeds: Sequence[int],
    out: Path,
    *,
    preset: str,
    **overrides: Any,
) -> tuple[list[RunRecord], list[PlannedRun]]:
    """What the items need: finished runs among `records`, and those to be made below `out`.

    A record stands for a planned run if it is finished and has the same preset and length; whether its other
    settings fit is checked when the numbers are put together.
    """
    from softaug.sweep import plan_grid

    needed: dict[tuple[str, str], dict[str, Any]] = {}
    for item in items:
        if not isinstance(item, SamplesItem):
            for key in item.grid:
                needed.setdefault(key, {}).update(item.overrides)
    there: list[RunRecord] = []
    missing: list[PlannedRun] = []
    for (task, method), extra in needed.items():
        for run in plan_grid([task], [method], seeds, out, preset=preset, **{**extra, **overrides}):
            ours = [record for record in records if record.finished and _stands_for(record, run)]
            there += ours
            if not ours:
                missing.append(run)
    # All of one seed before the next: a sweep that is stopped half-way has compared like with like.
    return there, sorted(missing, key=lambda run: run.config.seed)


def _stands_for(record: RunRecord, run: PlannedRun) -> bool:
    names = ("task", "method", "seed", "preset", "decisions")
    return all(getattr(record.config, name) == getattr(run.config, name) for name in names)


def check_images(there: Iterable[RunRecord], missing: Iterable[PlannedRun]) -> None:
    """Refuse new runs whose overlay images would differ from those of the task's runs, before they are trained."""
    from softaug.media import image_source

    known = {record.config.task: (record, images) for record in there if (images := overlay_images(record))}
    for run in missing:
        config = run.config
        if not config.row.uses_images or config.task not in known or run.begun() == "begun":
            continue
        source = image_source(config.images or None)
        ours = shown_images(source.kind, source.describe())
        record, theirs = known[config.task]
        if ours != theirs:
            raise UserError(
                f"new runs of {config.task} would be trained on other overlay images ({ours}) than {record.path} "
                f"({theirs}), which are never mixed; give --images, or leave that run out of --runs"
            )


def plan_evaluations(items: Iterable[Item], runs: Iterable[RunRecord], episodes: int) -> list[Evaluating]:
    """Which of the finished `runs` lack episodes in a mode that a table needs.

    Only evaluations on the media that would be used now count: others may not be mixed with them. Modes whose media
    are not on this machine, as after training on a cluster, are a job with a `problem` of their own.
    """
    from softaug.envs.factory import media_facts

    tables = [item for item in items if isinstance(item, TableItem)]
    jobs = []
    for run in runs:
        config = run.config
        needed = dict.fromkeys(m for table in tables for m in table.modes_of(config.task, config.method))
        lacking = []
        absent: dict[str, list[str]] = {}  # problem -> modes
        for mode in needed:
            try:
                facts = media_facts(config, mode)
            except UserError as error:
                absent.setdefault(str(error), []).append(mode)
                continue
            found = run.evaluation(mode, media=None if facts is None else facts["kind"])
            if found is None or found.episodes < episodes:
                lacking.append(mode)
        if lacking:
            jobs.append(Evaluating(run.path, tuple(lacking), config.row.adapts))
        for problem, modes in absent.items():
            jobs.append(Evaluating(run.path, tuple(modes), config.row.adapts, problem))
    return jobs


def evaluate(job: Evaluating, episodes: int, workers: int | None) -> None:
    """`softaug eval` on the run's last weights; episodes that were played before are not played again."""
    from softaug.evaluation.run_evaluation import evaluate_run

    evaluate_run(_options(job, episodes, workers))


def _options(job: Evaluating, episodes: int, workers: int | None = None) -> EvaluationOptions:
    from softaug.evaluation.run_evaluation import EvaluationOptions, default_workers

    return EvaluationOptions(
        job.path,
        job.modes,
        episodes,
        default_workers() if workers is None else workers,
        adapt=True if job.adapt else None,
    )


def evaluate_on_ray(
    jobs: Sequence[Evaluating],
    episodes: int,
    *,
    address: str | None,
    workers: int | None,
    quiet: bool,
    warn: Callable[[Evaluating, str], None],
) -> None:
    """What `evaluate` does for every job, with the episodes of all of them spread over a Ray cluster.

    The results are the same files with the same numbers. An episode is written to its run's journal as soon as it is
    back, so that the same command continues after Ctrl-C. warn: told why a job was not evaluated.
    """
    from softaug.evaluation.run_evaluation import EpisodeProgress, RunEvaluation, chosen_run
    from softaug.sweep.episodes_on_ray import EpisodesJob, play_on_ray

    handed: list[tuple[Evaluating, RunEvaluation, bool]] = []  # by the number of what was handed to Ray
    left: list[int] = []  # episodes still out, of the same
    failed: set[Evaluating] = set()

    def hand_out(stack: contextlib.ExitStack, progress: EpisodeProgress) -> Iterator[EpisodesJob]:
        for job in jobs:
            try:
                if job.problem:
                    raise UserError(job.problem)
                options = _options(job, episodes)
                trained = chosen_run(options)
                evaluation = stack.enter_context(RunEvaluation(options, trained))
            except UserError as error:  # a run without checkpoints, say: its own last evaluation has to do
                warn(job, str(error))
                continue
            for episode in evaluation.reused:
                progress.advance(episode, reused=True)
            (adapt,) = evaluation.variants
            todo = tuple(evaluation.todo(adapt))
            if not todo:
                _write(evaluation)
                continue
            handed.append((job, evaluation, adapt))
            left.append(len(todo))
            yield EpisodesJob(trained.policy(adapt), todo, evaluation.seed, evaluation.sources)

    total = episodes * sum(len(job.modes) for job in jobs if not job.problem)
    with contextlib.ExitStack() as stack, EpisodeProgress(total, quiet=quiet) as progress:
        results = play_on_ray(hand_out(stack, progress), address=address, workers=workers)
        try:
            for played in stack.enter_context(contextlib.closing(results)):
                job, evaluation, adapt = handed[played.job]
                if played.error and job not in failed:
                    failed.add(job)
                    warn(job, played.error)
                for episode in played.episodes:
                    evaluation.add(adapt, episode)
                    progress.advance(episode)
                left[played.job] -= len(played.episodes)
                if not left[played.job]:
                    _write(evaluation)
        except KeyboardInterrupt:
            progress.say(f"{progress.done} of {progress.total} episodes are kept; the same command continues")
            raise


def _write(evaluation: RunEvaluation) -> None:
    with evaluation:  # its journal is complete
        evaluation.write()


def read_again(records: Iterable[RunRecord], made: Iterable[PlannedRun]) -> list[RunRecord]:
    """All runs as they are now: those that were there and those of a sweep that have begun."""
    paths = [record.path for record in records]
    paths += [run.directory for run in made if is_run(run.directory)]
    return [read_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]


def parse_seed_count(count: int) -> list[int]:
    """The first seeds: 5 gives 0, 1, 2, 3, 4."""
    if count < 1:
        raise UserError(f"seeds must be at least 1, not {count}")
    return list(range(count))
