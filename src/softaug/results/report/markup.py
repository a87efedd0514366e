"""HTML with every string escaped unless it was made here."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any

VOID = {"br", "img", "input", "meta", "wbr"}


class Markup(str):
    """Text that is HTML already. Only functions of this module make it from strings of others."""

    __slots__ = ()


def element(name: str, *children: Any, **attributes: Any) -> Markup:
    """``element("td", "a < b", class_="number")``; children: text (escaped), `Markup`, None or iterables of these.

    An attribute that is None or False is left out, True is written without a value; ``_`` in its name becomes ``-``.
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown.append(f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"')
    opening = f"<{name}{''.join(shown)}>"
    return Markup(opening) if name in VOID else Markup(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Children one after the other, strings escaped."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, (str, int, float)):
            parts.append(html.escape(str(child)))
        else:
            parts.append(str(join(child)))
    return Markup("".join(parts))


def breakable(name: str) -> Markup:
    """A task's name or a path that may be broken after ``_`` and ``/``, nowhere else."""
    parts = re.split(r"(?<=[_/])", name)
    return join([parts[0], *((Markup("<wbr>"), part) for part in parts[1:])])


def json_script(identifier: str, value: Any) -> Markup:
    """A data block that no string in it can end: `<`, `>` and `&` are written as JSON escapes."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{identifier}">{text}</script>')
