"""Evaluation: a policy plays episodes in each mode, in this process or in several, with the same results.

Episode e of a mode is a function of (seed, mode, e) alone: its seeds are derived from these, the environment is
reset with them, and inference runs on one torch thread. So the returns depend neither on the number of workers nor
on the order in which they finish, and no random generator of the caller is touched.

    evaluate(RunPolicy(config, weights), ConfigEnvs(config), ["train", "video_hard"], episodes=10, seed=0, workers=2)
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import random
import signal
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.evaluation.policy import Policy
from softaug.evaluation.recording import Recorder
from softaug.interrupt import ctrl_c_left_to_parent, how_it_ended

EnvFactory = Callable[[str, int], gymnasium.Env]
"""(mode, seed) -> an environment; picklable if there are several workers."""

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Task:
    """One episode to play."""

    mode: str
    episode: int

    def seeds(self, seed: int) -> tuple[int, int]:
        """The environment's and the policy's seed of this episode, the same on every machine."""
        state = np.random.SeedSequence([seed, zlib.crc32(self.mode.encode()), self.episode]).generate_state(2)
        return int(state[0]), int(state[1])


@dataclass(frozen=True)
class Episode:
    """What came of it: `total` is the return, `info` what the environment said of the episode's look (as JSON)."""

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
    """Play `episodes` episodes in each of `modes`; the result is JSON (see `summarise`).

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
    return summarise(played, modes)


def tasks_of(modes: Sequence[str], episodes: int) -> list[Task]:
    """Every episode to play, mode by mode."""
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, not {episodes}")
    if not modes or len(set(modes)) < len(modes):
        raise UserError(f"give at least one mode, and each mode once, not {list(modes)}")
    return [Task(mode, episode) for mode in modes for episode in range(episodes)]


def summarise(played: Sequence[Episode], modes: Sequence[str]) -> dict[str, dict[str, Any]]:
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
        look = {key: _as_json(value) for key, value in info.items() if key not in ("media", "episode")}
        return Episode(task.mode, task.episode, total, decisions, frames, info.get("media"), look, renderer)

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
    with _callers_state_kept():
        player = _Player(make_policy, env_factory, seed, video_dir)
    try:
        for task in tasks:
            with _callers_state_kept():
                episode = player.play(task)
            yield episode
    finally:
        player.close()


@contextlib.contextmanager
def _callers_state_kept() -> Iterator[None]:
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


def _play_in_workers(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    tasks: Sequence[Task],
    seed: int,
    video_dir: Path | None,
    workers: int,
) -> Generator[Episode, None, None]:
    waiting = deque(tasks)
    busy: dict[multiprocessing.connection.Connection, tuple[Any, Task]] = {}
    processes = []
    # "spawn": a fork would copy torch's threads and locks, and a GL context that does not survive it.
    context = multiprocessing.get_context("spawn")
    try:
        for _ in range(workers):
            connection, child_end = context.Pipe()
            process = context.Process(
                target=_work,
                args=(make_policy, env_factory, seed, video_dir, child_end),
                name="softaug-evaluation",
                daemon=True,
            )
            with ctrl_c_left_to_parent():
                process.start()
                processes.append((process, connection))
                busy[connection] = (process, waiting.popleft())
            child_end.close()  # only the child holds it now, so its death shows as end-of-file here
            _send(*busy[connection], connection)
        while busy:
            for ready in multiprocessing.connection.wait(list(busy)):
                connection = ready  # type: ignore[assignment]
                process, task = busy.pop(connection)
                episode = _answer(process, task, connection)
                if waiting:
                    busy[connection] = (process, waiting.popleft())
                    _send(*busy[connection], connection)
                yield episode
    finally:
        for _, connection in processes:
            connection.close()  # idle workers see end-of-file and leave
        for process, connection in processes:
            # A worker in the middle of an episode (after an error or Ctrl-C) is not waited for.
            if connection not in busy:
                process.join(CLOSE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _send(process: Any, task: Task, connection: multiprocessing.connection.Connection) -> None:
    try:
        connection.send(task)
    except (BrokenPipeError, ConnectionResetError):
        raise _death(process, task) from None


def _answer(process: Any, task: Task, connection: multiprocessing.connection.Connection) -> Episode:
    try:
        kind, value = connection.recv()
    except (EOFError, ConnectionResetError):
        raise _death(process, task) from None
    if kind == "user_error":
        raise UserError(value)
    if kind == "error":
        raise RuntimeError(f"an evaluation worker failed in {task.mode}, episode {task.episode}:\n{value}")
    return value


def _death(process: Any, task: Task) -> UserError:
    process.join(CLOSE_SECONDS)
    return UserError(
        f"an evaluation worker ended unexpectedly ({how_it_ended(process.exitcode)}) in {task.mode}, episode "
        f"{task.episode}; use fewer workers if memory ran out, and if you call softaug from a script, do it under "
        "`if __name__ == '__main__':`"
    )


def _work(
    make_policy: Callable[[], Policy],
    env_factory: EnvFactory,
    seed: int,
    video_dir: Path | None,
    connection: multiprocessing.connection.Connection,
) -> None:
    """A worker: play the tasks that arrive until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    player: _Player | None = None
    try:
        while True:
            task = connection.recv()
            player = player or _Player(make_policy, env_factory, seed, video_dir)
            connection.send(("episode", player.play(task)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the usual end
    except UserError as error:
        connection.send(("user_error", str(error)))
    except Exception:
        connection.send(("error", traceback.format_exc()))
    finally:
        if player is not None:
            player.close()


def _as_json(value: Any) -> Any:
    """Arrays as lists, so that an episode's facts can be written as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
