"""Videos and images inside the page, within a bound."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from softaug.errors import UserError
from softaug.results.groups import Group
from softaug.results.records import RunRecord

VIDEO_BYTES = 16_000_000
"""Upper bound of all videos in a page; base64 makes a third more of it."""

IMAGE_BYTES = 2_000_000
"""A diagnosis image larger than this is made smaller."""


@dataclass(frozen=True)
class Videos:
    """The videos of one run: mode -> mp4 in base64."""

    record: RunRecord
    group: Group
    by_mode: dict[str, str]


def choose_videos(groups: Sequence[Group], limit: int = VIDEO_BYTES) -> tuple[list[Videos], list[RunRecord]]:
    """Videos of as many runs as fit: the first seed of every group, then the second of each, and so on.

    A run is taken with all its modes or not at all. Returns also the runs left out.
    """
    rounds: list[list[tuple[Group, RunRecord]]] = []
    seen: set[Path] = set()
    for group in groups:
        with_videos = [r for r in group.records if r.videos and r.path not in seen]
        seen |= {r.path for r in with_videos}
        for number, record in enumerate(with_videos):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append((group, record))
    chosen, left_out, used = [], [], 0
    for group, record in (pair for pairs in rounds for pair in pairs):
        # A name that begins with a dot is a video still being written.
        files = {mode: _read(path) for mode, path in record.videos.items() if not mode.startswith(".")}
        content = {mode: data for mode, data in files.items() if data is not None}
        size = sum(map(len, content.values()))
        if used + size > limit:
            left_out.append(record)
            continue
        used += size
        if content:
            chosen.append(
                Videos(record, group, {m: base64.b64encode(data).decode() for m, data in content.items()})
            )
    return chosen, left_out


def image_uri(pixels: np.ndarray) -> str:
    """An image (H, W, 3), uint8, as a data URI: WebP, nearly lossless."""
    return _webp(Image.fromarray(pixels), quality=92)


def image_file_uri(path: Path) -> str:
    """An image file as a data URI, made smaller if it is large."""
    try:
        size = path.stat().st_size
        with Image.open(path) as image:
            converted = image.convert("RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # Pillow's, for damaged files
        raise UserError(f"{path} cannot be read ({error}); make it again with softaug diagnose") from None
    if size > IMAGE_BYTES:
        converted.thumbnail((2000, 4000))
    return _webp(converted, quality=88)


def _webp(image: Image.Image, quality: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _read(path: Path) -> bytes | None:
    """A video's bytes; None if a running evaluation replaced it meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
