"""The large images that procedural test videos look at (`procedural_videos`), each drawn from a generator's state."""

from __future__ import annotations

import colorsys
import math

import numpy as np
from PIL import Image, ImageDraw

SIDE = 320  # of a texture, pixels; the camera sees less than half of it at a time


def lattice_noise(
    side: int, octaves: int, rng: np.random.Generator, cells: int = 2, roughness: float = 0.55
) -> np.ndarray:
    """Smooth noise in 0..1, float32 (side, side): random grids of doubling fineness, interpolated and summed."""
    total = np.zeros((side, side), np.float32)
    for octave in range(octaves):
        grid = rng.random((cells * 2**octave + 3,) * 2, dtype=np.float32)
        fine = Image.fromarray(grid).resize((side, side), Image.Resampling.BICUBIC)
        total += np.asarray(fine) * roughness**octave
    total -= total.min()
    return total / total.max()


def palette(count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` colors that go together, float32 (count, 3) in 0..1: hues close to one or two, dark to light."""
    hue = (
        rng.uniform(0, 2 * np.pi)
        + rng.choice([0.0, rng.uniform(1.5, 3.14)], count)
        + rng.normal(0, 0.3, count)
    )
    light = np.sort(rng.uniform(0.1, 0.95, count))[:: rng.choice([-1, 1])]
    strength = rng.beta(1.5, 3.0, count) * 0.75
    chroma = np.cos(hue[:, None] - np.array([0.0, 2.0, 4.0]) * np.pi / 3)
    return np.clip(light[:, None] * (1 + strength[:, None] * chroma), 0, 1).astype(np.float32)


def color_by(values: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Look values in 0..1 (H, W) up in evenly spaced colors: float32 (H, W, 3)."""
    stops = np.linspace(0, 1, len(colors))
    table = np.stack([np.interp(np.linspace(0, 1, 256), stops, colors[:, c]) for c in range(3)], axis=1)
    return table.astype(np.float32)[(values * 255).astype(np.int64)]


def to_image(pixels: np.ndarray) -> Image.Image:
    """A float array in 0..1 as an image."""
    return Image.fromarray((np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8))


def terrain_texture(rng: np.random.Generator) -> Image.Image:
    """Warped noise, colored by height and lit from one side."""
    height = lattice_noise(SIDE, 7, rng, roughness=rng.uniform(0.5, 0.7))
    warp_y, warp_x = (lattice_noise(SIDE, 3, rng) - 0.5 for _ in range(2))
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    reach = SIDE * rng.uniform(0.1, 0.4)
    rows = np.clip(y + reach * warp_y, 0, SIDE - 1).astype(np.int64)
    columns = np.clip(x + reach * warp_x, 0, SIDE - 1).astype(np.int64)
    height = height[rows, columns]
    light = 1 + rng.uniform(2, 9) * (np.roll(height, 1, 0) - np.roll(height, -1, 1))
    return to_image(
        color_by(height, palette(int(rng.integers(3, 7)), rng)) * np.clip(light, 0.5, 1.5)[..., None]
    )


def cells_texture(rng: np.random.Generator) -> Image.Image:
    """Voronoi cells of a jittered grid, darker towards their borders."""
    grid = int(rng.integers(5, 14))
    size = SIDE / grid
    # One ring of cells outside the image, so that every pixel has nine candidate centers.
    centers = rng.uniform(0, 1, (grid + 2, grid + 2, 2)).astype(np.float32)
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / np.float32(size)
    row, column = y.astype(np.int64), x.astype(np.int64)
    nearest = np.full((SIDE, SIDE), np.inf, np.float32)
    second = nearest.copy()
    owner = np.zeros((SIDE, SIDE), np.int64)
    for dy in (0, 1, 2):
        for dx in (0, 1, 2):
            center = centers[row + dy, column + dx]
            distance = np.hypot(row + dy - 1 + center[..., 0] - y, column + dx - 1 + center[..., 1] - x)
            closer = distance < nearest
            second = np.where(closer, nearest, np.minimum(second, distance))
            owner = np.where(closer, (row + dy) * (grid + 2) + column + dx, owner)
            nearest = np.where(closer, distance, nearest)
    hues = palette(int(rng.integers(3, 8)), rng)
    count = (grid + 2) ** 2
    colors = hues[rng.integers(len(hues), size=count)] * rng.uniform(0.6, 1.2, (count, 1)).astype(np.float32)
    border = np.clip((second - nearest) * rng.uniform(2, 12), 0, 1)[..., None]
    shade = (
        1
        - rng.uniform(0.1, 0.6) * nearest[..., None]
        + rng.uniform(0.4, 1.2) * (lattice_noise(SIDE, 7, rng, roughness=0.75)[..., None] - 0.5)
    )
    return to_image(colors[owner] * shade * (rng.uniform(0.2, 0.9) + (1 - rng.uniform(0.2, 0.9)) * border))


def facade_texture(rng: np.random.Generator) -> Image.Image:
    """A wall cut into rectangles again and again, like shelves, windows and doors."""
    hues = palette(int(rng.integers(4, 9)), rng)
    image = to_image(np.broadcast_to(hues[0], (SIDE, SIDE, 3)))
    draw = ImageDraw.Draw(image)
    pieces = [(0.0, 0.0, float(SIDE), float(SIDE))]
    for _ in range(int(rng.integers(60, 260))):
        # Cut one of the larger pieces across its longer side.
        index = max(rng.integers(len(pieces), size=3), key=lambda i: _area(pieces[i]))
        x0, y0, x1, y1 = pieces.pop(int(index))
        at = rng.uniform(0.2, 0.8)
        if x1 - x0 > y1 - y0:
            halves = [(x0, y0, x0 + at * (x1 - x0), y1), (x0 + at * (x1 - x0), y0, x1, y1)]
        else:
            halves = [(x0, y0, x1, y0 + at * (y1 - y0)), (x0, y0 + at * (y1 - y0), x1, y1)]
        for piece in halves:
            pieces.append(piece)
            color = np.clip(hues[rng.integers(len(hues))] * rng.uniform(0.75, 1.2), 0, 1)
            inset = rng.uniform(0, 2.0)
            box = (piece[0] + inset, piece[1] + inset, max(piece[2] - inset, piece[0] + inset), piece[3])
            draw.rectangle(
                (*box[:3], max(box[3] - inset, box[1])), fill=tuple((color * 255).astype(int).tolist())
            )
    light = (
        0.7
        + 0.6 * lattice_noise(SIDE, 2, rng)[..., None]
        + rng.uniform(0.2, 0.8) * (lattice_noise(SIDE, 7, rng, roughness=0.75)[..., None] - 0.5)
    )
    return to_image(np.asarray(image, np.float32) / 255 * light)


def _area(box: tuple[float, float, float, float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def brick_texture(rng: np.random.Generator) -> np.ndarray:
    """Stripes or bricks with stains, uint8 (SIDE, SIDE, 3)."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    high, wide = rng.uniform(12, 40), rng.uniform(20, 90)
    row = np.floor(y / high)
    column = np.floor(x / wide + (row % 2) * rng.choice([0.0, 0.5]))
    number = (row * 57 + column * 131).astype(np.int64) % 997
    hues = palette(int(rng.integers(3, 7)), rng)
    colors = hues[rng.integers(len(hues), size=997)] * rng.uniform(0.8, 1.15, (997, 1)).astype(np.float32)
    joint = ((y % high < 1.5) | ((x + (row % 2) * wide / 2) % wide < 1.5))[..., None]
    pixels = np.where(joint, hues[0] * 0.6, colors[number]) * (
        0.6 + 0.7 * lattice_noise(SIDE, 6, rng)[..., None]
    )
    return np.asarray(to_image(pixels))


def night_color(rng: np.random.Generator, value: float) -> np.ndarray:
    """Teal to violet, or nearly gray, with `value` as its brightest channel: float32 (3,)."""
    red, green, blue = colorsys.hsv_to_rgb(rng.uniform(0.45, 0.75), rng.uniform(0.3, 0.95), value)
    return np.array([red, green, blue], np.float32)


def stars_texture(rng: np.random.Generator, count: int, band: bool) -> np.ndarray:
    """Stars on black, few of them bright, and with `band` a dusty glow across: float32 (SIDE, SIDE, 3) in 0..1."""
    light = np.zeros((SIDE, SIDE), np.float32)
    rows, columns = rng.integers(1, SIDE - 1, (2, count))
    strength = np.minimum(0.12 * rng.pareto(1.4, count) + 0.08, 1.0).astype(np.float32)
    np.maximum.at(light, (rows, columns), strength)
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):  # bright ones have a halo
        np.maximum.at(light, (rows + down, columns + right), 0.3 * strength**2)
    tint = 1 - rng.uniform(0, 0.25, 3).astype(np.float32)
    pixels = light[..., None] * tint
    if band:
        y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE - 0.5
        angle = rng.uniform(0, np.pi)
        across = x * math.cos(angle) + y * math.sin(angle) + 0.25 * (lattice_noise(SIDE, 3, rng) - 0.5)
        dust = lattice_noise(SIDE, 7, rng, roughness=0.65)
        glow = np.exp(-0.5 * (across / rng.uniform(0.06, 0.14)) ** 2) * np.clip(1.6 * dust - 0.3, 0, 1)
        pixels = pixels + glow[..., None] * night_color(rng, rng.uniform(0.35, 0.6))
    return pixels
