"""What happens to an image once it is rendered: something behind the scene, then brightness, hue, blur and noise."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from softaug.lab.settings import Settings

# Between RGB and luma with two differences of color, in which a hue is an angle.
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)


def put_behind(frame: np.ndarray, mask: np.ndarray, background: np.ndarray, opacity: float) -> np.ndarray:
    """`background`, uint8 (H, W, 3), where `mask` (H, W) is true; with less opacity the frame shines through."""
    if opacity < 1.0:
        mixed = opacity * background.astype(np.float32) + (1.0 - opacity) * frame
        background = np.rint(mixed).astype(np.uint8)
    return np.where(mask[..., None], background, frame)


def grow(mask: np.ndarray) -> np.ndarray:
    """`mask` (H, W) and the pixels next to it: at an edge, smoothing has mixed the colors of both sides."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


def change_image(frame: np.ndarray, settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Hue, brightness, blur and noise of a whole image, uint8 (H, W, 3); the same array if nothing changes it.

    rng: of the noise alone. Blur is relative to the image's height, so that it means the same at every size.
    """
    if settings.hue != 0.0 or settings.brightness != 1.0:
        matrix = settings.brightness * hue_matrix(settings.hue)
        frame = _to_bytes(frame.astype(np.float32) @ matrix.T.astype(np.float32))
    if settings.blur > 0.0:
        radius = settings.blur / 100 * len(frame)
        frame = np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(radius)))
    if settings.noise > 0.0:
        frame = _to_bytes(frame + rng.normal(0.0, 255 * settings.noise, frame.shape).astype(np.float32))
    return frame


def hue_matrix(degrees: float) -> np.ndarray:
    """RGB -> RGB (3, 3): turns every hue by an angle and keeps luma and greys."""
    angle = np.radians(degrees)
    turn = np.eye(3)
    turn[1:, 1:] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return _FROM_YIQ @ turn @ _TO_YIQ


def halve(frame: np.ndarray) -> np.ndarray:
    """Every 2 x 2 pixels of uint8 (2H, 2W, 3) as their mean."""
    total = frame[::2, ::2].astype(np.uint16) + frame[1::2, ::2] + frame[::2, 1::2] + frame[1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def square(image: Image.Image, size: int) -> np.ndarray:
    """The middle of an image as uint8 (size, size, 3)."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box))


def rgb_of(color: str) -> np.ndarray:
    """`#rrggbb` as float64 (3,) in 0..1."""
    return np.array([int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)])


def _to_bytes(values: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(values, 0.0, 255.0)).astype(np.uint8)
