"""A page without processes and images: in which order it does what it is asked for, and what it never piles up."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lab_agents import tiny_lab_agent

from softaug.errors import UserError
from softaug.lab import page as page_module
from softaug.lab import recordings
from softaug.lab import session as session_module
from softaug.lab.live_env import Push
from softaug.lab.page import Page
from softaug.lab.recordings import VIDEO_FILE
from softaug.lab.session import Session
from softaug.lab.settings import Settings
from softaug.lab.worker import Answer, Ready, Request, Step, Stepped


class FakeWorker:
    """An agent that counts its decisions and shows nothing."""

    pid = None

    def __init__(self, *_: Any) -> None:
        self.asked: list[Request | Step] = []
        self.decisions = 0
        self._answers: list[Any] = [Ready(("hue", "roll"), ("train",), 1000.0, 1, 8, 0)]

    def send(self, request: Request | Step) -> None:
        self.asked.append(request)
        step = request if isinstance(request, Step) else request.step
        if isinstance(request, Request) and request.reset:
            self.decisions = 0
        self.decisions += step is not None
        if isinstance(request, Step):
            self._answers.append(Stepped(np.full(1, self.decisions)))
        else:
            zero = np.zeros(1)
            self._answers.append(
                Answer(b"", b"", "", self.decisions, 0.0, 0.0, False, zero, zero, None, True)
            )

    def receive(self) -> Any:
        return self._answers.pop(0)

    def end(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    """Of two agents, started and shown once."""
    monkeypatch.setattr(session_module, "Worker", FakeWorker)
    made = Session([tiny_lab_agent(seed=0), tiny_lab_agent(seed=1)], tmp_path)
    made.start()
    made.tick(step=False)
    return made


def test_what_is_asked_for_during_a_decision_is_shown_by_the_same_tick(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_decisions = session._step_all

    def interrupted() -> None:
        make_decisions()
        session.change({"hue": 40.0})
        session.heard(7)

    monkeypatch.setattr(session, "_step_all", interrupted)
    snapshot = session.tick(step=True)
    assert snapshot.stepped
    assert (snapshot.settings.hue, snapshot.change) == (40.0, 7)
    assert [answer.decisions for answer in snapshot.answers] == [1, 1]


def test_a_single_step_comes_after_what_was_asked_for_before_it(session: Session) -> None:
    session.tick(step=True)
    session.change({"roll": 30.0})
    session.reset()
    session.step_once()
    snapshot = session.tick(step=False)
    assert [answer.decisions for answer in snapshot.answers] == [1, 1]
    request = session._workers[0].asked[-1]
    assert isinstance(request, Request)
    assert request.settings.roll == 30.0
    assert request.step is not None


def test_in_the_same_states_the_others_take_the_first_ones_action(session: Session) -> None:
    session.settings = Settings(states="same")
    session.tick(step=True)
    session.step_once()
    session.tick(step=False)
    first, second = (worker.asked[-3:] for worker in session._workers)
    assert isinstance(first[0], Step) and first[0].action is None
    assert isinstance(second[0], Step) and second[0].action == 1
    assert isinstance(second[2], Request) and second[2].step is not None
    assert second[2].step.action == 0  # what the first one answered to the same request


def test_a_push_is_felt_by_one_decision_at_least_and_ends_with_the_release(session: Session) -> None:
    def pushes() -> list[Push | None]:
        session.tick(step=True)
        steps = [worker.asked[-2] for worker in session._workers]
        return [step.push for step in steps if isinstance(step, Step)]

    push = Push(0.5, 0.5, 0.1, 0.0)
    session.push(1, push)
    session.push(1, None)  # a click, between two decisions
    assert pushes() == [None, push]
    assert pushes() == [None, None]
    session.push(0, push)
    assert pushes() == [push, None]
    assert pushes() == [push, None]
    session.push(0, None)
    assert pushes() == [None, None]
    for agent in (-1, 2, 10**6):
        session.push(agent, push)
        session.push(agent, None)
    assert pushes() == [None, None]


def test_an_error_of_a_decision_is_raised_once_and_pauses(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the page would say it again at every tick."""

    def fail() -> None:
        raise UserError("no action")

    with monkeypatch.context() as patch:
        patch.setattr(session, "_step_all", fail)
        with pytest.raises(UserError, match="no action"):
            session.tick(step=True)
    assert session.settings == Settings(paused=True)
    session.change({"paused": False})
    assert not session.tick(step=False).settings.paused


class FakeSocket:
    """Sends nothing once it is `full`, as to a page that does not read."""

    def __init__(self) -> None:
        self.texts: list[dict[str, Any]] = []
        self.frames = 0
        self.full = False

    async def send_text(self, data: str) -> None:
        await self._room()
        self.texts.append(json.loads(data))

    async def send_bytes(self, data: bytes) -> None:
        await self._room()
        self.frames += 1

    async def _room(self) -> None:
        while self.full:
            await asyncio.sleep(0.01)


def run_page(
    monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[Page, FakeSocket, Any], Any]
) -> None:
    """`act(page, socket, send)` with a running page, which is closed afterwards."""
    monkeypatch.setattr(session_module, "Worker", FakeWorker)

    async def main() -> None:
        socket, inbox = FakeSocket(), asyncio.Queue[str | None]()
        page = Page(socket, [tiny_lab_agent()], folder, Settings(paused=True).to_query(), "")

        def send(kind: str, **facts: Any) -> None:
            inbox.put_nowait(json.dumps({"type": kind, **facts}))

        running = asyncio.create_task(page.run(inbox.get))
        try:
            await until(lambda: socket.frames)
            await act(page, socket, send)
        finally:
            socket.full = False
            inbox.put_nowait(None)
            await running

    asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never happened")


def test_decisions_and_controls_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While a slider is dragged, its newest value is shown between any two decisions, and neither waits for ever."""
    ticks: list[bool] = []
    tick = Session.tick

    def recorded(session: Session, *, step: bool) -> Any:
        ticks.append(step)
        session.change({"hue": float(len(ticks) % 90)})  # dragged on
        return tick(session, step=step)

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        monkeypatch.setattr(Session, "tick", recorded)
        monkeypatch.setattr(Session, "wanted", property(lambda session: True))
        send("change", changes={"paused": False}, number=1)
        await until(lambda: sum(ticks) >= 5)

    run_page(monkeypatch, tmp_path, act)
    assert not any(one and next_one for one, next_one in itertools.pairwise(ticks))


def test_a_page_that_does_not_read_gets_no_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        socket.full = True
        for number in range(1, 501):
            send("change", changes={"roll": 999.0}, number=number)
            send("nothing")
            send("change", changes={"hue": float(number % 90)}, number=number)
        await until(lambda: page._session.change_number == 500)
        assert len(page._texts) <= 4
        before = len(socket.texts)
        socket.full = False
        await until(lambda: any(text.get("number") == 500 for text in socket.texts))
        settings = [text for text in socket.texts[before:] if text["type"] == "settings"]
        assert settings[-1]["settings"]["hue"] == 500 % 90  # the newest

    run_page(monkeypatch, tmp_path, act)


def test_one_link_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        async with page._ticking:  # it cannot be finished meanwhile
            for _ in range(100):
                send("link")
            send("change", changes={}, number=1)
            await until(lambda: page._session._wishes.number == 1)
            assert len(page._jobs) == 1
        await until(lambda: not page._jobs)
        send("link")
        await until(lambda: sum(text["type"] == "link" for text in socket.texts) == 2)

    run_page(monkeypatch, tmp_path, act)


def test_refused_requests_are_answered_with_the_settings_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that the page shows them again, and knows that no frame with this change will come."""

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        send("change", changes={"roll": 999.0}, number=3)
        await until(lambda: any(text.get("number") == 3 for text in socket.texts))
        assert "roll" in next(text for text in socket.texts if text["type"] == "error")["text"]
        assert socket.texts[-1]["settings"]["roll"] == 0.0

    run_page(monkeypatch, tmp_path, act)


def test_one_recording_is_written_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        finished = asyncio.Event()

        async def write(recording: Any) -> None:
            await finished.wait()
            page._writing = False

        monkeypatch.setattr(page, "_write_recording", write)
        send("record", value=True)
        send("step", number=1)
        await until(lambda: page._recording is not None and page._recording.ticks)
        send("record", value=False)
        send("record", value=True)
        await until(lambda: any(text["type"] == "error" for text in socket.texts))
        assert "still being written" in socket.texts[-1]["text"]
        assert page._recording is None
        finished.set()
        await until(lambda: not page._writing)
        send("record", value=True)
        await until(lambda: page._recording is not None)

    run_page(monkeypatch, tmp_path, act)


def write_without_an_end(recording: Any) -> None:
    while True:
        (recording.folder / VIDEO_FILE).write_bytes(b"begun")
        time.sleep(0.01)


@pytest.mark.parametrize("begun", [False, True])
def test_a_page_that_is_closed_while_its_recording_is_written_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begun: bool
) -> None:
    """Neither a process nor a file, also if the process was only about to start."""
    monkeypatch.setattr(recordings, "write", write_without_an_end)
    before = set(multiprocessing.active_children())

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        send("record", value=True)
        send("step", number=1)
        await until(lambda: page._recording is not None and page._recording.ticks)
        send("record", value=False)
        await until(lambda: page._writing)
        await until(lambda: not begun or [*tmp_path.glob(f"recordings/*/{VIDEO_FILE}")])

    run_page(monkeypatch, tmp_path, act)
    assert set(multiprocessing.active_children()) <= before
    assert not [*tmp_path.glob("recordings/*")]


class InstantProcess:
    """In place of a process that writes a recording."""

    exitcode = 0

    def __init__(self, **options: Any) -> None: ...

    def start(self) -> None: ...

    def is_alive(self) -> bool:
        return False


def test_a_page_keeps_a_few_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        page_module.multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=InstantProcess)
    )

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        for number in range(1, page_module.KEPT_RECORDINGS + 4):
            send("record", value=True)
            send("step", number=number)
            await until(lambda: page._recording is not None and page._recording.ticks)
            send("record", value=False)
            await until(lambda: sum(text.get("state") == "done" for text in socket.texts) == number)  # noqa: B023
        kept = {path.name for path in tmp_path.glob("recordings/*")}
        done = [text["files"][VIDEO_FILE] for text in socket.texts if text.get("state") == "done"]
        assert kept == {name.split("/")[1] for name in done[-page_module.KEPT_RECORDINGS :]}

    run_page(monkeypatch, tmp_path, act)


def test_recordings_without_frames_do_not_push_out_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        page_module.multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=InstantProcess)
    )

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        send("record", value=True)
        send("step", number=1)
        await until(lambda: page._recording is not None and page._recording.ticks)
        send("record", value=False)
        await until(lambda: any(text.get("state") == "done" for text in socket.texts))
        (kept,) = tmp_path.glob("recordings/*")
        for number in range(1, page_module.KEPT_RECORDINGS + 2):
            send("record", value=True)
            send("record", value=False)
            await until(lambda: sum("nothing was" in text.get("text", "") for text in socket.texts) == number)  # noqa: B023
        assert [*tmp_path.glob("recordings/*")] == [kept]

    run_page(monkeypatch, tmp_path, act)


def test_a_recording_that_cannot_be_stored_is_stopped_and_the_page_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full_disk(recording: Any, snapshot: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recordings.Recording, "add", full_disk)

    async def act(page: Page, socket: FakeSocket, send: Any) -> None:
        send("record", value=True)
        send("step", number=1)
        await until(lambda: any(text["type"] == "error" for text in socket.texts))
        said = next(text["text"] for text in socket.texts if text["type"] == "error")
        assert said == "the recording was stopped: its images cannot be stored (No space left on device)"
        assert page._recording is None and not [*tmp_path.glob("recordings/*")]
        send("step", number=2)
        await until(lambda: page._session.change_number == 2)

    run_page(monkeypatch, tmp_path, act)


def test_every_message_of_the_page_is_known() -> None:
    """What the page's JavaScript sends."""
    static = Path(page_module.__file__).parent / "static"
    source = "".join(file.read_text() for file in static.glob("*.js"))
    sent = {kind for kind in Page.MESSAGES if f'type: "{kind}"' in source or f'request("{kind}")' in source}
    assert sent == set(Page.MESSAGES)
