"""Checkpoints: a tree of tensors, arrays and plain values in a directory, written atomically, read exactly.

    checkpoints/000010000/          one directory per checkpoint, named by its decisions
        policy.safetensors          what a policy needs at test time (`Agent.policy_weights`)
        tensors.safetensors         every torch tensor of the tree
        arrays.safetensors          every numpy array of the tree
        tree.json                   the tree itself: plain values, and references into the two files above
        SHA256SUMS                  checksums of the files above (`sha256sum -c SHA256SUMS` checks them)
    checkpoints/best/policy.safetensors   weights of the checkpoint with the highest training return

A directory appears under its final name only when everything in it is on the disk, so whatever has such a name
is complete. Names that start with a dot are leftovers of a killed process. Nothing here reads or writes pickle.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from softaug.errors import UserError
from softaug.files import sync

Tree = Any
"""Nested dicts, lists and tuples whose leaves are torch tensors, numpy arrays or JSON values."""

POLICY_FILE = "policy.safetensors"
TREE_FILE = "tree.json"
SUMS_FILE = "SHA256SUMS"
CHECKPOINT_NAME = re.compile(r"\d{9,}")


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
            # As pairs: JSON would turn the integer keys of an optimiser's state into strings.
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
    """Write `tree`, and `policy` as a weights file of its own, to the new directory `directory`: all or nothing."""
    value, tensors, arrays = encode(tree)
    temporary = directory.with_name(f".writing-{directory.name}")
    remove_directory(temporary)
    temporary.mkdir(parents=True)
    save_tensors(tensors, temporary / "tensors.safetensors")
    save_arrays(arrays, temporary / "arrays.safetensors")
    (temporary / TREE_FILE).write_text(json.dumps(value))
    if policy is not None:
        save_tensors(_plain(policy), temporary / POLICY_FILE)
    sums = [f"{_sha256(file)}  {file.name}\n" for file in sorted(temporary.iterdir())]
    (temporary / SUMS_FILE).write_text("".join(sums))
    for file in temporary.iterdir():
        sync(file)
    sync(temporary)
    temporary.rename(directory)
    sync(directory.parent)


def load_tree(directory: Path) -> Tree:
    """Read what `save_tree` wrote, exactly, tensors on the CPU; a damaged file is an error that names it."""
    _check_sums(directory)
    value = json.loads((directory / TREE_FILE).read_text())
    tensors = load_tensors(directory / "tensors.safetensors")
    return decode(value, tensors, load_arrays(directory / "arrays.safetensors"))


def load_weights(directory: Path) -> dict[str, torch.Tensor]:
    """The policy weights of a checkpoint directory (or of ``checkpoints/best``), on the CPU."""
    path = directory / POLICY_FILE
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a run directory that has a checkpoint")
    try:
        return load_tensors(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); use another checkpoint") from None


def save_checkpoint(
    checkpoints: Path, decisions: int, tree: Tree, policy: Mapping[str, torch.Tensor], *, keep: int
) -> Path:
    """Write the checkpoint of `decisions` (unless it is there already) and keep only the last `keep`."""
    directory = checkpoints / f"{decisions:09d}"
    if not directory.exists():
        save_tree(directory, tree, policy=policy)
    for old in complete_checkpoints(checkpoints)[:-keep]:
        remove_directory(old)
    return directory


def save_best(checkpoints: Path, policy: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Replace ``best/policy.safetensors`` atomically; `facts` (decisions, return) go into its header.

    One file, so that weights and facts can never disagree.
    """
    best = checkpoints / "best"
    best.mkdir(parents=True, exist_ok=True)
    temporary = best / f".writing-{POLICY_FILE}"
    save_tensors(_plain(policy), temporary, metadata={key: str(value) for key, value in facts.items()})
    sync(temporary)
    temporary.replace(best / POLICY_FILE)
    sync(best)


def complete_checkpoints(checkpoints: Path) -> list[Path]:
    """The complete checkpoints, oldest first; half-written ones and ``best`` are not among them."""
    if not checkpoints.is_dir():
        return []
    found = [path for path in checkpoints.iterdir() if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def find_checkpoint(run: Path, which: str = "last") -> Path:
    """The directory in `run` of the ``last`` or ``best`` checkpoint, or of the one with that many decisions."""
    checkpoints = run / "checkpoints"
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
    """Delete what a killed process left half-written or half-deleted."""
    for path in checkpoints.glob(".*"):
        remove_directory(path)


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


def _check_sums(directory: Path) -> None:
    sums = directory / SUMS_FILE
    if not sums.is_file():
        raise UserError(f"{sums} is missing; {directory} is no complete checkpoint, use another one")
    for line in sums.read_text(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        path = directory / name
        if not name or not path.is_file() or _sha256(path) != expected:
            raise UserError(f"{path} is damaged (its checksum is wrong); use another checkpoint")
