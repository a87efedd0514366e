"""One open page: messages of its WebSocket in, the newest frame out, and the session that is ticked in between.

Page to server, text: {"type": ...} as in `Page.MESSAGES`; binary: a JPEG image of the webcam. Messages that change what is
shown have a rising "number". A frame's "change" is the number of the last one that it shows, and so is the "number" of a
message about the settings.
Server to page, text: ready, settings, link, test, recording, uploaded, error; binary: a frame, which is a number (4 bytes,
little endian), so many bytes of JSON, and the images of all agents one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import multiprocessing
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from softaug.errors import UserError
from softaug.lab import recordings
from softaug.lab.agents import LabAgent
from softaug.lab.episodes import Episodes
from softaug.lab.live_env import Push
from softaug.lab.processes import PROCESS_NAME
from softaug.lab.session import Session, Snapshot
from softaug.lab.settings import APPEARANCE_FIELDS, FIELDS, schema, surprise
from softaug.lab.worker import AgentLost

IN_FLIGHT = 2
"""Frames that may be on their way to the page; newer ones replace each other until it has acknowledged these."""
SILENT_SECONDS = 5.0
"""A page that acknowledges nothing for so long is taken for hidden."""
END_SECONDS = 0.7
"""How long the end of an episode stays on the page."""
WEBCAM_BYTES = 256 * 2**10
RECORDING_SECONDS = 300.0
KEPT_RECORDINGS = 5
"""A page offers the newest one; those before it may still be downloading."""
MISUNDERSTOOD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a message may raise that has another form than the page's own."""
NOT_UNDERSTOOD = "the server did not understand a message of this page; reload it"

log = logging.getLogger("softaug.lab")


class Socket(Protocol):
    """The part of a WebSocket that a page uses."""

    async def send_text(self, data: str) -> None: ...

    async def send_bytes(self, data: bytes) -> None: ...


class Page:
    """Runs from the WebSocket's first message to its end."""

    def __init__(
        self, socket: Socket, agents: Sequence[LabAgent], folder: Path, query: str, places: str
    ) -> None:
        self._socket, self._agents, self._folder = socket, tuple(agents), folder
        self._session = Session(agents, folder, query, places)
        self._threads = ThreadPoolExecutor(3, "softaug-lab")
        self._wake = asyncio.Event()
        self._frame: Snapshot | None = None
        self._frame_ready = asyncio.Event()
        self._texts: dict[tuple[str, str], str] = {}
        """To be sent, oldest first. A newer one replaces one of its kind: a page that does not read gets no queue."""
        self._in_flight = 0
        self._heard = time.monotonic()
        self._visible = True
        self._rng = np.random.default_rng()
        self._webcam: bytes | None = None
        self._recording: recordings.Recording | None = None
        self._writing = self._linking = False
        self._told_change = 0
        self._episodes: Episodes | None = None
        self._ticking = asyncio.Lock()
        self._jobs: set[asyncio.Task[None]] = set()
        self._recorded: list[Path] = []

    @property
    def pids(self) -> list[int]:
        return self._session.pids

    async def run(self, receive: Callable[[], Any]) -> None:
        """Until the page is closed; `receive` returns text, bytes or, at the end, None."""
        tasks = [asyncio.create_task(part) for part in (self._listen(receive), self._drive(), self._send())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._jobs):
                task.cancel()
            await self._close()

    async def _close(self) -> None:
        if self._episodes is not None:
            self._episodes.close()
        # Ends the processes, which also ends a tick that waits for them.
        await asyncio.get_running_loop().run_in_executor(None, self._session.close)
        # They have been cancelled, and end their processes.
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for folder in self._recorded:
            shutil.rmtree(folder, ignore_errors=True)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # From the page.

    async def _listen(self, receive: Callable[[], Any]) -> None:
        while (message := await receive()) is not None:
            self._heard = time.monotonic()
            try:
                if isinstance(message, bytes):
                    self._take_webcam(message)
                else:
                    self._take(json.loads(message))
            except UserError as error:
                self._say("error", text=str(error))
            except MISUNDERSTOOD as error:
                log.info("a message of the page was not understood: %r", error)
                self._say("error", text=NOT_UNDERSTOOD)

    def _take(self, message: dict[str, Any]) -> None:
        kind = str(message["type"])
        if kind not in self.MESSAGES:
            raise ValueError(f"unknown message {kind[:40]!r}")
        number = 0 if kind == "ack" else int(message.get("number", 0))
        try:
            self.MESSAGES[kind](self, message)
        finally:  # one that is refused is over, too
            self._session.heard(number)
            if kind != "ack":
                self._wake.set()

    def _take_webcam(self, content: bytes) -> None:
        if len(content) > WEBCAM_BYTES:
            raise UserError(f"an image of the webcam may have {WEBCAM_BYTES // 1024} kB")
        self._webcam = content
        if self._session.settings.background == "webcam":
            self._session.take_webcam(content)
            self._wake.set()

    def _on_ack(self, message: dict[str, Any]) -> None:
        self._in_flight = max(0, self._in_flight - 1)
        self._frame_ready.set()

    def _on_visible(self, message: dict[str, Any]) -> None:
        self._visible = bool(message["value"])

    def _on_change(self, message: dict[str, Any]) -> None:
        self._session.change(dict(message["changes"]))

    def _on_reset(self, message: dict[str, Any]) -> None:
        self._session.reset()

    def _on_step(self, message: dict[str, Any]) -> None:
        self._session.change({"paused": True})
        self._session.step_once()

    def _on_push(self, message: dict[str, Any]) -> None:
        names = ("dx", "dy") if message.get("middle") else ("x", "y", "dx", "dy")
        numbers = {name: float(message.get(name, 0.0)) for name in names}
        if not all(math.isfinite(value) and abs(value) <= 2 for value in numbers.values()):
            raise ValueError("no place in the image")
        self._session.push(int(message["agent"]), Push(**numbers))

    def _on_release(self, message: dict[str, Any]) -> None:
        self._session.push(int(message["agent"]), None)

    def _on_surprise(self, message: dict[str, Any]) -> None:
        ready = self._session.ready[0]
        self._session.change(surprise(self._rng, ready.controls, ready.modes))

    def _on_plain(self, message: dict[str, Any]) -> None:
        """Back to the appearance of training."""
        self._session.change({name: FIELDS[name].default for name in APPEARANCE_FIELDS})

    def _on_link(self, message: dict[str, Any]) -> None:
        if not self._linking:  # the one that is being made will do
            self._linking = True
            self._start(self._make_link())

    def _on_test(self, message: dict[str, Any]) -> None:
        if self._episodes is not None:
            raise UserError("an evaluation is running already; stop it first")
        self._episodes = Episodes(
            self._agents, self._session.settings, self._folder, message["episodes"], self._webcam
        )
        self._start(self._watch_episodes(self._episodes))

    def _on_stop_test(self, message: dict[str, Any]) -> None:
        if self._episodes is not None:
            self._episodes.close()

    def _on_record(self, message: dict[str, Any]) -> None:
        if message["value"] and self._writing:
            self._say("recording", state="none")
            raise UserError("the last recording is still being written; wait for its files")
        if message["value"] and self._recording is None:
            names = tuple(agent.name for agent in self._agents)
            per_second = float(np.clip(self._session.decisions_per_second, 1.0, 30.0))
            folder = self._folder / "recordings" / secrets.token_urlsafe(9)
            self._recorded.append(folder)
            while len(self._recorded) > KEPT_RECORDINGS:
                shutil.rmtree(self._recorded.pop(0), ignore_errors=True)
            self._recording = recordings.Recording(names, per_second, folder)
        elif not message["value"] and self._recording is not None:
            self._finish_recording()

    MESSAGES: ClassVar[dict[str, Callable[[Page, dict[str, Any]], None]]] = {
        "ack": _on_ack,
        "visible": _on_visible,
        "change": _on_change,
        "reset": _on_reset,
        "step": _on_step,
        "push": _on_push,
        "release": _on_release,
        "surprise": _on_surprise,
        "plain": _on_plain,
        "link": _on_link,
        "test": _on_test,
        "stop_test": _on_stop_test,
        "record": _on_record,
    }

    # The simulation.

    async def _drive(self) -> None:
        await self._start_agents()
        due, stepped = time.monotonic(), False
        while True:
            running = self._runs()
            wait = max(0.0, due - time.monotonic()) if running else SILENT_SECONDS
            if not (self._visible and self._session.wanted):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait)
            self._wake.clear()
            now = time.monotonic()
            # What was asked for is shown at once; a decision comes first only if the last tick made none.
            step = self._runs() and now >= due and not (stepped and self._session.wanted)
            if not (step or self._session.wanted) or not self._visible:
                continue
            stepped = step
            if step:
                pause = 1.0 / self._session.decisions_per_second
                due = max(now, due + pause) if not self._session.over else now
                due = max(due, now + pause / 2)
            await self._tick(step)
            if step and self._session.over:
                due = max(due, time.monotonic() + END_SECONDS)

    def _runs(self) -> bool:
        """Whether decisions are made: not for a page that is paused, hidden or silent."""
        silent = self._in_flight >= IN_FLIGHT and time.monotonic() - self._heard > SILENT_SECONDS
        return self._visible and not silent and not self._session.settings.paused

    async def _tick(self, step: bool) -> None:
        before = self._session.settings
        try:
            async with self._ticking:
                snapshot = await self._in_thread(lambda: self._session.tick(step=step))
        except AgentLost:
            raise  # no tick can succeed any more
        except UserError as error:
            self._say("error", text=str(error))
            self._say_settings()
            return
        if snapshot.settings != before or snapshot.number == 1 or snapshot.change != self._told_change:
            self._say_settings()
        if self._recording is not None and snapshot.stepped:
            self._record(self._recording, snapshot)
        self._frame = snapshot
        self._frame_ready.set()

    async def _start_agents(self) -> None:
        async with self._ticking:  # a link that is asked for too early waits
            ready = await self._in_thread(self._session.start)
        self._say(
            "ready",
            schema=schema(),
            modes=ready[0].modes,
            controls=ready[0].controls,
            agents=[
                {
                    "name": agent.name,
                    "facts": agent.facts,
                    "seen": mine.seen_size,
                    "actions": mine.action_dims,
                }
                for agent, mine in zip(self._agents, ready, strict=True)
            ],
            task=self._agents[0].config.task,
        )
        self._wake.set()

    # To the page.

    async def _send(self) -> None:
        """Texts first, then the newest frame, if the page has room for it."""
        while True:
            while self._texts:
                await self._socket.send_text(self._texts.pop(next(iter(self._texts))))
            if self._frame is not None and self._in_flight < IN_FLIGHT:
                snapshot, self._frame = self._frame, None
                self._in_flight += 1
                await self._socket.send_bytes(frame_message(snapshot))
            if not self._texts and (self._frame is None or self._in_flight >= IN_FLIGHT):
                self._frame_ready.clear()
                await self._frame_ready.wait()

    def _say(self, kind: str, **facts: Any) -> None:
        key = kind, str(facts.get("state", ""))
        self._texts.pop(key, None)
        self._texts[key] = json.dumps({"type": kind, **facts}, allow_nan=False)
        self._frame_ready.set()

    def _say_settings(self) -> None:
        settings, self._told_change = self._session.settings, self._session.change_number
        self._say(
            "settings", settings=settings.to_json(), query=settings.to_query(), number=self._told_change
        )

    # What takes longer.

    def _start(self, job: Any) -> None:
        task = asyncio.create_task(self._told(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _told(self, job: Any) -> None:
        """A job whose failure the page hears of."""
        try:
            await job
        except UserError as error:
            self._say("error", text=str(error))
        except Exception:
            log.exception("a job of the page failed")
            self._say("error", text="this failed; the terminal of the server says why")

    async def _make_link(self) -> None:
        try:
            async with self._ticking:
                query, places = await self._in_thread(self._session.links)
        finally:
            self._linking = False
        self._say("link", query=query, at=places)

    async def _watch_episodes(self, episodes: Episodes) -> None:
        progress = None
        try:
            while (came := await self._in_thread(episodes.next)) is not None:
                progress = came
                self._say("test", query=episodes.settings.appearance().to_query(), **came.to_json())
        finally:
            self._episodes = None
            await self._in_thread(episodes.close)
            if progress is None or not progress.done:
                self._say("test_stopped")

    def _record(self, recording: recordings.Recording, snapshot: Snapshot) -> None:
        try:
            recording.add(snapshot)
        except OSError as error:
            self._recording = None
            self._drop(recording)
            self._say(
                "error", text=f"the recording was stopped: its images cannot be stored ({error.strerror})"
            )
            return
        if recording.full:
            self._finish_recording()

    def _drop(self, recording: recordings.Recording) -> None:
        """Not one of those that are kept: it would push out another one."""
        self._recorded.remove(recording.folder)
        shutil.rmtree(recording.folder, ignore_errors=True)
        self._say("recording", state="none")

    def _finish_recording(self) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        if not recording.ticks:
            self._drop(recording)
            raise UserError("nothing was recorded: let the agents act while recording")
        self._writing = True
        self._start(self._write_recording(recording))

    async def _write_recording(self, recording: recordings.Recording) -> None:
        frames = len(recording.ticks)
        self._say("recording", state="writing", frames=frames)
        process = multiprocessing.get_context("spawn").Process(
            target=recordings.write, args=(recording,), daemon=True, name=PROCESS_NAME
        )
        starting = asyncio.ensure_future(self._in_thread(process.start))
        try:
            await asyncio.shield(starting)
            # Without a thread: those that a page has are for its agents.
            end = time.monotonic() + RECORDING_SECONDS
            while process.is_alive() and time.monotonic() < end:
                await asyncio.sleep(0.1)
        finally:
            self._writing = False
            await starting  # the page may be closed before the process is there to be ended
            if process.is_alive():
                process.kill()
                await self._in_thread(process.join)
        if process.exitcode != 0:
            self._drop(recording)
            raise UserError("the recording could not be written; the terminal of the server says why")
        files = {file: f"files/{recording.folder.name}/{file}" for file in recordings.FILES}
        self._say("recording", state="done", files=files, frames=frames)


def frame_message(snapshot: Snapshot) -> bytes:
    """Header and images as one binary message."""
    header = {
        "number": snapshot.number,
        "change": snapshot.change,
        "seed": snapshot.settings.seed,
        "agents": [
            {
                "scene": len(answer.scene),
                "seen": len(answer.seen),
                "hash": answer.frame_hash,
                "decisions": answer.decisions,
                "reward": answer.reward,
                "return": answer.total,
                "over": answer.over,
                "action": [round(float(value), 4) for value in answer.action],
                "distances": answer.distances,
                "pushed": answer.pushed,
            }
            for answer in snapshot.answers
        ],
    }
    text = json.dumps(header, allow_nan=False).encode()
    images = [image for answer in snapshot.answers for image in (answer.scene, answer.seen)]
    return len(text).to_bytes(4, "little") + text + b"".join(images)
