"""Draw the layers of imports, as `pyproject.toml` has them for import-linter: ``python docs/layers.py``.

The drawing, assets/layers.svg, is committed, so that it also shows on code hosts; a test compares it with `pyproject.toml`.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DRAWING = ROOT / "docs" / "assets" / "layers.svg"

# What a layer is for, in a few words; shown next to its names.
MEANING = {
    "cli": "the command line",
    "commands": "one file per command: parse, call, print",
    "results": "tables, figures and pages from runs; search",
    "sweep": "grids of runs, local or on Ray",
    "benchmarks": "speed and health of a machine",
    "training": "one run; other learners; the lab's page",
    "evaluation": "policies, test episodes, exports",
    "learning": "replay, views, networks, SAC, agent",
    "envs": "tasks, modes, your environment",
    "media": "images and videos",
    "trust": "whose code a run may name; the zoo",
    "storage": "files of a run, checkpoints",
    "config": "every value of a run",
    "presets": "numbers, the table of methods, task names",
    "files": "atomic files, signals, versions",
    "errors": "errors the user can fix",
}
WIDTH, ROW, GAP = 760, 34, 6


def layers() -> list[list[str]]:
    """Names of each layer, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (contract for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def draw() -> str:
    """The drawing: white on blue, so that it reads on light and dark pages alike."""
    rows = layers()
    height = len(rows) * (ROW + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="14">',
        "<title>The layers of softaug: every package imports only from the layers below its own</title>",
    ]
    for number, names in enumerate(rows):
        y = number * (ROW + GAP) + 4
        shade = 30 + round(25 * number / len(rows))
        parts.append(
            f'<rect x="40" y="{y}" width="{WIDTH - 44}" height="{ROW}" rx="5" fill="hsl(231 45% {shade}%)"/>'
        )
        meaning = next((MEANING[name] for name in names if name in MEANING), "")
        middle = y + ROW / 2 + 5
        parts.append(
            f'<text x="56" y="{middle:g}" fill="#fff" font-weight="bold">{escape(" · ".join(names))}</text>'
        )
        parts.append(f'<text x="390" y="{middle:g}" fill="#fff">{escape(meaning)}</text>')
    bottom = height - 8
    parts.append(
        f'<path d="M18 8 V{bottom} M10 {bottom - 10} L18 {bottom} L26 {bottom - 10}" fill="none" stroke="#888" '
        'stroke-width="3"/>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    DRAWING.write_text(draw())
