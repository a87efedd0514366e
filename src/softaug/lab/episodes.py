"""\"Evaluate this setting\": test episodes of the current appearance in a process of their own, with progress."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.lab.agents import LabAgent
from softaug.lab.backdrops import Backdrops
from softaug.lab.processes import start_process
from softaug.lab.settings import Settings

MAX_EPISODES = 100


@dataclass(frozen=True)
class Progress:
    """Returns so far, one list for each agent."""

    returns: tuple[tuple[float, ...], ...]
    episodes: int

    @property
    def done(self) -> bool:
        return all(len(mine) == self.episodes for mine in self.returns)

    def to_json(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "done": self.done,
            "returns": [list(mine) for mine in self.returns],
            "mean": [float(np.mean(mine)) if mine else None for mine in self.returns],
            "standard_error": [standard_error(mine) for mine in self.returns],
        }


def standard_error(returns: Sequence[float]) -> float | None:
    """Of the mean; None for fewer than two returns."""
    return None if len(returns) < 2 else float(np.std(returns, ddof=1) / np.sqrt(len(returns)))


class Episodes:
    """The parent's end. The episodes are those that `softaug eval` plays in the mode with this seed."""

    def __init__(
        self,
        agents: Sequence[LabAgent],
        settings: Settings,
        folder: Path,
        episodes: int,
        webcam: bytes | None = None,
    ) -> None:
        if isinstance(episodes, bool) or not isinstance(episodes, int) or not 1 <= episodes <= MAX_EPISODES:
            raise UserError(f"the number of episodes must be from 1 to {MAX_EPISODES}, not {episodes}")
        self.settings = settings
        self._connection, self._process = start_process(
            _play, tuple(agents), settings, folder, episodes, webcam
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def next(self) -> Progress | None:
        """Wait for the next episode; None when there will be no more."""
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            self._connection.close()
            return None
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        """End the process, also in the middle of an episode; may be called twice."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _play(
    connection: Connection,
    agents: Sequence[LabAgent],
    settings: Settings,
    folder: Path,
    episodes: int,
    webcam: bytes | None,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)  # what is watched goes first
    from softaug.evaluation.evaluate import play_episodes, tasks_of
    from softaug.lab.worlds import LiveEnvs

    try:
        players = []
        for agent in agents:
            backdrops = Backdrops(folder, agent.config.videos)
            if webcam is not None:
                backdrops.take_webcam(webcam)
            envs = LiveEnvs(agent.config, settings, backdrops)
            players.append(
                play_episodes(agent.make_policy, envs, tasks_of([settings.mode], episodes), settings.seed)
            )
        returns: list[tuple[float, ...]] = [() for _ in agents]
        connection.send(Progress(tuple(returns), episodes))
        for _ in range(episodes):  # in turn, so that their means can be compared at any time
            for index, player in enumerate(players):
                returns[index] = (*returns[index], next(player).total)
                connection.send(Progress(tuple(returns), episodes))
    except (BrokenPipeError, ConnectionResetError):
        pass
    except UserError as error:
        connection.send(error)
    except Exception:
        connection.send(RuntimeError(traceback.format_exc()))
