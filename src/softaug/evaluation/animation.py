"""Tours as an animation: one panel per policy, side by side, with its name, its return so far and the mode.

Written as GIF, WebP or MP4. GIF and WebP are meant for web pages: they are made to fit into a number of bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from softaug.errors import UserError
from softaug.evaluation.recording import Recorder
from softaug.evaluation.tour import TourFrame
from softaug.files import write_atomically

SUFFIXES = (".gif", ".webp", ".mp4")
IMAGE_FPS = 10
"""Of GIF and WebP: what is faster than this leaves frames out."""
MOST_BYTES = 1_000_000
GIF_COLORS = (128, 64, 32, 16)
WEBP_QUALITIES = (70, 50, 35, 20)
MP4_QUALITIES = (23, 28, 33, 38, 43)
"""x264's constant rate factor; a higher one is a smaller file"""

GAP = 4
BACKGROUND, INK, ACCENT, BAR = (24, 26, 32), (240, 240, 244), (250, 210, 110), (90, 200, 120)


def panels(tours: Sequence[Iterator[TourFrame]], labels: Sequence[str], most: float) -> Iterator[np.ndarray]:
    """Frames with all tours side by side; one that has ended stays as it is.

    most: the largest reward of a decision, for the bar below each panel; 0: no bar.
    """
    last: list[TourFrame] = []
    for frames in zip_longest(*tours):
        last = [frame or last[i] for i, frame in enumerate(frames)]
        yield _draw(last, labels, most)


def _draw(frames: Sequence[TourFrame], labels: Sequence[str], most: float) -> np.ndarray:
    size = len(frames[0].scene)
    line = max(16, size // 9)
    font = ImageFont.load_default(line * 0.62)
    page = Image.new("RGB", (len(frames) * (size + GAP) - GAP, 2 * line + size), BACKGROUND)
    pen = ImageDraw.Draw(page)
    for i, (frame, label) in enumerate(zip(frames, labels, strict=True)):
        left = i * (size + GAP)
        pen.text((left + 6, line / 2), label, INK, font, anchor="lm")
        pen.text((left + size - 6, line / 2), f"{frame.total:.0f}", INK, font, anchor="rm")
        page.paste(Image.fromarray(frame.scene), (left, line))
        width = round(size * min(max(frame.reward / most, 0.0), 1.0)) if most > 0 else 0
        if width:
            pen.rectangle((left, line + size - 3, left + width - 1, line + size - 1), BAR)
    pen.text((page.width / 2, line * 1.5 + size), frames[-1].mode, ACCENT, font, anchor="mm")
    return np.asarray(page)


def check_animation(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is not an animation; give --out a name that ends in {', '.join(SUFFIXES)}")


def save_animation(path: Path, frames: Sequence[np.ndarray], fps: float, most_bytes: int = MOST_BYTES) -> int:
    """Write `frames`, uint8 (H, W, 3), in the best quality that has at most `most_bytes`; returns the bytes.

    The lowest quality is written even if it is larger.
    """
    check_animation(path)
    suffix = path.suffix.lower()
    if suffix == ".mp4":
        return _save_mp4(path, frames, fps, most_bytes)
    every = max(1, round(fps / IMAGE_FPS))
    chosen = [Image.fromarray(frame) for frame in frames[::every]]
    duration = round(1000 * every / fps)
    encode: Callable[[int], bytes]
    if suffix == ".gif":
        qualities, encode = GIF_COLORS, lambda colors: _gif(chosen, duration, colors)
    else:
        qualities, encode = WEBP_QUALITIES, lambda quality: _webp(chosen, duration, quality)
    for quality in qualities:
        content = encode(quality)
        if len(content) <= most_bytes:
            break
    write_atomically(path, content)
    return len(content)


def _gif(frames: Sequence[Image.Image], duration: int, colors: int) -> bytes:
    """Each frame with a palette of its own. Dithering would make noise that does not compress."""
    small = [frame.quantize(colors, dither=Image.Dither.NONE) for frame in frames]
    return _encoded(small, "GIF", duration=duration, loop=0, optimize=False)


def _webp(frames: Sequence[Image.Image], duration: int, quality: int) -> bytes:
    return _encoded(frames, "WEBP", duration=duration, loop=0, quality=quality, method=4)


def _encoded(frames: Sequence[Image.Image], kind: str, **settings: int) -> bytes:
    content = io.BytesIO()
    frames[0].save(content, kind, save_all=True, append_images=frames[1:], **settings)
    return content.getvalue()


def _save_mp4(path: Path, frames: Sequence[np.ndarray], fps: float, most_bytes: int) -> int:
    for quality in MP4_QUALITIES:
        with Recorder(path, fps=fps, min_size=len(frames[0]), quality=quality) as recorder:
            for frame in frames:
                recorder.add(frame)
        size = path.stat().st_size
        if size <= most_bytes:
            break
    return size
