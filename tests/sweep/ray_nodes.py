"""Ray nodes on this machine for tests: started by `ray start`, and killed without touching anybody else's processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

BIN = Path(sys.executable).parent
MARK = "SOFTAUG_TEST_NODE"
START_ATTEMPTS = 3  # Ray gives its processes 30 seconds, which a busy machine may not keep


@contextlib.contextmanager
def ray_environment() -> Iterator[dict[str, str]]:
    """Of clusters and drivers: a token of their own, and nothing sent anywhere."""
    folder = Path(tempfile.mkdtemp(prefix="softaug-ray-"))  # short: Ray puts sockets into it
    (folder / "token").write_text(uuid.uuid4().hex * 2)
    try:
        yield {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(folder),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Node:
    """One `ray start --block` and all processes that come from it.

    They are recognized by a variable in their environment or by their parents: a training process has a session of
    its own, and one whose parent was killed belongs to init.
    """

    def __init__(self, environment: dict[str, str], *options: str):
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *options],
            env={**environment, MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.said = ""
        self.up = False
        for line in self._process.stdout:
            self.said += line
            if "block forever" in line:
                self.up = True
                break

    def processes(self) -> set[int]:
        """Ids of every process of this node that is alive now."""
        mark = f"{MARK}={self._mark}".encode()
        parents, found = {}, set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                marked = mark in (process / "environ").read_bytes()
            except OSError:  # it has ended, or is somebody else's
                continue
            if fields[0] != "Z":
                parents[int(process.name)] = int(fields[1])
                if marked:
                    found.add(int(process.name))
        # Ray's workers overwrite their environment with their title; they are children of marked ones.
        while children := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= children
        return found

    def kill(self) -> None:
        """As a power cut: SIGKILL for everything at once, until nothing is left."""
        until = time.monotonic() + 60
        while (alive := self.processes()) and time.monotonic() < until:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        assert not alive, f"processes {alive} survive SIGKILL"
        self._process.communicate(timeout=60)


def _start(environment: dict[str, str], *options: str) -> Node:
    node = Node(environment, *options)
    if not node.up:
        node.kill()
    return node


@contextlib.contextmanager
def ray_head(environment: dict[str, str], *, cpus: int = 2) -> Iterator[str]:
    """The address of a cluster that has a head alone."""
    for _ in range(START_ATTEMPTS):
        port = free_port()
        node = _start(
            environment, "--head", f"--num-cpus={cpus}", f"--port={port}", "--include-dashboard=false",
            f"--ray-client-server-port={free_port()}",
        )  # fmt: skip
        if node.up:
            break
    else:
        raise AssertionError(f"ray start --head failed:\n{node.said}")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        node.kill()


@contextlib.contextmanager
def ray_node(environment: dict[str, str], head: str, *, cpus: int = 2) -> Iterator[Node]:
    """A second node with an IP address and a temporary folder of its own, like another machine."""
    folder = Path(tempfile.mkdtemp(prefix="softaug-node-"))
    try:
        for _ in range(START_ATTEMPTS):
            node = _start(
                environment, f"--address={head}", f"--num-cpus={cpus}", "--node-ip-address=127.0.0.2",
                f"--temp-dir={folder}",
            )  # fmt: skip
            if node.up:
                break
        else:
            raise AssertionError(f"ray start --address={head} failed:\n{node.said}")
        try:
            yield node
        finally:
            node.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
