"""The environments of a config. Without torch: the environment's own process imports this."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import gymnasium

import softaug.envs
from softaug.config import Config
from softaug.envs.color import color_settings
from softaug.envs.modes import Mode
from softaug.media import video_source


@dataclass(frozen=True)
class ConfigEnvs:
    """The environments of a run: `config_envs(mode, seed)`. Picklable."""

    config: Config

    def __call__(self, mode: str, seed: int) -> gymnasium.Env:
        config = self.config
        return softaug.envs.make_env(
            config.task,
            mode,
            seed,
            image_size=config.image_size,
            frame_stack=config.frame_stack,
            action_repeat=config.action_repeat or None,
            videos=config.videos or None,
            colors=config.colors or None,
            render=config.render,
        )


def media_facts(config: Config, mode: str) -> dict[str, Any] | None:
    """Where the mode's videos or colours come from, as JSON; None if it needs none. A wrong name is a `UserError`."""
    parsed = Mode.parse(mode)
    if parsed.family == "video":
        return video_source(str(parsed.level), config.videos or None).describe()
    if parsed.family == "color":
        settings, kind = color_settings(parsed, config.colors or None)
        content = [{key: rgb.tolist() for key, rgb in setting.items()} for setting in settings or []]
        return {"kind": kind, "settings": len(content), "sha256": hash_of(content)}
    return None


def hash_of(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
