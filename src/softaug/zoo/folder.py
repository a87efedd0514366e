"""The folder of a published policy: plain files that need no hub, in the form that model hubs expect.

README.md           the model card, for people; hubs let them edit it, so it has no checksum
config.json         the config of the run
policy.safetensors  the weights
results.json        returns per episode and mode, media, versions, the training curve
replay.mp4          the policy in several modes (may be absent)
SHA256SUMS          checksums of all these but the card

Nothing here is pickled, and nothing is executed.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from softaug.config import read_config
from softaug.errors import UserError
from softaug.files import read_object, temporary_directory
from softaug.storage.checksums import SUMS_FILE, check_digest, read_sums
from softaug.storage.run_files import RunFiles

CARD_FILE, CONFIG_FILE, POLICY_FILE = "README.md", "config.json", "policy.safetensors"
RESULTS_FILE, REPLAY_FILE = "results.json", "replay.mp4"
REQUIRED = (CONFIG_FILE, POLICY_FILE, RESULTS_FILE, SUMS_FILE)
OPTIONAL = (CARD_FILE, REPLAY_FILE)

FORMAT = "softaug-policy-1"
REMEDY = "get the policy again"


class PolicyFolder:
    """One published policy. What is read is checked against its checksum first."""

    def __init__(self, path: Path):
        self.path = path

    def read(self, name: str) -> bytes:
        """The content of one of its files."""
        file = self.path / name
        try:
            content = file.read_bytes() if file.is_file() else None
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}); {REMEDY}") from None
        digest = None if content is None else hashlib.sha256(content).hexdigest()
        check_digest(file, digest, read_sums(self.path, REMEDY), REMEDY)
        assert content is not None  # no sum is None
        return content

    def results(self) -> dict[str, Any]:
        """results.json."""
        self.read(RESULTS_FILE)
        values = read_object(self.path / RESULTS_FILE, REMEDY)
        if values.get("format") != FORMAT:
            raise UserError(
                f"{self.path} is in a format that this version of softaug cannot read; update softaug"
            )
        if not _describes_a_policy(values):
            raise UserError(f"{self.path / RESULTS_FILE} does not describe a policy; {REMEDY}")
        return values

    @property
    def name(self) -> str:
        """What it was published as. Folders in a cache of downloads are not called by it."""
        return str(self.results().get("name", self.path.name))

    def verify(self) -> None:
        """Refuse the folder if a file is missing or is not as it was written."""
        for name in REQUIRED:
            if not (self.path / name).is_file():
                raise UserError(f"{self.path} is not a published policy (it has no {name}); {REMEDY}")
        results = self.results()
        listed = read_sums(self.path, REMEDY)
        if unexpected := sorted(listed.keys() - {*REQUIRED, *OPTIONAL}):
            raise UserError(f"{self.path} names files that no policy has ({', '.join(unexpected)}); {REMEDY}")
        for name in (CONFIG_FILE, POLICY_FILE, *listed):
            self.read(name)
        # Checksums only say that nothing has changed since; these say that it can be used.
        if results.get("weights_sha256") != listed[POLICY_FILE]:
            raise UserError(f"the results in {self.path} are those of other weights; {REMEDY}")
        try:
            read_config(self.path / CONFIG_FILE)
            with safe_open(self.path / POLICY_FILE, framework="numpy"):
                pass
        except (SafetensorError, UserError) as error:
            raise UserError(f"{self.path} is damaged ({reason(error)}); {REMEDY}") from None

    def files(self) -> dict[str, Path]:
        """Name -> file of those that a policy has, for copies that others get: the card, and what has a checksum.

        A link must not bring in a file from elsewhere: the card has no checksum, so it could be anything that the user can
        read. In a cache of the hub a folder is called snapshots/COMMIT, and its files are links to ../../blobs.
        """
        folder = self.path.resolve()
        own = [folder, *([folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else [])]
        listed = {SUMS_FILE, CARD_FILE, *read_sums(self.path, REMEDY)}
        found = {
            name: self.path / name
            for name in (*REQUIRED, *OPTIONAL)
            if name in listed and (self.path / name).is_file()
        }
        for file in found.values():
            target = file.resolve()
            if not any(target.is_relative_to(place) for place in own):
                raise UserError(f"{file} is a link to {target}, outside of its folder; {REMEDY}")
        return found

    def copy(self, target: Path) -> None:
        """Copy the verified files, and only those that a policy has, to the new directory `target`: all or nothing."""
        if target.exists() or target.is_symlink():
            raise UserError(f"{target} exists already; give --out another place, or remove it first")
        self.verify()
        files = self.files()
        temporary = temporary_directory(target.parent)
        try:
            for name, file in files.items():
                shutil.copyfile(file, temporary / name)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def reason(error: Exception) -> str:
    """What a sentence says is wrong, without its remedy."""
    return str(error).partition("; ")[0]


def _describes_a_policy(values: dict[str, Any]) -> bool:
    """Whether what every reader of results.json relies on is there. A checksum only says that nothing has changed."""
    rows = values.get("results")
    return (
        all(_printable(values.get(name)) for name in ("task", "method"))
        and type(values.get("decisions")) is int
        and isinstance(rows, list)
        and all(isinstance(row, dict) and _describes_a_test(row) for row in rows)
    )


def _describes_a_test(row: dict[str, Any]) -> bool:
    returns = row.get("returns")
    return (
        _printable(row.get("mode"))
        and isinstance(row.get("note", 0), str | None)
        and isinstance(returns, list)
        and bool(returns)
        and all(map(_number, (row.get("mean"), *returns)))
        and math.isclose(row["mean"], math.fsum(returns) / len(returns), rel_tol=1e-6, abs_tol=1e-6)
    )


def _printable(value: Any) -> bool:
    """Text without what would move a terminal's cursor."""
    return isinstance(value, str) and value.isprintable()


def _number(value: Any) -> bool:
    return (
        type(value) in (int, float) and abs(value) < 1e300
    )  # neither NaN nor infinite, nor too large for a float


def policy_folders(place: Path) -> list[Path]:
    """The published policies in the directory `place`, in order of their names."""
    if not place.is_dir():
        return []
    return sorted(
        path for path in place.iterdir() if not path.name.startswith(".") and RunFiles(path).published
    )
