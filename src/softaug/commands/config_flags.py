"""The fields of a config as flags."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Collection
from typing import Any, get_type_hints

from softaug.config import Config


def add_config_arguments(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, leave_out: Collection[str] = ()
) -> None:
    """One ``--flag`` per field. Flags not given stay out of the namespace, so presets can fill them."""
    types = get_type_hints(Config)
    for f in dataclasses.fields(Config):
        if f.name in leave_out:
            continue
        flag = "--" + f.name.replace("_", "-")
        common: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS}
        shown = ",".join(map(str, f.default)) if isinstance(f.default, tuple) else f.default
        help_text = f.metadata["help"].replace("%", "%%") + (f" [{shown}]" if shown != "" else "")
        if types[f.name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=help_text, **common)
        else:
            parser.add_argument(
                flag,
                type=_parser_of(types[f.name]),
                metavar=_metavar(types[f.name]),
                help=help_text,
                **common,
            )


def given_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The config fields the user gave on the command line."""
    names = {f.name for f in dataclasses.fields(Config)}
    return {name: value for name, value in vars(args).items() if name in names}


def _parser_of(kind: Any) -> Any:
    if kind in (int, float, str):
        return kind
    item = kind.__args__[0]

    def parse(text: str) -> tuple[Any, ...]:
        return tuple(item(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip())

    parse.__name__ = f"comma-separated {item.__name__}"
    return parse


def _metavar(kind: Any) -> str:
    return {int: "N", float: "X", str: "NAME"}.get(kind, "A,B")
