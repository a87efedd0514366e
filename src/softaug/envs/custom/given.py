"""What `softaug.train` was asked for, when environments may be given as Python functions."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softaug.config import Config, make_config, read_config, refuse_unknown_fields
from softaug.envs.custom.loading import MakeEnv, load_callable, spec_of
from softaug.envs.factory import CallableEnvs
from softaug.errors import UserError
from softaug.methods import get_method
from softaug.presets import get_preset
from softaug.storage.run_files import RunFiles


def choose(
    config: Config | None,
    out: Path | str | None,
    env: MakeEnv | str | None,
    test_envs: Mapping[str, MakeEnv | str] | None,
    *,
    resume: bool,
    settings: Mapping[str, Any],
) -> tuple[Config, CallableEnvs | None, list[str]]:
    """The run's config, what makes its environments (None: the config alone), and what the user should be told.

    See `softaug.train` for the arguments.
    """
    if config is not None and settings:
        raise UserError(
            f"give config or its fields ({', '.join(settings)}), not both; make_config takes the fields"
        )
    if test_envs and env is None:
        raise UserError("test_envs belong to an environment of your own; give env too")
    functions: dict[str, MakeEnv | str] = {} if env is None else {"train": env, **(test_envs or {})}
    if "train" in (test_envs or {}):
        raise UserError("a test environment cannot be called 'train'; give it another name")
    named = _named(functions)
    # As a config file reads them, so that a resumed run finds its own settings the same.
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    if config is None and resume:
        if out is None:
            raise UserError("give the directory of the run to resume (out)")
        refuse_unknown_fields(fields)
        if "method" in fields:
            fields["method"] = get_method(fields["method"]).name
        if "preset" in fields:
            fields["preset"] = get_preset(fields["preset"]).label
        config = dataclasses.replace(read_config(RunFiles(out).config), **{**fields, **named})
    elif config is None:
        config = make_config(**{**fields, **named})
    elif named:
        modes = ("train", *(test_envs or {}))
        if not set(config.eval_modes) <= set(modes):  # made for one of the benchmark's tasks
            named["eval_modes"] = modes
        config = dataclasses.replace(config, **named)
    if all(isinstance(function, str) for function in functions.values()):
        return config, None, []
    return _with_functions(config, functions)


def _named(functions: Mapping[str, MakeEnv | str]) -> dict[str, Any]:
    """The config's fields that name the functions, so that another process can find them again."""
    if not functions:
        return {}
    specs = {name: spec_of(function) for name, function in functions.items()}
    task = specs.pop("train")
    return {"task": task, "test_env": tuple(f"{name}={spec}" for name, spec in specs.items())}


def _with_functions(
    config: Config, functions: Mapping[str, MakeEnv | str]
) -> tuple[Config, CallableEnvs, list[str]]:
    loaded = {name: load_callable(f) if isinstance(f, str) else f for name, f in functions.items()}
    notes = []
    if unnamed := [spec for spec in config.own_modes.values() if "<" in spec]:
        notes.append(
            f"note: {', '.join(unnamed)} cannot be imported by name: to resume or evaluate this run, give the functions "
            "again in Python; the commands `softaug eval`, `play` and `export` cannot make the environment"
        )
    try:
        pickle.dumps(loaded)
    except (pickle.PicklingError, AttributeError, TypeError):
        notes.append(
            "note: the environment's function cannot be sent to other processes, so it runs in this one"
        )
        config = dataclasses.replace(config, env_process=False, workers=1)
    return config, CallableEnvs(config, loaded), notes
