"""The integer chroma key equals a per-pixel `colorsys` loop."""

import colorsys

import numpy as np
import pytest
from xml_reference import naive_chroma_key, naive_is_green

from softaug.envs.chroma import is_green, replace_green


def to_image(colors):
    """A list of (r, g, b) as a uint8 (1, N, 3) frame."""
    return np.array(colors, np.uint8)[None]


@pytest.mark.parametrize("seed", range(3))
def test_equals_naive_loop_on_random_images(seed):
    rng = np.random.default_rng(seed)
    frame = rng.integers(0, 256, (100, 100, 3), dtype=np.uint8)
    background = rng.integers(0, 256, (100, 100, 3), dtype=np.uint8)
    fast = frame.copy()
    replace_green(fast, background)
    expected = naive_chroma_key(frame, background)
    assert (expected != frame).any() and (expected == frame).any()
    np.testing.assert_array_equal(fast, expected)


def test_equals_naive_loop_on_greenish_images():
    rng = np.random.default_rng(0)
    frame = np.clip(np.array([51, 204, 51]) + rng.normal(0, 60, (60, 60, 3)), 0, 255).astype(np.uint8)
    mask = is_green(frame)
    assert 0.2 < mask.mean() < 0.95
    expected = [[naive_is_green(pixel) for pixel in row] for row in frame]
    np.testing.assert_array_equal(mask, expected)


def test_boundary_colors():
    """Every color that lies exactly on a threshold: the rounding of the float formula decides, as in the loop."""
    colors = []
    for r in range(256):
        for b in range(256):
            if 3 * r - 2 * b in range(256):  # hue 100
                colors.append((r, 3 * r - 2 * b, b))
            if (11 * b + r) % 12 == 0 and (11 * b + r) // 12 < 256:  # hue 185
                colors.append((r, (11 * b + r) // 12, b))
    for value in range(0, 256, 51):  # saturation 80 / 255
        colors += [(value * 35 // 51, value, value * 35 // 51), (value * 35 // 51, value, value)]
    colors += [(r, 70, b) for r in range(71) for b in range(71)]  # value 70
    colors += [(r, 69, b) for r in range(0, 70, 3) for b in range(0, 70, 3)]
    colors += [(c, c, c) for c in range(256)] + [(0, 255, 255), (0, 255, 0), (255, 255, 0), (51, 204, 51)]
    mask = is_green(to_image(colors))[0]
    expected = np.array([naive_is_green(color) for color in colors])
    assert 0 < expected.sum() < len(colors)
    np.testing.assert_array_equal(mask, expected)


def colorsys_mask(r, g, b):
    """`colorsys.rgb_to_hsv` and the thresholds, operation by operation, on arrays."""
    r, g, b = np.broadcast_arrays(r / 255.0, g / 255.0, b / 255.0)
    high, low = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = high - low
        s = np.where(high == low, 0.0, spread / high)
        rc, gc, bc = (high - r) / spread, (high - g) / spread, (high - b) / spread
        h = np.where(r == high, bc - gc, np.where(g == high, 2.0 + rc - bc, 4.0 + gc - rc))
        h = np.where(high == low, 0.0, (h / 6.0) % 1.0)
    h, s, v = h * 360, s * 255, high * 255
    return (h >= 100) & (h <= 185) & (s >= 80) & (s <= 255) & (v >= 70) & (v <= 255)


def test_all_colors():
    """All 2^24 colors, against an array version of `colorsys` that is itself checked against `colorsys`."""
    rng = np.random.default_rng(1)
    sample = rng.integers(0, 256, (3000, 3))
    expected = [naive_is_green(pixel) for pixel in sample]
    np.testing.assert_array_equal(colorsys_mask(*sample.T.astype(np.float64)), expected)
    assert colorsys.rgb_to_hsv(0.0, 1.0, 0.0)[0] * 360 == pytest.approx(120)

    g, b = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    for r in range(256):
        frame = np.stack([np.full_like(g, r), g, b], axis=-1).astype(np.uint8)
        np.testing.assert_array_equal(is_green(frame), colorsys_mask(np.float64(r), g, b), err_msg=f"r={r}")
