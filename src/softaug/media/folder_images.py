"""Overlay images from a folder: any tree of JPEG, PNG or WebP files, such as Places365.

A sample is a random resized crop and, half of the time, its mirror image (see `crops`). An image smaller than the
output is enlarged. A file that cannot be decoded is replaced by the next good one, so samples stay a function of the
random generator and the files alone. If the folder has been packed (see `packed_images`), decoded images are taken
from the pack.
"""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from softaug.errors import UserError
from softaug.files import write_atomically
from softaug.media import registry
from softaug.media.crops import crop_boxes, draw_crops
from softaug.media.rgb import as_rgb

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
INDEX_CACHE_FROM = 20_000  # files; a smaller tree is scanned each time, which takes less than a second
MAX_BAD_IN_A_ROW = 1000
WORKERS = max(1, min(8, os.cpu_count() or 1))
DECODE_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for files that are no images, or damaged ones."""


def scan(folder: Path) -> Iterator[str]:
    """Paths of all images below a folder, relative to it, in sorted order; links to folders are not followed."""
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(folder / inside) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except PermissionError as error:
            raise UserError(
                f"the folder {folder / inside} may not be read; change its permissions."
            ) from error
        # The stack is last in, first out: reversed, so that folders come in alphabetical order.
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        pending.extend(f"{inside}{name}/" for name in reversed(folders))
        for entry in entries:
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                yield inside + entry.name


class FileIndex:
    """The paths of many images as one block of bytes: 1.8 million of them take little memory and load at once."""

    def __init__(self, content: np.ndarray) -> None:
        self.content = content  # paths, each ended by a zero byte
        self._ends = np.flatnonzero(content == 0)

    def __len__(self) -> int:
        """Number of files."""
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        """Path number `index`, relative to the folder."""
        start = 0 if index == 0 else int(self._ends[index - 1]) + 1
        return os.fsdecode(self.content[start : int(self._ends[index])].tobytes())

    @classmethod
    def of(cls, folder: Path) -> FileIndex:
        """The index of a folder; that of a large one is kept in the cache until the folder changes.

        Changed means: the folder itself or one directly below it has another modification time. Deeper changes
        of a large tree are not seen; files that are gone are then skipped like damaged ones.
        """
        times = [folder.stat().st_mtime_ns]
        with os.scandir(folder) as listing:
            times += sorted(entry.stat().st_mtime_ns for entry in listing if entry.is_dir())
        identity = hashlib.sha256(f"1|{folder.resolve()}|{times}".encode()).hexdigest()[:32]
        cached = registry.cache_directory() / "index" / f"{identity}.paths"
        if cached.is_file() and cached.stat().st_size:
            return cls(np.memmap(cached, np.uint8, mode="r"))
        content = b"".join(os.fsencode(path) + b"\0" for path in scan(folder))
        index = cls(np.frombuffer(content, np.uint8))
        if len(index) >= INDEX_CACHE_FROM:
            try:
                write_atomically(cached, content)
            except OSError as error:
                warnings.warn(
                    f"the index of {folder} could not be kept in {cached.parent}: {error}", stacklevel=2
                )
        return index


def load_crop(path: Path, draw: np.ndarray, height: int, width: int) -> np.ndarray:
    """Decode an image and cut out the crop that `draw`, a row of `crops.draw_crops`, means in it.

    Returns uint8 (height, width, 3).
    """
    with Image.open(path) as image:
        full_width, full_height = image.size
        boxes, flips = crop_boxes(draw[None], full_width, full_height)
        left, top, crop_width, crop_height = boxes[0].tolist()
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which is faster; never below the size needed.
        image.draft(
            "RGB", (int(full_width * width / crop_width) + 1, int(full_height * height / crop_height) + 1)
        )
        scale_x, scale_y = image.size[0] / full_width, image.size[1] / full_height
        right, bottom = (left + crop_width) * scale_x, (top + crop_height) * scale_y
        box = (left * scale_x, top * scale_y, min(right, image.size[0]), min(bottom, image.size[1]))
        resized = as_rgb(image).resize((width, height), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(resized)
    return pixels[:, ::-1] if flips[0] else pixels


def load_whole(path: Path, size: int) -> tuple[np.ndarray, tuple[int, int]]:
    """A whole image resized to uint8 (size, size, 3), whatever its shape, and its own width and height."""
    with Image.open(path) as image:
        original = image.size
        image.draft("RGB", (size, size))
        resized = as_rgb(image).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized), original


class FolderImages:
    """Images of a folder tree; see the module's text.

    packed: take them from the folder's pack, if there is one that matches.
    """

    kind = "folder"

    def __init__(self, folder: str | Path, *, packed: bool = True) -> None:
        self.folder = Path(folder).expanduser()
        if not self.folder.is_dir():
            raise UserError(f"there is no image folder {self.folder}.")
        self._index = FileIndex.of(self.folder)
        if not len(self._index):
            raise UserError(f"the folder {self.folder} holds no images ({', '.join(SUFFIXES)}).")
        from softaug.media.packed_images import open_pack  # it imports this module, and torch

        self._pack = open_pack(self.folder, self._index) if packed else None
        self._bad: set[int] = set()
        self._workers: tuple[int, ThreadPoolExecutor] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy sent to another process has its own workers."""
        return partial(FolderImages, packed=self._pack is not None), (self.folder,)

    def __len__(self) -> int:
        """Number of files."""
        return len(self._index)

    def path(self, index: int) -> Path:
        """File number `index`."""
        return self.folder / self._index[index]

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints."""
        facts = {"kind": self.kind, "path": str(self.folder), "images": len(self)}
        if self._pack is not None:
            facts["packed"] = {"images": len(self._pack), "size": self._pack.size}
        return facts

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """`count` images, uint8 (count, height, width, 3), decoded or resized by several threads."""
        if self._pack is not None:
            return self._pack.sample(count, height, width, rng, self._pool())
        which = rng.integers(len(self), size=count).tolist()
        draws = draw_crops(count, rng)
        images = np.empty((count, height, width, 3), np.uint8)
        found_bad: set[int] = set()

        def fill(i: int) -> None:
            for step in range(min(len(self), MAX_BAD_IN_A_ROW)):
                index = (which[i] + step) % len(self)
                if index in self._bad:
                    continue
                try:
                    images[i] = load_crop(self.path(index), draws[i], height, width)
                    return
                except DECODE_ERRORS:
                    found_bad.add(index)
            raise UserError(
                f"none of the files tried in {self.folder} is a readable image; check the folder."
            )

        list(self._pool().map(fill, range(count)))
        if new := sorted(found_bad - self._bad):
            self._bad.update(new)
            names = ", ".join(self._index[index] for index in new[:5])
            more = f" and {len(new) - 5} more" if len(new) > 5 else ""
            warnings.warn(f"unreadable images in {self.folder} are skipped: {names}{more}", stacklevel=2)
        return images

    def _pool(self) -> ThreadPoolExecutor:
        """The decoding threads; a forked process makes its own, since threads do not survive a fork."""
        if self._workers is None or self._workers[0] != os.getpid():
            self._workers = (os.getpid(), ThreadPoolExecutor(WORKERS, thread_name_prefix="softaug-images"))
        return self._workers[1]
