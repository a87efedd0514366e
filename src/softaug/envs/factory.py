"""The environments of a config. Without torch: the environment's own process imports this."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

import softaug.envs
from softaug.config import Config
from softaug.config.own_environment import unknown_own_mode
from softaug.envs.color import color_settings
from softaug.envs.custom.loading import MakeEnv, call, load_callable, source_facts
from softaug.envs.modes import MODE_NAMES, Mode
from softaug.errors import UserError
from softaug.media import video_source
from softaug.media.davis import background_videos


@dataclass(frozen=True)
class ConfigEnvs:
    """The environments of a run: `config_envs(mode, seed)`. Picklable."""

    config: Config

    def __call__(self, mode: str, seed: int) -> gymnasium.Env:
        config = self.config
        if config.own_env:
            return make_own_env(config, mode, load_callable(own_spec(config, mode)))
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


@dataclass(frozen=True)
class CallableEnvs:
    """The environments of a run whose functions were given in Python. Picklable if they are."""

    config: Config
    functions: Mapping[str, MakeEnv]
    """Mode -> function; `train` among them."""

    def __call__(self, mode: str, seed: int) -> gymnasium.Env:
        own_spec(self.config, mode)
        return make_own_env(self.config, mode, self.functions[mode])


def make_own_env(config: Config, mode: str, function: MakeEnv) -> gymnasium.Env:
    """The environment that the user's function makes, as the trainer wants it. Its seed comes with `reset`."""
    name = own_spec(config, mode)
    return softaug.envs.adapt(
        call(function, name),
        image_size=config.image_size,
        frame_stack=config.frame_stack,
        action_repeat=config.action_repeat or 1,
        image_key=config.image_key,
        episode_decisions=config.episode_decisions,
        name=name,
    )


def own_spec(config: Config, mode: str) -> str:
    """The `module:callable` of a mode of the user's own environment."""
    if mode not in config.own_modes:
        raise UserError(unknown_own_mode(mode, config))
    return config.own_modes[mode]


def check_own_envs(config: Config, modes: Sequence[str]) -> None:
    """Refuse functions that cannot be found, before other processes need them; nothing for softaug's own tasks."""
    for mode in modes if config.own_env else ():
        load_callable(own_spec(config, mode))


def modes_of(config: Config) -> tuple[str, ...]:
    """Every mode that the config's task can be seen in."""
    return tuple(config.own_modes) if config.own_env else MODE_NAMES


def media_facts(config: Config, mode: str) -> dict[str, Any] | None:
    """Where the mode's videos or colors come from, as JSON; None if it needs none. A wrong name is a `UserError`.

    For an environment of the user's own: its function, and a checksum of the module that holds it.
    """
    if config.own_env:
        return source_facts(own_spec(config, mode))
    parsed = Mode.parse(mode)
    videos = None
    if parsed.distraction is not None and "background" in parsed.distraction.parts:
        source = background_videos(config.videos or None)
        videos = {**source.describe(), "shown": min(parsed.distraction.videos, len(source))}
    if parsed.family == "video" or parsed.screen:
        videos = video_source(str(parsed.level), config.videos or None).describe()
    if parsed.recolored:
        settings, kind = color_settings(parsed, config.colors or None, config.task)
        content = [{key: rgb.tolist() for key, rgb in setting.items()} for setting in settings or []]
        colors = {"kind": kind, "settings": len(content), "sha256": hash_of(content)}
        return colors if videos is None else {**videos, "colors": colors}
    return videos


def hash_of(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
