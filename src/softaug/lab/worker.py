"""One agent of one page in its own process: it answers each request with the images and numbers of its world."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.interrupt import how_it_ended
from softaug.lab.agents import LabAgent
from softaug.lab.backdrops import Backdrops
from softaug.lab.live_env import Push
from softaug.lab.processes import return_free_memory, start_process
from softaug.lab.settings import Settings
from softaug.lab.worlds import Place, World

ANSWER_SECONDS = 120.0
"""A worker that has not answered by then is ended."""


@dataclass(frozen=True)
class Ready:
    """What a worker says first."""

    controls: tuple[str, ...]
    modes: tuple[str, ...]
    decisions_per_second: float
    action_dims: int
    seen_size: int
    """Side of what the agent sees, in pixels."""
    pid: int


@dataclass(frozen=True)
class Step:
    """One decision in the appearance that was shown last; answered by `Stepped`, without images."""

    push: Push | None = None
    action: np.ndarray | None = None
    """Of another agent, to be taken instead of the own one (same states)."""


@dataclass(frozen=True)
class Stepped:
    """What a `Step` did."""

    taken: np.ndarray | None
    """The last action of this episode."""


@dataclass(frozen=True)
class Request:
    """What to do before the next answer, in this order."""

    settings: Settings
    webcam: bytes | None = None
    reset: bool = False
    place: Place | None = None
    """Where to go after the reset."""
    step: Step | None = None
    want_place: bool = False


@dataclass(frozen=True)
class Answer:
    """The state after a request."""

    scene: bytes
    """JPEG."""
    seen: bytes
    """PNG."""
    frame_hash: str
    """Of both images' pixels, before they were encoded."""
    decisions: int
    reward: float
    total: float
    over: bool
    action: np.ndarray
    """What the agent would do next."""
    taken: np.ndarray | None
    """The last action of this episode, the agent's own or a given one."""
    distances: dict[str, Any] | None
    pushed: bool
    """False: at the last decision there was nothing to push."""
    place: Place | None = None


class LiveAgent:
    """A world and a mind, without the process around them."""

    def __init__(self, agent: LabAgent, backdrops: Backdrops) -> None:
        from softaug.lab.minds import Mind
        from softaug.lab.worlds import make_world

        self._name, self._backdrops = agent.name, backdrops
        self._world: World = make_world(agent.config, backdrops)
        self._mind = Mind(agent.make_policy())
        self._settings: Settings | None = None
        self._seed: int | None = None
        self._decisions, self._reward, self._total, self._over = 0, 0.0, 0.0, False
        self._action = np.zeros(0, np.float32)
        self._taken: np.ndarray | None = None
        self._pushed = True
        self._frame_size = agent.config.image_size
        self._replaced = False

    def ready(self) -> Ready:
        self._begin(Settings())
        return Ready(
            self._world.controls,
            self._world.modes,
            self._world.decisions_per_second,
            len(self._action),
            self._mind.crop_size or self._frame_size,
            os.getpid(),
        )

    def answer(self, request: Request) -> Answer:
        if request.webcam is not None:
            self._backdrops.take_webcam(request.webcam)
        self._prepare(request)
        if request.step is not None:
            self.step(request.step)
        return self._state(request)

    def tidy(self) -> None:
        """To be called after each answer: return the memory of environments and videos that it has replaced."""
        if self._replaced:
            self._replaced = False
            return_free_memory()

    def step(self, step: Step) -> Stepped:
        """Nothing if the episode is over."""
        self._pushed = self._world.push(step.push)
        if not self._over:
            self._step(step.action)
        return Stepped(self._taken)

    def close(self) -> None:
        self._world.close()

    def _prepare(self, request: Request) -> None:
        settings = request.settings
        changed = self._settings is None or settings.appearance() != self._settings.appearance()
        anew = request.reset or settings.seed != self._seed
        if changed or request.webcam is not None:
            anew = self._world.apply(settings) or anew
        if anew:
            self._begin(settings)
        if anew or self._settings is None or _opened_by(settings) != _opened_by(self._settings):
            self._replaced = True
        self._settings = settings
        if request.place is not None:
            self._world.go_to(request.place)
            self._decisions, self._total = (
                int(request.place["decisions"]),
                float(request.place.get("total", 0.0)),
            )
        if changed or request.place is not None or request.webcam is not None:
            self._action = self._decide(self._world.obs())

    def _begin(self, settings: Settings) -> None:
        self._world.reset(settings.seed)
        self._mind.begin_episode(settings.seed)
        self._seed = settings.seed
        self._decisions, self._reward, self._total, self._over = 0, 0.0, 0.0, False
        self._taken, self._pushed = None, True
        self._action = self._decide(self._world.obs())

    def _step(self, given: np.ndarray | None) -> None:
        action = self._action if given is None else given
        obs = self._world.obs()
        self._reward, self._over = self._world.step(action)
        self._taken = action
        self._total += self._reward
        self._decisions += 1
        next_obs = self._world.obs()
        self._mind.observe(obs, action, next_obs)
        self._action = self._decide(next_obs)

    def _decide(self, obs: np.ndarray) -> np.ndarray:
        """What the agent would do now."""
        action = self._mind.act(obs)
        if not np.isfinite(action).all():
            raise UserError(
                f"{self._name} answered what it sees with the action {np.array2string(action, threshold=8)}; "
                "reset it, or choose another appearance"
            )
        return action

    def _state(self, request: Request) -> Answer:
        from softaug.lab.minds import crop, encoded_image

        obs = self._world.obs()
        scene, seen = self._world.scene(), crop(newest_frame(obs), self._mind.crop_size)
        frame_hash = hashlib.sha256(scene.tobytes() + seen.tobytes()).hexdigest()[:16]
        if request.settings.saliency:
            heat = self._mind.saliency(obs)
            seen = seen if heat is None else crop(heat, self._mind.crop_size)
        distances = self._mind.distances(obs, self._world.training_obs())
        place = self._world.place() if request.want_place else None
        return Answer(
            scene=encoded_image(scene, "JPEG"),
            seen=encoded_image(seen, "PNG"),
            frame_hash=frame_hash,
            decisions=self._decisions,
            reward=self._reward,
            total=self._total,
            over=self._over,
            action=self._action,
            taken=self._taken,
            distances=None if distances is None else distances.to_json(),
            pushed=self._pushed,
            place=None if place is None else {**place, "total": self._total},
        )


def _opened_by(settings: Settings) -> tuple[Any, ...]:
    """The settings for which an environment or a video is opened."""
    return settings.mode, settings.background, settings.video, settings.upload


class AgentLost(UserError):
    """An agent's process has ended or does not answer; nothing more can be asked of its page's agents."""


class Worker:
    """The parent's end of an agent's process."""

    def __init__(self, agent: LabAgent, folder: Path) -> None:
        self.name = agent.name
        backdrops = Backdrops(folder, agent.config.videos)
        self._connection, self._process = start_process(_work, agent, backdrops)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, request: Request | Step) -> None:
        try:
            self._connection.send(request)
        except OSError:
            raise self._gone() from None

    def receive(self) -> Any:
        """`Ready` at first, then an `Answer` for each `Request` and a `Stepped` for each `Step`."""
        try:
            answer = self._connection.recv() if self._connection.poll(ANSWER_SECONDS) else None
        except (EOFError, OSError):
            raise self._gone() from None
        if answer is None:
            self.close()
            raise AgentLost(f"{self.name} did not answer for {ANSWER_SECONDS:.0f} s; reload the page")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Tell the process to end, without waiting. Whoever waits for its answer hears of its end."""
        if self._process.is_alive():
            self._process.terminate()

    def close(self) -> None:
        """End the process; may be called twice."""
        self.end()
        self._process.join(2.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        # Not before its end, of which a thread that waits here hears; closing what it waits at has no defined effect.
        self._connection.close()

    def _gone(self) -> AgentLost:
        self._process.join(2.0)
        return AgentLost(
            f"the process of {self.name} ended unexpectedly ({how_it_ended(self._process.exitcode)}); reload the page"
        )


def _work(connection: Connection, agent: LabAgent, backdrops: Backdrops) -> None:
    """The child's side. A `UserError` is an answer; anything else ends the process, with its traceback as the last one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    try:
        mine = LiveAgent(agent, backdrops)
        connection.send(mine.ready())
        while True:
            request = connection.recv()
            try:
                connection.send(mine.step(request) if isinstance(request, Step) else mine.answer(request))
            except UserError as error:
                connection.send(error)
            mine.tidy()  # only now, as it takes time that nobody has to wait for
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the page is closed
    except UserError as error:
        connection.send(error)
    except Exception:
        connection.send(RuntimeError(f"the agent {agent.name} failed:\n{traceback.format_exc()}"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
