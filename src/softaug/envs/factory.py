"""The environments of a config. Without torch: the environment's own process imports this."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

import softaug.envs
from softaug.config import Config


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
