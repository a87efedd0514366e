"""The lab's web server: for this computer alone, behind a random token, and only for pages that it served itself."""

from __future__ import annotations

import asyncio
import importlib.resources
import ipaddress
import json
import logging
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from softaug.errors import UserError
from softaug.lab import recordings, uploads
from softaug.lab.agents import LabAgent
from softaug.lab.page import NOT_UNDERSTOOD, Page

MAX_PAGES = 4
HELLO_SECONDS = 10.0
STATIC = {
    "lab.css": "text/css",
    "lab.js": "text/javascript",
    "controls.js": "text/javascript",
    "agents.js": "text/javascript",
    "connection.js": "text/javascript",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",  # the token is in the address
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
LOST = (
    "This address is not, or no longer, one of a running softaug lab. Open the one that it printed when it was started. "
    "To see the settings of an old link again, start it with: softaug lab --link 'ADDRESS'\n"
)

log = logging.getLogger("softaug.lab")


class Guard:
    """Refuses requests with another Host (DNS rebinding) or from pages of another Origin, before anything else."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"http://{host}" for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        asks_only = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        right_origin = origin in self._origins or (origin is None and asks_only)
        if headers.get("host", "").lower() in self._hosts and right_origin:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("This host or origin is not allowed.\n", 403)(scope, receive, send)
        else:
            await WebSocket(scope, receive, send).close(1008)


class Lab:
    """The application and what its pages share."""

    def __init__(
        self, agents: Sequence[LabAgent], folder: Path, hosts: Sequence[str], *, max_pages: int = MAX_PAGES
    ) -> None:
        self.agents, self.folder, self.max_pages = tuple(agents), folder, max_pages
        self.token = secrets.token_urlsafe(16)
        self.pages: set[Page] = set()
        self._open = 0
        self._decoding = asyncio.Semaphore(1)
        routes = [
            Route("/{token}/", self._index),
            Route("/{token}/static/{name}", self._static),
            Route("/{token}/files/{recording}/{name}", self._file),
            Route("/{token}/upload", self._upload, methods=["POST"]),
            WebSocketRoute("/{token}/ws", self._socket),
            Route("/{path:path}", self._lost),
        ]
        self.app = Guard(Starlette(routes=routes), hosts)

    def _knows(self, request: Request | WebSocket) -> bool:
        return secrets.compare_digest(str(request.path_params["token"]).encode(), self.token.encode())

    async def _lost(self, request: Request) -> Response:
        return PlainTextResponse(LOST, 404, headers=HEADERS)

    async def _index(self, request: Request) -> Response:
        if not self._knows(request):
            return await self._lost(request)
        return Response(_asset("index.html"), media_type="text/html", headers=HEADERS)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self._knows(request) or name not in STATIC:
            return await self._lost(request)
        return Response(_asset(name), media_type=STATIC[name], headers=HEADERS)

    async def _file(self, request: Request) -> Response:
        """A recording; both parts of its name were made here, so nothing else can be asked for."""
        name, recording = request.path_params["name"], request.path_params["recording"]
        known = {path.name: path for path in (self.folder / "recordings").glob("*")}
        if not self._knows(request) or name not in recordings.FILES or recording not in known:
            return await self._lost(request)
        path = known[recording] / name
        return FileResponse(path, headers=HEADERS) if path.is_file() else await self._lost(request)

    async def _upload(self, request: Request) -> Response:
        if not self._knows(request):
            return await self._lost(request)
        try:
            kind = uploads.check_kind(request.headers.get("content-type", ""))
            async with self._decoding:
                with tempfile.NamedTemporaryFile(dir=self.folder, prefix="upload-") as file:
                    # With a limit: a page that stops sending must not keep the others from uploading.
                    await asyncio.wait_for(_receive_file(request, file), uploads.RECEIVE_SECONDS)
                    name = await asyncio.to_thread(uploads.decode_upload, Path(file.name), kind, self.folder)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400, headers=HEADERS)
        except (asyncio.TimeoutError, ClientDisconnect):
            return JSONResponse({"error": "the file did not arrive; try again"}, 408, headers=HEADERS)
        return JSONResponse({"upload": name}, headers=HEADERS)

    async def _socket(self, socket: WebSocket) -> None:
        if not self._knows(socket):
            await socket.close(1008)
            return
        await socket.accept()
        try:
            try:
                message = await asyncio.wait_for(_message(socket), HELLO_SECONDS)
            except asyncio.TimeoutError:
                raise UserError("the page has not said what to show; reload it") from None
            query, places = _hello(message)
            if self._open >= self.max_pages:
                await _tell(socket, f"{self.max_pages} pages are open already; close one and reload this one")
                return
            self._open += 1
            try:
                await self._serve(socket, query, places)
            finally:
                self._open -= 1
        except (WebSocketDisconnect, asyncio.CancelledError):
            pass  # the page is closed, or the server is
        except UserError as error:
            await _tell(socket, str(error))
        except Exception:
            log.exception("a page failed")
            await _tell(socket, "something failed in the server; its terminal says why")

    async def _serve(self, socket: WebSocket, query: str, places: str) -> None:
        try:
            page = Page(socket, self.agents, self.folder, query, places)
        except UserError as error:  # a link of another version or task: its page is more use than none
            await socket.send_json(
                {"type": "error", "text": f"{error} (showing the training appearance instead)"}
            )
            page = Page(socket, self.agents, self.folder, "", "")
        self.pages.add(page)
        try:
            await page.run(lambda: _message(socket))
        finally:
            self.pages.discard(page)


async def _message(socket: WebSocket) -> str | bytes | None:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    return message.get("bytes") if text is None else text


def _hello(message: str | bytes | None) -> tuple[str, str]:
    """Settings and places of a page's first message."""
    if message is None:
        raise WebSocketDisconnect
    try:
        hello = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        hello = None
    if not isinstance(hello, dict):
        raise UserError(NOT_UNDERSTOOD)
    return str(hello.get("query", "")), str(hello.get("at", ""))


async def _tell(socket: WebSocket, text: str) -> None:
    try:
        await socket.send_json({"type": "error", "text": text, "fatal": True})
        await socket.close(1011)
    except (RuntimeError, WebSocketDisconnect):
        pass  # the page has gone


async def _receive_file(request: Request, file: Any) -> None:
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > uploads.MAX_BYTES:
            raise UserError(f"the file is larger than {uploads.MAX_BYTES // 2**20} MB; choose a smaller one")
        file.write(piece)
    file.flush()
    if not size:
        raise UserError("the file is empty; choose another one")


def _asset(name: str) -> bytes:
    return (importlib.resources.files("softaug.lab") / "static" / name).read_bytes()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, port: int) -> list[str]:
    """Values of the Host header under which the server may be asked."""
    names = {f"[{host}]" if ":" in host else host.lower()}
    if is_loopback(host):
        names |= {"127.0.0.1", "localhost", "[::1]"}
    with_port = [f"{name}:{port}" for name in sorted(names)]
    return [*with_port, *sorted(names)] if port == 80 else with_port  # browsers leave out HTTP's own port


def make_server(lab: Lab) -> uvicorn.Server:
    """To be served on a socket that is open already."""
    config = uvicorn.Config(
        lab.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=2**20,
        ws_per_message_deflate=False,  # images are compressed already
        timeout_graceful_shutdown=5,
        lifespan="off",
    )
    return uvicorn.Server(config)
