"""Overlay images made from a seed, so that training needs no download.

They stand in for Places365 in `random overlay`. Natural images have a power spectrum that
falls like 1/f^2, occlusion edges at every scale, colors that mostly vary together, and large smooth areas; each
family below has some of these and `landscape` has all:

==============  ==============================================================================================
``noise``       color noise with the spectrum 1/f^2, one dominant color direction (spectral synthesis)
``leaves``      dead leaves: opaque shapes with a power law of sizes, each with its own texture and light
``gradient``    two to five colors blended along a curved direction, like sky, walls, out-of-focus areas
``landscape``   a gradient sky, ground with texture, and leaves in the foreground
==============  ==============================================================================================

A bank of `BANK_SIZE` images is made image by image on first use; a sample is a random resized crop of one,
flipped, with its colors turned and stretched, so that hardly two samples are alike. The test videos
(`procedural_videos`) use other generators and other seeds: training never sees the test distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from softaug.errors import UserError
from softaug.media.packing import pack_pixels, unpack_pixels

FAMILIES = ("noise", "leaves", "gradient", "landscape")
FAMILY_SHARES = (0.25, 0.35, 0.1, 0.3)
SEED_DOMAIN = 0x0E71A4  # first word of every seed here; the videos use another one
VERSION = 1  # raise when the images change: runs made before are then not repeatable

BANK_SIZE = 512
SIDE = 160  # of an image in the bank, pixels
FIELD_COUNT = 32
FIELD_SIDE = 256  # the noise fields are periodic, so any shift of one is a field as well


def pink_field(side: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Periodic noise of mean 0 and std 1 with an amplitude spectrum 1/f^exponent, float32 (side, side)."""
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequencies[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((side, side))) / frequencies**exponent
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, s=(side, side))
    return (field / field.std()).astype(np.float32)


def random_color(rng: np.random.Generator) -> np.ndarray:
    """A color as scenes have them, float32 (3,) in 0..1: every brightness, saturation mostly low, warm or cool."""
    brightness = rng.uniform(0.08, 0.95)
    saturation = rng.beta(1.2, 3.8)
    hue = rng.uniform(0.0, 2 * np.pi)
    chroma = np.cos(hue - np.array([0.0, 2.0, 4.0]) * np.pi / 3)
    return np.clip(brightness * (1 + saturation * chroma), 0.0, 1.0).astype(np.float32)


def shape_outlines(count: int, largest: float, rng: np.random.Generator) -> np.ndarray:
    """Corners of `count` ellipses, rectangles and blobs scattered over an image, float (count, 24, 2)."""
    smallest = 2.0
    # Dead leaves are scale invariant with the radius density r^-3: the inverse of its cumulative distribution.
    radii = (smallest**-2 - rng.random(count) * (smallest**-2 - largest**-2)) ** -0.5
    # Half of the shapes follow r^-1 instead: images of few large things are common.
    radii = np.where(rng.random(count) < 0.5, radii, smallest * (largest / smallest) ** rng.random(count))
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    square = 0.85 / np.maximum(np.abs(np.cos(angles)), np.abs(np.sin(angles)))
    waves = np.stack([np.cos(k * angles + rng.uniform(0, 2 * np.pi, (count, 1))) for k in (2, 3, 5)])
    blobs = 1 + (rng.uniform(0, 1, (3, count, 1)) * waves / np.array([2.5, 4.0, 6.0])[:, None, None]).sum(0)
    kinds = rng.integers(3, size=(count, 1)) if rng.random() < 0.5 else np.full((count, 1), rng.integers(3))
    relative = np.where(kinds == 0, 1.0, np.where(kinds == 1, square, blobs)) * radii[:, None]
    stretch = np.exp(rng.normal(0, 0.35, (count, 1)))
    # Most rectangles stand upright, as most made things do.
    upright = (kinds == 1) & (rng.random((count, 1)) < 0.7)
    tilt = np.where(upright, 0.0, rng.uniform(0, np.pi, (count, 1)))
    x, y = relative * np.cos(angles) * stretch, relative * np.sin(angles) / stretch
    centers = rng.uniform(0, SIDE, (count, 1, 2))
    turned = np.stack([x * np.cos(tilt) - y * np.sin(tilt), x * np.sin(tilt) + y * np.cos(tilt)], axis=-1)
    return centers + turned


class ProceduralImages:
    """Endless overlay images from a seed; `sample` is a pure function of the generator it is given."""

    kind = "procedural"

    def __init__(self, seed: int = 0) -> None:
        self.seed = int(seed)
        self._fields: list[np.ndarray] = []
        # Packed pixels of every image at full and at half size, filled on first use.
        self._pixels = np.zeros(BANK_SIZE * (SIDE**2 + (SIDE // 2) ** 2), np.uint32)
        self._made = np.zeros(BANK_SIZE, bool)

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints."""
        return {
            "kind": self.kind,
            "families": list(FAMILIES),
            "images": BANK_SIZE,
            "seed": self.seed,
            "version": VERSION,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy sent to another process makes its own bank."""
        return ProceduralImages, (self.seed,)

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """`count` images, uint8 (count, height, width, 3)."""
        if count < 0 or height < 1 or width < 1:
            raise UserError(
                f"cannot draw {count} overlay images of {height}x{width}: sizes must be positive."
            )
        which = rng.integers(BANK_SIZE, size=count)
        for index in np.unique(which[~self._made[which]]).tolist():
            self._store(index)
        # Random resized crop: an eighth to all of the area, aspect ratio 3/4 to 4/3 relative to the output.
        side = np.sqrt(rng.uniform(0.125, 1.0, count))
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), count)) ** 0.5
        crop_height, crop_width = np.minimum(side / ratio, 1.0), np.minimum(side * ratio, 1.0)
        top, left = rng.random(count) * (1 - crop_height), rng.random(count) * (1 - crop_width)
        flip = rng.random((count, 1)) < 0.5
        y = top[:, None] + crop_height[:, None] * (np.arange(height) + 0.5) / height
        along = (np.arange(width) + 0.5) / width
        x = left[:, None] + crop_width[:, None] * np.where(flip, 1 - along, along)
        # Nearest pixel of the full or the half-size copy, whichever is nearer to one pixel per pixel.
        halved = side * SIDE > 1.5 * max(height, width)
        level_side = np.where(halved, SIDE // 2, SIDE)
        start = np.where(halved, BANK_SIZE * SIDE**2, 0) + which * level_side**2
        rows = (y * level_side[:, None]).astype(np.int64) * level_side[:, None] + start[:, None]
        columns = (x * level_side[:, None]).astype(np.int64)
        order = rng.permuted(np.tile(np.arange(3), (count, 1)), axis=1).tolist()
        # Contrast and tint: value * gain + offset in 1/256 units, inside 0..255 by construction.
        low = rng.uniform(0.0, 0.15, (count, 1)) * rng.uniform(0.5, 1.0, (count, 3))
        high = 1.0 - rng.uniform(0.0, 0.15, (count, 1)) * rng.uniform(0.0, 1.0, (count, 3))
        gain = np.round((high - low) * 256).astype(np.uint16)
        offset = np.floor(low * 255 * 256).astype(np.uint16)

        images = np.empty((count, height, width, 3), np.uint8)
        for i in range(count):
            pixels = unpack_pixels(self._pixels[rows[i][:, None] + columns[i]])
            for channel in range(3):
                value = pixels[:, :, order[i][channel]] * gain[i, channel]
                value += offset[i, channel]
                images[i, :, :, channel] = value >> 8
        return images

    def image(self, index: int) -> np.ndarray:
        """Image `index` of the bank, float32 (SIDE, SIDE, 3) in 0..1."""
        rng = np.random.default_rng([SEED_DOMAIN, self.seed, 1 + index])
        family = FAMILIES[int(rng.choice(len(FAMILIES), p=FAMILY_SHARES))]
        make = {
            "noise": self._make_noise,
            "leaves": self._make_leaves,
            "gradient": self._make_gradient,
            "landscape": self._make_landscape,
        }[family]
        return np.clip(make(rng), 0, 1)

    def _store(self, index: int) -> None:
        """Make image `index` and keep it packed, at full size and halved by averaging 2 x 2 pixels."""
        full = self.image(index)
        half = (full[::2, ::2] + full[1::2, ::2] + full[::2, 1::2] + full[1::2, 1::2]) / 4
        start = 0
        for pixels in (full, half):
            packed = pack_pixels((pixels * 255 + 0.5).astype(np.uint8)).ravel()
            area = len(packed)
            self._pixels[start + index * area : start + (index + 1) * area] = packed
            start += BANK_SIZE * area
        self._made[index] = True

    def _field(self, rng: np.random.Generator) -> np.ndarray:
        """A random window of one of the shared noise fields, float32 (SIDE, SIDE), std about 1."""
        if not self._fields:
            field_rng = np.random.default_rng([SEED_DOMAIN, self.seed, 0])
            exponents = field_rng.uniform(0.85, 1.35, FIELD_COUNT)
            self._fields = [pink_field(FIELD_SIDE, exponent, field_rng) for exponent in exponents]
        field = self._fields[int(rng.integers(FIELD_COUNT))]
        top, left = rng.integers(FIELD_SIDE, size=2)
        rows = (top + np.arange(SIDE)) % FIELD_SIDE
        columns = (left + np.arange(SIDE)) % FIELD_SIDE
        window = field[rows[:, None], columns[None, :]]
        return window.T if rng.random() < 0.5 else window

    def _make_noise(self, rng: np.random.Generator) -> np.ndarray:
        """Noise between two colors along the first field, a little of a third along the second."""
        first, second, third = (random_color(rng) for _ in range(3))
        second = second if abs(second.mean() - first.mean()) > 0.25 else 1 - second  # keep some contrast
        along = 0.5 + 0.35 * self._field(rng)[..., None]
        across = 0.12 * self._field(rng)[..., None]
        return first + (second - first) * along + (third - 0.5) * across

    def _make_gradient(self, rng: np.random.Generator) -> np.ndarray:
        """Colors blended along a bent direction."""
        y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE - 0.5
        angle, bend = rng.uniform(0, 2 * np.pi), rng.normal(0, 0.8)
        along = x * np.cos(angle) + y * np.sin(angle)
        across = y * np.cos(angle) - x * np.sin(angle)
        position = along + bend * across**2 + 0.04 * self._field(rng)
        stops = np.sort(rng.uniform(-0.6, 0.6, int(rng.integers(2, 6))))
        colors = np.stack([random_color(rng) for _ in stops])
        pixels = np.stack([np.interp(position, stops, colors[:, channel]) for channel in range(3)], axis=-1)
        return pixels + 0.02 * self._field(rng)[..., None]

    def _make_leaves(self, rng: np.random.Generator) -> np.ndarray:
        """Dead leaves over the whole image."""
        return self._add_leaves(self._make_gradient(rng), int(rng.integers(120, 500)), SIDE * 0.45, rng)

    def _make_landscape(self, rng: np.random.Generator) -> np.ndarray:
        """Sky above, textured ground below an uneven horizon, some leaves in front."""
        sky = self._make_gradient(rng)
        ground = self._make_noise(rng) * rng.uniform(0.4, 1.0)
        rows = np.arange(SIDE, dtype=np.float32)[:, None]
        steps = rng.normal(0, 1, SIDE).cumsum() * rng.uniform(
            0.2, 1.0
        )  # a random walk has the spectrum 1/f^2
        horizon = SIDE * rng.uniform(0.2, 0.8) + (steps - steps.mean()).astype(np.float32)
        covered = np.clip(rows - horizon, 0, 1)[..., None]
        pixels = sky * (1 - covered) + ground * covered
        return self._add_leaves(pixels, int(rng.integers(0, 40)), SIDE * 0.3, rng)

    def _add_leaves(
        self, pixels: np.ndarray, count: int, largest: float, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw `count` opaque shapes; each has its own strength of texture, so neighbors differ in it too."""
        palette = np.stack([random_color(rng) for _ in range(int(rng.integers(3, 9)))])
        colors = palette[rng.integers(len(palette), size=count)] + rng.normal(0, 0.07, (count, 3))
        fills = np.concatenate([np.clip(colors, 0, 1) * 255, rng.uniform(1, 255, (count, 1))], axis=1)
        # The alpha channel carries the strength of the texture.
        canvas = np.concatenate([np.clip(pixels, 0, 1) * 255, np.zeros((SIDE, SIDE, 1))], axis=-1)
        image = Image.fromarray(canvas.astype(np.uint8), mode="RGBA")
        draw = ImageDraw.Draw(image)
        outlines = shape_outlines(count, largest, rng).reshape(count, 48).tolist()
        for outline, fill in zip(outlines, fills.astype(int).tolist(), strict=True):
            draw.polygon(outline, fill=tuple(fill))
        drawn = np.asarray(image, np.float32) / 255.0
        texture = 1.0 + drawn[..., 3:] * rng.uniform(0.1, 0.6) * self._field(rng)[..., None]
        light = 1.0 + rng.uniform(0.0, 0.15) * self._field(rng)[..., None]
        return drawn[..., :3] * texture * light
