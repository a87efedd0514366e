"""Random resized crops, with the distribution that torchvision documents for `RandomResizedCrop`.

An area share in 8..100 % and an aspect ratio in 3/4..4/3 (uniform in its logarithm) are drawn until the crop fits into
the image, at most ten times; its place is then uniform. If none fits, the crop is the largest centered one whose aspect
ratio is allowed. Half of the crops are mirrored.

The numbers are drawn before any image is opened (`draw_crops`) and turned into pixels once its size is known
(`crop_boxes`), so a sample is a function of the generator alone, whatever the order in which images are decoded.
"""

from __future__ import annotations

import numpy as np

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10


def draw_crops(count: int, rng: np.random.Generator) -> np.ndarray:
    """The draws of `count` crops, a row each: x, y, flip in 0..1, then `ATTEMPTS` pairs of area share and ratio."""
    draws = rng.random((count, 3 + 2 * ATTEMPTS))
    draws[:, 3::2] = AREA[0] + (AREA[1] - AREA[0]) * draws[:, 3::2]
    log_low, log_high = np.log(RATIO)
    draws[:, 4::2] = np.exp(log_low + (log_high - log_low) * draws[:, 4::2])
    return draws


def crop_boxes(
    draws: np.ndarray, width: np.ndarray | int, height: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """What the rows of `draws` (B, 3 + 2 n) mean in images of these sizes (scalars, or one per row).

    Returns the boxes in whole pixels, int64 (B, 4) of left, top, width, height, and who is mirrored, bool (B,).
    """
    width, height = (np.broadcast_to(np.asarray(size), len(draws)) for size in (width, height))
    area = draws[:, 3::2] * (width * height)[:, None]
    wide = np.rint(np.sqrt(area * draws[:, 4::2])).astype(np.int64)
    tall = np.rint(np.sqrt(area / draws[:, 4::2])).astype(np.int64)
    fits = (wide > 0) & (wide <= width[:, None]) & (tall > 0) & (tall <= height[:, None])
    first = np.arange(len(draws)), fits.argmax(axis=1)
    found = fits.any(axis=1)
    # The fallback: the whole image, cut where it is narrower or wider than the ratio allows.
    crop_width = np.where(found, wide[first], np.minimum(width, np.rint(height * RATIO[1]).astype(np.int64)))
    crop_height = np.where(found, tall[first], np.minimum(height, np.rint(width / RATIO[0]).astype(np.int64)))
    spare_x, spare_y = width - crop_width, height - crop_height
    left = np.where(found, (draws[:, 0] * (spare_x + 1)).astype(np.int64), spare_x // 2)
    top = np.where(found, (draws[:, 1] * (spare_y + 1)).astype(np.int64), spare_y // 2)
    return np.stack([left, top, crop_width, crop_height], axis=1), draws[:, 2] < 0.5
