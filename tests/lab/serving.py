"""The lab's server in a thread of the tests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from softaug.lab.agents import LabAgent
from softaug.lab.server import Lab, allowed_hosts, make_server


class Serving:
    """Served until `stop`; `start` again on the same port is a restart, with another token unless one is given."""

    def __init__(self, agents: Sequence[LabAgent], folder: Path, *, max_pages: int = 3) -> None:
        self.agents, self.folder, self.max_pages = agents, folder, max_pages
        self.port = 0
        self.start()

    def start(self, token: str | None = None) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        hosts = allowed_hosts("127.0.0.1", self.port)
        self.lab = Lab(self.agents, self.folder, hosts, max_pages=self.max_pages)
        if token is not None:
            self.lab.token = token
        self._server = make_server(self.lab)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener])), daemon=True
        )
        self._thread.start()
        for _ in range(600):
            if self._server.started:
                return
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.origin}/{self.lab.token}/"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(120)  # ending processes takes its time on a busy machine
        assert not self._thread.is_alive()


def until(condition, seconds: float = 120.0, what: str = "") -> None:
    """Wait for something that happens in another thread or process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never happened: {what or condition}"
        time.sleep(0.05)
