"""Images and videos that the page sends: limited in size and kind, decoded in a separate process with a time limit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from softaug.errors import UserError
from softaug.lab.backdrops import UPLOAD_SIZE
from softaug.lab.images import square

MAX_BYTES = 64 * 2**20
MAX_FRAMES = 300
MAX_UPLOADS = 50
"""A server keeps no more: each takes up to 60 MB of the temporary folder."""
RECEIVE_SECONDS = 120.0
MAX_PIXELS = 40_000_000
DECODE_SECONDS = 30
"""Of processor time."""
PATIENCE = 4
"""Times as long may pass, on a computer that is busy with other things."""
DECODE_MEMORY = 3 * 2**30
IMAGE_KINDS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
VIDEO_KINDS = {
    "video/mp4": "mp4",
    "video/webm": "matroska",
    "video/quicktime": "mov",
    "video/x-matroska": "matroska",
}
TOO_LONG = f"the file takes more than {DECODE_SECONDS} s to decode; choose a smaller one"
OUT_OF_TIME = tuple(-getattr(signal, name) for name in ("SIGXCPU", "SIGKILL") if hasattr(signal, name))
FOREIGN = 3
"""Exit status of the decoder for a file that is no such image or video."""


def check_kind(kind: str) -> str:
    """The content type without its parameters, if it may be uploaded."""
    kind = kind.partition(";")[0].strip().lower()
    if kind not in IMAGE_KINDS and kind not in VIDEO_KINDS:
        raise UserError(
            f"a file of kind {kind[:40] or 'unknown'!r} cannot be shown; choose {', '.join((*IMAGE_KINDS, *VIDEO_KINDS))}"
        )
    return kind


def decode_upload(source: Path, kind: str, folder: Path) -> str:
    """Decode an uploaded file into `folder` and return its id, which depends on its content alone."""
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = folder / f"{name}.npy"
    if target.is_file():
        return name
    if len([*folder.glob("*.npy")]) >= MAX_UPLOADS:
        raise UserError(f"softaug lab keeps {MAX_UPLOADS} uploads; start it again to upload others")
    temporary = folder / f".decoding-{name}-{os.getpid()}.npy"
    command = [sys.executable, "-m", "softaug.lab.uploads", str(source), kind, str(temporary)]
    try:
        outcome = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE * DECODE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        if outcome.returncode == FOREIGN:
            raise UserError(f"the file cannot be shown: {outcome.stderr.strip().splitlines()[-1][:200]}")
        if outcome.returncode in OUT_OF_TIME:
            raise UserError(TOO_LONG)
        if outcome.returncode:
            raise UserError("the file cannot be decoded; it is damaged, too large, or no image or video")
        temporary.replace(target)
    except subprocess.TimeoutExpired:
        raise UserError(TOO_LONG) from None
    finally:
        temporary.unlink(missing_ok=True)
    return name


def limit_this_process() -> None:
    """Processor time, memory and size of files; without them nothing is decoded.

    Windows has none of these limits, and macOS refuses the one on memory: there the parent's time limit has to do.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return
    limits = {"CPU": DECODE_SECONDS, "FSIZE": MAX_FRAMES * 3 * UPLOAD_SIZE**2 + 4096}
    if sys.platform != "darwin":
        limits["AS"] = DECODE_MEMORY
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        try:
            hard = resource.getrlimit(kind)[1]
            lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (lowest, lowest))
        except (ValueError, OSError) as error:
            raise UserError(f"this system refuses the limit {name} for the decoder ({error})") from None


def decode_image(source: Path, kind: str) -> np.ndarray:
    """uint8 (1, UPLOAD_SIZE, UPLOAD_SIZE, 3)."""
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # Pillow refuses twice as many
    try:
        with Image.open(source, formats=(IMAGE_KINDS[kind],)) as opened:
            image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # grey with 16 bits, of which Pillow would make white
            image = Image.fromarray((np.asarray(image) // 256).clip(0, 255).astype(np.uint8))
        return square(image, UPLOAD_SIZE)[None]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        # Without the library's own words: they name the temporary file.
        raise UserError(f"it is damaged, too large or no {IMAGE_KINDS[kind]} image") from None


def decode_video(source: Path, kind: str) -> np.ndarray:
    """uint8 (N, UPLOAD_SIZE, UPLOAD_SIZE, 3): the first frames."""
    import av

    frames: list[np.ndarray] = []
    try:
        with av.open(str(source), format=VIDEO_KINDS[kind]) as container:
            if not container.streams.video:
                raise UserError("it holds no video")
            stream = container.streams.video[0]
            if stream.width * stream.height > MAX_PIXELS:
                raise UserError("its images are too large")
            for frame in container.decode(stream):
                frames.append(square(frame.to_image(), UPLOAD_SIZE))
                if len(frames) == MAX_FRAMES:
                    break
    except (av.FFmpegError, OSError, ValueError):
        raise UserError("it is damaged or no video") from None
    if not frames:
        raise UserError("it holds no frames")
    return np.stack(frames)


def main(source: str, kind: str, target: str) -> int:
    """The decoder's process."""
    try:
        limit_this_process()
        decode = decode_image if kind in IMAGE_KINDS else decode_video
        np.save(target, decode(Path(source), kind), allow_pickle=False)
    except UserError as error:
        print(error, file=sys.stderr)
        return FOREIGN
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
