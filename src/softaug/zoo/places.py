"""Where a policy is: ``zoo:NAME``, ``hf:ORG/NAME`` or a path; and where what is measured with it may be written."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from softaug.errors import UserError
from softaug.storage.run_files import RunFiles
from softaug.zoo.folder import PolicyFolder, policy_folders

ZOO, HUB = "zoo:", "hf:"
NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
PACKAGED = Path(__file__).parents[1] / "data" / "zoo"
"""The policies that are installed with softaug."""
OUTPUTS = Path("runs") / "zoo"


def locate(reference: str | Path) -> Path:
    """The directory that `reference` names: ``zoo:NAME``, ``hf:ORG/NAME[@REVISION]``, or a path, which is returned.

    A path may lead to anything, or to nothing; a policy of the zoo or the hub exists, or there is a `UserError`.
    """
    text = str(reference)
    if text.startswith(ZOO):
        return _find(text.removeprefix(ZOO))
    if text.startswith(HUB):
        from softaug.zoo import hub

        return hub.download(text.removeprefix(HUB))
    return Path(reference)


def places() -> list[Path]:
    """The folders of policies, in the order in which a name is looked up: ./zoo, $SOFTAUG_ZOO, this package."""
    given = os.environ.get("SOFTAUG_ZOO", "")
    if given and not Path(given).is_dir():
        raise UserError(
            f"SOFTAUG_ZOO is {given}, which is not a directory; set it to a folder of policies or unset it"
        )
    return [Path("zoo"), *([Path(given)] if given else []), PACKAGED]


def names() -> dict[str, Path]:
    """Name -> folder of every policy of the zoo; of equal names the one that is found."""
    found: dict[str, Path] = {}
    for place in places():
        for folder in policy_folders(place):
            found.setdefault(folder.name, folder)
    return dict(sorted(found.items()))


def check_policy_name(name: str) -> str:
    """The name, if a policy may be called so: it becomes a folder's name."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"a policy cannot be called {name!r:.80}; use letters, digits, '_', '.', '+' and '-', a letter or digit first"
        )
    return name


def outputs_of(path: str | Path) -> Path:
    """Where results about the run or policy at `path` are written: its own directory; for a published policy, which only
    `softaug zoo update` changes, runs/zoo/NAME-CHECKSUM in the current directory. Another policy may have had the name.
    """
    path = locate(path)
    if not RunFiles(path).published:
        return path
    folder = PolicyFolder(path)
    weights = str(folder.results().get("weights_sha256", ""))
    return OUTPUTS / check_policy_name(f"{folder.name}-{weights[:8]}")


def shown(path: Path) -> str:
    """How a run or policy is called in a page or table: a policy in this package by its name, not by where that lies."""
    return f"{ZOO}{path.name}" if is_packaged(path) else str(path)


def is_packaged(path: Path) -> bool:
    """Whether the policy at `path` is installed with softaug."""
    return path.parent.resolve() == PACKAGED.resolve()


def _find(name: str) -> Path:
    check_policy_name(name)
    for place in places():
        if RunFiles(place / name).published:
            return place / name
    known = names()
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    if not known:
        raise UserError(
            f"there is no policy {name!r} and none at all in ./zoo, $SOFTAUG_ZOO and softaug itself; add one"
        )
    raise UserError(f"there is no policy {name!r}; {guess}`softaug zoo list` shows all {len(known)}")
