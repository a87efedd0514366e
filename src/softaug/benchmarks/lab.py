"""`softaug bench lab`: frames per second, how soon a control takes effect, and whether memory grows.

A real server in this process, its agents in theirs, and a WebSocket client in the page's place: drawing is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from softaug.errors import UserError

AGENTS = ("zoo:walker_stand-sac", "zoo:walker_stand-soda_overlay")
CHANGE_SECONDS = 0.7
"""Between two changes of a control, so that each starts at another phase of a decision."""
WARM_UP_SECONDS = 3.0
START_SECONDS = 300.0
SPEED = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agents", nargs="*", default=list(AGENTS), help="run directories, as for `softaug lab`"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure; 1800 for memory")
    parser.add_argument("--mode", default="video_hard", help="mode of the benchmark that is shown")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not 1 <= args.seconds <= 1e6:
        raise UserError(f"--seconds must be at least 1, not {args.seconds:g}")
    return measure(args.agents, args.seconds, args.mode)


def show(results: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE)
    for title in ("measure", "value", "goal"):
        table.add_column(title)
    table.add_row("frames per second, all agents", f"{results['frames_per_second']:.1f}", "15")
    table.add_row("a control takes effect, median", f"{results['control_ms_median']:.0f} ms", "150 ms")
    table.add_row("the same, 95 of 100", f"{results['control_ms_95']:.0f} ms", "")
    table.add_row("memory of all processes", f"{results['memory_mb'][-1]:.0f} MB", "")
    table.add_row("its growth after the first third", f"{results['memory_growth_mb']:+.0f} MB", "flat")
    Console(highlight=False).print(table)


def measure(agents: list[str], seconds: float, mode: str) -> dict[str, Any]:
    """Let one page run at full speed for so long, and change a control again and again."""
    from websockets.sync.client import connect
    from websockets.typing import Origin

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
        try:
            address = f"ws://127.0.0.1:{port}/{lab.token}/ws"
            own = Origin(f"http://127.0.0.1:{port}")
            with connect(address, origin=own, max_size=2**24, open_timeout=30) as page:
                page.send(json.dumps({"type": "hello", "query": query}))
                measured = _watch(page, lab, seconds)
        finally:
            server.should_exit = True
            thread.join(30)
    return {"agents": [agent.facts for agent in loaded], "mode": mode, "seconds": seconds, **measured}


def _watch(page: Any, lab: Any, seconds: float) -> dict[str, Any]:
    latencies: list[float] = []
    memory: list[float] = []
    sent: dict[int, float] = {}
    frames = number = 0
    _until_first_frame(page)
    begin = time.monotonic() + WARM_UP_SECONDS
    next_change, next_memory = begin, begin
    while (now := time.monotonic()) < begin + seconds:
        if now >= next_change:
            number += 1
            sent[number] = now
            page.send(
                json.dumps({"type": "change", "changes": {"hue": float(number % 90)}, "number": number})
            )
            next_change = now + CHANGE_SECONDS
        if now >= next_memory:
            memory.append(_memory_mb([os.getpid(), *(pid for shown in lab.pages for pid in shown.pids)]))
            next_memory = now + max(1.0, seconds / 60)
        # No longer than until the next change, which would otherwise always be sent when a decision has just begun.
        header = _next_frame(page, next_change - time.monotonic())
        if header is None:
            continue
        arrived = time.monotonic()
        frames += arrived >= begin
        for known in [known for known in sent if known <= header["change"]]:
            latencies.append(1e3 * (arrived - sent.pop(known)))
    return {
        "frames_per_second": frames * len(lab.agents) / (time.monotonic() - begin),
        "control_ms_median": statistics.median(latencies),
        "control_ms_95": sorted(latencies)[int(0.95 * (len(latencies) - 1))],
        "controls": len(latencies),
        "memory_mb": memory,
        "memory_growth_mb": memory[-1] - memory[len(memory) // 3],
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


def _next_frame(page: Any, seconds: float) -> dict[str, Any] | None:
    """The header of the next message, if it is a frame and comes in time."""
    try:
        message = page.recv(timeout=max(0.0, seconds))
    except TimeoutError:
        return None
    if not isinstance(message, bytes):
        return None
    page.send(json.dumps({"type": "ack"}))
    length = int.from_bytes(message[:4], "little")
    return json.loads(message[4 : 4 + length])


def _memory_mb(pids: list[int]) -> float:
    """Private memory of the processes; 0 where the system does not say."""
    total = 0.0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(float(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))
    return total
