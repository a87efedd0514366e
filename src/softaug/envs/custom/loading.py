"""`module:callable`: how a run names the user's own environment, so that another process can make it again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from softaug.envs import gl
from softaug.errors import UserError
from softaug.storage.run_files import run_directory_of

MakeEnv = Callable[[], gymnasium.Env]
"""The user's own function: called without arguments, it returns a Gymnasium environment."""


def load_callable(spec: str) -> MakeEnv:
    """The function that `spec`, `module:callable`, names."""
    found = load_object(spec)
    if not callable(found):
        raise UserError(f"{spec} is no function, but {found!r}; name one that returns the environment")
    return found


def load_object(spec: str) -> Any:
    """The object that `spec`, `module:name`, names; the current directory is on the path, as for `python -m`."""
    module_name, _, path = spec.partition(":")
    if "<" in path:
        raise UserError(
            f"{spec} was given as a Python object that cannot be imported by name; give it again "
            "(softaug.train(env=...)), or use a function at the top level of a module"
        )
    _put_current_directory_on_path()
    _refuse_run_directories()
    _choose_gl()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A package that the user's module itself lacks is their traceback to read.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"there is no module {error.name!r} for {spec}; run this in the directory that holds {error.name}.py, "
            "or put that directory on PYTHONPATH"
        ) from None
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError:
        raise UserError(
            f"{module_name} has no {path!r}; its functions are {', '.join(_functions(module)) or 'none'}"
        ) from None


def call(make_env: MakeEnv, name: str) -> gymnasium.Env:
    """What the user's function returns, if it is a Gymnasium environment. name: of the function, for messages."""
    _choose_gl()
    env = make_env()
    if not isinstance(env, gymnasium.Env):
        raise UserError(
            f"{name} returned {type(env).__module__}.{type(env).__qualname__}, which is no gymnasium.Env; return one "
            "(environments of the old gym package can be converted with shimmy)"
        )
    return env


def spec_of(function: MakeEnv | str) -> str:
    """The `module:callable` of a function; in angle brackets (`module:<name>`) if it cannot be imported by it.

    A function of the script that is being run is named by the script's file: `python my_robot.py` -> `my_robot:...`.
    """
    if isinstance(function, str):
        return function
    module_name = getattr(function, "__module__", None) or type(function).__module__
    path = getattr(function, "__qualname__", None) or f"<{type(function).__qualname__}>"
    module = sys.modules.get(module_name)
    importable = False
    if module is not None and "<" not in path:
        try:
            importable = reduce(getattr, path.split("."), module) is function
        except AttributeError:
            importable = False
    if module_name in ("__main__", "__mp_main__"):
        module_name, has_file = _main_name(module)
        importable = importable and has_file
    last = path.split(".")[-1].strip("<>")
    return f"{module_name}:{path}" if importable else f"{module_name}:<{last}>"


def source_facts(spec: str) -> dict[str, Any]:
    """What is known of an own environment without making it: its name and a checksum of its module's file.

    The checksum sees changes of that one file; what the module imports is not followed.
    """
    module_name, _, path = spec.partition(":")
    facts: dict[str, Any] = {"kind": "own", "env": spec}
    if "<" in path:
        return facts
    _put_current_directory_on_path()
    if (file := _source_file(module_name)) is not None:
        facts["module_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return facts


def _source_file(module_name: str) -> Path | None:
    """The file of a module, found without importing anything: a run's config may name it, trusted or not."""
    found: ModuleSpec | None = None
    path: Sequence[str] | None = None
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        # Not importlib.util.find_spec, which imports the parent packages.
        found = _find_spec(".".join(parts[:count]), path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    file = Path(found.origin) if found is not None and found.origin is not None else None
    return file if file is not None and file.is_file() else None


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if isinstance(finder, _RunDirectoryGuard) or not hasattr(finder, "find_spec"):
            continue
        try:
            found = finder.find_spec(name, path, None)
        except (ImportError, ValueError):
            found = None
        if found is not None:
            return found
    return None


class _RunDirectoryGuard(importlib.abc.MetaPathFinder):
    """First of the import system's finders: refuses every module that lies in a run directory, trusted or not.

    Run directories are data. They are passed around, and a file in one must not become code because somebody works
    in the folder above it.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        found = _find_spec(fullname, path)
        places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
        for place in places:
            # A built-in module's origin is a word, not a path.
            is_path = place is not None and Path(place).is_absolute()
            if is_path and (run := run_directory_of(Path(str(place)))) is not None:
                raise UserError(
                    f"the module {fullname!r} lies in the run directory {run}, and nothing in a run directory is "
                    "imported; keep code in a folder of its own"
                )


def _refuse_run_directories() -> None:
    if not any(isinstance(finder, _RunDirectoryGuard) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RunDirectoryGuard())


def _choose_gl() -> None:
    """Let Gymnasium's MuJoCo environments render without a display too: they read MUJOCO_GL when imported or made."""
    # No back end is no mistake here: the user's environment may need none.
    with contextlib.suppress(UserError):
        gl.choose_backend()


def _put_current_directory_on_path() -> None:
    here = Path.cwd()
    if str(here) not in sys.path and "" not in sys.path and run_directory_of(here) is None:
        sys.path.insert(0, str(here))


def _main_name(main: ModuleType | None) -> tuple[str, bool]:
    """The name under which the program being run can be imported, and whether it can be (a notebook cannot)."""
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__mp_main__":
        return spec.name, True  # python -m package.module
    file = getattr(main, "__file__", None)
    return (Path(file).stem, True) if file else ("__main__", False)


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
