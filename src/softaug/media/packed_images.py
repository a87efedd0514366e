"""One memory-mapped file of decoded images, so that overlay images from a folder cost a resize instead of a JPEG.

`build` makes it (``softaug data pack``), `open_pack` finds the one of a folder, and `FolderImages` then samples from it.

Each image is stored whole, resized to `size` x `size` whatever its shape, next to the size it had. A crop is drawn for
that original size and its box is scaled to the stored image, so both the region and its distortion are those of a crop
from the file, to half a stored pixel; the filter is the same antialiased bilinear one. What differs: only `count` files
(evenly spread over the folder) are drawn from, and a crop from a file larger than `size` is less sharp when fewer than
`height` x `width` stored pixels are left of it. Places365's files have 256 x 256 pixels: packed at 256, nothing is lost.

Layout: a header of JSON, a table with a row per image (`ROW`), the images; each part begins at a multiple of `PAGE`
bytes. A row is written after its image, so whatever a killed build has finished can be told by checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from softaug.errors import UserError
from softaug.files import sync
from softaug.media import registry
from softaug.media.crops import crop_boxes, draw_crops
from softaug.media.folder_images import DECODE_ERRORS, MAX_BAD_IN_A_ROW, WORKERS, FileIndex, load_whole

PAGE = 4096
FORMAT = "softaug packed images 1"
ROW = np.dtype([("width", "<i4"), ("height", "<i4"), ("checksum", "<u4"), ("done", "<u4")])
STAT_SAMPLE = 1000  # packed files whose size and time of change say whether the folder is still the same
IMAGES_PER_JOB = 32


class PackedImages:
    """A finished, verified pack."""

    def __init__(self, path: Path, facts: dict[str, Any], table: np.ndarray, images: np.ndarray) -> None:
        self.path, self.size, self._table = path, facts["size"], table
        with warnings.catch_warnings():  # torch warns that the array is read-only; nothing here writes to it
            warnings.simplefilter("ignore", UserWarning)
            self._images = torch.from_numpy(images)

    def __len__(self) -> int:
        """Number of images."""
        return len(self._table)

    def sample(
        self, count: int, height: int, width: int, rng: np.random.Generator, pool: ThreadPoolExecutor
    ) -> np.ndarray:
        """`count` images, uint8 (count, height, width, 3); the same draws as those of a folder of `len(self)` files."""
        which = rng.integers(len(self), size=count)
        boxes, flips = self.boxes(which, draw_crops(count, rng))
        images = torch.empty((count, height, width, 3), dtype=torch.uint8)

        pixels = images.permute(0, 3, 1, 2)
        crops = [*zip(range(count), which.tolist(), boxes.tolist(), flips.tolist(), strict=True)]

        def fill(first: int) -> None:
            for i, stored, (left, top, right, bottom), flip in crops[first : first + IMAGES_PER_JOB]:
                # Contiguous, channels last: torch resizes that much faster than a view.
                crop = self._images[stored : stored + 1, top:bottom, left:right].contiguous()
                crop = crop.permute(0, 3, 1, 2)
                resized = F.interpolate(crop, (height, width), mode="bilinear", antialias=True)
                pixels[i] = resized[0].flip(2) if flip else resized[0]

        list(pool.map(fill, range(0, count, IMAGES_PER_JOB)))
        return images.numpy()

    def boxes(self, which: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The crops `draws` of images `which` in stored pixels, (B, 4) of left, top, right, bottom; who is mirrored."""
        rows = self._table[which]
        original, flips = crop_boxes(draws, rows["width"].astype(np.int64), rows["height"].astype(np.int64))
        corners = np.concatenate([original[:, :2], original[:, :2] + original[:, 2:]], axis=1)
        full = np.stack([rows["width"], rows["height"]] * 2, axis=1)
        boxes = np.rint(corners * (self.size / full)).astype(np.int64)
        boxes[:, :2] = np.minimum(boxes[:, :2], self.size - 1)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)  # never empty
        return boxes, flips


def pack_path(folder: Path) -> Path:
    """Where the pack of a folder is kept."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return registry.cache_directory() / "packs" / f"{name}.pack"


def open_pack(folder: Path, index: FileIndex) -> PackedImages | None:
    """The pack of a folder, with every checksum verified; None if there is none or the folder has changed since.

    A damaged pack is an error: decoding instead would give other images than the ones asked for, and slowly.
    """
    path = pack_path(folder)
    if not path.exists():
        return None
    command = shlex.join(["softaug", "data", "pack", str(folder)])
    again = f"run `{command}` again (with the same --count and --size), or delete it to decode the files"
    try:
        facts, table, images = _read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the packed images in {path} are damaged ({error}); {again}.") from error
    if facts["source"] != _source(folder, index, facts["count"]):
        warnings.warn(
            f"the packed images in {path} were made from other files than are in {folder} now, so they are not used; "
            f"{again}.",
            stacklevel=3,
        )
        return None
    with ThreadPoolExecutor(WORKERS) as pool:
        good = list(pool.map(lambda i: zlib.crc32(images[i].data) == table["checksum"][i], range(len(table))))
    if not all(good):
        raise UserError(
            f"the packed images in {path} are damaged ({len(good) - sum(good)} wrong checksums); {again}."
        )
    return PackedImages(path, facts, table, images)


def build(
    folder: Path, count: int, size: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Pack `count` files of a folder (all, if it has fewer) at `size` pixels; continues what a killed build has left.

    `progress(done, total)` is called in this thread. An existing pack stays in use until the new one is complete.
    """
    index = FileIndex.of(folder)
    if not len(index):
        raise UserError(f"the folder {folder} holds no images to pack.")
    count = min(count, len(index))
    path = pack_path(folder)
    part = path.with_suffix(".part")
    facts = {"format": FORMAT, "count": count, "size": size, "source": _source(folder, index, count)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a+b") as file:
        _lock(file, part)
        if _part_facts(part) != facts:
            _begin(part, facts)
        table, images = _arrays(part, facts, "r+")
        chosen = spread_indices(len(index), count)
        todo = _unfinished(table, images)
        progress(count - len(todo), count)

        broken: list[str] = []

        def pack(slot: int) -> None:
            pixels, original = _first_good(folder, index, int(chosen[slot]), size, broken)
            images[slot] = pixels
            row = (*original, zlib.crc32(np.ascontiguousarray(pixels).data), 1)
            table[slot] = row

        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="softaug-pack")
        try:
            for done, _ in enumerate(pool.map(pack, todo), count - len(todo) + 1):
                progress(done, count)
        finally:
            pool.shutdown(cancel_futures=True)
        images.flush()
        table.flush()
        _write_header(part, {**facts, "table_checksum": zlib.crc32(table.tobytes())})
        sync(part)
        part.replace(path)
    sync(path.parent)
    if broken:
        warnings.warn(
            f"{len(set(broken)):,} files of {folder} are no readable images ({min(broken)}, …); the next readable file was "
            "packed in place of each.",
            stacklevel=2,
        )
    return path


def spread_indices(total: int, count: int) -> np.ndarray:
    """`count` of 0 .. total - 1, evenly spread, ascending."""
    return np.arange(count, dtype=np.int64) * total // count


def _first_good(
    folder: Path, index: FileIndex, start: int, size: int, broken: list[str]
) -> tuple[np.ndarray, tuple[int, int]]:
    """The file number `start`, or the next one that can be decoded: as `FolderImages` does. Others go to `broken`."""
    for step in range(min(len(index), MAX_BAD_IN_A_ROW)):
        name = index[(start + step) % len(index)]
        try:
            return load_whole(folder / name, size)
        except DECODE_ERRORS:
            broken.append(str(name))
    raise UserError(f"none of the files tried in {folder} is a readable image; check the folder.")


def _unfinished(table: np.ndarray, images: np.ndarray) -> list[int]:
    """The slots which a build still has to fill: those without a row, or with an image that is not what it says."""

    def missing(slot: int) -> bool:
        return not table["done"][slot] or zlib.crc32(images[slot].data) != table["checksum"][slot]

    with ThreadPoolExecutor(WORKERS) as pool:
        return np.flatnonzero(list(pool.map(missing, range(len(table))))).tolist()


def _source(folder: Path, index: FileIndex, count: int) -> str:
    """What a pack was made from: all names in the folder, and size and time of change of the files that were packed.

    Of a large pack, `STAT_SAMPLE` of its files are asked for the latter.
    """
    digest = hashlib.sha256(index.content.data)
    chosen = spread_indices(len(index), count)
    for i in chosen[spread_indices(count, min(count, STAT_SAMPLE))]:
        try:
            status = (folder / index[int(i)]).stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"gone\n")
    return digest.hexdigest()


def _lock(file: Any, part: Path) -> None:
    """Only one build at a time; the lock ends with this process."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(f"another process is packing these images ({part}); wait for it.") from None


def _image_offset(count: int) -> int:
    return PAGE + -(-count * ROW.itemsize // PAGE) * PAGE


def _begin(part: Path, facts: dict[str, Any]) -> None:
    total = _image_offset(facts["count"]) + facts["count"] * facts["size"] ** 2 * 3
    free = (
        shutil.disk_usage(part.parent).free + part.stat().st_blocks * 512
    )  # what another build has left is replaced
    if free < total:
        raise UserError(
            f"packing {facts['count']:,} images at {facts['size']} pixels takes {total / 1e9:.1f} GB, but {part.parent} "
            f"has {free / 1e9:.1f} GB left; give a smaller --count or --size, or set SOFTAUG_HOME to another disk."
        )
    os.truncate(part, 0)
    with part.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):  # a disk that fills up later would kill the build with SIGBUS
            os.posix_fallocate(file.fileno(), 0, total)
        else:
            file.truncate(total)
    _write_header(part, facts)


def _write_header(path: Path, facts: dict[str, Any]) -> None:
    with path.open("r+b") as file:
        file.write(json.dumps(facts).encode().ljust(PAGE - 1) + b"\n")


def _read_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        facts = json.loads(file.read(PAGE))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("the header is not that of a pack")
    return facts


def _part_facts(part: Path) -> dict[str, Any] | None:
    """What an unfinished build was asked for; None if there is none that can be continued."""
    try:
        facts = _read_header(part)
        facts.pop("table_checksum", None)  # it was killed between the last image and the new name
        _arrays(part, facts, "r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts


def _arrays(path: Path, facts: dict[str, Any], mode: Any) -> tuple[np.memmap, np.memmap]:
    """The table and the images of a file of the right length."""
    count, size = facts["count"], facts["size"]
    offset = _image_offset(count)
    expected = offset + count * size**2 * 3
    if path.stat().st_size != expected:
        raise ValueError(f"{path.stat().st_size} bytes instead of {expected}")
    table = np.memmap(path, ROW, mode, PAGE, (count,))
    return table, np.memmap(path, np.uint8, mode, offset, (count, size, size, 3))


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    facts = _read_header(path)
    table, images = _arrays(path, facts, "r")
    if zlib.crc32(table.tobytes()) != facts["table_checksum"]:
        raise ValueError("the table's checksum is wrong")
    return facts, np.array(table), images
