"""What two configs have in common: whether a run may be resumed with other settings, and which runs are seeds of one."""

from __future__ import annotations

import dataclasses
from typing import Any

from softaug.config import Config

NOT_AN_EXPERIMENT = frozenset(
    ("seed", "images", "videos", "colors", "eval_every", "eval_episodes", "eval_modes", "checkpoint_every", "log_every",
     "device", "threads", "compile")
)  # fmt: skip
"""Apart from the runtime fields: what does not make two runs different experiments. Overlay images are compared by what
they were (`results.overlay_images`), not by their path; test media mode by mode."""


def differences(ours: Config, theirs: Config) -> list[str]:
    """What differs between two configs and could change results, one sentence part a field."""
    return [
        f"{f.name} {getattr(ours, f.name)!r} (was {getattr(theirs, f.name)!r})"
        for f in dataclasses.fields(Config)
        if not f.metadata["runtime"] and getattr(ours, f.name) != getattr(theirs, f.name)
    ]


def experiment(config: Config) -> dict[str, Any]:
    """The settings that two runs must share to be seeds of one experiment: `report` and `reproduce` go by these."""
    return {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(Config)
        if not f.metadata["runtime"] and f.name not in NOT_AN_EXPERIMENT
    }
