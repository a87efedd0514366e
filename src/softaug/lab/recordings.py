"""A comparison video of what was on the page: MP4, GIF, and JSON with settings and returns."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from softaug.lab.session import Snapshot
from softaug.versions import VERSION

MAX_TICKS = 1_200
"""Two minutes of walker at its own speed."""
VIDEO_FILE, GIF_FILE, JSON_FILE = "comparison.mp4", "comparison.gif", "comparison.json"
FILES = (VIDEO_FILE, GIF_FILE, JSON_FILE)
IMAGES_FILE = "images"
GIF_WIDTH, GIF_TICKS, GIF_COLORS = 480, 150, 96
TITLE, GAP, INSET = 32, 4, 96
INK, PAPER = (240, 242, 245), (21, 24, 28)


@dataclass
class Recording:
    """Ticks as they were shown. Their images, still encoded, are in a file, one after the other: minutes of them are tens of MB."""

    names: tuple[str, ...]
    decisions_per_second: float
    folder: Path
    ticks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    @property
    def full(self) -> bool:
        return len(self.ticks) >= MAX_TICKS

    def add(self, snapshot: Snapshot) -> None:
        """Nothing once it is full."""
        if self.full:
            return
        with (self.folder / IMAGES_FILE).open("ab") as file:
            for answer in snapshot.answers:
                file.write(answer.scene)
                file.write(answer.seen)
        settings = snapshot.settings
        if self.ticks and self.ticks[-1]["settings"] == settings:
            settings = self.ticks[-1]["settings"]  # one object for all ticks with these
        self.ticks.append(
            {
                "settings": settings,
                "agents": [
                    {
                        "scene_bytes": len(answer.scene),
                        "seen_bytes": len(answer.seen),
                        "decisions": answer.decisions,
                        "reward": answer.reward,
                        "return": answer.total,
                        "distances": answer.distances,
                    }
                    for answer in snapshot.answers
                ],
            }
        )

    def frames(self) -> Iterator[np.ndarray]:
        """All ticks, drawn one by one: together they are a gigabyte."""
        with (self.folder / IMAGES_FILE).open("rb") as file:
            for tick in self.ticks:
                images = [
                    (file.read(agent["scene_bytes"]), file.read(agent["seen_bytes"]))
                    for agent in tick["agents"]
                ]
                yield draw(images, [agent["return"] for agent in tick["agents"]], self.names)


def write(recording: Recording) -> None:
    """All three files. Run in its own process: it takes seconds."""
    from softaug.evaluation.recording import Recorder

    folder = recording.folder
    every = -(-len(recording.ticks) // GIF_TICKS)
    images = []
    with Recorder(folder / VIDEO_FILE, fps=recording.decisions_per_second, min_size=1) as recorder:
        for number, frame in enumerate(recording.frames()):
            recorder.add(frame)
            if number % every == 0:
                images.append(_gif_image(frame))
    duration = max(20, round(1000 * every / recording.decisions_per_second))
    options: dict[str, Any] = {"save_all": True, "duration": duration, "loop": 0, "optimize": False}
    images[0].save(folder / GIF_FILE, append_images=images[1:], **options)
    (folder / JSON_FILE).write_text(json.dumps(facts(recording), indent=1) + "\n", encoding="utf-8")
    (folder / IMAGES_FILE).unlink()


def facts(recording: Recording) -> dict[str, Any]:
    """Settings (each time they change) and what every agent got, by decision."""
    changes: list[dict[str, Any]] = []
    for number, tick in enumerate(recording.ticks):
        settings = tick["settings"]
        if not changes or changes[-1]["settings"] != settings.to_json():
            changes.append({"frame": number, "query": settings.to_query(), "settings": settings.to_json()})
    series = ("decisions", "reward", "return", "distances")
    return {
        "softaug": VERSION,
        "frames_per_second": recording.decisions_per_second,
        "settings": changes,
        "agents": [
            {
                "name": name,
                **{key: [tick["agents"][index][key] for tick in recording.ticks] for key in series},
            }
            for index, name in enumerate(recording.names)
        ],
    }


def draw(images: Sequence[tuple[bytes, bytes]], returns: Sequence[float], names: Sequence[str]) -> np.ndarray:
    """One frame: the scenes side by side, each with its name, return and what the agent sees."""
    scenes, insets = zip(*[[_decoded(image) for image in pair] for pair in images], strict=True)
    height = max(scene.height for scene in scenes)
    width = sum(scene.width for scene in scenes) + GAP * (len(scenes) - 1)
    page = Image.new("RGB", (width, TITLE + height), PAPER)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    left = 0
    for scene, inset, total, name in zip(scenes, insets, returns, names, strict=True):
        page.paste(scene, (left, TITLE))
        seen = inset.resize((INSET, INSET), Image.Resampling.NEAREST)
        corner = (left + scene.width - INSET - 6, TITLE + scene.height - INSET - 6)
        page.paste(Image.new("RGB", (INSET + 2, INSET + 2), INK), (corner[0] - 1, corner[1] - 1))
        page.paste(seen, corner)
        pen.text((left + 8, TITLE / 2), name, INK, font, anchor="lm")
        pen.text((left + scene.width - 8, TITLE / 2), f"return {total:.0f}", INK, font, anchor="rm")
        left += scene.width + GAP
    return np.asarray(page)


def _decoded(image: bytes) -> Image.Image:
    return Image.open(io.BytesIO(image)).convert("RGB")


def _gif_image(frame: np.ndarray) -> Image.Image:
    image = Image.fromarray(frame)
    size = (GIF_WIDTH, round(image.height * GIF_WIDTH / image.width))
    return image.resize(size, Image.Resampling.BILINEAR).quantize(GIF_COLORS, dither=Image.Dither.NONE)
