"""Docstrings of this package, for mkdocstrings: ``name: what it is`` becomes an item of a list.

A docstring here explains parameters in sentences of the form ``seed: of the first episode.``, at the start of a line or after
the sentence before. Only names of parameters count.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class ParameterLists(griffe.Extension):
    """Rewrites the docstrings of functions, and of classes for the parameters of their ``__init__``."""

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = as_list(func.docstring.value, [p.name for p in func.parameters])

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        init = cls.members.get("__init__")
        if cls.docstring is not None and isinstance(init, griffe.Function):
            cls.docstring.value = as_list(cls.docstring.value, [p.name for p in init.parameters])


def as_list(text: str, parameters: list[str]) -> str:
    """`text` with an item of a Markdown list for each explained parameter."""
    if not parameters:
        return text
    name = rf"(?:{'|'.join(map(re.escape, parameters))})"
    names = rf"({name}(?:, {name})*): "
    text = re.sub(rf"(?<=[.;]) {names}", r"\n\1: ", text)
    lines: list[str] = []
    for line in text.splitlines():
        found = re.match(names, line)
        if found is not None:
            if lines and lines[-1].strip() and not lines[-1].startswith(("- ", "    ")):
                lines.append("")
            labels = ", ".join(f"`{label}`" for label in found[1].split(", "))
            line = f"- {labels}: {line[found.end() :]}"
        lines.append(line)
    return "\n".join(lines)
