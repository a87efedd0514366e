"""What the world looks like: the training look or one of the benchmark's test distributions (SPEC §6)."""

from __future__ import annotations

from dataclasses import dataclass

from softaug.errors import UserError


@dataclass(frozen=True)
class Mode:
    """One visual distribution, as a value; code asks for its fields and never looks inside its name.

    A further axis of variation (camera, light, texture) is a further field with a default that changes
    nothing.
    """

    family: str
    """`train` (dm_control's own look), `color` (recoloured scene) or `video` (video behind the robot)."""
    level: str | None
    """`easy` or `hard` test distribution, `random` (fresh draws, for training), or None."""
    split: str
    """`train`: an agent may be trained in it; `test`: held out."""

    @property
    def name(self) -> str:
        return self.family if self.level is None else f"{self.family}_{self.level}"

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
        raise UserError(f"Unknown mode {name!r}; choose one of {', '.join(mode.name for mode in MODES)}.")


MODES: tuple[Mode, ...] = (
    Mode("train", None, "train"),
    Mode("color", "easy", "test"),
    Mode("color", "hard", "test"),
    Mode("video", "easy", "test"),
    Mode("video", "hard", "test"),
    # Domain randomisation (SPEC §5, sac_dr): the distribution of color_hard, never its 100 test draws.
    Mode("color", "random", "train"),
)
MODE_NAMES: tuple[str, ...] = tuple(mode.name for mode in MODES)
