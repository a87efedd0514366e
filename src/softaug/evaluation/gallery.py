"""An image of every task in every mode and of every augmentation, like the paper's sample figures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from softaug.config import make_config
from softaug.envs import PAPER_TASKS, make_env
from softaug.envs.factory import ConfigEnvs
from softaug.envs.modes import AXIS_MODES, BENCHMARK_MODES, DISTRACTING_MODES, GB2_MODES, ROBOT_MODES
from softaug.envs.observations import newest_frame
from softaug.evaluation.policy import MeanPolicy
from softaug.evaluation.runs import load_run
from softaug.files import write_atomically
from softaug.learning.augment import center_crop
from softaug.learning.saliency import action_gradient, keep_masked, saliency_mask
from softaug.learning.views import make_view
from softaug.media import image_source
from softaug.methods import VIEWS

TILE, GAP, MARGIN = 128, 6, 16
LABEL_WIDTH, LINE_HEIGHT = 150, 20
DRAWS = 6
MASKED = ("zoo:walker_stand-sac", "zoo:walker_stand-soda_overlay")
"""The policies that come with softaug."""
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
            row = len(rows)
            obs, info = _after_two_decisions(env, seed + row + 100 * again, row + again, actions=seed)
            env.close()
            if info.get("media"):
                sources[mode] = str(info["media"])
            frames.append(newest_frame(obs))
        rows.append(GalleryRow(task, frames))
        said(task)
    return Section(modes, rows), sources


def view_sections(seed: int, images: str | None) -> tuple[list[Section], str]:
    """Each view on one observation, and the kind of the overlay's images.

    First six draws of each; then, frame by frame, the view that moves over a stack; then SGQN's mask.
    """
    env = make_env("walker_walk", "train")
    obs = _after_two_decisions(env, seed)[0]
    env.close()
    source = image_source(images)
    config = make_config()  # the paper's sizes
    stack = torch.from_numpy(obs)[None].contiguous(memory_format=torch.channels_last)
    rows: list[GalleryRow] = []
    moving: list[GalleryRow] = []
    for name in VIEWS:
        augment = make_view(name, config, source)
        generator = torch.Generator().manual_seed(seed)
        # A call for each draw: within one, all samples would be turned by the same angle.
        views = [augment(stack, generator)[0].round().to(torch.uint8).numpy() for _ in range(DRAWS)]
        if name == "moving_overlay":
            for pair in (views[2:4], views[4:6]):
                moving.append(GalleryRow(name, [frame for view in pair for frame in _frames(view)]))
        else:
            rows.append(GalleryRow(name, [newest_frame(view) for view in views]))
    foreign = source.sample(DRAWS, 100, 100, np.random.default_rng(seed))
    rows.append(GalleryRow("overlay images", list(foreign)))
    draws = Section([f"draw {i + 1}" for i in range(DRAWS)], rows)
    frames_in_time = ["oldest frame", "middle frame", "newest frame"] * 2
    return [draws, Section(frames_in_time, moving), mask_section(seed)], source.kind


def mask_section(seed: int) -> Section:
    """SGQN's mask, and what it leaves of an observation.

    The policies that come with softaug have no critic, so the mask is that of what moves their actor's action.
    """
    rows: list[GalleryRow] = []
    for name in MASKED:
        run = load_run(name)
        policy = run.policy()()
        assert isinstance(policy, MeanPolicy)
        frames: list[np.ndarray] = []
        for mode in ("train", "video_hard"):
            env = ConfigEnvs(run.config)(mode, seed)
            obs = _after_two_decisions(env, seed)[0]
            env.close()
            view = center_crop(torch.from_numpy(obs)[None], policy.crop_size)
            mask = saliency_mask(
                action_gradient(policy.encoder, policy.actor, view), run.config.sgqn_quantile
            )
            kept = keep_masked(view, mask, torch.tensor([0.5])).round().to(torch.uint8)
            shown = (view, mask.to(torch.uint8) * 255, kept)
            frames += [newest_frame(each[0].numpy()) for each in shown]
        rows.append(GalleryRow(run.config.row.label, frames))
    return Section(["seen", "mask (SGQN)", "what is left", "seen", "mask (SGQN)", "what is left"], rows)


def _frames(view: np.ndarray) -> list[np.ndarray]:
    """The frames of a stack (3k, H, W), each (H, W, 3), the oldest first."""
    return [view[i : i + 3].transpose(1, 2, 0) for i in range(0, len(view), 3)]


def _after_two_decisions(
    env: Any, seed: int, episode: int = 0, actions: int | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """An observation whose frames differ, and the episode's info."""
    obs, info = env.reset(seed=seed, options={"episode": episode})
    rng = np.random.default_rng(seed if actions is None else actions)
    for _ in range(2):
        obs, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape or ()).astype(np.float32))
    return obs, info


def draw(sections: Sequence[Section], caption: str) -> Image.Image:
    """Lay the sections out below each other."""
    font, small = ImageFont.load_default(15), ImageFont.load_default(13)
    columns = max(len(section.columns) for section in sections)
    titles = [[_in_two_lines(title, font) for title in section.columns] for section in sections]
    heads = [6 + LINE_HEIGHT * max(1 + title.count("\n") for title in each) for each in titles]
    bodies = [len(section.rows) * (TILE + GAP) + MARGIN for section in sections]
    width = 2 * MARGIN + LABEL_WIDTH + columns * (TILE + GAP) - GAP
    page = Image.new("RGB", (width, 2 * MARGIN + sum(heads) + sum(bodies) + LINE_HEIGHT), PAPER)
    pen = ImageDraw.Draw(page)
    top = MARGIN
    for section, names, head in zip(sections, titles, heads, strict=True):
        for j, title in enumerate(names):
            place = (_left(j) + TILE / 2, top + head / 2)
            pen.multiline_text(place, title, INK, font, anchor="mm", align="center")
        top += head
        for row in section.rows:
            pen.text((MARGIN + LABEL_WIDTH - 12, top + TILE / 2), row.label, INK, font, anchor="rm")
            for j, frame in enumerate(row.frames):
                tile = Image.fromarray(frame).resize((TILE, TILE), Image.Resampling.LANCZOS)
                page.paste(tile, (_left(j), top))
            top += TILE + GAP
        top += MARGIN
    pen.text((MARGIN, top), caption, FAINT, small)
    return page


def _in_two_lines(title: str, font: Any) -> str:
    """A title that is wider than its column, broken after the underscore nearest to its middle."""
    breaks = [i for i, letter in enumerate(title, start=1) if letter == "_"]
    if not breaks or font.getlength(title) <= TILE:
        return title
    middle = min(breaks, key=lambda i: abs(2 * i - len(title)))
    return f"{title[:middle]}\n{title[middle:]}"


NEWER_TASKS = ("walker_walk", "cheetah_run", "robot_push")
STANDARD_BLOCKS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((*PAPER_TASKS, "cheetah_run", "robot_push"), tuple(mode.name for mode in BENCHMARK_MODES)),
    (("walker_walk", "robot_push"), tuple(mode.name for mode in AXIS_MODES)),
    (("robot_push",), tuple(mode.name for mode in ROBOT_MODES for _ in range(3))),
    (NEWER_TASKS, tuple(mode.name for mode in GB2_MODES if mode.turned)),
    (NEWER_TASKS, ("train", *(mode.name for mode in GB2_MODES if mode.screen))),
    (NEWER_TASKS, tuple(mode.name for mode in DISTRACTING_MODES for _ in range(2))),
)
"""The standard page: blocks of tasks and modes. The paper's combined tests of the robot have three episodes each,
the Distracting Control Suite's modes two."""


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
        extra, sources["overlay images"] = view_sections(seed, images)
        sections += extra
    content = io.BytesIO()
    kind = Image.registered_extensions()[out.suffix.lower()]
    draw(sections, media_caption(sources)).save(content, kind, quality=85, optimize=True)
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
