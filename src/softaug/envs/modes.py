"""What the world looks like: the training appearance or one of the test distributions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from softaug.errors import UserError, unknown

DISTRACTING_PARTS = ("camera", "color", "background")


@dataclass(frozen=True)
class Distraction:
    """A setting of the Distracting Control Suite."""

    scale: float
    """0 (nothing is distracted) to 1."""
    dynamic: bool = True
    """Whether it moves within an episode."""
    parts: tuple[str, ...] = DISTRACTING_PARTS

    @property
    def name(self) -> str:
        return f"distracting(scale={self.scale!r},dynamic={self.dynamic},parts={'+'.join(self.parts)})"

    @property
    def videos(self) -> int:
        """How many of the videos are shown: 2 to 8 for small scales, from 0.3 on all 60."""
        return 60 if self.scale >= 0.3 else max(2, round(40 * self.scale))

    @staticmethod
    def parse(text: str) -> Distraction:
        """From `scale=0.2,dynamic=True,parts=camera+color`; scale must be given."""
        values = dict(item.strip().partition("=")[::2] for item in text.split(",") if item.strip())
        parts = tuple(values.get("parts", "+".join(DISTRACTING_PARTS)).split("+"))
        scale, dynamic = values.get("scale", ""), values.get("dynamic", "True")
        if (
            set(values) - {"scale", "dynamic", "parts"}
            or not re.fullmatch(r"[0-9]*\.?[0-9]+|[0-9]+\.", scale, re.ASCII)
            or not 0 <= float(scale) <= 1
            or dynamic not in ("True", "False")
            or not set(parts) <= set(DISTRACTING_PARTS)
        ):
            raise UserError(
                f"Unknown mode 'distracting({text})'; write distracting(scale=0.2,dynamic=True,"
                "parts=camera+color+background) with a scale from 0 to 1 and one or more of these parts."
            )
        ordered = tuple(part for part in DISTRACTING_PARTS if part in parts)
        return Distraction(float(scale), dynamic == "True", ordered)


@dataclass(frozen=True)
class Mode:
    """One visual distribution, as a value; code asks for its fields and never parses its name."""

    family: str
    """`train` (the task's own appearance), `color` (recolored scene), `video` (video behind the robot), an axis alone:
    `camera`, `light`, `texture`, or a family of DMControl-GB2: `rotate`, `shift`, `rotate_shift`, `screen_video`,
    `screen_color_video`, or `distracting` (the Distracting Control Suite)."""
    level: str | None
    """`easy` or `hard` test distribution, `random` (fresh draws, for training), or None."""
    split: str
    """`train`: an agent may be trained in it; `test`: held out."""
    camera: str | None = None
    """How far the camera's place, direction and field of view are off: None (not at all), `easy` or `hard`."""
    light: str | None = None
    """How much the lights' place, brightness and color change."""
    texture: str | None = None
    """How much the patterns of floor and table change."""
    turned: tuple[str, ...] = ()
    """How the camera is turned for an episode (DMControl-GB2): `rotate` (about the view axis), `shift` (the subject
    moves towards an edge of the image)."""
    screen: bool = False
    """Whether a video is shown on a screen in the scene (DMControl-GB2)."""
    distraction: Distraction | None = None
    """How far camera, colors and background wander (Distracting Control Suite)."""
    label: str | None = None
    """The name, where it does not follow from family and level."""

    @property
    def name(self) -> str:
        if self.label is not None:
            return self.label
        return self.family if self.level is None else f"{self.family}_{self.level}"

    @property
    def recolored(self) -> bool:
        """Whether each episode has a color setting."""
        return self.family in ("color", "screen_color_video")

    @property
    def perturbed(self) -> bool:
        """Whether any of camera, light and texture changes from episode to episode."""
        return any(level is not None for level in (self.camera, self.light, self.texture))

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def parse(name: str | Mode) -> Mode:
        """The mode of that name (a `Mode` passes through)."""
        if isinstance(name, Mode):
            return name
        for mode in MODES:
            if mode.name == name:
                return mode
        if isinstance(name, str) and (match := re.fullmatch(r"distracting\((.*)\)", name, re.DOTALL)):
            distraction = Distraction.parse(match[1])
            return Mode("distracting", None, "test", distraction=distraction, label=distraction.name)
        raise unknown("mode", name, MODE_NAMES)


def split_modes(text: str) -> list[str]:
    """Comma-separated names; the commas within `distracting(...)` are its own."""
    return [name.strip() for name in re.split(r",(?![^(]*\))", text) if name.strip()]


def expand_groups(names: Iterable[str]) -> list[str]:
    """The names, with that of a group (`MODE_GROUPS`) replaced by those of its modes that were not named before."""
    found: list[str] = []
    for name in names:
        if name in MODE_GROUPS:
            found += [mode for mode in MODE_GROUPS[name] if mode not in found]
        else:
            found.append(name)
    return found


BENCHMARK_MODES: tuple[Mode, ...] = (
    Mode("train", None, "train"),
    Mode("color", "easy", "test"),
    Mode("color", "hard", "test"),
    Mode("video", "easy", "test"),
    Mode("video", "hard", "test"),
    # Domain randomization (sac_dr): the distribution of color_hard, never its 100 test draws.
    Mode("color", "random", "train"),
)
AXIS_MODES: tuple[Mode, ...] = (
    Mode("camera", "easy", "test", camera="easy"),
    Mode("camera", "hard", "test", camera="hard"),
    Mode("light", "easy", "test", light="easy"),
    Mode("light", "hard", "test", light="hard"),
    Mode("texture", "easy", "test", texture="easy"),
    Mode("texture", "hard", "test", texture="hard"),
)
# The paper's tests of the robot: random colors or a video, each with all three axes. The axes are `easy`
# here, for the paper speaks of "random perturbations" and gives no size; only brightness varies in an easy
# texture, so none is keyed out as green.
ROBOT_MODES: tuple[Mode, ...] = (
    Mode("color", "hard", "test", camera="easy", light="easy", texture="easy", label="random_colors"),
    Mode("video", "easy", "test", camera="easy", light="easy", texture="easy", label="video_background"),
)
LEVELS = ("easy", "hard")
# DMControl-GB2 (docs/benchmarks.md). Its `color_*` are the benchmark's own.
GB2_MODES: tuple[Mode, ...] = (
    *(Mode("rotate", level, "test", turned=("rotate",)) for level in LEVELS),
    *(Mode("shift", level, "test", turned=("shift",)) for level in LEVELS),
    *(Mode("rotate_shift", level, "test", turned=("rotate", "shift")) for level in LEVELS),
    *(Mode("screen_video", level, "test", screen=True) for level in LEVELS),
    *(Mode("screen_color_video", level, "test", screen=True) for level in LEVELS),
)
DISTRACTING_MODES: tuple[Mode, ...] = (
    Mode("distracting", "easy", "test", distraction=Distraction(0.1)),
    Mode("distracting", "medium", "test", distraction=Distraction(0.2)),
    Mode("distracting", "hard", "test", distraction=Distraction(0.3)),
)
MODES: tuple[Mode, ...] = (
    *BENCHMARK_MODES, *AXIS_MODES, *ROBOT_MODES, *GB2_MODES, *DISTRACTING_MODES,
)  # fmt: skip
MODE_NAMES: tuple[str, ...] = tuple(mode.name for mode in MODES)
"""In the order in which tables, pages and figures show them."""

MODE_GROUPS: dict[str, tuple[str, ...]] = {
    "dmcgb": tuple(mode.name for mode in BENCHMARK_MODES if mode.level != "random"),
    "axes": tuple(mode.name for mode in AXIS_MODES),
    "gb2": ("color_easy", "color_hard", *(mode.name for mode in GB2_MODES)),
    "distracting": tuple(mode.name for mode in DISTRACTING_MODES),
}
"""What `--modes` takes as one name: a benchmark's modes in its order."""


def ordered_modes(modes: Collection[str]) -> list[str]:
    """The known modes by benchmark and in its order, then others (of custom environments, `distracting(...)`) by name."""
    return [mode for mode in MODE_NAMES if mode in modes] + sorted(set(modes) - set(MODE_NAMES))


def mode_group(mode: str) -> str:
    """The benchmark that a mode belongs to, as a heading."""
    family = mode.partition("(")[0]
    for heading, modes in _HEADINGS.items():
        if mode in {m.name for m in modes} or (family == "distracting" and modes is DISTRACTING_MODES):
            return heading
    return "Other modes"


_HEADINGS: dict[str, tuple[Mode, ...]] = {
    "DMControl-GB": BENCHMARK_MODES,
    "Camera, light, texture": AXIS_MODES,
    "Robot": ROBOT_MODES,
    "DMControl-GB2": GB2_MODES,
    "Distracting Control Suite": DISTRACTING_MODES,
}
