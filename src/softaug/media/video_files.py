"""Videos from files: decoded with PyAV once, kept at observation size in the cache folder, looped.

The first `open` of a file decodes it (an official one: about 0.4 s) and writes its frames, already resized, to a raw
file in the cache folder; every later `open`, in any process, maps that file into memory. Frames then cost
microseconds, random access gives the same frames as sequential access, and 100 videos take disk space but
hardly any memory of their own. The cache is bounded: the files used least recently go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.media import registry

VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg")
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MAX_FRAMES = 3000  # a longer video loops over its first 3,000 frames; the longest episode has 1,000 decisions
CACHE_BYTES = 4 * 2**30
CACHE_VERSION = 1


def resize_bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 (H, W, 3) -> uint8 (height, width, 3), bilinear without anti-aliasing, as the benchmark does it.

    Equal to torch's ``interpolate(..., mode="bilinear", align_corners=False)`` with fractions cut off.
    """
    from PIL import Image

    # An affine map rather than Image.resize, which would average over all source pixels when shrinking.
    scale = (image.shape[1] / width, 0, 0, 0, image.shape[0] / height, 0)
    source = Image.fromarray(image)
    return np.array(
        source.transform((width, height), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)
    )


def decode(path: Path) -> Iterator[np.ndarray]:
    """The frames of a video file, or of a folder of images (as DAVIS has them), uint8 (H, W, 3)."""
    if path.is_dir():
        yield from _decode_images(path)
        return
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UserError(f"{path} holds no video.")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            declared, decoded = stream.frames, 0
            for frame in container.decode(stream):
                decoded += 1
                yield frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the video {path} cannot be read: it is damaged or no video ({reason}).") from error
    # Some containers declare a few frames more than they show; a tenth missing means a broken copy.
    if decoded == 0 or decoded < 0.9 * declared:
        raise UserError(f"the video {path} is truncated: {decoded} of its {declared} frames can be decoded.")


def _decode_images(folder: Path) -> Iterator[np.ndarray]:
    from PIL import Image

    from softaug.media.folder_images import DECODE_ERRORS
    from softaug.media.rgb import as_rgb

    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in FRAME_SUFFIXES):
        try:
            with Image.open(path) as image:
                yield np.asarray(as_rgb(image))
        except DECODE_ERRORS as error:
            raise UserError(f"the frame {path} cannot be read: it is damaged or no image.") from error


class FileVideo:
    """One decoded video: frames (N, H, W, 3) in memory or mapped from the cache."""

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames

    def __len__(self) -> int:
        """Number of frames."""
        return len(self._frames)

    def frame(self, position: int) -> np.ndarray:
        """Frame `position` modulo the length, uint8 (height, width, 3), a copy."""
        return np.array(self._frames[position % len(self._frames)])


class FileVideos:
    """A list of video files (or folders of frames)."""

    def __init__(
        self, paths: Sequence[str | Path], kind: str = "folder", origin: str | Path | None = None
    ) -> None:
        if not paths:
            raise UserError("the list of videos is empty; give at least one file.")
        self.kind = kind
        self.paths = [Path(path).expanduser() for path in paths]
        self._origin = None if origin is None else str(origin)
        for path in self.paths:
            if not path.exists():
                raise UserError(f"there is no video {path}.")

    def __len__(self) -> int:
        """Number of videos."""
        return len(self.paths)

    def name(self, index: int) -> str:
        """The path of a video."""
        return str(self.paths[index % len(self)])

    def open(self, index: int, height: int, width: int) -> FileVideo:
        """Video `index` at a size: mapped from the cache, decoded first when it is not there."""
        return FileVideo(cached_frames(self.paths[index % len(self)], height, width))

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints."""
        return {
            "kind": self.kind,
            "path": self._origin,
            "videos": len(self),
            "names": [path.name for path in self.paths],
        }


def videos_in(folder: Path) -> list[Path]:
    """Every video file below a folder, or every subfolder of frames when there is none; in natural order."""
    if not folder.is_dir():
        raise UserError(f"there is no video folder {folder}.")
    files = [path for path in folder.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    if not files:
        frames = (path for path in folder.rglob("*") if path.suffix.lower() in FRAME_SUFFIXES)
        files = list({path.parent for path in frames})
    if not files:
        raise UserError(
            f"the folder {folder} holds no videos ({', '.join(VIDEO_SUFFIXES)}) and no folders of frames."
        )
    return sorted(files, key=lambda path: _natural(str(path.relative_to(folder))))


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key by which video2 comes before video10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    ]


def cached_frames(path: Path, height: int, width: int) -> np.ndarray:
    """Frames of a video at a size, uint8 (N, height, width, 3): from the cache, or decoded into it."""
    target = _cache_file(path, height, width)
    try:
        frames = _mapped(target, height, width)
    except OSError:  # not there yet, or no place for a cache at all
        try:
            _decode_into(target, path, height, width)
            frames = _mapped(target, height, width)
        except OSError as error:
            warnings.warn(
                f"{path.name} is kept in memory: no cache in {target.parent} ({error})", stacklevel=2
            )
            return np.stack([resize_bilinear(frame, height, width) for frame in _first_frames(path)])
        _prune(target.parent, keep=target)
    with contextlib.suppress(OSError):  # a shared cache may be read-only, or another process pruned the file
        os.utime(target)  # used now: the least recently used go first
    return frames


def _mapped(file: Path, height: int, width: int) -> np.ndarray:
    count = file.stat().st_size // (height * width * 3)
    return np.memmap(file, np.uint8, mode="r", shape=(count, height, width, 3))


def _decode_into(target: Path, path: Path, height: int, width: int) -> None:
    """Write all frames next to `target`, then give the file its name: it is whole or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".decoding-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for frame in _first_frames(path):
                file.write(resize_bilinear(frame, height, width).tobytes())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _first_frames(path: Path) -> Iterator[np.ndarray]:
    count = 0
    for frame in decode(path):
        yield frame
        count += 1
        if count == MAX_FRAMES:
            return
    if count == 0:
        raise UserError(f"the video {path} holds no frames.")


def _cache_file(path: Path, height: int, width: int) -> Path:
    """Name of the cache file: another size, another file content or another version is another name."""
    status = path.stat()
    identity = f"{CACHE_VERSION}|{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{height}x{width}|{MAX_FRAMES}"
    return registry.cache_directory() / "frames" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.raw"


def _prune(folder: Path, keep: Path) -> None:
    """Delete the least recently used cache files until the rest fits into `CACHE_BYTES`."""
    entries = []
    for path in folder.glob("*.raw"):
        try:
            status = path.stat()
        except FileNotFoundError:  # another process pruned it
            continue
        entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= CACHE_BYTES:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            total -= size
