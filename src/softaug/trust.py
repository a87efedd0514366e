"""Whose code a run may name: which runs with an environment of their own were trained here, by this user.

`config.json` of such a run names `module:callable`. A run directory may come from somebody else, so a command that
would import what it names asks `require_trust` first. Training records the run in the user's state directory
(``$XDG_STATE_HOME/softaug``, by default ``~/.local/state/softaug``), never in the run directory. The record's name is a
hash of the run's place, id and config, so a copied or edited run directory is another run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from softaug.config import Config
from softaug.errors import UserError
from softaug.files import read_object, write_atomically
from softaug.storage.run_files import RunFiles


def require_trust(run: Path, config: Config, *, trust: bool = False) -> None:
    """Refuse a run whose config names code, unless it was trained here or `trust` is given."""
    if config.own_env and not trust and not is_recorded(run, config):
        names = ", ".join(dict.fromkeys(config.own_modes.values()))
        raise UserError(
            f"{run} names code to import ({names}) and was not trained here by you; if you trust it, give --trust "
            "(in Python: trust=True)"
        )


def add_trust_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """``--trust``, the same for every command that may import code named by a run."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the environment that RUN (or a policy's file) names, although it was not trained here by you",
    )


def record(run: Path, config: Config) -> None:
    """Remember that this user trains `run` here. Nothing to remember for softaug's own tasks."""
    if not config.own_env:
        return
    content = {"run": str(run.resolve()), "environments": config.own_modes}
    file = _record_file(run, config)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(file, json.dumps(content, indent=1) + "\n")
    file.chmod(0o600)


def is_recorded(run: Path, config: Config) -> bool:
    """Whether this user trained `run` here and nobody changed its config since."""
    try:
        status = _record_file(run, config).lstat()
    except (OSError, UserError):  # no record, or no run.json to go by
        return False
    mine = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return stat.S_ISREG(status.st_mode) and mine and not status.st_mode & 0o022


def state_directory() -> Path:
    """Where records are kept. ``SOFTAUG_HOME`` does not move it: that folder may be shared between users."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path("~/.local/state").expanduser()
    return base / "softaug"


def _record_file(run: Path, config: Config) -> Path:
    run_id: Any = read_object(RunFiles(run).facts, "restore it").get("run_id")
    facts = [str(run.resolve()), run_id, config.own_modes, RunFiles(run).config.read_text(encoding="utf-8")]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return state_directory() / "trained" / f"{name}.json"
