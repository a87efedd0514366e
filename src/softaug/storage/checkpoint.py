"""Checkpoints: a tree of tensors, arrays and plain values in a directory, written atomically, read exactly.

    checkpoints/000010000/          one directory per checkpoint, named by its decisions
        policy.safetensors          what a policy needs at test time (`Agent.policy_weights`)
        tensors.safetensors         every torch tensor of the tree
        arrays.safetensors          every numpy array of the tree
        tree.json                   the tree itself: plain values, and references into the two files above
        SHA256SUMS                  checksums of the files above (`sha256sum -c SHA256SUMS` checks them)
    checkpoints/best/policy.safetensors   weights of the checkpoint with the highest training return; their checksum
                                          is in the file's own header, so that one file is replaced atomically

A directory appears under its final name only when everything in it is on the disk, so whatever has such a name
is complete. Names that start with a dot are leftovers of a killed process. Nothing here reads or writes pickle.
Whatever is read is checked against its checksum first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save as tensors_to_bytes
from safetensors.torch import save_file as save_tensors

from softaug.errors import UserError
from softaug.files import sync, write_atomically
from softaug.storage.checksums import SUMS_FILE, Damaged, check_digest, read_sums, sums_text
from softaug.storage.run_files import RunFiles

Tree = Any
"""Nested dicts, lists and tuples whose leaves are torch tensors, numpy arrays or JSON values."""

POLICY_FILE = "policy.safetensors"
TENSORS_FILE = "tensors.safetensors"
ARRAYS_FILE = "arrays.safetensors"
TREE_FILE = "tree.json"
CHECKPOINT_NAME = re.compile(r"\d{9,}")
READY = ".ready-"
"""Prefix of a complete checkpoint that is about to replace the one of the same decisions."""

CHECKSUM = "sha256"
"""Header entry of ``best/policy.safetensors``: the SHA-256 of the whole file with zeros in this entry's place."""
NO_CHECKSUM = "0" * 64
FACTS_BEFORE_CHECKSUMS = {"decisions", "training_return"}
"""The header entries of ``best/policy.safetensors`` as it was written before it had a checksum."""


def encode(tree: Tree) -> tuple[Any, dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Split `tree` into a JSON value, its torch tensors and its numpy arrays (by their path in the tree)."""
    tensors: dict[str, torch.Tensor] = {}
    arrays: dict[str, np.ndarray] = {}

    def walk(node: Tree, path: str) -> Any:
        if isinstance(node, torch.Tensor):
            # A copy of its own: safetensors refuses tensors that share memory.
            tensors[path] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {"$tensor": path, "channels_last": _is_channels_last(node)}
        if isinstance(node, np.ndarray):
            arrays[path] = np.ascontiguousarray(node).reshape(node.shape)
            return {"$array": path}
        if isinstance(node, np.generic):
            arrays[path] = np.asarray(node)
            return {"$scalar": path}
        if isinstance(node, Mapping):
            # As pairs: JSON would turn the integer keys of an optimizer's state into strings.
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: walk(value, f"{path}/{key}") for key, value in node.items()}
            return {
                "$dict": [
                    [walk(key, f"{path}/key"), walk(value, f"{path}/{key}")] for key, value in node.items()
                ]
            }
        if isinstance(node, tuple):
            return {"$tuple": [walk(value, f"{path}/{i}") for i, value in enumerate(node)]}
        if isinstance(node, list):
            return [walk(value, f"{path}/{i}") for i, value in enumerate(node)]
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        raise TypeError(f"a checkpoint cannot hold a {type(node).__name__} (at {path or 'the top'})")

    return walk(tree, ""), tensors, arrays


def decode(node: Any, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> Tree:
    """The inverse of `encode`."""
    if isinstance(node, list):
        return [decode(value, tensors, arrays) for value in node]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        tensor = tensors[node["$tensor"]]
        return tensor.contiguous(memory_format=torch.channels_last) if node["channels_last"] else tensor
    if "$array" in node:
        return arrays[node["$array"]]
    if "$scalar" in node:
        return arrays[node["$scalar"]][()]
    if "$tuple" in node:
        return tuple(decode(value, tensors, arrays) for value in node["$tuple"])
    if "$dict" in node:
        return {decode(k, tensors, arrays): decode(v, tensors, arrays) for k, v in node["$dict"]}
    return {key: decode(value, tensors, arrays) for key, value in node.items()}


def save_tree(directory: Path, tree: Tree, *, policy: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write `tree`, and `policy` as a weights file of its own, to the directory `directory`: all or nothing.

    A checkpoint that is there already is replaced; a kill in the middle leaves the old or the new one (the latter
    under its `READY` name, until `remove_leftovers`).
    """
    value, tensors, arrays = encode(tree)
    temporary = directory.with_name(f".writing-{directory.name}")
    remove_directory(temporary)
    temporary.mkdir(parents=True)
    try:
        _save(save_tensors, tensors, temporary / TENSORS_FILE)
        _save(save_arrays, arrays, temporary / ARRAYS_FILE)
        (temporary / TREE_FILE).write_text(json.dumps(value))
        if policy is not None:
            _save(save_tensors, _plain(policy), temporary / POLICY_FILE)
        (temporary / SUMS_FILE).write_text(sums_text({f.name: _sha256(f) for f in temporary.iterdir()}))
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, half a checkpoint is in the way
        raise
    if directory.exists():
        temporary = temporary.rename(directory.with_name(READY + directory.name))
        sync(directory.parent)
        _replace(temporary)
    else:
        temporary.rename(directory)
    sync(directory.parent)


def load_tree(directory: Path) -> Tree:
    """Read what `save_tree` wrote, exactly, tensors on the CPU; a damaged file is an error that names it."""
    for name in (TREE_FILE, TENSORS_FILE, ARRAYS_FILE):
        check_file(directory, name)
    if POLICY_FILE in read_sums(directory):
        check_file(directory, POLICY_FILE)
    value = json.loads((directory / TREE_FILE).read_text())
    tensors = load_tensors(directory / TENSORS_FILE)
    return decode(value, tensors, load_arrays(directory / ARRAYS_FILE))


def load_weights(directory: Path) -> dict[str, torch.Tensor]:
    """The policy weights of a checkpoint directory (or of ``checkpoints/best``), on the CPU."""
    weights, _ = parse_weights(directory / POLICY_FILE, read_weights(directory))
    return weights


def read_weights(directory: Path) -> bytes:
    """The policy's file of a checkpoint directory (or of ``checkpoints/best``), checked against its checksum."""
    path = directory / POLICY_FILE
    if not path.is_file():
        raise Damaged(f"{path} does not exist; use another checkpoint")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); use another checkpoint") from None
    if CHECKPOINT_NAME.fullmatch(directory.name) or (directory / SUMS_FILE).exists():
        check_digest(path, hashlib.sha256(content).hexdigest(), read_sums(directory))
    else:
        _check_seal(path, content)
    return content


def parse_weights(path: Path, content: bytes) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a policy's file, and the facts in its header."""
    try:
        return tensors_from_bytes(content), _header_and_body(content)[0].get("__metadata__") or {}
    except (SafetensorError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({error}); use another checkpoint") from None


def save_checkpoint(
    checkpoints: Path, decisions: int, tree: Tree, policy: Mapping[str, torch.Tensor], *, keep: int
) -> Path:
    """Write the checkpoint of `decisions` (in place of one that is there already) and keep only the last `keep`."""
    directory = checkpoints / f"{decisions:09d}"
    save_tree(directory, tree, policy=policy)
    for old in complete_checkpoints(checkpoints)[:-keep]:
        remove_directory(old)
    return directory


def save_best(checkpoints: Path, policy: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Replace ``best/policy.safetensors`` atomically; `facts` (decisions, return) go into its header.

    One file, so that weights, facts and checksum can never disagree.
    """
    content = sealed(_plain(policy), {key: str(value) for key, value in facts.items()})
    write_atomically(checkpoints / "best" / POLICY_FILE, content)


def sealed(weights: Mapping[str, torch.Tensor], facts: Mapping[str, str]) -> bytes:
    """A safetensors file with `facts` and its own checksum in the header: equal inputs give equal bytes."""
    header, body = _header_and_body(tensors_to_bytes(dict(weights)))
    # Written here, as the library's own order of the entries is random.
    header["__metadata__"] = dict(sorted({**facts, CHECKSUM: NO_CHECKSUM}.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned
    content = len(text).to_bytes(8, "little") + text + body
    return content.replace(_entry(NO_CHECKSUM), _entry(hashlib.sha256(content).hexdigest()), 1)


def complete_checkpoints(checkpoints: Path) -> list[Path]:
    """The complete checkpoints, oldest first; half-written ones and ``best`` are not among them."""
    if not checkpoints.is_dir():
        return []
    found = [path for path in checkpoints.iterdir() if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def find_checkpoint(run: Path, which: str = "last") -> Path:
    """The directory in `run` of the ``last`` or ``best`` checkpoint, or of the one with that many decisions."""
    checkpoints = RunFiles(run).checkpoints
    complete = complete_checkpoints(checkpoints)
    if not complete:
        raise UserError(f"{run} holds no checkpoint; give the directory of a softaug run that has saved one")
    if which == "last":
        return complete[-1]
    if which == "best" and (checkpoints / "best" / POLICY_FILE).is_file():
        return checkpoints / "best"
    for path in complete:
        if which.isdecimal() and int(path.name) == int(which):
            return path
    raise UserError(
        f"{run} has no checkpoint {which!r}; choose one of "
        + ", ".join(["last", "best", *(str(int(path.name)) for path in complete)])
    )


def remove_leftovers(checkpoints: Path) -> None:
    """Delete what a killed process left half-written or half-deleted, and finish what only lacked its name."""
    for path in checkpoints.glob(f"{READY}*"):
        _replace(path)
    for path in checkpoints.glob(".*"):
        remove_directory(path)
    for path in (checkpoints / "best").glob(".writing-*"):
        path.unlink()


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint so that it no longer counts as one; return its new path."""
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
    remove_directory(aside)
    return checkpoint.rename(aside)


def remove_directory(directory: Path) -> None:
    """Delete a directory so that a kill half-way leaves no half directory under the old name."""
    if directory.exists():
        doomed = directory.with_name(f".removing-{directory.name.lstrip('.')}")
        if doomed != directory:
            if doomed.exists():
                shutil.rmtree(doomed)
            directory.rename(doomed)
        shutil.rmtree(doomed)


def _plain(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in weights.items()
    }


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(directory: Path, name: str) -> None:
    """Refuse a checkpoint's file that is not as it was written."""
    path = directory / name
    check_digest(path, _sha256(path) if path.is_file() else None, read_sums(directory))


def _check_seal(path: Path, content: bytes) -> None:
    """Refuse a sealed file that was changed; one from before there were checksums passes."""
    _, facts = parse_weights(path, content)
    if CHECKSUM in facts:
        claimed = facts[CHECKSUM]
        unsealed = content.replace(_entry(claimed), _entry(NO_CHECKSUM), 1)
        if hashlib.sha256(unsealed).hexdigest() != claimed:
            raise Damaged(f"{path} is damaged (its checksum is wrong); use another checkpoint")
    elif not facts.keys() <= FACTS_BEFORE_CHECKSUMS:
        raise Damaged(f"{path} is damaged (its header has no checksum); use another checkpoint")


def _entry(checksum: str) -> bytes:
    return f'"{CHECKSUM}":"{checksum}"'.encode()


def _header_and_body(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The two parts of a safetensors file: 8 bytes with the header's length, the header as JSON, the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _replace(ready: Path) -> None:
    """Give a complete new checkpoint its name, in place of the old one."""
    directory = ready.with_name(ready.name.removeprefix(READY))
    remove_directory(directory)
    ready.rename(directory)


def _save(save: Callable[[Any, Path], None], content: Any, path: Path) -> None:
    """`save`, with what the system refused (a full disk) as an OSError instead of a SafetensorError."""
    try:
        save(content, path)
    except SafetensorError as error:
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from None
        raise
