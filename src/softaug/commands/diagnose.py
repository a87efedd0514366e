"""``softaug diagnose RUN``: how far features and actions move when only the look of a state changes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.commands.eval import add_optional
from softaug.envs.modes import split_modes
from softaug.errors import UserError
from softaug.evaluation.diagnose import DEFAULT_MODES, JSON_FILE, PICTURE_FILE, Diagnosis, diagnose
from softaug.evaluation.run_evaluation import check_modes, with_media
from softaug.evaluation.runs import load_run
from softaug.progress import Bars
from softaug.trust import add_trust_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="directory of a run")
    add_optional(
        parser, "--modes", metavar="A,B", help=f"modes, comma-separated (default: {','.join(DEFAULT_MODES)})"
    )
    parser.add_argument("--states", type=int, default=64, metavar="N", help="physics states to compare")
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="last, best or a number of decisions"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of states and appearances")
    add_optional(
        parser,
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where {JSON_FILE} and {PICTURE_FILE} go (default: RUN)",
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
    add_trust_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    trained = with_media(load_run(args.run_dir, args.checkpoint), args.videos, args.colors)
    out = args.out or args.run_dir
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a directory")
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, but is {args.seed}")
    modes = None if args.modes is None else check_modes(split_modes(args.modes), trained.config)
    with Bars("states") as bars:
        diagnosis = diagnose(
            trained, modes=modes, states=args.states, seed=args.seed, trust=args.trust, progress=bars.stage
        )
    diagnosis.save(out)
    if args.json:
        print(json.dumps(diagnosis.to_json(), indent=1))
    else:
        _print_table(diagnosis, out)
    return 0


def _print_table(diagnosis: Diagnosis, out: Path) -> None:
    console = Console(highlight=False)
    trained = diagnosis.checkpoint["decisions"]
    after = "" if trained is None else f", {trained} decisions of training"
    table = Table(
        title=f"{diagnosis.task}, {diagnosis.method}{after}",
        title_justify="left",
        title_style="bold",
    )
    columns = {"cosine_features": "cos f", "cosine_projection": "cos proj."}
    if "cosine_soda" in diagnosis.baseline:
        columns["cosine_soda"] = "cos g"
    columns["action_distance"] = "|Δ action|"
    table.add_column("mode", no_wrap=True)
    for title in columns.values():
        table.add_column(title, justify="right", no_wrap=True)
    for mode, result in diagnosis.modes.items():
        table.add_row(mode, *(_number(result[name]) for name in columns))
    table.add_row("[dim]other states", *(f"[dim]{_number(diagnosis.baseline[name])}" for name in columns))
    table.add_section()
    table.add_row("[dim]relative")
    for mode, result in diagnosis.modes.items():
        table.add_row(mode, *(_relative(result[name]) for name in columns))
    console.print(table)
    console.print(
        f"The same {diagnosis.states} states in the training appearance and in each mode, mean ± std over states. Relative: "
        "to the distance between different states; 0 is invariant, 1 as far as another state.",
        style="dim",
    )
    for note in diagnosis.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"written to {out / JSON_FILE} and {PICTURE_FILE}", markup=False, soft_wrap=True)


def _relative(value: dict[str, Any]) -> str:
    return "–" if value["relative"] is None else f"{value['relative']:.2f}"


def _number(value: dict[str, Any]) -> str:
    return f"{value['mean']:.2f} ± {value['std']:.2f}"
