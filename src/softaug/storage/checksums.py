"""SHA256SUMS: the checksums of a directory's files, as `sha256sum -c SHA256SUMS` checks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from softaug.errors import UserError

SUMS_FILE = "SHA256SUMS"
SUMS_LINE = re.compile(r"[0-9a-f]{64}  [^/\n]+\n")
REMEDY = "use another checkpoint"


class Damaged(UserError):
    """A file of a checkpoint or of a published policy is missing or not as it was written."""


def sums_text(digests: Mapping[str, str]) -> str:
    """The content of SHA256SUMS; `digests`: file name -> SHA-256."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def read_sums(directory: Path, remedy: str = REMEDY) -> dict[str, str]:
    """File name -> SHA-256, as the directory's SHA256SUMS has them."""
    path = directory / SUMS_FILE
    if not path.is_file():
        raise Damaged(f"{path} is missing; {remedy}")
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    if not lines or not all(SUMS_LINE.fullmatch(line) for line in lines):
        raise Damaged(f"{path} is damaged (not a list of checksums); {remedy}")
    return {name: digest for digest, name in (line.rstrip("\n").split("  ", 1) for line in lines)}


def check_digest(path: Path, digest: str | None, sums: Mapping[str, str], remedy: str = REMEDY) -> None:
    """Refuse a file whose SHA-256 `digest` (None: there is no such file) is not the one in `sums`."""
    if path.name not in sums:
        raise Damaged(f"{path.parent / SUMS_FILE} is damaged (no line for {path.name}); {remedy}")
    if digest != sums[path.name]:
        raise Damaged(f"{path} is damaged (its checksum is wrong); {remedy}")
