"""The model card: YAML that hubs read, then a page for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from softaug.config import Config
from softaug.tasks import PAPER_TASKS, ROBOT_TASKS


def make_card(name: str, config: Config, results: Mapping[str, Any], *, reference: str) -> str:
    """README.md of a policy. reference: what a user gives to softaug's commands for it."""
    notes = list(dict.fromkeys(row["note"] for row in results["results"] if row["note"]))
    overlay = (results["training"].get("media") or {}).get("overlay") or {}
    return _template().render(
        header=yaml_of(header(name, config, results)),
        name=name,
        title=config.row.title,
        suite="" if config.own_env or config.task in ROBOT_TASKS else " of the DeepMind Control suite",
        config=config,
        results=results,
        reference=reference,
        overlay=f", on {overlay['kind']} overlay images"
        if config.row.uses_images and "kind" in overlay
        else "",
        notes=[note[0].upper() + note[1:] + "." for note in notes],
    )


def header(name: str, config: Config, results: Mapping[str, Any]) -> dict[str, Any]:
    """What hubs index: `model-index` has one result per mode (and media, and with and without adaptation)."""
    benchmark = ["dmcontrol-gb"] if config.task in PAPER_TASKS else []
    return {
        "library_name": "softaug",
        "pipeline_tag": "reinforcement-learning",
        "tags": [
            "reinforcement-learning",
            "deep-reinforcement-learning",
            "visual-generalization",
            "mujoco",
            *benchmark,
            config.task,
            config.method,
        ],
        "model-index": [{"name": name, "results": [_result(config, row) for row in results["results"]]}],
    }


def _result(config: Config, row: Mapping[str, Any]) -> dict[str, Any]:
    said = [
        row["mode"],
        *([f"{row['media']} media"] if row["media"] else []),
        *(["adapting"] if row["adapt"] else []),
    ]
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": f"{config.task}-{row['mode']}", "name": f"{config.task} ({', '.join(said)})"},
        "metrics": [
            {"type": "mean_reward", "name": "mean return", "value": round(row["mean"], 4), "verified": False},
            {
                "type": "std_reward",
                "name": "standard deviation over episodes",
                "value": round(row["std"], 4),
                "verified": False,
            },
        ],
    }


def yaml_of(value: Any, indent: str = "") -> str:
    """Block YAML of dicts, lists and scalars; scalars are written as JSON, which YAML reads alike.

    Not every float: some readers take 1e-05 for a string, so numbers are rounded before.
    """
    lines = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            nested = isinstance(item, Mapping | list) and item
            lines.append(
                f"{indent}{key}:\n{yaml_of(item, indent + '  ')}"
                if nested
                else f"{indent}{key}: {json.dumps(item)}"
            )
    else:
        for item in value:
            text = (
                yaml_of(item, indent + "  ")
                if isinstance(item, Mapping | list)
                else f"{indent}  {json.dumps(item)}"
            )
            lines.append(f"{indent}- {text.lstrip()}")
    return "\n".join(lines)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=False,  # Markdown
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md")
