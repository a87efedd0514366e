"""An image of every task in every mode and of every augmentation, like the paper's sample figures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from softaug.config import make_config
from softaug.envs import PAPER_TASKS, make_env
from softaug.envs.modes import AXIS_MODES, BENCHMARK_MODES, DISTRACTING_MODES, GB2_MODES, ROBOT_MODES
from softaug.envs.observations import newest_frame
from softaug.files import write_atomically
from softaug.learning.views import make_view
from softaug.media import image_source
from softaug.methods import VIEWS

TILE, GAP, MARGIN = 128, 6, 16
LABEL_WIDTH, TITLE_HEIGHT = 150, 26
INK, FAINT, PAPER = (30, 33, 38), (110, 115, 122), (255, 255, 255)


@dataclass(frozen=True)
class GalleryRow:
    """A label and its frames, uint8 (H, W, 3)."""

    label: str
    frames: Sequence[np.ndarray]


@dataclass(frozen=True)
class Section:
    """A block of rows under common column titles."""

    columns: Sequence[str]
    rows: Sequence[GalleryRow]


def mode_section(
    tasks: Sequence[str],
    modes: Sequence[str],
    seed: int,
    videos: str | None,
    colors: str | None,
    said: Callable[[str], None],
) -> tuple[Section, dict[str, str]]:
    """One frame per task and mode, and where each mode's media come from. Every mode shows the same physics state."""
    sources: dict[str, str] = {}
    rows: list[GalleryRow] = []
    for task in tasks:
        frames = []
        for column, mode in enumerate(modes):
            env = make_env(task, mode, videos=videos, colors=colors)
            # The same start in every mode; a mode that is named again shows its next episodes.
            again = modes[:column].count(mode)
            obs, info = env.reset(seed=seed + len(rows) + 100 * again, options={"episode": len(rows) + again})
            rng = np.random.default_rng(seed)
            for _ in range(2):
                obs, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape or ()).astype(np.float32))
            env.close()
            if info.get("media"):
                sources[mode] = str(info["media"])
            frames.append(newest_frame(obs))
        rows.append(GalleryRow(task, frames))
        said(task)
    return Section(modes, rows), sources


def augmentation_section(seed: int, images: str | None) -> tuple[Section, str]:
    """Each augmentation on one observation, several draws, and images of the overlay's source."""
    env = make_env("walker_walk", "train", seed)
    obs, _ = env.reset(seed=seed)
    env.close()
    draws = 6
    source = image_source(images)
    stack = torch.from_numpy(np.stack([obs] * draws)).contiguous(memory_format=torch.channels_last)
    config = make_config()  # the paper's sizes
    rows: list[GalleryRow] = []
    for name in VIEWS:
        augment = make_view(name, config, source)
        views = augment(stack, torch.Generator().manual_seed(seed)).round().to(torch.uint8)
        rows.append(GalleryRow(f"random {name}", [newest_frame(view.numpy()) for view in views]))
    foreign = source.sample(draws, 100, 100, np.random.default_rng(seed))
    rows.append(GalleryRow("overlay images", list(foreign)))
    return Section([f"draw {i + 1}" for i in range(draws)], rows), source.kind


def draw(sections: Sequence[Section], caption: str) -> Image.Image:
    """Lay the sections out below each other."""
    columns = max(len(section.columns) for section in sections)
    width = 2 * MARGIN + LABEL_WIDTH + columns * (TILE + GAP)
    height = (
        2 * MARGIN + sum(TITLE_HEIGHT + len(s.rows) * (TILE + GAP) + MARGIN for s in sections) + TITLE_HEIGHT
    )
    page = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(page)
    font, small = ImageFont.load_default(15), ImageFont.load_default(13)
    top = MARGIN
    for section in sections:
        for j, title in enumerate(section.columns):
            size = min(15.0, 15 * TILE / pen.textlength(title, font))  # a long name gets smaller letters
            fitting = ImageFont.load_default(size)
            pen.text((_left(j) + TILE / 2, top + TITLE_HEIGHT / 2), title, INK, fitting, anchor="mm")
        top += TITLE_HEIGHT
        for row in section.rows:
            pen.text((MARGIN + LABEL_WIDTH - 12, top + TILE / 2), row.label, INK, font, anchor="rm")
            for j, frame in enumerate(row.frames):
                tile = Image.fromarray(frame).resize((TILE, TILE), Image.Resampling.LANCZOS)
                page.paste(tile, (_left(j), top))
            top += TILE + GAP
        top += MARGIN
    pen.text((MARGIN, top), caption, FAINT, small)
    return page


STANDARD_BLOCKS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((*PAPER_TASKS, "robot_push"), tuple(mode.name for mode in BENCHMARK_MODES)),
    (("walker_walk", "robot_push"), tuple(mode.name for mode in AXIS_MODES)),
    (("robot_push",), tuple(mode.name for mode in ROBOT_MODES for _ in range(3))),
    (("walker_walk", "cheetah_run"), tuple(mode.name for mode in GB2_MODES if mode.turned)),
    (("walker_walk", "cheetah_run"), tuple(mode.name for mode in GB2_MODES if mode.screen)),
    (("walker_walk", "cheetah_run"), tuple(mode.name for mode in DISTRACTING_MODES)),
)
"""The standard page: blocks of tasks and modes. The paper's combined tests of the robot have three episodes each."""


def save_gallery(
    out: Path,
    blocks: Sequence[tuple[Sequence[str], Sequence[str]]] = STANDARD_BLOCKS,
    *,
    seed: int = 0,
    videos: str | None = None,
    colors: str | None = None,
    images: str | None = None,
    augmentations: bool = True,
    said: Callable[[str], None] = lambda task: None,
) -> dict[str, str]:
    """Blocks of tasks in rows and modes in columns, below each other; returns where each mode's media come from."""
    made = [mode_section(*block, seed, videos, colors, said) for block in blocks]
    sections = [section for section, _ in made]
    sources = {mode: kind for _, found in made for mode, kind in found.items()}
    if augmentations:
        extra, sources["overlay images"] = augmentation_section(seed, images)
        sections.append(extra)
    content = io.BytesIO()
    draw(sections, media_caption(sources)).save(content, Image.registered_extensions()[out.suffix.lower()])
    write_atomically(out, content.getvalue())
    return sources


def media_caption(sources: Mapping[str, str]) -> str:
    """What the frames are made of, in one line."""
    kinds = set(sources.values())
    if len(kinds) == 1:
        return f"videos, colors and images: {kinds.pop()}"
    return "media: " + "   ".join(f"{name}: {kind}" for name, kind in sources.items()) if sources else ""


def _left(column: int) -> int:
    return MARGIN + LABEL_WIDTH + column * (TILE + GAP)
