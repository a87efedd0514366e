"""The fields of a config that name the user's own environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from softaug.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from softaug.config import Config

# In angle brackets: a function that was given in Python and cannot be imported by name (a lambda).
_SPEC = re.compile(r"[\w.]+:<?[\w.]+>?")
_MODE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")  # it becomes part of file names


def parse_test_env(entry: str) -> tuple[str, str]:
    """`name=module:callable`, or `module:callable`, which is called `test` -> (name, module:callable)."""
    name, equals, spec = entry.rpartition("=")
    return (name if equals else "test"), spec


def check_own_environment(config: Config) -> None:
    """Refuse environments that cannot be named so, and fields that only they have."""
    if not config.own_env:
        for name in ("test_env", "image_key", "episode_decisions"):
            if getattr(config, name):
                raise UserError(
                    f"{name} is for your own environment; leave it out for {config.task}, or give "
                    "--env module:callable"
                )
        return
    entries = [("train", config.task), *map(parse_test_env, config.test_env)]
    for name, spec in entries:
        if not _SPEC.fullmatch(spec):
            raise UserError(
                f"{spec!r} is not an environment; give module:callable, for example my_robot:make_env"
            )
        if not _MODE_NAME.fullmatch(name):
            raise UserError(
                f"a test environment cannot be called {name!r}; use letters, digits and _ (name=module:callable)"
            )
    modes = [name for name, _ in entries]
    if len(set(modes)) < len(modes):
        raise UserError(
            f"the modes {', '.join(modes)} are not all different; name each --test-env (name=module:callable), "
            "and none of them train"
        )
    if config.row.train_mode != "train":
        raise UserError(
            f"{config.method} trains in random colors, which only softaug's own tasks have; choose another method, "
            "or draw the colors in your environment and choose sac"
        )
    for mode in config.eval_modes:
        if mode not in modes:
            raise UserError(unknown_own_mode(mode, config))


def unknown_own_mode(mode: str, config: Config) -> str:
    """The sentence for a mode that the user's own environment does not have."""
    return (
        f"{config.task} has no mode {mode!r}, only {', '.join(config.own_modes)}; "
        f"{did_you_mean(mode, config.own_modes)}add one with --test-env "
        f"{mode}=module:callable (for colors and videos, let the callable return softaug.envs.wrap(env, mode=...))"
    )
