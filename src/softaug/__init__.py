"""Vision-based RL agents that still work when the world looks different (SODA and DMControl-GB).

    import softaug
    env = softaug.make_env("walker_walk", mode="video_hard", seed=0)     # a Gymnasium environment
    softaug.train(softaug.make_config("walker_stand", "soda", "small"), "runs/first")
    policy = softaug.load_policy("runs/first")
    softaug.evaluate("policy.onnx", task="walker_walk")                  # a policy of your own, in the test modes

Names are imported when first used; ``gymnasium.make("softaug/walker_walk-video_hard-v0")`` works after the import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softaug import starting

if starting.is_command_line():
    starting.end_at_ctrl_c()  # the imports below take a while

from softaug.envs import make_env, register
from softaug.versions import VERSION

if TYPE_CHECKING:
    from softaug.config import Config, make_config
    from softaug.evaluation.runs import load_policy
    from softaug.integrations.any_policy import evaluate
    from softaug.learning.agent import make_agent
    from softaug.learning.auxiliary.soda import SodaTask
    from softaug.training.run import train

__version__ = VERSION

__all__ = ["Config", "SodaTask", "evaluate", "load_policy", "make_agent", "make_config", "make_env", "train"]

_HOMES = {
    "Config": "config",
    "SodaTask": "learning.auxiliary.soda",
    "evaluate": "integrations.any_policy",
    "load_policy": "evaluation.runs",
    "make_agent": "learning.agent",
    "make_config": "config",
    "train": "training.run",
}

register()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'softaug' has no attribute {name!r}")
    return getattr(importlib.import_module(f"softaug.{_HOMES[name]}"), name)
