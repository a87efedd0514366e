"""Where softaug keeps things on this computer, and the list of data sets the user has registered.

``SOFTAUG_HOME`` overrides everything. Without it, data and the registry live in ``$XDG_DATA_HOME/softaug``
(default ``~/.local/share/softaug``) and caches in ``$XDG_CACHE_HOME/softaug`` (default ``~/.cache/softaug``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from softaug.errors import UserError, unknown
from softaug.files import write_atomically


def data_directory() -> Path:
    """The folder of the registry and of downloaded data sets (not created here)."""
    if home := os.environ.get("SOFTAUG_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "softaug"


def cache_directory() -> Path:
    """The folder of everything that can be made again (not created here)."""
    if home := os.environ.get("SOFTAUG_HOME"):
        return Path(home).expanduser() / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "softaug"


def registry_path() -> Path:
    """The JSON file ``{"datasets": {name: path}}``."""
    return data_directory() / "registry.json"


def registered() -> dict[str, Path]:
    """Every registered data set by name, in the order of registration."""
    path = registry_path()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Path(folder) for name, folder in content["datasets"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the registry {path} is not readable ({error}); fix or delete it.") from error


def register(name: str, path: str | Path) -> Path:
    """Remember a folder under a name (replacing an older entry); returns its absolute path."""
    if (
        not name
        or name == "procedural"
        or any(character in name for character in "/\\")
        or name.startswith(".")
    ):
        raise UserError(
            f"'{name}' cannot name a data set: use a word without slashes other than 'procedural'."
        )
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"cannot register '{name}': {folder} is not a folder.")
    datasets = {known: str(place) for known, place in registered().items()} | {name: str(folder)}
    write_atomically(registry_path(), json.dumps({"datasets": datasets}, indent=2).encode() + b"\n")
    return folder


def unregister(name: str) -> Path:
    """Forget a data set; its files stay where they are. Returns the folder it had."""
    datasets = registered()
    if name not in datasets:
        raise unknown("registered data set", name, datasets)
    folder = datasets.pop(name)
    content = {"datasets": {known: str(place) for known, place in datasets.items()}}
    write_atomically(registry_path(), json.dumps(content, indent=2).encode() + b"\n")
    return folder
