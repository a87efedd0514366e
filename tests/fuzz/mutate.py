"""Damage: bytes, JSON values and command lines, changed at random. Everything follows from the generator given."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, -(10**30), 2**63, 0.5, 1e308, float("nan"), float("inf"), "", " ", "\0", "\ud800",
    "x" * 300, "../..", "/dev/null", "nan", "evil:go", "a.b.c:d", [], [[]], {}, {"": []}, [None], [1, "a"], {"a": {"b": []}},
    "🙂", "<script>", "train", "video_hard", "procedural", "soda",
)  # fmt: skip
WORDS = (
    "", "--", "-", "-1", "0", "1", "999999999999999999999", "nan", "inf", "1e3", "train", "color_hard", "video_easy",
    "nonsense", "trian", "soda", "a,b", ",", "../x", "\0", "y" * 300, "\ud800", "--json", "best", "last", "walker_walk",
    "=", "procedural", "None", "[]", "é", "%s", "{}",
)  # fmt: skip


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few changes of a file's content; never the content itself."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed)) if changed else 0
        length = rng.choice((1, 2, 8, 64, max(1, len(changed) // 3)))
        kind = rng.randrange(9)
        if kind <= 1 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and changed:
            changed[at] = rng.randrange(256)
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            del changed[at : at + length]
        elif kind == 5:
            changed[at:at] = rng.randbytes(min(length, 1000))
        elif kind == 6:
            changed[at : at + length] = bytes(min(length, len(changed) - at))
        elif kind == 7:
            changed[at:at] = changed[at : at + length]
        else:
            changed = bytearray(rng.choice((b"", b"\0", b"{}", b"[]", b"null", rng.randbytes(100))))
    if bytes(changed) == data:
        changed += b"\0"
    return bytes(changed)


def mutate_json(rng: random.Random, text: str) -> bytes:
    """One to three values of a JSON document replaced, removed, renamed or repeated."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        parents = [node for node in _walk(value) if isinstance(node, dict | list) and node]
        if not parents:
            break
        parent = rng.choice(parents)
        key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        kind = rng.randrange(6)
        if kind <= 2:
            parent[key] = strange(rng)
        elif kind == 3:
            del parent[key]
        elif kind == 4 and isinstance(parent, dict):
            parent[rng.choice(("", "x", "media", "\ud800", f"{key}_"))] = parent.pop(key)
        else:
            parent[key] = [parent[key]]
    if rng.random() < 0.02:
        return b"[" * 100_000 + b"]" * 100_000
    return json.dumps(value).encode()


def mutate_words(rng: random.Random, words: list[str]) -> list[str]:
    """A command line with words replaced, removed, joined, repeated or misspelt."""
    words = list(words)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(words))
        kind = rng.randrange(6)
        if kind <= 1:
            words[at] = rng.choice(WORDS)
        elif kind == 2 and len(words) > 1:
            del words[at]
        elif kind == 3:
            words.insert(at, rng.choice(WORDS))
        elif kind == 4 and words[at].startswith("--"):
            words[at] = f"{words[at]}={rng.choice(WORDS)}"
        elif len(words[at]) > 2:
            cut = rng.randrange(len(words[at]) - 1)
            swapped = words[at][cut + 1] + words[at][cut]
            words[at] = words[at][:cut] + swapped + words[at][cut + 2 :]
    return words


def strange(rng: random.Random) -> Any:
    """A value that hardly fits anywhere, of its own: later mutations may change it."""
    return copy.deepcopy(rng.choice(STRANGE))


def _walk(value: Any) -> list[Any]:
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(node for child in children for node in _walk(child))]
