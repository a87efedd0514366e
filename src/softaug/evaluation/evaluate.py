"""Evaluation: a policy plays episodes in each mode, in this process or in several, with the same results.

Episode e of a mode is a function of (seed, mode, e) alone: its seeds are derived from these, the environment is
reset with them, and inference runs on one torch thread. So the returns depend neither on the number of workers nor
on the order in which they finish, and no random generator of the caller is touched.

    evaluate(RunPolicy(config, weights), ConfigEnvs(config), ["train", "video_hard"], episodes=10, seed=0, workers=2)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import random
import signal
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.evaluation.policy import Policy, PolicyFailed, PolicyFault
from softaug.evaluation.recording import Recorder
from softaug.interrupt import ctrl_c_left_to_parent, how_it_ended

EnvFactory = Callable[[str, int], gymnasium.Env]
"""(mode, seed) -> an environment; picklable if there are several workers."""


@dataclass(frozen=True)
class Task:
    """One episode to play."""

    mode: str
    episode: int

    def seeds(self, seed: int) -> tuple[int, int]:
        """The environment's and the policy's seed of this episode, the same on every machine."""
        if seed < 0:
            raise UserError(f"the seed must be at least 0, not {seed}")
        state = np.random.SeedSequence([seed, zlib.crc32(self.mode.encode()), self.episode]).generate_state(2)
        return int(state[0]), int(state[1])


@dataclass(frozen=True)
class Episode:
    """What came of it: `total` is the return, `info` what the environment said of the episode's appearance (as JSON)."""

    mode: str
    episode: int
    total: float
    decisions: int
    frames: int
    media: str | None
    info: dict[str, Any]
    gl_renderer: str | None = None
    """What rendered it (GL_RENDERER); None if the environment does not say."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def evaluate(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    modes: Sequence[str],
    episodes: int,
    seed: int,
    *,
    workers: int = 1,
    video_dir: Path | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Play `episodes` episodes in each of `modes`; the result is JSON (see `summarize`).

    make_policy, env_factory: called once in each process, the latter once per mode.
    workers: processes that share the episodes; 1 plays in this one.
    video_dir: where to write each mode's first episode as {mode}.mp4.
    progress: called with (mode, episode, return) after each episode, in the order in which they end.
    """
    played = []
    todo = tasks_of(modes, episodes)
    with contextlib.closing(
        play_episodes(make_policy, env_factory, todo, seed, workers=workers, video_dir=video_dir)
    ) as episodes_played:
        for episode in episodes_played:
            played.append(episode)
            if progress is not None:
                progress(episode.mode, episode.episode, episode.total)
    return summarize(played, modes)


def tasks_of(modes: Sequence[str], episodes: int) -> list[Task]:
    """Every episode to play, mode by mode."""
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, not {episodes}")
    if not modes or len(set(modes)) < len(modes):
        raise UserError(f"give at least one mode, and each mode once, not {list(modes)}")
    return [Task(mode, episode) for mode in modes for episode in range(episodes)]


def summarize(played: Sequence[Episode], modes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Per mode, in episode order: `returns`, their `mean` and (population) `std`, the number of `episodes`, all their
    `decisions` and `frames` together, where the `media` came from (None: none needed), and `episode_info`.
    """
    results = {}
    for mode in modes:
        mine = sorted((e for e in played if e.mode == mode), key=lambda e: e.episode)
        returns = [e.total for e in mine]
        results[mode] = {
            "returns": returns,
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "episodes": len(mine),
            "decisions": sum(e.decisions for e in mine),
            "frames": sum(e.frames for e in mine),
            "media": mine[0].media,
            "episode_info": [e.info for e in mine],
        }
    return results


def play_episodes(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    tasks: Sequence[Task],
    seed: int,
    *,
    workers: int = 1,
    video_dir: Path | None = None,
) -> Generator[Episode, None, None]:
    """Play `tasks` and yield each episode as it ends (with several workers, not in order)."""
    if workers < 1:
        raise UserError(f"workers must be at least 1, not {workers}")
    if workers == 1 or len(tasks) == 1:
        return _play_here(make_policy, env_factory, tasks, seed, video_dir)
    return _play_in_workers(make_policy, env_factory, tasks, seed, video_dir, min(workers, len(tasks)))


class _Player:
    """A policy and one environment per mode, kept between episodes."""

    def __init__(
        self, make_policy: Callable[[], Policy], env_factory: EnvFactory, seed: int, video_dir: Path | None
    ):
        self.policy = make_policy()
        self.env_factory, self.seed, self.video_dir = env_factory, seed, video_dir
        self.envs: dict[str, gymnasium.Env] = {}

    def play(self, task: Task) -> Episode:
        try:
            return self._play(task)
        except PolicyFault as fault:
            raise PolicyFailed(f"{fault} in {task.mode}, episode {task.episode}") from fault

    def _play(self, task: Task) -> Episode:
        if task.mode not in self.envs:
            self.envs[task.mode] = self.env_factory(task.mode, self.seed)
        env, policy = self.envs[task.mode], self.policy
        env_seed, policy_seed = task.seeds(self.seed)
        frames_per_decision = getattr(env.unwrapped, "action_repeat", 1)
        with contextlib.ExitStack() as stack:
            recorder = None
            if self.video_dir is not None and task.episode == 0:
                path = self.video_dir / f"{task.mode}.mp4"
                recorder = stack.enter_context(Recorder(path, fps=env.metadata.get("render_fps") or 25))
            obs, info = env.reset(seed=env_seed, options={"episode": task.episode})
            policy.begin_episode(policy_seed)
            if recorder is not None:
                recorder.add(newest_frame(obs))
            total, decisions, frames, over = 0.0, 0, 0, False
            while not over:
                action = policy.act(obs)
                next_obs, reward, terminated, truncated, step_info = env.step(action)
                over = bool(terminated or truncated)
                policy.observe(obs, action, next_obs)
                obs = next_obs
                total += float(reward)
                decisions += 1
                frames += int(step_info.get("frames", frames_per_decision))
                if recorder is not None:
                    recorder.add(newest_frame(obs))
        renderer = getattr(env.unwrapped, "gl_renderer", None)
        appearance = {key: _as_json(value) for key, value in info.items() if key not in ("media", "episode")}
        return Episode(
            task.mode, task.episode, total, decisions, frames, info.get("media"), appearance, renderer
        )

    def close(self) -> None:
        for env in self.envs.values():
            env.close()


def _play_here(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    tasks: Sequence[Task],
    seed: int,
    video_dir: Path | None,
) -> Generator[Episode, None, None]:
    with callers_state_kept():
        player = _Player(make_policy, env_factory, seed, video_dir)
    try:
        for task in tasks:
            with callers_state_kept():
                episode = player.play(task)
            yield episode
    finally:
        player.close()


@contextlib.contextmanager
def callers_state_kept() -> Iterator[None]:
    """One torch thread inside; afterwards the thread count and the global generators are as they were.

    Nothing in softaug draws from the global generators, but an environment or a policy of the user's may.
    """
    threads, python_state, numpy_state = torch.get_num_threads(), random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


class _WorkerContext(SpawnContext):
    """Spawned processes, because a fork would copy torch's threads and locks, and a GL context that does not survive
    it. The processes are kept: an executor can neither kill them nor say how they ended."""

    def __init__(self) -> None:
        self.workers: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        self.workers.append(SpawnProcess(*args, **kwargs))
        return self.workers[-1]


def _play_in_workers(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    tasks: Sequence[Task],
    seed: int,
    video_dir: Path | None,
    workers: int,
) -> Generator[Episode, None, None]:
    context = _WorkerContext()
    executor = ProcessPoolExecutor(workers, context, _begin_work, (make_policy, env_factory, seed, video_dir))
    waiting, playing = iter(tasks), dict[Future[Episode], Task]()

    def hand_out(count: int) -> None:
        with ctrl_c_left_to_parent():  # this is where the executor starts its processes
            for task in itertools.islice(waiting, count):
                playing[executor.submit(_work, task)] = task

    try:
        hand_out(workers)
        while playing:
            for future in wait(playing, return_when=FIRST_COMPLETED).done:
                episode = _answer(future, playing[future])
                del playing[future]
                hand_out(1)
                yield episode
        executor.shutdown()  # the workers close their environments
    except BrokenProcessPool:
        executor.shutdown()
        raise _death(context.workers, playing.values()) from None
    finally:
        for process in context.workers:  # one in the middle of an episode (error, Ctrl-C) is not waited for
            if process.is_alive():
                process.kill()
        executor.shutdown()


def _answer(future: Future[Episode], task: Task) -> Episode:
    try:
        return future.result()
    except (UserError, BrokenProcessPool):
        raise
    except Exception as error:  # its cause is the worker's traceback, as text
        raise RuntimeError(
            f"an evaluation worker failed in {task.mode}, episode {task.episode}:\n{error.__cause__ or error}"
        ) from None


def _death(workers: Iterable[SpawnProcess], playing: Iterable[Task]) -> UserError:
    """What is said when a worker died. The executor has ended the others with SIGTERM."""
    codes = [process.exitcode for process in workers]
    code = next((code for code in codes if code not in (0, -signal.SIGTERM)), -signal.SIGTERM)
    episodes = ", ".join(f"{task.mode} {task.episode}" for task in playing)
    return UserError(
        f"an evaluation worker ended unexpectedly ({how_it_ended(code)}) while these episodes were played: {episodes}; "
        "use fewer workers if memory ran out, and if you call softaug from a script, do it under "
        "`if __name__ == '__main__':`"
    )


_player: Callable[[], _Player]
"""In a worker: makes its player with the first episode, so that an error in that is the episode's error."""


def _begin_work(*arguments: Any) -> None:
    """A worker's start."""
    global _player
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)

    @functools.cache
    def player() -> _Player:
        made = _Player(*arguments)
        multiprocessing.util.Finalize(made, made.close, exitpriority=10)
        return made

    _player = player


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and they would wait for its next episode for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(task: Task) -> Episode:
    return _player().play(task)


def _as_json(value: Any) -> Any:
    """Arrays as lists, so that an episode's facts can be written as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
