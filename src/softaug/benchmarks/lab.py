"""`softaug bench lab`: frames per second, how soon a control takes effect, and whether memory grows.

A real server in this process, its agents in theirs, and a WebSocket client, also in its own, in the page's place: drawing is not
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from softaug.errors import UserError

AGENTS = ("zoo:walker_stand-sac", "zoo:walker_stand-soda_overlay")
CHANGE_SECONDS = 0.7
"""Between two changes of a control, so that each starts at another phase of a decision."""
TOUR_SECONDS = 5.0
"""Between two stops of a tour."""
WARM_UP_SECONDS = 3.0
WARM_UP_SHARE = 1 / 3
"""Of the run: memory is compared from then on."""
MEMORY_SAMPLES = 180
"""In a whole run, at most one each second."""
START_SECONDS = 300.0
SPEED = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agents", nargs="*", default=list(AGENTS), help="run directories, as for `softaug lab`"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure; 1800 for memory")
    parser.add_argument("--mode", default="video_hard", help="mode of the benchmark that is shown")
    parser.add_argument(
        "--tour",
        action="store_true",
        help=f"every {TOUR_SECONDS:g} s another mode, video, color, camera or seed, and recordings, as a user does; for memory",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not 1 <= args.seconds <= 1e6:
        raise UserError(f"--seconds must be at least 1, not {args.seconds:g}")
    return measure(args.agents, args.seconds, args.mode, tour=args.tour)


def show(results: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE)
    for title in ("measure", "value", "goal"):
        table.add_column(title)
    table.add_row("frames per second, all agents", f"{results['frames_per_second']:.1f}", "15")
    table.add_row("a control takes effect, median", f"{results['control_ms_median']:.0f} ms", "150 ms")
    table.add_row("the same, 95 of 100", f"{results['control_ms_95']:.0f} ms", "")
    memory = results["memory"]
    if memory is None:
        table.add_row("memory", "not known on this system", "flat")
    else:
        for name, facts in memory["processes"].items():
            table.add_row(f"memory, {name}", _growth(facts), "")
        table.add_row("memory, all processes", _growth(memory["all"]), "flat")
    Console(highlight=False).print(table)


def _growth(facts: dict[str, float]) -> str:
    return (
        f"{facts['start_mb']:.0f} MB, after the warm-up {facts['warm_mb']:.0f}, at the end {facts['end_mb']:.0f} "
        f"({facts['mb_per_minute']:+.2f} MB per minute)"
    )


def measure(agents: list[str], seconds: float, mode: str, *, tour: bool = False) -> dict[str, Any]:
    """Let one page run at full speed for so long, and change a control again and again."""
    from softaug.lab.agents import load_agents
    from softaug.lab.server import Lab, allowed_hosts, make_server
    from softaug.lab.settings import Settings

    query = Settings(mode=mode, speed=SPEED).to_query()
    loaded = load_agents(agents)
    with tempfile.TemporaryDirectory(prefix="softaug-lab-") as folder:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        lab = Lab(loaded, Path(folder), allowed_hosts("127.0.0.1", port))
        server = make_server(lab)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        # A process of its own: its memory must not be taken for the server's.
        client = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            address = f"ws://127.0.0.1:{port}/{lab.token}/ws"
            watching = client.submit(_watch, address, f"http://127.0.0.1:{port}", query, seconds, mode, tour)
            memory = _sample_memory(lab, seconds, watching)
            measured = watching.result()
        finally:
            server.should_exit = True
            thread.join(30)
            client.shutdown(cancel_futures=True)
    measured["frames_per_second"] *= len(loaded)
    facts = {"agents": [agent.facts for agent in loaded], "mode": mode, "seconds": seconds, "tour": tour}
    return facts | measured | {"memory": memory}


def _sample_memory(lab: Any, seconds: float, watching: Future[Any]) -> dict[str, Any] | None:
    """From the agents' start to the end of the watching."""
    every_seconds = max(1.0, seconds / MEMORY_SAMPLES)
    memory = MemoryLog(every_seconds)
    while not any(page.pids for page in lab.pages) and not watching.done():
        time.sleep(0.1)
    while not watching.done():
        memory.sample(_processes(lab))
        wait([watching], every_seconds)
    return memory.to_json()


def tour_of(mode: str) -> Iterator[dict[str, Any]]:
    """Messages of a user who tries everything, without an end; each round has other seeds, videos and colors."""
    number = 0
    while True:
        number += 1
        yield {"type": "record", "value": True}
        yield _change(mode=mode, seed=number)
        yield _change(mode="train", background="hard", video=number % 100)
        yield _change(background="easy", video=number % 10, hide_floor=True, opacity=0.7)
        yield {"type": "record", "value": False}
        yield _change(background="none", mode="color_hard")
        yield _change(mode="train", floor=_color(number), sky=_color(number + 50), body=_color(number + 99))
        yield _change(azimuth=20.0, distance=1.3, light=0.5, noise=0.1, blur=1.0)
        yield _change(mode="distracting_hard", saliency=True)
        yield {"type": "reset"}
        yield _change(mode="video_easy", states="same", seed=1000 + number)
        yield {"type": "link"}
        yield _change(saliency=False, states="own")
        yield {"type": "plain"}


def _change(**changes: Any) -> dict[str, Any]:
    return {"type": "change", "changes": changes}


def _color(number: int) -> str:
    return f"#{number * 2654435761 % 2**24:06x}"


def _watch(address: str, origin: str, query: str, seconds: float, mode: str, tour: bool) -> dict[str, Any]:
    """As a page: ask for frames, change a control, go on the tour."""
    from websockets.sync.client import connect
    from websockets.typing import Origin

    with connect(address, origin=Origin(origin), max_size=2**24, open_timeout=30) as page:
        page.send(json.dumps({"type": "hello", "query": query}))
        return _watch_page(page, seconds, tour_of(mode) if tour else iter(()))


def _watch_page(page: Any, seconds: float, tour: Iterator[dict[str, Any]]) -> dict[str, Any]:
    latencies: list[float] = []
    sent: dict[int, float] = {}
    frames = number = episodes = decisions = 0
    stops: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    _until_first_frame(page)
    begin = time.monotonic() + WARM_UP_SECONDS
    next_change, next_stop = begin, begin + TOUR_SECONDS
    while (now := time.monotonic()) < begin + seconds:
        if now >= next_stop:
            next_stop = now + TOUR_SECONDS
            if (stop := next(tour, None)) is not None:
                stops[stop["type"]] += 1
                page.send(json.dumps(stop))
        if now >= next_change:
            number += 1
            sent[number] = now
            page.send(
                json.dumps({"type": "change", "changes": {"hue": float(number % 90)}, "number": number})
            )
            next_change = now + CHANGE_SECONDS
        # No longer than until the next change, which would otherwise always be sent when a decision has just begun.
        header = _next_frame(page, next_change - time.monotonic(), refusals)
        if header is None:
            continue
        arrived = time.monotonic()
        frames += arrived >= begin
        episodes += header["agents"][0]["decisions"] < decisions
        decisions = header["agents"][0]["decisions"]
        for known in [known for known in sent if known <= header["change"]]:
            latencies.append(1e3 * (arrived - sent.pop(known)))
    if not latencies:
        raise UserError("no control took effect in this time; give more --seconds")
    return {
        "frames_per_second": frames / (time.monotonic() - begin),
        "control_ms_median": statistics.median(latencies),
        "control_ms_95": sorted(latencies)[int(0.95 * (len(latencies) - 1))],
        "controls": len(latencies),
        "episodes_begun": episodes,
        "tour_messages": dict(stops),
        "refusals": dict(refusals),
    }


def _processes(lab: Any) -> dict[str, list[int]]:
    """Process ids by what they are."""
    from softaug.lab.processes import PROCESS_NAME

    agents = [pid for page in lab.pages for pid in page.pids]
    names = [agent.name for agent in lab.agents]
    writers = [
        child.pid
        for child in multiprocessing.active_children()
        if child.pid not in agents and child.name == PROCESS_NAME
    ]
    return {
        "server": [os.getpid()],
        **{f"agent {name}": [pid] for name, pid in zip(names, agents, strict=False)},
        "writing recordings": [pid for pid in writers if pid is not None],
    }


class MemoryLog:
    """Private memory of named processes, in MB, sampled again and again."""

    def __init__(self, every_seconds: float) -> None:
        self.every_seconds = every_seconds
        self._samples: list[dict[str, float]] = []
        self._known = True

    def sample(self, processes: dict[str, list[int]]) -> None:
        used = {name: [_memory_mb(pid) for pid in pids] for name, pids in processes.items()}
        # One that has just ended has no memory; that this process has none is the system's silence.
        self._known = self._known and _memory_mb(os.getpid()) is not None
        self._samples.append({name: sum(mb or 0.0 for mb in mine) for name, mine in used.items()})

    def to_json(self) -> dict[str, Any] | None:
        """Raw series and their growth; None if the system does not say how much memory a process has."""
        if not (self._known and self._samples):
            return None
        names = list(dict.fromkeys(name for sample in self._samples for name in sample))
        series = {name: [sample.get(name, 0.0) for sample in self._samples] for name in names}
        total = [sum(values) for values in zip(*series.values(), strict=True)]
        return {
            "every_seconds": self.every_seconds,
            "warm_up_samples": warm_up_samples(len(total)),
            "all": growth(total, self.every_seconds),
            "processes": {name: growth(values, self.every_seconds) for name, values in series.items()},
            "series_mb": {name: [round(value, 1) for value in values] for name, values in series.items()},
        }


def warm_up_samples(count: int) -> int:
    return int(WARM_UP_SHARE * count)


def growth(values: list[float], every_seconds: float) -> dict[str, float]:
    """Of a series: a least-squares line through what comes after the warm-up, and the means of its first and last fifth.

    A single sample says little, as a mode or a video has more or less memory than another one.
    """
    warm = np.asarray(values[warm_up_samples(len(values)) :], np.float64)
    fifth = max(1, len(warm) // 5)
    minutes = np.arange(len(warm)) * every_seconds / 60
    slope = float(np.polyfit(minutes, warm, 1)[0]) if len(warm) > 1 else 0.0
    return {
        "start_mb": round(values[0], 1),
        "warm_mb": round(float(warm[:fifth].mean()), 1),
        "end_mb": round(float(warm[-fifth:].mean()), 1),
        "highest_mb": round(max(values), 1),
        "mb_per_minute": round(slope, 3),
    }


def _until_first_frame(page: Any) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        message = page.recv(timeout=START_SECONDS)
        if isinstance(message, bytes):
            page.send(json.dumps({"type": "ack"}))
            return
        text = json.loads(message)
        if text["type"] == "error":
            raise UserError(text["text"])
    raise UserError("the agents did not start; run `softaug doctor`")


def _next_frame(page: Any, seconds: float, refusals: Counter[str]) -> dict[str, Any] | None:
    """The header of the next message, if it is a frame and comes in time; what the server refuses is counted."""
    try:
        message = page.recv(timeout=max(0.0, seconds))
    except TimeoutError:
        return None
    if not isinstance(message, bytes):
        text = json.loads(message)
        if text["type"] == "error":
            if text.get("fatal"):
                raise UserError(text["text"])
            refusals[text["text"]] += 1
        return None
    page.send(json.dumps({"type": "ack"}))
    length = int.from_bytes(message[:4], "little")
    return json.loads(message[4 : 4 + length])


def _memory_mb(pid: int) -> float | None:
    """Private memory of a process; None if it has ended or the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), None)
