"""Fetch a data set: download with resume, check, unpack, register.

While it runs, the archive is ``NAME.part``; an interrupted or broken transfer leaves it, and the next call
continues where it stopped. Only a complete and checked archive is unpacked, and only an unpacked data set is registered.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from softaug.errors import UserError
from softaug.media import registry
from softaug.media.catalogue import Dataset
from softaug.media.unpack import unpack
from softaug.versions import VERSION

CHUNK = 1 << 18
ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0

Progress = Callable[[str, int, "int | None"], None]
"""``progress(stage, done_bytes, total_bytes or None)``; stages: download, verify, unpack."""


def fetch(url: str, target: Path, progress: Progress, attempts: int = ATTEMPTS, pause: float = 1.0) -> None:
    """Download `url` to `target`, continuing ``target.part`` and trying again after a broken transfer."""
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(attempts):
        try:
            if _transfer(url, part, progress):
                part.replace(target)
                return
            reason = "the connection was closed early"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UserError(
                    f"cannot download {url}: the server answers {error.code} {error.reason}."
                ) from error
            reason = f"the server answers {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == 28:
                raise UserError(f"no space left on the disk of {part.parent} for {url}.") from error
            reason = str(getattr(error, "reason", error))
        if attempt + 1 < attempts:
            time.sleep(pause * 2**attempt)
    kept = part.stat().st_size if part.exists() else 0
    if not kept:
        raise UserError(f"cannot download {url}: {reason}; check the connection and try again.")
    raise UserError(
        f"the download of {url} broke off {attempts} times ({reason}); {kept:,} bytes are kept in {part}, "
        "run the same command again to continue."
    )


def _transfer(url: str, part: Path, progress: Progress) -> bool:
    """One connection: append what is missing to `part`; True when the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"softaug/{VERSION}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # Nothing beyond what we have: complete if the server's size says so, else from another version of the file.
        complete = error.headers.get("Content-Range", "") == f"bytes */{have}"
        if not complete:
            part.unlink()
        return complete
    with response:
        if have and not (
            response.status == 206 and _starts_at(response.headers.get("Content-Range", "")) == have
        ):
            have = 0  # the server sends the whole file again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if have else "wb") as file:
            progress("download", have, total)
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress("download", have, total)
    return total is None or have == total


def _starts_at(content_range: str) -> int | None:
    """First byte of a header like ``bytes 100-199/200``."""
    first = content_range.removeprefix("bytes ").split("-")[0]
    return int(first) if first.isdigit() else None


def verify(path: Path, checksum: str, progress: Progress) -> None:
    """Compare a file with ``md5:...`` or ``sha256:...``; a file that differs is deleted, since it cannot be resumed."""
    algorithm, expected = checksum.split(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress("verify", done, total)
    if digest.hexdigest() != expected:
        path.unlink()
        raise UserError(
            f"{path.name} has the wrong {algorithm} checksum {digest.hexdigest()} (expected {expected}); "
            "it was deleted and nothing was registered: download it again."
        )


def download_dataset(
    dataset: Dataset,
    progress: Progress,
    folder: Path | None = None,
    keep_archive: bool = False,
    pause: float = 1.0,
) -> Path:
    """Download, verify, unpack and register a data set; returns the registered folder.

    `folder` is where it is unpacked (default: below softaug's data folder); the archive is put next to it.
    """
    target = (folder or registry.data_directory() / "datasets" / dataset.name).expanduser().absolute()
    if target.exists():
        raise UserError(
            f"{target} exists already; register it with `softaug data add {dataset.name} {target}`."
        )
    archive = target.with_name(dataset.archive)
    _require_space(target, dataset, archive)
    if not archive.exists():
        fetch(dataset.url, archive, progress, pause=pause)
    if dataset.checksum:
        verify(archive, dataset.checksum, progress)
    written = 0

    def unpacked(count: int) -> None:
        nonlocal written
        written += count
        progress("unpack", written, None)

    unpack(archive, target, unpacked)
    registered = registry.register(dataset.name, dataset.locate(target))
    if not keep_archive:
        archive.unlink()
    return registered


def _require_space(target: Path, dataset: Dataset, archive: Path) -> None:
    """Refuse a download that cannot fit: the archive and what is in it are on the disk at the same time."""
    present = archive if archive.exists() else archive.with_name(archive.name + ".part")
    have = present.stat().st_size if present.exists() else 0
    needed = 2 * dataset.size - have
    existing = next(parent for parent in target.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"{dataset.name} needs about {needed / 1e9:.1f} GB in {existing} (archive and unpacked files), "
            f"but only {free / 1e9:.1f} GB are free; choose another disk with --to."
        )
