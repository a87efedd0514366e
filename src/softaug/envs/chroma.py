"""Chroma key: which pixels of a green-screen frame show the video instead."""

from __future__ import annotations

import numpy as np

# HSV in the convention of `colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)`, scaled to h in degrees and
# s, v in 0..255: a pixel is keyed when h is in [100, 185], s in [80, 255] and v in [70, 255].
HUE_DEGREES = (100.0, 185.0)
MIN_VALUE = 70


def is_green(frame: np.ndarray) -> np.ndarray:
    """Mask of the pixels to replace. frame: uint8 (H, W, 3) -> bool (H, W).

    The HSV thresholds, cleared of their denominators, are four integer comparisons:

    - h >= 100: with g the largest, h = 120 + 60 (b - r) / (g - min), which gives 3 r <= g + 2 b;
    - h <= 185: with b the largest, h = 240 + 60 (r - g) / (b - min), which gives 12 g >= 11 b + r;
    - s >= 80/255: 255 (max - min) >= 80 max, which gives 35 max >= 51 min.

    Each hue inequality also holds for every color of the other case; both together exclude every color
    whose largest channel is r, grays apart, and grays fail the saturation. A color exactly *on* a hue
    boundary is decided by the rounding of the floating-point formula, as in the benchmark's own loop; these
    few pixels are computed that way.
    """
    r, g, b = (frame[:, :, channel].astype(np.int16) for channel in range(3))
    lower_hue = g + 2 * b - 3 * r
    upper_hue = 12 * g - 11 * b - r
    largest = np.maximum(g, b)
    smallest = np.minimum(r, b)
    mask = (lower_hue >= 0) & (upper_hue >= 0) & (35 * largest >= 51 * smallest) & (largest >= MIN_VALUE)
    on_boundary = np.flatnonzero(mask & ((lower_hue == 0) | (upper_hue == 0)))
    if on_boundary.size:
        hue = _hue_degrees(frame.reshape(-1, 3)[on_boundary].T)
        mask.reshape(-1)[on_boundary] = (hue >= HUE_DEGREES[0]) & (hue <= HUE_DEGREES[1])
    return mask


def _hue_degrees(colors: np.ndarray) -> np.ndarray:
    """Hue of uint8 (3, N) colors that are neither gray nor reddest, in `colorsys`'s order of operations."""
    r, g, b = colors / 255.0
    largest = np.maximum(g, b)
    spread = largest - np.minimum(r, b)
    rc, gc, bc = (largest - r) / spread, (largest - g) / spread, (largest - b) / spread
    sixths = np.where(g == largest, 2.0 + rc - bc, 4.0 + gc - rc)
    return (sixths / 6.0) % 1.0 * 360


def replace_green(frame: np.ndarray, background: np.ndarray) -> None:
    """Put the video behind the scene, in place. Both uint8 (H, W, 3)."""
    np.copyto(frame, background, where=is_green(frame)[..., None])
