"""Policies on the Hugging Face Hub: the one place that uses `huggingface_hub` (extra `hub`).

Only files that a policy has are downloaded, all of the same commit, and checked against their checksums. They stay in the
hub's own cache. ``HF_ENDPOINT`` names another server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from softaug.errors import UserError
from softaug.storage.checksums import Damaged
from softaug.zoo.folder import CONFIG_FILE, OPTIONAL, REQUIRED, RESULTS_FILE, PolicyFolder

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
REVISION = re.compile(r"(?!.*\.\.)\w[\w./-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r"[\w-]+")
MOST_BYTES = 100_000_000
"""A larger file is not downloaded: the paper's networks take 15 MB."""


def download(reference: str) -> Path:
    """The verified folder of ORG/NAME or ORG/NAME@REVISION (a branch, tag or commit)."""
    repository, at, revision = reference.partition("@")
    check_repository(repository)
    if at and not REVISION.fullmatch(revision):
        raise UserError(f"{revision!r:.80} is no revision; give a branch, a tag or a commit after @")
    source = _Source(repository)
    with _explained(repository):
        folder = source.fetch(RESULTS_FILE, revision or None).parent
        commit = folder.name  # the cache calls the folder by its commit
        source.fetch_all(commit)
    try:
        PolicyFolder(folder).verify()
    except Damaged:
        if source.offline:
            raise
        # In the cache, perhaps: once more from the server.
        with _explained(repository):
            source.fetch_all(commit, again=True)
        PolicyFolder(folder).verify()
    return folder


def push(folder: Path, repository: str) -> str:
    """Upload the verified folder, making the repository if there is none; returns its address."""
    check_repository(repository)
    PolicyFolder(folder).verify()
    hub = _library()
    with _explained(repository):
        api = hub.HfApi(endpoint=_endpoint(), library_name="softaug")
        address = api.create_repo(repository, exist_ok=True)
        if api.file_exists(repository, CONFIG_FILE) and not api.file_exists(repository, RESULTS_FILE):
            raise UserError(
                f"{repository} holds something else than a policy of softaug; give --push another name"
            )
        files = PolicyFolder(folder).files()
        changes = [
            hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()
        ]
        for name in OPTIONAL:  # of the policy that was there before
            if name not in files and api.file_exists(repository, name):
                changes.append(hub.CommitOperationDelete(path_in_repo=name))
        # One commit, so that nobody ever finds half of a policy.
        api.create_commit(repository, changes, commit_message="Add a policy trained with softaug")
    return str(address)


def check_repository(repository: str) -> None:
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{repository!r:.80} is no name of a repository on the hub; give ORG/NAME")


def check_push(repository: str) -> None:
    """What can be wrong with --push before anything is made."""
    check_repository(repository)
    hub = _library()
    try:
        hub.utils.validate_repo_id(repository)
    except hub.errors.HFValidationError as error:
        raise UserError(
            f"the hub allows no repository called {repository:.80} ({_first_line(error)}); give another name"
        ) from None


class NoPolicy(UserError):
    """A repository lacks a file that a policy has."""


class _Source:
    """A repository's files, downloaded unless they are in the cache."""

    def __init__(self, repository: str):
        self.repository, self.hub = repository, _library()
        self.offline = False
        """the server could not be reached: only the cache is asked from then on"""

    def fetch_all(self, commit: str, *, again: bool = False) -> None:
        """again: also those that are in the cache."""
        for name in REQUIRED:
            self.fetch(name, commit, again=again)
        for name in OPTIONAL:
            with suppress(NoPolicy):
                self.fetch(name, commit, again=again)

    def fetch(self, name: str, revision: str | None, *, again: bool = False) -> Path:
        hub, errors = self.hub, self.hub.errors
        known = revision is not None and COMMIT.fullmatch(revision) is not None
        if known and not again:
            with suppress(errors.LocalEntryNotFoundError):
                return self._download(name, revision, local_files_only=True)
        if not self.offline:
            url = hub.hf_hub_url(self.repository, name, revision=revision, endpoint=_endpoint())
            try:
                self._check(name, hub.get_hf_file_metadata(url, library_name="softaug", endpoint=_endpoint()))
                return self._download(name, revision, force_download=again)
            except errors.RemoteEntryNotFoundError:
                raise self._missing(name) from None
            except errors.HfHubHTTPError:
                raise  # it was reached, and refuses
            except (_transport_error(), ConnectionError) as error:
                try:
                    file = self._download(name, revision, local_files_only=True)
                except errors.LocalEntryNotFoundError:
                    raise error from None
                self.offline = True
                return file
        try:
            return self._download(name, revision, local_files_only=True)
        except errors.LocalEntryNotFoundError:
            raise self._missing(name) from None

    def _check(self, name: str, said: Any) -> None:
        """Refuse what the server says of a file before anything is written: the cache makes paths of it."""
        if said.size is None:
            raise UserError(
                f"the server does not say how large {name} of {self.repository} is; use another server"
            )
        if said.size > MOST_BYTES:
            raise UserError(
                f"{name} of {self.repository} has {said.size / 1e6:,.0f} MB, more than any policy; check its name"
            )
        if not COMMIT.fullmatch(said.commit_hash or "") or not ETAG.fullmatch(said.etag or ""):
            raise UserError(
                f"the server's answer for {name} of {self.repository} is not a hub's; use another server"
            )

    def _download(self, name: str, revision: str | None, **how: Any) -> Path:
        return Path(
            self.hub.hf_hub_download(
                self.repository, name, revision=revision, library_name="softaug", endpoint=_endpoint(), **how
            )
        )

    def _missing(self, name: str) -> NoPolicy:
        return NoPolicy(f"{self.repository} holds no policy of softaug (it has no {name}); check its name")


def _endpoint() -> str | None:
    """The server; the library itself reads the variable only once, when it is imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise UserError(
            "hf: and --push need huggingface_hub; install it with: pip install 'softaug[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """What the hub, its library, the network or the cache refuse, as one sentence."""
    try:
        yield
    except (_transport_error(), _invalid_url(), ValueError, OSError) as error:
        place = getattr(error, "filename", None)
        if place is not None:
            raise UserError(
                f"the hub's cache cannot be used ({place}: {_first_line(error)}); check the folder that HF_HOME names"
            ) from None
        raise UserError(
            f"the hub does not give access to {repository} ({_first_line(error)}); check the name, the network, HF_ENDPOINT and "
            "HF_TOKEN if they are set and, for --push, that you are logged in (`hf auth login`)"
        ) from None


def _first_line(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return f"{said.splitlines()[0].rstrip('.'):.200}"


def _transport_error() -> Any:
    """What the HTTP library in use raises for a server that cannot be reached."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _invalid_url() -> Any:
    """What it raises for an address that is none."""
    library = sys.modules[_transport_error().__module__.partition(".")[0]]
    return getattr(library, "InvalidURL", ValueError)
