"""The lab's server without a browser: who is let in, uploads, and the messages of a page."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lab_agents import tiny_lab_agent
from PIL import Image

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
client = pytest.importorskip("websockets.sync.client")
from serving import Serving, until  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from softaug.cli import main  # noqa: E402
from softaug.errors import UserError  # noqa: E402
from softaug.lab import uploads, worker  # noqa: E402
from softaug.lab.recordings import FILES  # noqa: E402
from softaug.lab.server import allowed_hosts  # noqa: E402
from softaug.lab.settings import Settings  # noqa: E402


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    agents = [tiny_lab_agent(seed=0), tiny_lab_agent("soda_overlay", seed=1)]
    made = Serving(agents, tmp_path_factory.mktemp("lab"))
    yield made
    made.stop()


class Browser:
    """What the page's JavaScript does with its WebSocket."""

    def __init__(self, serving: Serving, query: str = "", at: str = "", acknowledges: bool = True) -> None:
        address = serving.address.replace("http:", "ws:") + "ws"
        self._opened = contextlib.ExitStack()
        self._socket = self._opened.enter_context(
            client.connect(address, origin=serving.origin, max_size=2**24)
        )
        self.acknowledges = acknowledges
        self.frames: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []
        self.send("hello", query=query, at=at)

    def send(self, kind: str, **facts: Any) -> None:
        self._socket.send(json.dumps({"type": kind, **facts}))

    def read(self, seconds: float = 120.0) -> None:
        """The next message."""
        message = self._socket.recv(timeout=seconds)
        if isinstance(message, str):
            self.texts.append(json.loads(message))
            return
        length = int.from_bytes(message[:4], "little")
        self.frames.append(json.loads(message[4 : 4 + length]))
        sizes = sum(agent["scene"] + agent["seen"] for agent in self.frames[-1]["agents"])
        assert len(message) == 4 + length + sizes
        self.images = message[4 + length :]
        if self.acknowledges:
            self.send("ack", number=self.frames[-1]["number"])

    def until(self, condition, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self.read(max(0.1, end - time.monotonic()))

    def text(self, kind: str) -> dict[str, Any]:
        """The next text of this kind."""
        seen = len(self.texts)
        self.until(lambda: any(text["type"] == kind for text in self.texts[seen:]))
        return next(text for text in self.texts[seen:] if text["type"] == kind)

    def hashes(self) -> list[str]:
        return [agent["hash"] for agent in self.frames[-1]["agents"]]

    def change(self, number: int, **changes: Any) -> None:
        """And wait for the frame that shows it."""
        self.send("change", changes=changes, number=number)
        self.until(lambda: self.frames and self.frames[-1]["change"] >= number)

    def ask(self, kind: str, number: int) -> None:
        """The same for a request without settings."""
        self.send(kind, number=number)
        self.until(lambda: self.frames[-1]["change"] >= number)

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(scope="module")
def page(serving: Serving) -> Iterator[Browser]:
    """One page for all tests here; each leaves it paused in the training appearance."""
    made = Browser(serving, query=Settings(paused=True).to_query())
    made.until(lambda: made.frames)
    yield made
    made.close()


def test_the_page_needs_the_token_the_host_and_the_origin(serving: Serving) -> None:
    assert httpx.get(serving.address).status_code == 200
    assert "softaug lab" in httpx.get(serving.address).text
    assert httpx.get(f"{serving.origin}/").status_code == 404
    assert httpx.get(f"{serving.origin}/{'x' * 22}/").status_code == 404
    for host in (f"evil.example:{serving.port}", "127.0.0.1", f"127.0.0.1:{serving.port + 1}"):
        assert httpx.get(serving.address, headers={"host": host}).status_code == 403
    localhost = {"host": f"localhost:{serving.port}"}
    assert httpx.get(serving.address, headers=localhost).status_code == 200
    other = {"origin": "http://evil.example"}
    assert httpx.get(serving.address, headers=other).status_code == 403
    assert httpx.post(serving.address + "upload", content=b"x").status_code == 403  # no origin at all


@pytest.mark.parametrize("path", ["static/../server.py", "static/%2e%2e/server.py", "static/nothing.js", "files/x/comparison.mp4",
                                  "files/../comparison.mp4", "files/%2e%2e/%2e%2e", "upload/../.."])  # fmt: skip
def test_only_the_pages_own_files_are_served(serving: Serving, path: str) -> None:
    assert httpx.get(serving.address + path).status_code in (404, 405)


def test_headers_forbid_what_the_page_does_not_need(serving: Serving) -> None:
    headers = httpx.get(serving.address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "origin"), [("{token}/ws", "http://evil.example"), ("{token}/ws", None), ("wrong/ws", "own")]
)
def test_the_socket_needs_token_and_origin(serving: Serving, path: str, origin: str | None) -> None:
    address = f"ws://127.0.0.1:{serving.port}/{path.format(token=serving.lab.token)}"
    with (
        pytest.raises(InvalidStatus),
        client.connect(address, origin=serving.origin if origin == "own" else origin),
    ):
        pass


def test_settings_change_frames_and_come_back(page: Browser) -> None:
    page.change(1, paused=True, roll=0.0)
    plain = page.hashes()
    page.change(2, roll=90.0)
    assert (
        page.texts[-1]["query"] == "roll=90&paused=1" or page.text("settings")["query"] == "roll=90&paused=1"
    )
    assert all(new != old for new, old in zip(page.hashes(), plain, strict=True))
    page.change(3, roll=0.0)
    assert page.hashes() == plain


def test_wrong_messages_are_answered_and_change_nothing(page: Browser, serving: Serving) -> None:
    page.change(10, roll=0.0)
    before = page.hashes()
    wrong = [{"type": "change", "changes": {"roll": 999}}, {"type": "change", "changes": {"nonsense": 1}},
             {"type": "change", "changes": 3}, {"type": "nothing"}, {}, [], 3,
             {"type": "push", "agent": 0, "x": 1e9}, {"type": "test", "episodes": 0},
             {"type": "change", "changes": {"seed": 10**400}}, {"type": "change", "changes": {}, "number": math.inf}]  # fmt: skip
    for message in wrong:
        page._socket.send(json.dumps(message))
        assert page.text("error")["text"]
    page._socket.send("no JSON")
    assert "did not understand" in page.text("error")["text"]
    page.send("change", changes={"mode": "nonsense"}, number=11)
    assert "unknown mode" in page.text("error")["text"]
    page.change(12, roll=0.0)
    assert page.hashes() == before


def test_steps_resets_and_shared_seeds(page: Browser) -> None:
    def decisions() -> list[int]:
        return [agent["decisions"] for agent in page.frames[-1]["agents"]]

    page.change(20, seed=3)
    page.ask("reset", 21)
    assert decisions() == [0, 0]
    first = page.hashes()
    page.ask("step", 22)
    assert decisions() == [1, 1]
    assert page.hashes() != first
    page.ask("reset", 23)
    assert decisions() == [0, 0]
    assert page.hashes() == first


def test_same_states_show_one_trajectory_to_all(page: Browser) -> None:
    page.change(30, seed=5, states="own")
    page.ask("step", 31)
    page.ask("step", 32)
    own = page.hashes()
    assert own[0] != own[1]  # two policies
    page.change(33, states="same")
    assert page.hashes()[0] == page.hashes()[1] == own[0]
    page.send("push", agent=1, middle=True, dx=0.4, dy=0.0)
    page.send("change", changes={"sky": "#ff0000"}, number=34)  # in the same tick as the step, perhaps
    page.ask("step", 35)
    page.send("release", agent=1)
    assert [agent["decisions"] for agent in page.frames[-1]["agents"]] == [3, 3]
    assert page.hashes()[0] == page.hashes()[1]
    actions = [agent["action"] for agent in page.frames[-1]["agents"]]
    assert actions[0] != actions[1]  # what each would do
    page.change(36, states="own", sky="")


def test_a_link_restores_the_scene_bit_for_bit(page: Browser, serving: Serving) -> None:
    """In another page with other processes; two pages at once work."""
    page.change(40, seed=8, mode="distracting_easy", hue=30.0)
    for number in (41, 42, 43):
        page.ask("step", number)
    page.send("link")
    link = page.text("link")
    other = Browser(serving, link["query"], link["at"])
    other.until(lambda: other.frames)
    assert other.hashes() == page.hashes()
    assert [agent["return"] for agent in other.frames[-1]["agents"]] == [
        agent["return"] for agent in page.frames[-1]["agents"]
    ]
    pids = [pid for shown in serving.lab.pages for pid in shown.pids]
    assert len(pids) == 4
    other.close()
    until(lambda: sum(alive(pid) for pid in pids) == 2, what="a closed page ends its processes")
    page.change(44, mode="train", hue=0.0)


@pytest.mark.parametrize(
    ("query", "at", "said"),
    [
        ("roll=9999", "nonsense", "roll"),
        ("mode=nonsense&seed=4&paused=1", "", "unknown mode 'nonsense'"),
        ("background=upload&upload=0123456789abcdef", "", "not on this server"),
    ],
)
def test_damaged_links_are_said_once_and_the_page_shows_the_training_appearance(
    serving: Serving, query: str, at: str, said: str
) -> None:
    before = len(serving.lab.pages)
    other = Browser(serving, query, at)
    assert said in other.text("error")["text"].lower()
    other.until(lambda: len(other.frames) >= 3)
    assert sum(text["type"] == "error" for text in other.texts) == 1
    assert [text["query"] for text in other.texts if text["type"] == "settings"][-1] == ""
    other.close()
    until(lambda: len(serving.lab.pages) <= before, what="the page is closed")


@pytest.mark.parametrize("message", ["[1]", "{{{", "3", "[" * 100_000, b"{}"])
def test_a_first_message_of_another_form_is_answered(
    serving: Serving, message: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    address = serving.address.replace("http:", "ws:") + "ws"
    with client.connect(address, origin=serving.origin) as other:
        other.send(message)
        assert "did not understand" in json.loads(other.recv(timeout=120))["text"]
    assert "Traceback" not in caplog.text


def test_a_page_that_says_nothing_is_told_so(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("softaug.lab.server.HELLO_SECONDS", 0.1)
    address = serving.address.replace("http:", "ws:") + "ws"
    with client.connect(address, origin=serving.origin) as other:
        assert "reload it" in json.loads(other.recv(timeout=120))["text"]
    assert "Traceback" not in caplog.text


def test_too_many_pages_are_refused(page: Browser, serving: Serving) -> None:
    serving.lab.max_pages = 1
    until(lambda: len(serving.lab.pages) == 1)
    try:
        other = Browser(serving)
        assert "close one" in other.text("error")["text"]
        other.close()
    finally:
        serving.lab.max_pages = 3


def test_a_page_that_does_not_read_gets_the_newest_frame_and_no_queue(
    page: Browser, serving: Serving
) -> None:
    page.change(50, paused=False, speed=4.0)
    page.acknowledges = False
    ticks = ticks_of(serving)
    read = len(page.frames)

    def many_more() -> bool:
        page.send("visible", value=True)  # not silent, which would stop it
        return ticks_of(serving) > ticks + 6

    until(many_more, what="the agents act while nothing is read")
    page.send("change", changes={"paused": True, "speed": 1.0}, number=51)
    until(lambda: serving_page(serving)._session.settings.paused and resting(serving))
    with pytest.raises(TimeoutError):
        while True:
            page.read(1.0)
    assert len(page.frames) - read <= 2
    page.acknowledges = True
    page.send("ack")
    page.send("ack")
    page.read()
    assert page.frames[-1]["number"] == ticks_of(serving)


def test_a_hidden_page_stops(page: Browser, serving: Serving) -> None:
    page.change(52, paused=False, speed=4.0)
    page.send("visible", value=False)
    until(lambda: not serving_page(serving)._visible and resting(serving))
    ticks = ticks_of(serving)
    page.send("change", changes={"hue": 10.0}, number=53)
    time.sleep(1.0)
    assert ticks_of(serving) == ticks
    page.send("visible", value=True)
    page.until(lambda: page.frames[-1]["change"] == 53)
    page.until(lambda: page.frames[-1]["number"] > ticks + 2)
    page.change(54, paused=True, speed=1.0, hue=0.0)


def serving_page(serving: Serving) -> Any:
    (shown,) = serving.lab.pages
    return shown


def ticks_of(serving: Serving) -> int:
    return serving_page(serving)._session._number


def resting(serving: Serving) -> bool:
    return not serving_page(serving)._ticking.locked()


def test_a_page_whose_agent_has_ended_says_so_once_and_ends(serving: Serving) -> None:
    others = set(serving.lab.pages)
    with contextlib.closing(Browser(serving)) as page:
        page.until(lambda: page.frames)
        (opened,) = serving.lab.pages - others
        os.kill(opened.pids[1], signal.SIGKILL)
        assert page.text("error")["fatal"]
        with pytest.raises(ConnectionClosed):
            page.until(lambda: False)
        errors = [text["text"] for text in page.texts if text["type"] == "error"]
        assert len(errors) == 1
        assert "ended unexpectedly" in errors[0]
    until(lambda: opened not in serving.lab.pages)


def test_who_waits_for_an_agent_hears_that_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And does not keep the server from ending until its patience with the agent is over."""
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 3600.0)
    asked = worker.Worker(tiny_lab_agent(), tmp_path)
    outcomes: list[Any] = []

    def wait() -> None:
        try:
            outcomes.append(asked.receive())
            outcomes.append(asked.receive())  # nothing was asked
        except UserError as error:
            outcomes.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: outcomes, what="the agent is ready")
    asked.close()
    waiting.join(120)
    assert isinstance(outcomes[-1], worker.AgentLost)


def test_an_evaluation_reports_progress_and_can_be_stopped(page: Browser) -> None:
    page.change(60, mode="train", seed=1)
    page.send("test", episodes=50)
    started = page.text("test")
    assert started["episodes"] == 50
    assert not started["done"]
    page.send("test", episodes=1)
    assert "running already" in page.text("error")["text"]
    page.send("stop_test")
    page.text("test_stopped")


def test_recordings_play(page: Browser, serving: Serving) -> None:
    page.send("record", value=True)
    start = page.frames[-1]["number"]
    page.change(70, paused=False, speed=4.0)
    page.until(lambda: page.frames[-1]["number"] > start + 8)
    page.send("record", value=False)
    page.until(lambda: any(text.get("state") == "done" for text in page.texts))
    done = next(text for text in page.texts if text.get("state") == "done")
    page.change(71, paused=True, speed=1.0)
    contents = {name: httpx.get(serving.address + path).content for name, path in done["files"].items()}
    assert set(contents) == set(FILES)
    with av.open(io.BytesIO(contents["comparison.mp4"])) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == done["frames"]
    assert frames[0].shape == (352, 644, 3)
    assert frames[0].std() > 20
    with Image.open(io.BytesIO(contents["comparison.gif"])) as gif:
        assert gif.n_frames >= 1
    facts = json.loads(contents["comparison.json"])
    assert [agent["name"] for agent in facts["agents"]] == ["sac 0", "soda_overlay 1"]
    assert len(facts["agents"][0]["return"]) == done["frames"]
    assert facts["settings"][0]["settings"]["speed"] == 4.0


# Uploads.


def upload(serving: Serving, content: bytes, kind: str) -> Any:
    headers = {"content-type": kind, "origin": serving.origin}
    return httpx.post(serving.address + "upload", content=content, headers=headers, timeout=120)


def encoded(kind: str, size: tuple[int, int] = (60, 40)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(content, kind)
    return content.getvalue()


def video_bytes() -> bytes:
    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 50 * level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return content.getvalue()


def test_images_and_videos_are_decoded_into_the_folder(serving: Serving) -> None:
    answer = upload(serving, encoded("PNG"), "image/png")
    assert answer.status_code == 200
    stored = np.load(serving.folder / f"{answer.json()['upload']}.npy")
    assert stored.shape == (1, 256, 256, 3)
    assert stored[0, 128, 128].tolist() == [200, 30, 30]
    again = upload(serving, encoded("PNG"), "image/png")
    assert again.json() == answer.json()  # named by its content
    video = upload(serving, video_bytes(), "video/mp4")
    assert np.load(serving.folder / f"{video.json()['upload']}.npy").shape[0] == 5
    assert not list(serving.folder.glob("upload-*"))  # nothing else is left


def test_images_of_every_depth_keep_their_brightness(tmp_path: Path) -> None:
    greys = np.repeat(np.linspace(0, 65535, 64).astype(np.uint16)[None], 64, axis=0)
    made = {
        "16 bits": Image.fromarray(greys),
        "8 bits": Image.fromarray((greys // 256).astype(np.uint8)),
        "palette": Image.fromarray((greys // 256).astype(np.uint8)).convert("P"),
    }
    for name, image in made.items():
        image.save(tmp_path / name, "PNG")
        decoded = uploads.decode_image(tmp_path / name, "image/png")[0]
        assert decoded[:, :20].max() < 40 and 100 < decoded[:, 128].mean() < 155, name
        assert decoded[:, -20:].min() > 215, name


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", "image/png", "empty"),
        (b"nonsense", "image/png", "no PNG image"),
        (encoded("PNG", (61, 40)), "image/jpeg", "no JPEG image"),
        (encoded("JPEG")[:200], "image/jpeg", "JPEG"),
        (encoded("PNG"), "text/html", "cannot be shown"),
        (b"nonsense" * 100, "video/mp4", "no video"),
        (encoded("PNG", (9000, 6000)), "image/png", "too large"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "video/mp4", "no video"),
    ],
)
def test_wrong_uploads_are_refused_with_a_sentence(
    serving: Serving, content: bytes, kind: str, said: str
) -> None:
    before = set(serving.folder.iterdir())
    answer = upload(serving, content, kind)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert set(serving.folder.iterdir()) == before


def test_uploads_have_a_size_and_a_time_limit(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uploads, "MAX_BYTES", 100)
    answer = upload(serving, encoded("PNG"), "image/png")
    assert answer.status_code == 400
    assert "larger than" in answer.json()["error"]
    monkeypatch.undo()
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 0)
    answer = upload(serving, encoded("PNG", (33, 44)), "image/png")
    assert answer.status_code == 400
    assert "keeps 0 uploads" in answer.json()["error"]
    monkeypatch.undo()
    monkeypatch.setattr(uploads, "RECEIVE_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", serving.port)) as stalled:
        path = f"/{serving.lab.token}/upload"
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{serving.port}", f"Origin: {serving.origin}"]
        lines += ["Content-Type: image/png", "Content-Length: 1000", "", "x"]
        stalled.sendall("\r\n".join(lines).encode())
        stalled.settimeout(60)
        assert b" 408 " in stalled.recv(100)
    monkeypatch.setattr(uploads, "DECODE_SECONDS", 0.01)
    (tmp_path / "image").write_bytes(encoded("PNG"))
    with pytest.raises(UserError, match="to decode"):
        uploads.decode_upload(tmp_path / "image", "image/png", tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limits")
def test_the_decoder_works_within_its_limits_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import resource

    code = (
        "import resource; from softaug.lab import uploads; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); uploads.limit_this_process(); "
        "print([resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    limits = json.loads(said.replace("(", "[").replace(")", "]"))
    assert limits[:2] == [[uploads.DECODE_SECONDS] * 2, [10**6] * 2]  # a lower one that exists already stays
    if sys.platform != "darwin":
        assert limits[2] == [uploads.DECODE_MEMORY] * 2
    (tmp_path / "image").write_bytes(encoded("PNG"))
    for refused in ("RLIMIT_CPU", "RLIMIT_FSIZE", *(["RLIMIT_AS"] if sys.platform != "darwin" else [])):

        def refuse(kind: int, limit: Any, refused: str = refused) -> None:
            if kind == getattr(resource, refused):
                raise ValueError("not allowed")

        monkeypatch.setattr(resource, "setrlimit", refuse)
        arguments = [str(tmp_path / "image"), "image/png", str(tmp_path / "decoded.npy")]
        assert uploads.main(*arguments) == uploads.FOREIGN
        assert f"{refused.removeprefix('RLIMIT_')} for the decoder (not allowed)" in capsys.readouterr().err
        assert not (tmp_path / "decoded.npy").exists()


# The command.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "192.168.1.5"], "--i-know"),
        (["--host", "0.0.0.0", "--i-know"], "every address"),
        (["--link", "http://127.0.0.1/x/?roll=9999"], "roll"),
        (["--link", "mode=nonsense"], "nonsense"),
        (["--link", "http://["], "no link of the lab"),
        (["--host", "", "--i-know"], "every address"),
        (["--host", "0"], "every address"),
        (["--pages", "0"], "--pages"),
        (["/nowhere"], "not a directory"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["lab", "--no-browser", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_a_terminated_server_leaves_no_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from softaug.cli import main; from softaug.lab import agents; "
        "agents.load_agents = lambda *_, **__: []; sys.exit(main(['lab', '--no-browser', '--port', '0']))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as lab:
        assert lab.stdout is not None
        address = lab.stdout.readline().split()[-1]
        until(lambda: answers(address), what="the server answers")
        assert len(list(tmp_path.glob("softaug-lab-*"))) == 1
        lab.send_signal(signal.SIGTERM)
        assert lab.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("softaug-lab-*"))


def answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("host", "port", "asked"),
    [
        ("127.0.0.1", 8383, "localhost:8383"),
        ("127.0.0.2", 8383, "127.0.0.2:8383"),
        ("::1", 8383, "[::1]:8383"),
        ("My-Host", 8383, "my-host:8383"),
        ("127.0.0.1", 80, "127.0.0.1"),
    ],
)
def test_the_printed_address_is_answered(host: str, port: int, asked: str) -> None:
    assert asked in allowed_hosts(host, port)
    assert "example.org:8383" not in allowed_hosts(host, port)
    assert port == 80 or "127.0.0.1" not in allowed_hosts(host, port)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
