"""Check a registered data set for real: count its files, decode a sample, name what is missing or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from softaug.errors import UserError
from softaug.media import official
from softaug.media.catalogue import CATALOGUE

IMAGE_SAMPLE = 200
VIDEO_SAMPLE = 10

T = TypeVar("T")


def kind_of(name: str, folder: Path) -> str:
    """``benchmark``, ``videos`` or ``images``: by the catalogue, else by what the folder holds."""
    from softaug.media.folder_images import scan
    from softaug.media.video_files import VIDEO_SUFFIXES

    if name in CATALOGUE:
        return CATALOGUE[name].kind
    if official.find_root(folder) is not None:
        return "benchmark"
    if next(scan(folder), None) is not None:
        return "images"
    if any(path.suffix.lower() in VIDEO_SUFFIXES for path in folder.rglob("*")):
        return "videos"
    raise UserError(f"{folder} holds neither images nor videos.")


def check_dataset(name: str, folder: Path, everything: bool = False) -> dict[str, Any]:
    """A report as JSON types: name, path, kind, files, checked, missing, bad (file and reason), ok.

    `everything` decodes all files instead of an evenly spread sample.
    """
    report: dict[str, Any] = {"name": name, "path": str(folder), "kind": None, "files": 0, "checked": 0}
    report |= {"missing": [], "bad": [], "ok": False}
    if not folder.is_dir():
        return report | {"bad": [{"file": str(folder), "reason": "the folder is gone"}]}
    try:
        report["kind"] = kind_of(name, folder)
        checks = {"images": _check_images, "videos": _check_videos, "benchmark": _check_benchmark}
        report |= checks[report["kind"]](folder, everything)
    except UserError as error:
        report["bad"] = [{"file": str(folder), "reason": str(error)}]
    return report | {"ok": not report["bad"] and report["files"] > 0}


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spread."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _check_images(folder: Path, everything: bool) -> dict[str, Any]:
    from PIL import Image

    from softaug.media.folder_images import DECODE_ERRORS, FolderImages
    from softaug.media.rgb import as_rgb

    source = FolderImages(folder)
    indices = spread(range(len(source)), len(source) if everything else IMAGE_SAMPLE)
    bad, smallest = [], None
    for index in indices:
        path = source.path(index)
        try:
            with Image.open(path) as image:
                as_rgb(image)
                side = min(image.size)
                smallest = side if smallest is None else min(smallest, side)
        except DECODE_ERRORS as error:
            bad.append({"file": str(path), "reason": str(error)})
    return {"files": len(source), "checked": len(indices), "bad": bad, "smallest_side": smallest}


def _check_videos(folder: Path, everything: bool) -> dict[str, Any]:
    from softaug.media.video_files import videos_in

    return _decode_videos(videos_in(folder), everything)


def _decode_videos(paths: list[Path], everything: bool) -> dict[str, Any]:
    from softaug.media.video_files import decode

    sample = spread(paths, len(paths) if everything else VIDEO_SAMPLE) if paths else []
    bad, frames = [], 0
    for path in sample:
        try:
            frames += sum(1 for _ in decode(path))
        except UserError as error:
            bad.append({"file": str(path), "reason": str(error)})
    return {"files": len(paths), "checked": len(sample), "bad": bad, "frames_decoded": frames}


def _check_benchmark(folder: Path, everything: bool) -> dict[str, Any]:
    root = official.require_root(folder)
    # Each level by itself, so that the few easy videos are always checked.
    reports = [_decode_videos(official.video_files(root, level), everything) for level in official.LEVELS]
    report = {key: sum((part[key] for part in reports[1:]), reports[0][key]) for key in reports[0]}
    for level in official.LEVELS:
        path = root / f"color_{level}.pt"
        if path.is_file():
            report["files"] += 1
            report["checked"] += 1
            try:
                official.load_colors(path)
            except UserError as error:
                report["bad"].append({"file": str(path), "reason": str(error)})
    return report | {"missing": official.missing_files(root)}
