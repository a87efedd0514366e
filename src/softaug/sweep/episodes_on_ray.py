"""Test episodes on a Ray cluster: a few episodes of one run in one mode are one Ray task.

Weights travel with the task and episodes come back as plain values, so a node needs softaug and the test media, but
neither the run's directory nor a GPU. An episode follows from (weights, seed, mode, number) alone: where it is played
makes no difference to its return.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softaug.envs.factory import ConfigEnvs, media_facts
from softaug.errors import UserError
from softaug.evaluation.evaluate import Episode, Task, play_episodes
from softaug.evaluation.runs import RunPolicy
from softaug.sweep.on_ray import remote, session
from softaug.sweep.supervise import POLL_SECONDS

EPISODES_PER_TASK = 5
"""Few, as a task that dies loses them all; not one, as each task makes an environment first."""
TASK_RETRIES = 3
"""for the death of a worker or its node; episodes that were lost are played again"""
QUEUED_PER_CPU = 2
"""Tasks handed to Ray ahead of time, so that no CPU waits and few weights lie in its memory."""


@dataclass(frozen=True)
class EpisodesJob:
    """Episodes of one policy."""

    policy: RunPolicy
    tasks: tuple[Task, ...]
    seed: int
    media: Mapping[str, dict[str, Any] | None]
    """what each mode shows on the driver's machine: the same is required of the nodes"""


@dataclass(frozen=True)
class Played:
    """What a Ray task came back with."""

    job: int
    """its number among the jobs"""
    episodes: tuple[Episode, ...]
    error: str = ""
    """one sentence, if they could not be played"""


def play_on_ray(
    jobs: Iterable[EpisodesJob], *, address: str | None, workers: int | None = None
) -> Generator[Played, None, None]:
    """Play every job's episodes on the cluster at `address`, or on a Ray of our own; yield them as they end.

    workers: Ray tasks at a time, each on one CPU; None: as many as the cluster has room for.
    After a job's first error its episodes that were not yet handed out are left; the other jobs continue.
    """
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1, not {workers}")
    # Ray prints what happens to its workers on standard output, which is for the result.
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stdout(sys.stderr):
            ray, _ = stack.enter_context(session(address, cpus=workers or 1))
        yield from _Queue(ray, jobs, workers).results()


def pieces(tasks: Sequence[Task]) -> list[tuple[Task, ...]]:
    """The episodes of one Ray task each: all of one mode, because each mode has an environment of its own."""
    by_mode: dict[str, list[Task]] = {}
    for task in tasks:
        by_mode.setdefault(task.mode, []).append(task)
    return [
        tuple(mine[start : start + EPISODES_PER_TASK])
        for mine in by_mode.values()
        for start in range(0, len(mine), EPISODES_PER_TASK)
    ]


def play_piece(
    policy: RunPolicy, tasks: Sequence[Task], seed: int, expected_media: dict[str, Any] | None
) -> dict[str, Any]:
    """The Ray task. Plain values out; a failure of any kind is a sentence."""
    mode = tasks[0].mode
    try:
        if (found := media_facts(policy.config, mode)) != expected_media:
            raise UserError(
                f"the media of {mode} differ between the nodes and the driver ({_kind(found)} and "
                f"{_kind(expected_media)}); register the same ones on every machine"
            )
        played = list(play_episodes(policy, ConfigEnvs(policy.config), tasks, seed))
    except UserError as error:
        return {"error": str(error)}
    except (
        Exception
    ) as error:  # drivers of graphics and files differ from node to node: whatever they raise is reported
        return {"error": f"{mode}, episodes from {tasks[0].episode}: {type(error).__name__}: {error}"}
    return {"episodes": [episode.to_json() for episode in played]}


def _kind(media: dict[str, Any] | None) -> str:
    return "none" if media is None else str(media.get("kind"))


class _Queue:
    """Hands pieces of the jobs to Ray, a bounded number ahead."""

    def __init__(self, ray: Any, jobs: Iterable[EpisodesJob], workers: int | None):
        self.ray, self.workers = ray, workers
        self.waiting = self._pieces(jobs)
        self.refs: dict[Any, int] = {}
        self.failed: set[int] = set()
        self.play = remote(ray, play_piece, retries=TASK_RETRIES, num_cpus=1)

    def results(self) -> Iterator[Played]:
        try:
            self.fill()
            while self.refs:
                done, _ = self.ray.wait(list(self.refs), timeout=POLL_SECONDS)
                for ref in done:
                    yield self.ended(ref)
                self.fill()
        finally:  # also after Ctrl-C, which leaves the rest unplayed
            for ref in self.refs:
                self.ray.cancel(ref, force=True)

    def fill(self) -> None:
        while len(self.refs) < self.room():
            try:
                number, ref = next(self.waiting)
            except StopIteration:
                return
            self.refs[ref] = number

    def room(self) -> int:
        """How many tasks may be with Ray now; a cluster may grow."""
        return self.workers or QUEUED_PER_CPU * max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def _pieces(self, jobs: Iterable[EpisodesJob]) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            policy = self.ray.put(job.policy)  # once for all its pieces; Ray drops it after the last
            for tasks in pieces(job.tasks):
                if number in self.failed:
                    break
                yield number, self.play.remote(policy, tasks, job.seed, job.media[tasks[0].mode])

    def ended(self, ref: Any) -> Played:
        number = self.refs.pop(ref)
        try:
            answer = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            answer = {"error": f"its Ray task was lost {TASK_RETRIES + 1} times ({_first_line(error)})"}
        if "error" in answer:
            self.failed.add(number)
            return Played(number, (), _first_line(answer["error"]))
        return Played(number, tuple(Episode(**values) for values in answer["episodes"]))


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
