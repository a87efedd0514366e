"""Test videos made from a seed, so that the video modes need no download: 10 for easy, 100 for hard.

Each video is a few large images and a closed path through them, so it moves smoothly and loops without a jump;
a frame is rendered when asked for, from its position alone.

The hard ones are bright and busy, as the benchmark's are (docs/data.md compares them):

============  ================================================================================================
``terrain``   an aerial view of warped lattice noise in a palette of colors: camera drifts, turns and zooms
``cells``     a mosaic of Voronoi cells, each with its own shading: camera drifts, turns and zooms
``facade``    walls split into rectangles again and again, seen in perspective by a swaying camera
``parallax``  mountain ridges in haze that scroll at different speeds below a sky
``water``     stripes and bricks seen through moving waves
``swarm``     polygons that fly on closed curves over a drifting ground
============  ================================================================================================

The easy ones are dark and calm, as the three of the benchmark's ten that we have seen (time lapses of the night sky):

============  ================================================================================================
``stars``     a field of stars over a colored sky
``galaxy``    the same with a bright, dusty band across it
``dusk``      a hazy gradient with a glow above the horizon and few stars
============  ================================================================================================

Some of them have a ridge in front.

None of these generators, and none of their seeds, is used for the overlay images (`procedural_images`), and
easy and hard have seeds of their own: an agent trained with overlays never saw the test distribution.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from softaug.media.comparability import PROCEDURAL_VIDEO_VERSIONS
from softaug.media.packing import pack_pixels, unpack_pixels
from softaug.media.procedural_textures import (
    SIDE,
    brick_texture,
    cells_texture,
    facade_texture,
    lattice_noise,
    night_color,
    palette,
    stars_texture,
    terrain_texture,
    to_image,
)

FAMILIES = {
    "easy": ("stars", "galaxy", "dusk"),
    "hard": ("terrain", "cells", "facade", "parallax", "water", "swarm"),
}
SEED_DOMAIN = 0x51DE0  # first word of every seed here; the overlay images use another one
COUNTS = {"easy": 10, "hard": 100}
LEVEL_SEEDS = {"easy": 1, "hard": 2}

Renderer = Callable[[float], np.ndarray]
"""From the position on the loop (an angle, 0 to 2 pi) to a frame, uint8 (height, width, 3)."""

CACHED_VIDEOS = 32  # built videos kept by a source, about 2 MB each at an observation's size
# Pixels of a frame, summed over the videos that are kept: one of 320 x 320 may take 30 MB.
CACHED_PIXELS = CACHED_VIDEOS * 100 * 100


def family(level: str, index: int) -> str:
    """What video `index` of a level shows."""
    return FAMILIES[level][index % len(FAMILIES[level])]


class ProceduralVideo:
    """One procedural video at one size; any frame can be asked for at any time."""

    def __init__(self, level: str, index: int, height: int, width: int) -> None:
        rng = np.random.default_rng([SEED_DOMAIN, LEVEL_SEEDS[level], index])
        self.family = family(level, index)
        self._height, self._width = height, width
        self._length = int(rng.integers(240, 481))
        # A closed path: whole numbers of turns, so that the last frame leads back to the first.
        self._turns = rng.choice([-1, 1], 4) * np.array([1, *rng.integers(1, 3, 3)])
        self._phases = rng.uniform(0, 2 * np.pi, 4)
        self._reach = rng.uniform(0.5, 1.0, 4)
        builders = {
            "terrain": self._build_terrain,
            "cells": self._build_cells,
            "facade": self._build_facade,
            "parallax": self._build_parallax,
            "water": self._build_water,
            "swarm": self._build_swarm,
            "stars": self._build_night,
            "galaxy": self._build_night,
            "dusk": self._build_night,
        }
        self._render = builders[self.family](rng)

    def __len__(self) -> int:
        """Number of frames."""
        return self._length

    def frame(self, position: int) -> np.ndarray:
        """Frame `position` modulo the length, uint8 (height, width, 3)."""
        return self._render(2 * np.pi * (position % self._length) / self._length)

    def _waves(self, angle: float) -> list[float]:
        """Four smooth periodic functions of the position on the loop, each in -1..1."""
        return (self._reach * np.sin(self._turns * angle + self._phases)).tolist()

    def _film(self, texture: Image.Image, view: float = 0.42, tilt: float = 0.0) -> Renderer:
        """A camera over a texture: it drifts, turns and zooms, and with `tilt` looks at it in perspective.

        The largest view, turn, tilt and drift together stay inside the texture, so no pixel needs clipping.
        """
        # Interpolated to twice its size once, so that the nearest pixel will do in every frame.
        side = 2 * SIDE
        pixels = pack_pixels(np.asarray(texture.resize((side, side), Image.Resampling.BILINEAR))).ravel()
        u = ((np.arange(self._width, dtype=np.float32) + 0.5) / self._width - 0.5)[None, :]
        v = ((np.arange(self._height, dtype=np.float32) + 0.5) / self._height - 0.5)[:, None]

        def render(angle: float) -> np.ndarray:
            across, along, turn, zoom = self._waves(angle)
            size = side * view * (1 + 0.2 * zoom)
            cosine, sine = size * math.cos(0.35 * turn), size * math.sin(0.35 * turn)
            x = cosine * u - sine * v
            y = sine * u + cosine * v
            if tilt:
                nearness = 1 / (1 + tilt * (turn * u + along * v))
                x *= nearness
                y *= nearness
            x += side * (0.5 + 0.17 * across)
            y += side * (0.5 + 0.17 * along)
            index = y.astype(np.int32)
            index *= side
            index += x.astype(np.int32)
            return np.array(unpack_pixels(pixels[index]), order="C")

        return render

    def _build_terrain(self, rng: np.random.Generator) -> Renderer:
        return self._film(terrain_texture(rng))

    def _build_cells(self, rng: np.random.Generator) -> Renderer:
        return self._film(cells_texture(rng))

    def _build_facade(self, rng: np.random.Generator) -> Renderer:
        return self._film(facade_texture(rng), view=0.32, tilt=0.25)

    def _build_parallax(self, rng: np.random.Generator) -> Renderer:
        """A sky and four ridges, the nearer the faster; each is periodic and three times as fine in x."""
        height, width, fine = self._height, self._width, 3
        hues = palette(6, rng)
        y = np.arange(height, dtype=np.float32)[:, None]
        sky = (hues[0] + (hues[1] - hues[0]) * y / height)[:, None] * np.ones((1, width, 1), np.float32)
        background = pack_pixels(np.asarray(to_image(sky)))
        layers = []
        for layer in range(4):
            period = width * (2 + layer) * fine
            along = np.arange(period, dtype=np.float32) / period * 2 * np.pi
            base = np.zeros(period, np.float32)
            roughness = rng.uniform(0.9, 1.4)
            for wave in range(1, 60):
                base += np.float32(rng.normal() / wave**roughness) * np.cos(
                    wave * along + rng.uniform(0, 6.28)
                )
            ridge = height * (0.35 + 0.17 * layer + 0.08 * base / base.std())
            grain = np.asarray(Image.fromarray(lattice_noise(192, 6, rng, cells=4)).resize((period, height)))
            # Noise blended with its half-period shift has no seam.
            blend = np.sin(along / 2) ** 2
            grain = grain * blend + np.roll(grain, period // 2, axis=1) * (1 - blend)
            haze = 0.3 * np.clip(y - ridge, 0, height) / height
            image = np.asarray(to_image(hues[layer + 2] * (0.6 + 0.6 * grain[..., None]) + haze[..., None]))
            cover = y > ridge
            # The start once more at the end, so that every window is one slice.
            again = slice(0, width * fine)
            image = np.concatenate([image, image[:, again]], axis=1)
            cover = np.concatenate([cover, cover[:, again]], axis=1)
            layers.append((pack_pixels(image), cover, period))
        direction = int(rng.choice([-1, 1]))

        def render(angle: float) -> np.ndarray:
            frame = background.copy()
            for image, cover, period in layers:
                shift = int(direction * angle / (2 * np.pi) * period) % period
                window = slice(shift, shift + width * fine, fine)
                np.copyto(frame, image[:, window], where=cover[:, window])
            return np.array(unpack_pixels(frame), order="C")

        return render

    def _build_water(self, rng: np.random.Generator) -> Renderer:
        texture = pack_pixels(brick_texture(rng)).ravel()
        y = np.arange(self._height, dtype=np.float32) / self._height
        x = np.arange(self._width, dtype=np.float32) / self._width
        view = SIDE * 0.5
        numbers = rng.integers(1, 4, 4) * rng.choice([-1, 1], 4)
        waves = rng.uniform(3, 16, 4)
        heights = rng.uniform(2, 9, 4)

        def render(angle: float) -> np.ndarray:
            across, along, *_ = self._waves(angle)
            left, top = SIDE * (0.25 + 0.15 * across), SIDE * (0.25 + 0.15 * along)
            push = [
                heights[i] * np.sin(waves[i] * (y if i < 2 else x) + numbers[i] * angle) for i in range(4)
            ]
            columns = (left + view * x + push[2])[None, :] + push[0][:, None]
            rows = (top + view * y + push[1])[:, None] + push[3][None, :]
            return np.array(
                unpack_pixels(texture[rows.astype(np.int32) * SIDE + columns.astype(np.int32)]), order="C"
            )

        return render

    def _build_swarm(self, rng: np.random.Generator) -> Renderer:
        film = self._film(terrain_texture(rng))
        count = int(rng.integers(8, 24))
        hues = palette(6, rng)
        corners = np.sort(rng.uniform(0, 2 * np.pi, (count, 7)), axis=1)
        radii = min(self._height, self._width) * rng.uniform(0.04, 0.2, (count, 1))
        colors = np.clip(hues[rng.integers(6, size=count)] * rng.uniform(0.8, 1.2, (count, 1)), 0, 1) * 255
        fills = [tuple(color) for color in colors.astype(int).tolist()]
        size = np.array([self._width, self._height])
        homes = rng.uniform(0, 1, (count, 2))
        turns = rng.integers(1, 3, (count, 3)) * rng.choice([-1, 1], (count, 3))
        phases = rng.uniform(0, 2 * np.pi, (count, 2))

        def render(angle: float) -> np.ndarray:
            frame = Image.fromarray(film(angle))
            draw = ImageDraw.Draw(frame)
            places = size * (homes + 0.3 * np.sin(turns[:, :2] * angle + phases))
            turned = corners + turns[:, 2:] * angle
            outlines = (
                np.stack([np.cos(turned), np.sin(turned)], axis=-1) * radii[..., None] + places[:, None]
            )
            for outline, fill in zip(outlines.reshape(count, -1).tolist(), fills, strict=True):
                draw.polygon(outline, fill=fill)
            return np.array(frame)

        return render

    def _build_night(self, rng: np.random.Generator) -> Renderer:
        """A sky that brightens and darkens behind slowly turning stars; what stands on the ground is black."""
        height, width = self._height, self._width
        hazy = self.family == "dusk"
        stars = stars_texture(
            rng, int(rng.integers(200, 600) if hazy else rng.integers(1000, 3000)), self.family == "galaxy"
        )
        film = self._film(to_image(stars))
        top = night_color(rng, rng.uniform(0.08, 0.36))
        bottom = night_color(rng, rng.uniform(0.15, 0.5))
        down = (np.arange(height, dtype=np.float32) / height)[:, None, None] ** rng.uniform(0.7, 2.0)
        sky = 255 * (top + (bottom - top) * down)
        if hazy:
            haze = 0.75 + 0.5 * np.asarray(Image.fromarray(lattice_noise(64, 3, rng)).resize((width, height)))
            glow = np.array([1.0, rng.uniform(0.7, 0.95), rng.uniform(0.5, 0.9)]) * rng.uniform(20, 70)
            sky = sky * haze[..., None] + (down**3 * glow).astype(np.float32)
        sky = np.broadcast_to(sky, (height, width, 3)).astype(np.float32)
        ground = self._skyline(rng) if rng.random() < 0.6 else np.zeros((height, width), bool)
        darkest = rng.uniform(0.3, 0.9)

        def render(angle: float) -> np.ndarray:
            brightness = darkest + (1 - darkest) * (0.5 + 0.5 * math.sin(angle + self._phases[0]))
            frame = np.minimum(sky * np.float32(brightness) + film(angle), 255).astype(np.uint8)
            frame[ground] = 6
            return frame

        return render

    def _skyline(self, rng: np.random.Generator) -> np.ndarray:
        """Where hills or trees cover the sky: bool (height, width)."""
        along = np.arange(self._width) / self._width * 2 * np.pi
        hills = sum(
            rng.normal() / wave**1.2 * np.cos(rng.uniform(0.5, 1) * wave * along + rng.uniform(0, 6.28))
            for wave in range(1, 30)
        )
        level = 1 - rng.uniform(0.03, 0.2) + 0.03 * hills
        return np.arange(self._height)[:, None] / self._height > level


class ProceduralVideos:
    """The 10 easy or 100 hard procedural videos."""

    kind = "procedural"

    def __init__(self, level: str) -> None:
        self.level = level
        self._built: OrderedDict[tuple[int, int, int], ProceduralVideo] = OrderedDict()

    def __len__(self) -> int:
        """Number of videos."""
        return COUNTS[self.level]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy sent to another process builds its own videos."""
        return ProceduralVideos, (self.level,)

    def name(self, index: int) -> str:
        """The id of a video, such as ``procedural/hard/017-swarm``."""
        index %= len(self)
        return f"procedural/{self.level}/{index:03d}-{family(self.level, index)}"

    def open(self, index: int, height: int, width: int) -> ProceduralVideo:
        """Video `index` at a size; the most recently used ones are kept."""
        key = (index % len(self), height, width)
        if key not in self._built:
            self._built[key] = ProceduralVideo(self.level, *key)
            while len(self._built) > 1 and self._exceeds_cache():
                self._built.popitem(last=False)
        self._built.move_to_end(key)
        return self._built[key]

    def _exceeds_cache(self) -> bool:
        pixels = sum(height * width for _, height, width in self._built)
        return len(self._built) > CACHED_VIDEOS or pixels > CACHED_PIXELS

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints."""
        return {
            "kind": self.kind,
            "level": self.level,
            "videos": len(self),
            "families": list(FAMILIES[self.level]),
            "version": PROCEDURAL_VIDEO_VERSIONS[self.level],
        }
