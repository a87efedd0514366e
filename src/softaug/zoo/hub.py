"""Policies on the Hugging Face Hub: the one place that uses `huggingface_hub` (extra `hub`).

Only files that a policy has are downloaded, all of the same commit, and checked against their checksums. They stay in the
hub's own cache. ``HF_ENDPOINT`` names another server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from softaug.errors import UserError
from softaug.zoo.folder import OPTIONAL, REQUIRED, RESULTS_FILE, PolicyFolder

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
MOST_BYTES = 100_000_000
"""A larger file is not downloaded: the paper's networks take 15 MB."""


def download(reference: str) -> Path:
    """The verified folder of ORG/NAME or ORG/NAME@REVISION (a branch, tag or commit)."""
    repository, _, revision = reference.partition("@")
    check_repository(repository)
    hub = _library()
    with _explained(repository):
        folder = _fetch(hub, repository, RESULTS_FILE, revision or None).parent
        for name in REQUIRED:
            _fetch(hub, repository, name, folder.name)  # the cache calls the folder by its commit
        for name in OPTIONAL:
            with suppress(hub.errors.EntryNotFoundError, NoPolicy):
                _fetch(hub, repository, name, folder.name)
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
        files = PolicyFolder(folder).files()
        # One commit, so that nobody ever finds half of a policy.
        api.create_commit(
            repository,
            [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()],
            commit_message="Add a policy trained with softaug",
        )
    return str(address)


def check_repository(repository: str) -> None:
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{repository!r:.80} is no name of a repository on the hub; give ORG/NAME")


class NoPolicy(UserError):
    """A repository lacks a file that a policy has."""


def _fetch(hub: Any, repository: str, name: str, revision: str | None) -> Path:
    """The file, downloaded unless it is in the cache."""
    wanted = {"revision": revision, "library_name": "softaug", "endpoint": _endpoint()}
    try:
        size = hub.hf_hub_download(repository, name, dry_run=True, **wanted).file_size
        if size is not None and size > MOST_BYTES:
            raise UserError(
                f"{name} of {repository} has {size / 1e6:,.0f} MB, more than any policy; check its name"
            )
        return Path(hub.hf_hub_download(repository, name, **wanted))
    except hub.errors.RemoteEntryNotFoundError:
        raise NoPolicy(
            f"{repository} holds no policy of softaug (it has no {name}); check its name"
        ) from None


def _endpoint() -> str | None:
    """The server; the library itself reads the variable only once, when it is imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise UserError(
            "hf: and --push need huggingface_hub; install it with: pip install 'softaug[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """What the hub, its library or the network refuse, as one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    transport_error: Any = HfHubHTTPError.__bases__[
        0
    ]  # of the HTTP library in use, for a server that cannot be reached
    try:
        yield
    except (transport_error, HFValidationError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"the hub does not give access to {repository} ({reason:.200}); check the name, the network and, for "
            "--push, that you are logged in (`hf auth login`)"
        ) from None
