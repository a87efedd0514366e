"""``softaug eval RUN``: returns of a trained agent in the training appearance and the test distributions.

Each finished episode is kept as a line of JSON next to the results. The same evaluation started again (same weights,
seed, media and settings) takes what is there and plays the rest, whether it was interrupted or asks for more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.envs.modes import split_modes
from softaug.evaluation.run_evaluation import (
    DEFAULT_MODES,
    EvaluationOptions,
    default_workers,
    evaluate_run,
)
from softaug.trust import add_trust_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="directory of a run")
    add_optional(
        parser,
        "--modes",
        metavar="A,B",
        help=f"modes, comma-separated (default: {','.join(DEFAULT_MODES)}; for your own environment: all)",
    )
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="episodes per mode")
    parser.add_argument(
        "--workers",
        type=int,
        default=default_workers(),
        metavar="N",
        help="processes; results do not depend on it",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes")
    add_optional(parser, "--out", type=Path, metavar="FILE", help="results (default: a file in RUN/eval)")
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `eval` and `play` share."""
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="last, best or a number of decisions"
    )
    add_optional(
        parser, "--videos", metavar="DIR", help="test videos: a folder or 'procedural' (default: the run's)"
    )
    add_optional(
        parser,
        "--colors",
        metavar="FILE",
        help="test colors: an official .pt file or the folder of both (default: the run's)",
    )
    add_optional(
        parser,
        "--test-env",
        metavar="NAME=MODULE:CALLABLE",
        help="your own environment: further modes, comma-separated (default: the run's)",
    )
    add_optional(
        parser,
        "--adapt",
        action=argparse.BooleanOptionalAction,
        help="PAD: adapt during each episode (default: play does, eval reports both)",
    )
    add_trust_argument(parser)


def add_optional(parser: argparse.ArgumentParser, flag: str, **settings: Any) -> None:
    """A flag that is None if not given, whose help says itself what happens then (not "default: None")."""
    parser.set_defaults(**{flag.removeprefix("--").replace("-", "_"): None})
    parser.add_argument(flag, default=argparse.SUPPRESS, **settings)


def run(args: argparse.Namespace) -> int:
    modes = None if args.modes is None else split_modes(args.modes)
    names = {field.name for field in dataclasses.fields(EvaluationOptions)} - {"modes"}
    options = EvaluationOptions(modes=modes, **{name: getattr(args, name) for name in names})
    report, out = evaluate_run(options)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        _print_table(report, report["results"], out)
    return 0


def _print_table(report: dict[str, Any], rows: Sequence[dict[str, Any]], out: Path) -> None:
    console = Console(highlight=False)
    adapts = any(row["adapt"] for row in rows)
    table = Table(
        title=f"{report['task']}, {report['method']}, {report['decisions']} decisions of training",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("mode")
    if adapts:
        table.add_column("adaptation")
    table.add_column("return ± std", justify="right")
    for name in ("episodes", "decisions"):
        table.add_column(name, justify="right")
    table.add_column("media")
    for row in _by_mode(rows):
        cells = [row["mode"], *([("yes" if row["adapt"] else "no")] if adapts else [])]
        cells += [f"{row['mean']:.1f} ± {row['std']:.1f}", str(row["episodes"]), f"{row['decisions']:,}"]
        table.add_row(*cells, row["media"] or "–")
    console.print(table)
    for note in sorted({row["note"] for row in rows if row["note"]}):
        console.print(note)
    console.print(f"written to {out}", markup=False, soft_wrap=True)


def _by_mode(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """With and without adaptation side by side."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        yield from (row for row in rows if row["mode"] == mode)
