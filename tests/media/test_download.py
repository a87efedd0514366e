"""Downloads against a real HTTP server: broken transfers, servers without ranges, bad checksums, hostile archives."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from softaug.errors import UserError
from softaug.media import image_source, registry
from softaug.media.catalogue import CATALOGUE, Dataset
from softaug.media.download import download_dataset, fetch
from softaug.media.unpack import unpack


class Server:
    """Serves `content`; can cut the first answers short, ignore ranges, or fail."""

    def __init__(self) -> None:
        self.content = b""
        self.cuts: list[int] = []  # each connection takes one: so many bytes, then the connection closes
        self.ranges = True
        self.status: int | None = None
        self.requests: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.requests.append(asked)
                if server.status is not None:
                    self.send_error(server.status)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
                if start and start >= len(server.content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(server.content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = server.content[start:]
                self.send_response(206 if start else 200)
                if start:
                    self.send_header(
                        "Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}"
                    )
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/set.bin"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def quiet(stage: str, done: int, total: int | None) -> None:
    """No progress shown."""


CONTENT = bytes(range(256)) * 4000


def test_download_and_progress(server, tmp_path):
    server.content = CONTENT
    seen = []
    fetch(server.url, tmp_path / "file", lambda *args: seen.append(args))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert seen[0] == ("download", 0, len(CONTENT)) and seen[-1] == ("download", len(CONTENT), len(CONTENT))


def test_broken_transfer_is_resumed_where_it_stopped(server, tmp_path):
    server.content, server.cuts = CONTENT, [300_000, 200_000]
    fetch(server.url, tmp_path / "file", quiet, pause=0)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=500000-"]
    assert not (tmp_path / "file.part").exists()


def test_next_call_continues_a_partial_file(server, tmp_path):
    server.content, server.cuts = CONTENT, [300_000]
    with pytest.raises(
        UserError, match=r"broke off 1 times .*300,000 bytes are kept .*run the same command again"
    ):
        fetch(server.url, tmp_path / "file", quiet, attempts=1)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:300_000]
    fetch(server.url, tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-"]


def test_interruption_keeps_what_was_fetched(server, tmp_path):
    server.content = CONTENT

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server.url, tmp_path / "file", interrupt)
    kept = (tmp_path / "file.part").read_bytes()
    assert kept and CONTENT.startswith(kept)
    fetch(server.url, tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_server_that_ignores_ranges_sends_everything_again(server, tmp_path):
    server.content, server.cuts, server.ranges = CONTENT, [300_000], False
    fetch(server.url, tmp_path / "file", quiet, pause=0)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_partial_file_that_is_complete_needs_no_transfer(server, tmp_path):
    server.content = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(server.url, tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_partial_file_longer_than_the_served_one_starts_over(server, tmp_path):
    server.content = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT + b"left from another version")
    fetch(server.url, tmp_path / "file", quiet, pause=0)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_missing_file_and_unreachable_server(server, tmp_path):
    server.status = 404
    with pytest.raises(UserError, match="the server answers 404"):
        fetch(server.url, tmp_path / "file", quiet)
    assert len(server.requests) == 1  # asking again would not help
    with pytest.raises(UserError, match=r"cannot download http://127\.0\.0\.1:9/x"):
        fetch("http://127.0.0.1:9/x", tmp_path / "file", quiet, attempts=2, pause=0)


def zip_of(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def dataset(server: Server, **changes: object) -> Dataset:
    values = {"name": "places365", "url": server.url, "size": len(server.content), "checksum": None}
    return dataclasses.replace(CATALOGUE["places365"], **{**values, **changes})


@pytest.fixture
def image(tmp_path, make_image) -> bytes:
    return make_image(tmp_path / "one.png").read_bytes()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_download_verify_unpack_register(server, softaug_home, image, algorithm):
    server.content = zip_of({"places/a/1.png": image, "places/b/2.png": image})
    server.cuts = [100]
    checksum = f"{algorithm}:{hashlib.new(algorithm, server.content).hexdigest()}"
    stages = []
    folder = download_dataset(dataset(server, checksum=checksum), lambda *a: stages.append(a[0]), pause=0)
    assert registry.registered() == {"places365": folder}
    assert image_source().describe()["images"] == 2
    assert list(dict.fromkeys(stages)) == ["download", "verify", "unpack"]
    assert [path.name for path in (softaug_home / "datasets").iterdir()] == [
        "places365"
    ]  # no archive, no rests


def test_wrong_checksum_registers_nothing_and_removes_the_file(server, softaug_home, image):
    server.content = zip_of({"1.png": image})
    with pytest.raises(UserError, match=r"wrong md5 checksum .*nothing was registered"):
        download_dataset(dataset(server, checksum="md5:" + "0" * 32), quiet)
    assert registry.registered() == {}
    assert list((softaug_home / "datasets").iterdir()) == []


def test_existing_target_is_not_overwritten(server, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="exists already; register it with"):
        download_dataset(dataset(server), quiet, folder=tmp_path / "there")
    assert server.requests == []


def test_too_large_for_the_disk_is_said_before_the_download(server, tmp_path):
    with pytest.raises(UserError, match=r"places365 needs about .* GB .*--to"):
        download_dataset(dataset(server, size=10**18), quiet, folder=tmp_path / "new")
    assert server.requests == []


@pytest.mark.parametrize(
    "name", ["../escaped.txt", "/tmp/escaped.txt", "a/../../escaped.txt", "..\\escaped.txt", "C:/x"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archive_that_leaves_the_folder_is_refused(server, softaug_home, tmp_path, image, name, kind):
    if kind == "zip":
        server.content = zip_of({"fine.png": image, name: b"escaped"})
    else:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for entry_name, content in (("fine.png", image), (name, b"escaped")):
                entry = tarfile.TarInfo(entry_name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        server.content = buffer.getvalue()
    with pytest.raises(UserError, match=r"not safe to unpack: its entry .* would land outside"):
        download_dataset(dataset(server), quiet)
    assert registry.registered() == {}
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not list(softaug_home.rglob("fine.png"))  # nothing of it stays
    assert not list((softaug_home / "datasets").glob(".writing*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_tar_with_links_or_devices_is_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        entry = tarfile.TarInfo("door")
        entry.type, entry.linkname = kind, "/etc"
        archive.addfile(entry)
        inside = tarfile.TarInfo("door/passwd")
        inside.size = 3
        archive.addfile(inside, io.BytesIO(b"new"))
    with pytest.raises(UserError, match="'door' is a link or a device"):
        unpack(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_zip_with_a_link_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        entry = zipfile.ZipInfo("door")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc")
    with pytest.raises(UserError, match="'door' is a link or a device"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_archives_leave_nothing(tmp_path, image):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("a.png")
        entry.size = len(image) * 100
        archive.addfile(entry, io.BytesIO(image * 100))
    whole = (tmp_path / "x.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.zip").write_text("no archive")
    for name, message in (("cut.tar.gz", "damaged"), ("text.zip", "neither a zip nor a tar")):
        with pytest.raises(UserError, match=message):
            unpack(tmp_path / name, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".writing*"))
