"""Unpack zip and tar archives that nobody has checked: nothing may land outside the target folder.

Refused: absolute paths, ``..``, links, devices and pipes (no data set here needs them). The archive
is unpacked next to the target and moved there when complete, so the target is whole or absent.
"""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from softaug.errors import UserError
from softaug.files import temporary_directory

COPY_BYTES = 1 << 20
ENCRYPTED = 0x1
"""Of a zip entry's flags."""
DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, struct.error, OverflowError,
    NotImplementedError,  # zipfile's for an unknown compression
    ValueError, UnicodeError,
)  # fmt: skip
"""What the standard library raises for archives that are broken or of an unknown kind."""


def unpack(archive: Path, target: Path, progress: Callable[[int], None] | None = None) -> None:
    """Unpack `archive` to the new folder `target`; `progress` is told the bytes written since the last call."""
    if target.exists():
        raise UserError(f"{target} exists already; move it away first.")
    if not archive.is_file():
        raise UserError(f"there is no archive {archive}.")
    temporary = temporary_directory(target.parent)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, temporary, progress)
        elif tarfile.is_tarfile(archive):
            _unpack_tar(archive, temporary, progress)
        else:
            raise UserError(f"{archive} is neither a zip nor a tar archive.")
        temporary.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"there is no space left in {target.parent} to unpack {archive}; make room."
            ) from error
        raise UserError(
            f"{archive} cannot be unpacked to {target} ({error.strerror or error}); check both, or get it again."
        ) from error
    except DAMAGE as error:
        raise UserError(
            f"the archive {archive} is damaged or encrypted ({error}); delete it and download it again."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def safe_path(name: str, archive: Path) -> PurePosixPath:
    """The relative path of an entry, or a `UserError` when it would leave the folder."""
    if not name:
        raise UserError(
            f"the archive {archive} is damaged (an entry has no name); delete it and download it again."
        )
    path = PurePosixPath(name.replace("\\", "/"))
    if (
        path.is_absolute()
        or ".." in path.parts
        or ":" in (path.parts[0] if path.parts else "")
        or "\0" in name
    ):
        raise UserError(f"{archive} is not safe to unpack: its entry '{name}' would land outside the folder.")
    return path


def _unpack_zip(archive: Path, folder: Path, progress: Callable[[int], None] | None) -> None:
    with zipfile.ZipFile(archive) as content:
        entries = content.infolist()
        for entry in entries:  # all names first: a bad archive is refused before anything is written
            safe_path(entry.filename, archive)
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UserError(f"{archive} is not safe to unpack: '{entry.filename}' is a link or a device.")
            if entry.flag_bits & ENCRYPTED:
                raise UserError(
                    f"the archive {archive} is damaged or encrypted ('{entry.filename}' needs a password); get it again."
                )
        for entry in entries:
            target = folder / safe_path(entry.filename, archive)
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(entry) as source, target.open("wb") as destination:
                shutil.copyfileobj(source, destination, COPY_BYTES)
            if progress:
                progress(entry.file_size)


def _unpack_tar(archive: Path, folder: Path, progress: Callable[[int], None] | None) -> None:
    # One pass (an archive of 100 GB is read once); the folder is thrown away when an entry is refused.
    with tarfile.open(archive, "r:*") as content:
        for entry in content:
            target = folder / safe_path(entry.name, archive)
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif entry.isreg():
                source = content.extractfile(entry)
                assert source is not None  # a regular file always has content
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as destination:
                    shutil.copyfileobj(source, destination, COPY_BYTES)
                if progress:
                    progress(entry.size)
            else:
                # No data set of ours has links, so none is followed, wherever it points.
                raise UserError(f"{archive} is not safe to unpack: '{entry.name}' is a link or a device.")
