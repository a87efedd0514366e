"""One page's agents: the settings they share, and one decision of all of them after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softaug.errors import UserError
from softaug.lab.agents import LabAgent
from softaug.lab.live_env import Push
from softaug.lab.settings import MAX_SEED, Settings
from softaug.lab.worker import AgentLost, Answer, Ready, Request, Step, Worker
from softaug.lab.worlds import Place, place_from_text, place_to_text


@dataclass(frozen=True)
class Snapshot:
    """All agents after a tick."""

    number: int
    settings: Settings
    answers: tuple[Answer, ...]
    stepped: bool
    change: int
    """Number of the page's last message that is shown here."""


@dataclass
class _Wishes:
    """What the page has asked for since the last tick."""

    changes: dict[str, Any] = field(default_factory=dict)
    reset: bool = False
    step: bool = False
    webcam: bytes | None = None
    places: Sequence[Place] | None = None
    number: int = 0
    """Of the page's last message with one."""


class Session:
    """Not to be ticked by two threads at once; everything else may be called from any thread."""

    def __init__(self, agents: Sequence[LabAgent], folder: Path, query: str = "", places: str = "") -> None:
        """query: the settings of a link; places: where its episodes are, one text for each agent."""
        self.agents = tuple(agents)
        # A link is a wish, too: one that cannot be shown here leaves the training appearance.
        self.settings = Settings()
        self._lock = threading.Lock()
        self._wishes = _Wishes(Settings.from_query(query).to_json(), reset=True)
        if places:
            found = [place_from_text(text) for text in places.split("~")]
            if len(found) != len(self.agents):
                raise UserError(
                    f"this link is of {len(found)} agents, and here are {len(self.agents)}; start the lab with those"
                )
            self._wishes.places = found
        self._pushes: dict[int, Push] = {}
        self._unused: set[int] = set()
        self._released: set[int] = set()
        """Agents whose push no decision has felt yet, and those of them for which it ends then."""
        self._answers: tuple[Answer, ...] = ()
        self._number = self.change_number = 0
        self._folder = folder
        self._workers: list[Worker] = []
        self._closed = False
        self.ready: tuple[Ready, ...] = ()

    def start(self) -> tuple[Ready, ...]:
        """Start the agents' processes, and wait for them."""
        for agent in self.agents:
            with self._lock:
                if self._closed:
                    raise AgentLost("the page is closed")
                self._workers.append(Worker(agent, self._folder))
        self.ready = tuple(worker.receive() for worker in self._workers)
        return self.ready

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def over(self) -> bool:
        """Whether every agent's episode has ended."""
        return bool(self._answers) and all(answer.over for answer in self._answers)

    @property
    def decisions_per_second(self) -> float:
        """At the chosen speed."""
        return min(ready.decisions_per_second for ready in self.ready) * self.settings.speed

    # Wishes.

    def change(self, changes: Mapping[str, Any]) -> None:
        """Settings for the next tick; wrong ones are refused at once."""
        with self._lock:
            wanted = {**self._wishes.changes, **changes}
            self.settings.with_changes(wanted)
            self._wishes.changes = wanted

    def reset(self) -> None:
        with self._lock:
            self._wishes.reset = True

    def step_once(self) -> None:
        with self._lock:
            self._wishes.step = True

    def take_webcam(self, content: bytes) -> None:
        """Only the newest image counts."""
        with self._lock:
            self._wishes.webcam = content

    def heard(self, number: int) -> None:
        """The page's messages up to this number have been heard: the next snapshot says that it shows them."""
        with self._lock:
            self._wishes.number = max(self._wishes.number, number)

    def push(self, agent: int, push: Push | None) -> None:
        """From the next decision on, until it is None, but for one decision at least. In the same states, every agent
        is pushed.
        """
        with self._lock:
            for index in range(len(self.agents)) if self.settings.states == "same" else [agent]:
                if push is None and index in self._unused:
                    self._released.add(index)
                elif push is None:
                    self._pushes.pop(index, None)
                elif 0 <= index < len(self.agents):
                    if index not in self._pushes:
                        self._unused.add(index)
                    self._pushes[index] = push
                    self._released.discard(index)

    @property
    def wanted(self) -> bool:
        """Whether something has been asked for that a tick would show."""
        with self._lock:
            return self._wishes != _Wishes()

    # Ticks.

    def tick(self, *, step: bool) -> Snapshot:
        """With `step` make a decision; then do what was asked for, also meanwhile, and show it.

        After an error the settings are as before, but paused if nothing was asked for: the next tick would fail again.
        """
        over, stepped = self.over, False
        if step and self._answers and not over:
            with self._paused_by_errors():
                self._step_all()
            stepped = True
        with self._lock:
            wishes, self._wishes = self._wishes, _Wishes()
            self.change_number = max(self.change_number, wishes.number)
        once = wishes.step and bool(self._answers)
        before, settings = self.settings, self.settings.with_changes(wishes.changes)
        reset = wishes.reset
        if over and (step or once):  # the next episode
            settings = dataclasses.replace(settings, seed=(settings.seed + 1) % (MAX_SEED + 1))
            once, reset = False, True
        places: Sequence[Place | None] = wishes.places or [None] * len(self.agents)
        if settings.states == "same" and before.states == "own" and self._answers and not reset:
            places = self._places_of_first(before)
        steps: Sequence[Step | None] = self._steps() if once else [None] * len(self.agents)
        requests = [
            Request(settings, wishes.webcam, reset, place, mine)
            for place, mine in zip(places, steps, strict=True)
        ]
        asked = wishes != _Wishes()
        with contextlib.nullcontext() if asked else self._paused_by_errors():
            in_turn = once and settings.states == "same"
            self._answers = self._ask_in_turn(requests) if in_turn else self._ask(requests)
        self.settings = settings
        self._number += 1
        return Snapshot(self._number, settings, self._answers, stepped or once, self.change_number)

    def links(self) -> tuple[str, str]:
        """Settings and places of what is shown now, as a link has them: paused, so that it shows the same."""
        settings = dataclasses.replace(self.settings, paused=True)
        answers = self._ask([Request(self.settings, want_place=True)] * len(self.agents))
        places = [place_to_text(answer.place) for answer in answers if answer.place is not None]
        return settings.to_query(), "~".join(places)

    def close(self) -> None:
        """End the processes, also while they start; may be called twice."""
        with self._lock:
            self._closed = True
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.close()

    @contextlib.contextmanager
    def _paused_by_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            self.settings = dataclasses.replace(self.settings, paused=True)
            raise

    def _places_of_first(self, settings: Settings) -> list[Place | None]:
        """Where the first agent is, for all the others."""
        self._workers[0].send(Request(settings, want_place=True))
        place = self._workers[0].receive().place
        if place is None:
            raise UserError(
                "this environment cannot be put into another agent's state; reset it to begin alike"
            )
        return [None, *[place] * (len(self._workers) - 1)]

    def _steps(self) -> list[Step]:
        """A decision of each agent, pushed as the page wants it now."""
        with self._lock:
            steps = [Step(self._pushes.get(index)) for index in range(len(self.agents))]
            for index in self._released:
                del self._pushes[index]
            self._released.clear()
            self._unused.clear()
        return steps

    def _step_all(self) -> None:
        """A decision of every agent; without images, so that these show what is asked for while it is made."""
        steps = self._steps()
        if self.settings.states == "own":
            self._ask(steps)
            return
        (first,) = self._ask(steps[:1], self._workers[:1])
        self._ask([dataclasses.replace(step, action=first.taken) for step in steps[1:]], self._workers[1:])

    def _ask_in_turn(self, requests: Sequence[Request]) -> tuple[Answer, ...]:
        """The first agent, and then the others with its action."""
        (first,) = self._ask(requests[:1], self._workers[:1])
        followers = [
            dataclasses.replace(
                request, step=request.step and dataclasses.replace(request.step, action=first.taken)
            )
            for request in requests[1:]
        ]
        return (first, *self._ask(followers, self._workers[1:]))

    def _ask(
        self, requests: Sequence[Request | Step], workers: Sequence[Worker] | None = None
    ) -> tuple[Any, ...]:
        """All at once, `Answer` or `Stepped`; every answer is waited for, also after an error, so that the next one belongs to its request."""
        workers = self._workers if workers is None else workers
        for worker, request in zip(workers, requests, strict=True):
            worker.send(request)
        answers: list[Any] = []
        errors: list[Exception] = []
        for worker in workers:
            try:
                answers.append(worker.receive())
            except (UserError, RuntimeError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return tuple(answers)
