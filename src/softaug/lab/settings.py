"""Every control of the lab as one frozen value: what the page builds its controls from and a link consists of."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np

from softaug.envs.modes import Mode
from softaug.errors import UserError, unknown

MAX_SEED = 99_999
UPLOAD_ID = re.compile(r"[0-9a-f]{16}")
COLOR = re.compile(r"#[0-9a-f]{6}")
TRAINING_MODE = "train"


def _slider(
    group: str, label: str, default: float, low: float, high: float, step: float, unit: str = "", **more: Any
) -> Any:
    facts = {
        "kind": "range",
        "group": group,
        "label": label,
        "min": low,
        "max": high,
        "step": step,
        "unit": unit,
    }
    return field(default=default, metadata=facts | more)


def _choice(group: str, label: str, default: str, choices: Mapping[str, str], **more: Any) -> Any:
    facts = {"kind": "select", "group": group, "label": label, "choices": dict(choices)}
    return field(default=default, metadata=facts | more)


def _color(label: str) -> Any:
    return field(default="", metadata={"kind": "color", "group": "Colors", "label": label})


def _switch(group: str, label: str, **more: Any) -> Any:
    return field(default=False, metadata={"kind": "switch", "group": group, "label": label} | more)


@dataclass(frozen=True)
class Settings:
    """An empty color or upload stands for none; the defaults are the training appearance."""

    mode: str = field(
        default=TRAINING_MODE, metadata={"kind": "mode", "group": "World", "label": "Mode of the benchmark"}
    )
    seed: int = field(
        default=0,
        metadata={"kind": "number", "group": "World", "label": "Seed", "min": 0, "max": MAX_SEED, "step": 1},
    )
    floor: str = _color("Floor")
    sky: str = _color("Sky")
    body: str = _color("Body")
    background: str = _choice(
        "Background",
        "Show",
        "none",
        {
            "none": "the scene's own",
            "easy": "a video (easy set)",
            "hard": "a video (hard set)",
            "upload": "your image or video",
            "webcam": "your webcam",
        },
    )
    video: int = field(
        default=0,
        metadata={
            "kind": "number",
            "group": "Background",
            "label": "Video number",
            "min": 0,
            "max": 99,
            "step": 1,
        },
    )
    upload: str = field(
        default="", metadata={"kind": "upload", "group": "Background", "label": "Your image or video"}
    )
    hide_floor: bool = _switch("Background", "Replace the floor too")
    opacity: float = _slider("Background", "Opacity", 1.0, 0.0, 1.0, 0.05)
    azimuth: float = _slider("Camera", "Angle to the side", 0.0, -90.0, 90.0, 1.0, "°")
    elevation: float = _slider("Camera", "Angle upwards", 0.0, -30.0, 60.0, 1.0, "°")
    distance: float = _slider("Camera", "Distance", 1.0, 0.5, 2.0, 0.05, "×")
    roll: float = _slider("Camera", "Roll", 0.0, -180.0, 180.0, 1.0, "°")
    light: float = _slider("Light", "Lamp brightness", 1.0, 0.0, 2.0, 0.05, "×")
    light_angle: float = _slider("Light", "Lamp angle", 0.0, -80.0, 80.0, 1.0, "°")
    brightness: float = _slider("Whole image", "Brightness", 1.0, 0.2, 2.0, 0.05, "×")
    hue: float = _slider("Whole image", "Hue", 0.0, -180.0, 180.0, 1.0, "°")
    blur: float = _slider("Whole image", "Blur", 0.0, 0.0, 5.0, 0.1, "%")
    noise: float = _slider("Whole image", "Noise", 0.0, 0.0, 0.5, 0.01)
    states: str = _choice(
        "Agents",
        "States",
        "own",
        {"own": "own: each acts for itself", "same": "same: the first one acts for all"},
    )
    saliency: bool = _switch("Agents", "Show what moves the action")
    speed: float = _slider("Time", "Speed", 1.0, 0.1, 4.0, 0.1, "×")
    paused: bool = _switch("Time", "Paused")

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            _check(entry.name, getattr(self, entry.name), entry.metadata)

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """Some fields replaced; an unknown name or a wrong value is a `UserError`."""
        for name in changes:
            if name not in FIELDS:
                raise unknown("setting", name, FIELDS)
        return dataclasses.replace(self, **{name: _typed(name, value) for name, value in changes.items()})

    def to_query(self) -> str:
        """What differs from the defaults, as the query of a URL."""
        changed = {
            name: _text(value)
            for name, value in dataclasses.asdict(self).items()
            if value != FIELDS[name].default
        }
        return urlencode(changed)

    @staticmethod
    def from_query(query: str) -> Settings:
        """The reverse of `to_query`; what is not named has its default."""
        return Settings().with_changes(dict(parse_qsl(query, keep_blank_values=True)))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def appearance(self) -> Settings:
        """Only what changes the images: equal for two settings with the same appearance."""
        own = Settings()
        return dataclasses.replace(
            self, states=own.states, saliency=own.saliency, speed=own.speed, paused=own.paused
        )


FIELDS = {entry.name: entry for entry in dataclasses.fields(Settings)}
SESSION_FIELDS = ("states", "saliency", "speed", "paused", "seed")
"""Not about the appearance: they apply to every environment."""
IMAGE_FIELDS = ("brightness", "hue", "blur", "noise")
"""They change an image once it is rendered, so they too apply to every environment."""
SURPRISES = {
    "azimuth": (-40, 40), "elevation": (-10, 30), "distance": (0.8, 1.5), "roll": (-30, 30), "light": (0.3, 1.6),
    "light_angle": (-60, 60), "brightness": (0.5, 1.5), "hue": (-180, 180), "blur": (0.5, 2), "noise": (0.03, 0.15),
}  # fmt: skip
"""Ranges from which "surprise me" draws: within them a person still recognizes everything."""
SCENE_FIELDS = tuple(name for name in FIELDS if name not in (*SESSION_FIELDS, *IMAGE_FIELDS, "mode"))

APPEARANCE_FIELDS = ("mode", *SCENE_FIELDS, *IMAGE_FIELDS)


def query_of(link: str) -> str:
    """The settings in a link of the lab, or in its part after the question mark."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        raise UserError(f"{link!r} is no link of the lab ({error}); copy the whole address") from None
    return parts.query or (link.lstrip("?") if not parts.scheme else "")


def schema() -> list[dict[str, Any]]:
    """The controls as JSON, in their order on the page."""
    return [{"name": name, "default": entry.default, **entry.metadata} for name, entry in FIELDS.items()]


def _typed(name: str, value: Any) -> Any:
    """A value as it comes from a URL (text) or from the page (JSON)."""
    kind = type(FIELDS[name].default)
    try:
        if kind is bool and isinstance(value, str):
            return {"1": True, "0": False}[value]
        if kind in (int, float) and isinstance(value, str) and len(value) < 30:
            return kind(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    except (KeyError, ValueError, OverflowError):
        pass
    else:
        if kind is str and isinstance(value, str):
            return value
        if type(value) is kind:
            return value
    raise UserError(f"the setting {name} cannot be {value!r}; it is {_allowed(name)}")


def _check(name: str, value: Any, facts: Mapping[str, Any]) -> None:
    kind = facts["kind"]
    if kind in ("range", "number"):
        right = math.isfinite(value) and facts["min"] <= value <= facts["max"]
    elif kind == "select":
        right = value in facts["choices"]
    elif kind == "color":
        right = value == "" or COLOR.fullmatch(value) is not None
    elif kind == "upload":
        right = value == "" or UPLOAD_ID.fullmatch(value) is not None
    elif kind == "mode":
        right = 0 < len(value) <= 200 and value.isprintable()
    else:
        right = isinstance(value, bool)
    if not right:
        raise UserError(f"the setting {name} cannot be {value!r}; it is {_allowed(name)}")


def _allowed(name: str) -> str:
    facts = FIELDS[name].metadata
    if facts["kind"] in ("range", "number"):
        return f"a number from {facts['min']:g} to {facts['max']:g}"
    if facts["kind"] == "select":
        return f"one of {', '.join(facts['choices'])}"
    return {
        "color": "a color like #3366cc, or empty",
        "upload": "what an upload was called",
        "mode": "the name of a mode",
        "switch": "0 or 1",
    }[facts["kind"]]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def surprise(rng: np.random.Generator, controls: Collection[str], modes: Sequence[str]) -> dict[str, Any]:
    """Changes that show another appearance: a mode or picked colors, sometimes a video, and a few sliders."""
    changes: dict[str, Any] = {name: FIELDS[name].default for name in APPEARANCE_FIELDS if name in controls}
    if "mode" in controls and rng.random() < 0.4:
        changes["mode"] = str(rng.choice([mode for mode in modes if mode != TRAINING_MODE] or list(modes)))
    for name in ("floor", "sky", "body"):
        if name in controls and rng.random() < 0.5:
            changes[name] = f"#{rng.integers(2**24):06x}"
    if "background" in controls and rng.random() < 0.4:
        changes |= {"background": str(rng.choice(["easy", "hard"])), "video": int(rng.integers(100))}
        changes["hide_floor"] = bool(rng.random() < 0.5)
    sliders = [name for name in SURPRISES if name in controls]
    for name in rng.choice(sliders, min(2, len(sliders)), replace=False).tolist():
        facts, (low, high) = FIELDS[name].metadata, SURPRISES[name]
        changes[name] = round(round(rng.uniform(low, high) / facts["step"]) * facts["step"], 4)
    return changes


def check_mode(mode: str, modes: tuple[str, ...], *, own: bool) -> str:
    """The mode's name, if the task has it; `distracting(...)` of any scale is a mode of softaug's own tasks."""
    if own and mode not in modes:
        raise unknown("mode", mode, modes)
    return mode if own else Mode.parse(mode).name
