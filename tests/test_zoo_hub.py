"""Policies on a hub: pushed to and fetched from a local server that has the few endpoints that are needed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fabricated import fabricate_run
from fakes import tiny_config

from softaug.cli import main
from softaug.config import write_config
from softaug.errors import UserError
from softaug.evaluation.runs import load_run
from softaug.learning.agent import make_agent
from softaug.results.publishing import publish
from softaug.storage.checkpoint import save_checkpoint
from softaug.zoo import locate

constants = pytest.importorskip("huggingface_hub.constants")

REPOSITORY = "someone/walker"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: name -> file -> content. Each push is a new commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.claimed_size: int | None = None
        self.claimed: dict[str, str] = {}
        """headers in place of the right ones"""
        self.failing: set[str] = set()
        """files that end in a server error"""
        self.says_sizes = True
        self.login_page = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repository: str) -> str:
        content = json.dumps({k: hashlib.sha1(v).hexdigest() for k, v in self.files[repository].items()})
        return hashlib.sha1(content.encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        _, _, name = rest.partition("/")
        files = self.server.files.get(repository)
        if files is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        headers = {"X-Repo-Commit": self.server.commit(repository)}
        if name in self.server.failing:
            return self.answer(500, b"", headers)
        if name not in files:
            return self.answer(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
        headers["ETag"] = f'"{hashlib.sha1(files[name]).hexdigest()}"'
        if self.server.claimed_size is not None:
            headers["X-Linked-Size"] = str(self.server.claimed_size)
        return self.answer(200, files[name], headers | self.server.claimed)

    def do_POST(self) -> None:
        self.server.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.login_page:
            return self.answer(200, b"<html>Log in to this network</html>", {"Content-Type": "text/html"})
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self.answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            repository = f"{wanted['organization']}/{wanted['name']}"
            self.server.files.setdefault(repository, {})
            return self.json({"url": f"{self.server.address}/{repository}"})
        if self.path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        repository = self.path.removeprefix("/api/models/").rpartition("/")[0].rpartition("/")[0]
        if "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            return self.json({"files": modes})
        for line in filter(None, body.split(b"\n")):
            operation = json.loads(line)
            if operation["key"] == "file":
                value = operation["value"]
                self.server.files[repository][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del self.server.files[repository][operation["value"]["path"]]
        commit = self.server.commit(repository)
        url = f"{self.server.address}/{repository}/commit/{commit}"
        return self.json({"success": True, "commitOid": commit, "commitUrl": url})

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        if self.server.says_sizes:
            headers = {**headers, "Content-Length": str(len(content))}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    # The library reads HF_HOME when it is imported, which may have been before.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with weights and results, without having been trained."""
    path = tmp_path / "run"
    fabricate_run(path, "walker_walk", "sac")
    config = tiny_config(task="walker_walk", method="sac", decisions=3000)
    write_config(config, path / "config.json")
    weights = make_agent(config, (6, 12, 12), 2).policy_weights()
    save_checkpoint(path / "checkpoints", 3000, {}, weights, keep=1)
    return path


def push(run: Path) -> Path:
    assert main(["zoo", "add", str(run), "--no-replay", "--push", REPOSITORY]) == 0
    return Path("zoo/walker_walk-sac")


def test_what_was_pushed_comes_back_byte_for_byte(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = push(run)
    assert f"uploaded to {hub.address}/{REPOSITORY}" in capsys.readouterr().out
    local = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert hub.files[REPOSITORY] == local
    assert load_run(f"hf:{REPOSITORY}").sha256 == load_run(run).sha256
    assert main(["zoo", "get", f"hf:{REPOSITORY}", "--out", "copy"]) == 0
    assert {file.name: file.read_bytes() for file in Path("copy").iterdir()} == local
    commit = hub.commit(REPOSITORY)
    hub.files[REPOSITORY]["results.json"] = b"{}"
    assert locate(f"hf:{REPOSITORY}@{commit}").name == commit  # a commit that is in the cache needs no server


def test_only_files_of_a_policy_are_fetched(hub: Hub, run: Path) -> None:
    push(run)
    hub.files[REPOSITORY] |= {"evil.py": b"import os", "pytorch_model.bin": b"pickle"}
    folder = locate(f"hf:{REPOSITORY}")
    assert {file.name for file in folder.iterdir()} <= {
        "README.md", "config.json", "policy.safetensors", "results.json", "SHA256SUMS",
    }  # fmt: skip
    assert not [request for request in hub.requests if "evil" in request or "pytorch_model" in request]


def test_changed_weights_on_the_hub_are_refused(hub: Hub, run: Path) -> None:
    push(run)
    weights = bytearray(hub.files[REPOSITORY]["policy.safetensors"])
    weights[-1] ^= 1
    hub.files[REPOSITORY]["policy.safetensors"] = bytes(weights)
    with pytest.raises(UserError, match=r"policy\.safetensors is damaged"):
        load_run(f"hf:{REPOSITORY}")


def test_a_file_too_large_for_a_policy_is_not_fetched(hub: Hub, run: Path) -> None:
    push(run)
    hub.claimed_size = 10**9
    with pytest.raises(UserError, match=r"results\.json of someone/walker has 1,000 MB"):
        locate(f"hf:{REPOSITORY}")
    assert not [request for request in hub.requests if request.startswith("GET")]


def test_a_file_of_unknown_size_is_not_fetched(hub: Hub, run: Path) -> None:
    push(run)
    hub.says_sizes = False
    with pytest.raises(UserError, match=r"does not say how large results\.json of someone/walker is"):
        locate(f"hf:{REPOSITORY}")
    assert not [request for request in hub.requests if request.startswith("GET")]


def test_a_login_page_in_place_of_the_hub_is_one_sentence(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.login_page = True
    assert main(["zoo", "add", str(run), "--no-replay", "--push", REPOSITORY]) == 2
    said = capsys.readouterr().err
    assert "does not give access" in said and "add --replace" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nobody/nothing", "does not give access to nobody/nothing"),
        ("someone/other", r"holds no policy of softaug \(it has no results.json\)"),
        ("someone/half", r"holds no policy of softaug \(it has no config.json\)"),
        ("no-slash", "give ORG/NAME"),
        ("a/../../etc", "give ORG/NAME"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(hub: Hub, name: str, match: str) -> None:
    hub.files |= {"someone/other": {"model.bin": b"pickle"}, "someone/half": {"results.json": b"{}"}}
    with pytest.raises(UserError, match=match) as caught:
        locate(f"hf:{name}")
    assert "\n" not in str(caught.value)


def test_without_a_token_nothing_is_pushed(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert main(["zoo", "add", str(run), "--no-replay", "--push", REPOSITORY]) == 2
    assert "hf auth login" in capsys.readouterr().err
    assert hub.files == {}
    assert Path("zoo/walker_walk-sac/policy.safetensors").is_file()  # the folder was made all the same


def test_a_damaged_folder_is_not_pushed(hub: Hub, run: Path) -> None:
    from softaug.zoo.hub import push as push_folder

    folder = publish(run, Path("zoo"), replay=False)
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        push_folder(folder, REPOSITORY)
    assert hub.requests == []


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'softaug\[hub\]'"):
        locate(f"hf:{REPOSITORY}")


@pytest.mark.parametrize(
    "headers",
    [{"ETag": '"../../../../outside"'}, {"ETag": '"/tmp/outside"'}, {"X-Repo-Commit": "../../outside"}],
)
def test_what_the_server_says_never_becomes_a_path_outside_the_cache(
    hub: Hub, run: Path, tmp_path: Path, headers: dict[str, str]
) -> None:
    push(run)
    hub.claimed = headers
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="is not a hub's"):
        locate(f"hf:{REPOSITORY}")
    assert sorted(tmp_path.rglob("*")) == before
    assert not [request for request in hub.requests if request.startswith("GET")]


@pytest.mark.parametrize("revision", ["", "/tmp/x", "../../x", "a/../b", "a b"])
def test_a_revision_is_no_path(hub: Hub, run: Path, revision: str) -> None:
    push(run)
    with pytest.raises(UserError, match="is no revision; give a branch, a tag or a commit"):
        locate(f"hf:{REPOSITORY}@{revision}")


def test_a_damaged_cache_is_fetched_again(hub: Hub, run: Path) -> None:
    push(run)
    file = locate(f"hf:{REPOSITORY}") / "policy.safetensors"
    blob = file.resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert (locate(f"hf:{REPOSITORY}") / "policy.safetensors").read_bytes() == hub.files[REPOSITORY][
        "policy.safetensors"
    ]


def test_without_the_server_the_cache_is_used(hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(run)
    del hub.files[REPOSITORY]["README.md"]  # nothing to wait for
    folder = locate(f"hf:{REPOSITORY}")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert locate(f"hf:{REPOSITORY}") == folder
    with pytest.raises(UserError, match="does not give access to someone/other"):
        locate("hf:someone/other")


def test_a_server_error_is_not_taken_for_a_file_that_is_missing(hub: Hub, run: Path) -> None:
    push(run)
    hub.failing = {"README.md"}
    with pytest.raises(UserError, match=f"does not give access to {REPOSITORY}.*500"):
        locate(f"hf:{REPOSITORY}")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HF_ENDPOINT", "http://[::"), ("HF_ENDPOINT", "http://\u00fc..x/"), ("HF_TOKEN", "hf_\u00fc")],
)
def test_impossible_settings_of_the_library_are_one_sentence(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match="does not give access to someone/walker"):
        locate(f"hf:{REPOSITORY}")


def test_a_replay_without_a_checksum_is_not_passed_on_and_an_old_one_is_removed(hub: Hub, run: Path) -> None:
    push(run)
    hub.files[REPOSITORY]["replay.mp4"] = b"of another policy"
    assert main(["zoo", "get", f"hf:{REPOSITORY}", "--out", "copy"]) == 0
    assert not Path("copy/replay.mp4").exists() and Path("copy/README.md").exists()
    assert main(["zoo", "add", str(run), "--no-replay", "--replace", "--push", REPOSITORY]) == 0
    assert "replay.mp4" not in hub.files[REPOSITORY]


def test_a_repository_of_something_else_is_left_alone(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files[REPOSITORY] = {"config.json": b'{"model_type": "bert"}'}
    assert main(["zoo", "add", str(run), "--no-replay", "--push", REPOSITORY]) == 2
    said = capsys.readouterr().err
    assert "holds something else than a policy" in said and "add --replace" in said
    assert hub.files[REPOSITORY] == {"config.json": b'{"model_type": "bert"}'}


@pytest.mark.parametrize("name", ["../..", "a--b/c..d", "no-slash"])
def test_a_name_that_the_hub_refuses_is_refused_before_anything_is_made(
    hub: Hub, run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", "add", str(run), "--no-replay", "--push", name]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not Path("zoo").exists() and hub.requests == []


@pytest.mark.slow
def test_the_server_that_hf_endpoint_names_is_used(hub: Hub, run: Path, tmp_path: Path) -> None:
    push(run)
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "softaug.cli", "zoo", "get", f"hf:{REPOSITORY}", "--out", "fetched"]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert Path("fetched/policy.safetensors").read_bytes() == hub.files[REPOSITORY]["policy.safetensors"]
