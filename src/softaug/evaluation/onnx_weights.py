"""The files of an ONNX policy: the graph, and the weights that it may keep in files of their own ("external data").

The names of those files are in the graph, which is a protocol buffer. It is read here without the `onnx` package, because
onnxruntime is all that running a policy needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from softaug.errors import UserError

PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""message -> field number -> message: the ways in onnx.proto to `TensorProto.external_data`"""
KEY, VALUE = 1, 2
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5


def onnx_sha256(path: Path) -> str:
    """The checksum of the file and of every file of weights that it names."""
    model = path.read_bytes()
    try:
        names = weight_files(model)
    except ValueError as error:
        raise UserError(f"{path} is no ONNX file ({error}); export the policy again") from None
    content = hashlib.sha256(model)
    for name in names:
        place = Path(name)
        if not name or place.is_absolute() or place.drive or ".." in place.parts:
            raise UserError(
                f"{path} has weights in {name!r:.200}, outside its folder; export the policy again, with its weights "
                "next to it"
            )
        try:
            content.update((path.parent / place).read_bytes())
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"the weights of {path} in {name!r:.200} cannot be read ({reason}); put that file next to it, or export "
                "the policy again"
            ) from None
    return content.hexdigest()


def weight_files(model: bytes) -> list[str]:
    """The locations of a model's external data, each once, sorted; ValueError if it is no protocol buffer."""
    found = set()
    todo = [
        ("model", memoryview(model))
    ]  # no recursion: graphs may lie within graphs as deeply as a file likes
    while todo:
        kind, message = todo.pop()
        if kind == "entry":
            entry = {number: bytes(value) for number, value in _parts_of(message)}
            if entry.get(KEY) == b"location":
                found.add(entry.get(VALUE, b"").decode())
            continue
        inner = PARTS[kind]
        todo += [(inner[number], value) for number, value in _parts_of(message) if number in inner]
    return sorted(found)


def _parts_of(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that are messages, texts or bytes: number and content; the others are passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _, at = _varint(message, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            at += 8 if kind == EIGHT_BYTES else 4
        elif kind == DELIMITED:
            length, at = _varint(message, at)
            at += length
            if at <= len(message):
                yield number, message[at - length : at]
        else:
            raise ValueError(f"unknown field type {kind}")
        if at > len(message):
            raise ValueError("it is cut off")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for count, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, at + count + 1
    raise ValueError("it is cut off")
