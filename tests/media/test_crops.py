"""Random resized crops: torchvision's documented algorithm, one crop after another, gives the same distribution."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from softaug.media.crops import ATTEMPTS, crop_boxes, draw_crops

SIZES = [(256, 256), (640, 480), (480, 640), (900, 200), (100, 700), (5, 3)]


def naive_crop(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """left, top, width, height: a crop that does not fit is drawn again, up to ten times; then the center."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * 4 / 3)
    return (width - w) // 2, (height - h) // 2, w, h


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Kolmogorov-Smirnov: the largest difference of the two distribution functions."""
    both = np.sort(np.concatenate([left, right]))
    return max(
        np.abs(
            np.searchsorted(np.sort(left), both, "right") / len(left)
            - np.searchsorted(np.sort(right), both, "right") / len(right)
        )
    )


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_crops_have_the_distribution_of_the_naive_algorithm(width, height):
    count, naive_rng = 20_000, random.Random(1)
    ours, flips = crop_boxes(draw_crops(count, np.random.default_rng(0)), width, height)
    naive = np.array([naive_crop(width, height, naive_rng) for _ in range(count)])
    assert (ours[:, :2] >= 0).all() and (ours[:, 2:] > 0).all()
    assert (ours[:, 0] + ours[:, 2] <= width).all() and (ours[:, 1] + ours[:, 3] <= height).all()
    for name, column in {"left": 0, "top": 1, "width": 2, "height": 3}.items():
        # At 20,000 crops each, equal distributions differ by more than 0.02 once in 1,300 tries.
        assert distance(ours[:, column], naive[:, column]) < 0.02, name
    assert distance(ours[:, 2] * ours[:, 3], naive[:, 2] * naive[:, 3]) < 0.02
    assert 0.48 < flips.mean() < 0.52


def test_a_crop_that_does_not_fit_is_drawn_again_and_not_clamped():
    """The mean area of a square image: 0.48 of it. Clamping would give 0.53."""
    boxes, _ = crop_boxes(draw_crops(50_000, np.random.default_rng(2)), 256, 256)
    assert (boxes[:, 2] * boxes[:, 3] / 256**2).mean() == pytest.approx(0.48, abs=0.01)


def test_the_first_attempt_that_fits_is_taken_and_the_place_is_uniform_over_all_pixels():
    draw = np.array([[0.999, 0.0, 0.9, 1.0, 4 / 3, 0.25, 1.0, 0.5, 1.0]])  # the first is wider than the image
    boxes, flips = crop_boxes(draw, 100, 100)
    assert boxes.tolist() == [[50, 0, 50, 50]] and flips.tolist() == [False]


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(900, 90, [390, 0, 120, 90]), (90, 900, [0, 390, 90, 120]), (110, 100, [0, 0, 110, 100])],
)
def test_when_nothing_fits_the_largest_allowed_crop_is_centred(width, height, box):
    too_large = np.array([[0.3, 0.3, 0.1] + [1.0, 4 / 3 if width < height * 1.2 else 1.0] * ATTEMPTS])
    assert crop_boxes(too_large, width, height)[0].tolist() == [box]


def test_rows_may_belong_to_images_of_different_sizes():
    draws = draw_crops(len(SIZES), np.random.default_rng(3))
    widths, heights = np.array(SIZES).T
    together = crop_boxes(draws, widths, heights)[0]
    alone = [crop_boxes(draws[[i]], *size)[0][0] for i, size in enumerate(SIZES)]
    np.testing.assert_array_equal(together, alone)
