"""Reading and writing files: nobody ever sees half of one, and whatever lies where one should be is an error, not lost."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from softaug.errors import UserError

LONGEST_NAME = 255
"""Bytes in the name of a file, on every file system in use."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file: a reader sees the old or the new content, also after a crash or power cut.

    A symbolic link is followed: its target is written. See `output_file` for what is refused.
    """
    path = output_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Short, whatever the name: a prefix would make some names too long.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide results from colleagues
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync(path.parent)


def temporary_directory(parent: Path) -> Path:
    """A new directory in `parent`, which is made if need be: to be filled, and renamed once it is complete."""
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=parent, prefix=".writing-"))
    made.chmod(0o777 & ~_umask())  # mkdtemp's 0700 would hide it from colleagues
    return made


def output_file(path: Path) -> Path:
    """Where a file called `path` is to be written: itself, or what it links to.

    Only a regular file is ever replaced: a directory, device, pipe or socket of that name is refused.
    """
    check_name(path)
    try:
        target = path.resolve()
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    except (OSError, RuntimeError) as error:  # pathlib's word for a loop of links is RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write to {path} ({reason}); give another name") from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a directory; give the name of a file")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is a device or pipe, not a file; give the name of a file")
    return target


def check_writable(path: Path) -> None:
    """Refuse a place where no file can be made, before the work that is to be written there."""
    target = output_file(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".writing-"):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {path} ({error.strerror}); choose another place") from None


def check_name(path: str | Path) -> None:
    """Refuse what no file can be called."""
    text = str(path)
    if "\0" in text:
        raise UserError(f"{text!r} holds a zero byte and can be no file's name; give another name")
    try:
        longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    except UnicodeEncodeError:
        raise UserError(f"{text!r} can be no file's name; give another name") from None
    if longest > LONGEST_NAME:
        raise UserError(
            f"the name {text[:40]}... is too long: {longest} bytes where {LONGEST_NAME} fit; give a shorter one"
        )


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file; anything else there is a `UserError` that ends in `remedy`."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UserError(f"{path} cannot be read (it is no file); {remedy}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        # A lone surrogate ("\\ud800") is legal JSON, but can be written to no file and shown in no page.
        json.dumps(values, ensure_ascii=False).encode()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    except RecursionError:
        raise UserError(f"{path} is damaged (nested too deeply); {remedy}") from None
    except ValueError as error:  # no JSON, or not even text
        raise UserError(f"{path} is damaged ({error}); {remedy}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged (no JSON object); {remedy}")
    return values


def free_bytes(path: Path) -> int:
    """Free space on the disk where `path` is or will be."""
    path = path.absolute()
    return shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists())).free


def sync(path: Path) -> None:
    """Wait until a file or a directory's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
