"""Train a grid of tasks, methods and seeds, here or on a Ray cluster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from softaug.config import add_config_arguments, given_arguments
from softaug.sweep import Outcome, parse_seeds, plan_grid, run_sweep
from softaug.sweep.display import as_json, outcome_row, summary, table

INTERRUPTED = 130
# The grid's own flags stand for these; `--workers` are runs at a time here, `--eval-workers` the config's.
NOT_OFFERED = ("task", "method", "seed", "preset", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Any config flag holds for every run. Values in brackets are the paper's; a method's own numbers and "
        "--preset small replace some."
    )
    grid = parser.add_argument_group("grid")
    grid.add_argument("--tasks", required=True, metavar="A,B", help="tasks")
    grid.add_argument("--methods", required=True, metavar="X,Y", help="methods")
    grid.add_argument("--seeds", default="0", metavar="0-4", help="seeds: 0-4, or 0,2,5")
    grid.add_argument("--preset", default="small", metavar="NAME", help="paper or small")
    grid.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="runs go to DIR/TASK/METHOD/seedN"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--backend", default="local", metavar="NAME", help="local processes or ray")
    how.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster: host:port or auto; without it a Ray of its own is started",
    )
    how.add_argument(
        "--workers", type=int, metavar="N", dest="sweep_workers",
        help="runs at a time; by default one locally, with Ray as many as there is room for",
    )  # fmt: skip
    how.add_argument(
        "--retries", type=int, default=2, metavar="N", help="how often a failed run is tried again"
    )
    how.add_argument(
        "--cpus-per-run", type=int, metavar="N",
        help="torch threads of a run, and what Ray reserves; by default the cores divided by --workers, on a cluster 2",
    )  # fmt: skip
    how.add_argument(
        "--gpus-per-run", type=float, default=0, metavar="X", help="GPUs that Ray reserves for a run"
    )
    how.add_argument(
        "--dry-run", action="store_true", help="print the plan with estimated time and disk; train nothing"
    )
    how.add_argument("--json", action="store_true", help="print the result as JSON")
    how.add_argument("--quiet", action="store_true", help="show no progress")
    how.add_argument(
        "--eval-workers", type=int, default=argparse.SUPPRESS, metavar="N", dest="workers",
        help="processes for evaluation in each run",
    )  # fmt: skip
    config = parser.add_argument_group("config of every run")
    add_config_arguments(cast(argparse.ArgumentParser, _Without(config, NOT_OFFERED)))


class _Without:
    """An argument group that leaves out some config fields."""

    def __init__(self, group: Any, fields: Sequence[str]):
        self._group, self._fields = group, fields

    def add_argument(self, flag: str, **options: Any) -> None:
        if options["dest"] not in self._fields:
            self._group.add_argument(flag, **options)


def run(args: argparse.Namespace) -> int:
    overrides = {name: value for name, value in given_arguments(args).items() if name != "preset"}
    runs = plan_grid(
        names(args.tasks),
        names(args.methods),
        parse_seeds(args.seeds),
        args.out,
        preset=args.preset,
        **overrides,
    )
    outcomes = run_sweep(
        runs,
        backend=args.backend,
        address=args.address,
        workers=args.sweep_workers,
        retries=args.retries,
        cpus_per_run=args.cpus_per_run,
        gpus_per_run=args.gpus_per_run,
        quiet=args.quiet,
    )
    if args.json:
        print(json.dumps(as_json(outcomes), indent=2))
    else:
        show(outcomes, args.out)
    states = {outcome.state for outcome in outcomes}
    return 1 if "failed" in states else INTERRUPTED if "interrupted" in states else 0


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def show(outcomes: Sequence[Outcome], out: Path) -> None:
    """How every run ended, the logs of those that failed, and how to go on."""
    console = Console(file=sys.stdout, highlight=False)
    rows = [outcome_row(outcome) for outcome in outcomes]
    console.print(table(rows, title=f"sweep · {out}"))
    console.print(summary(rows), markup=False)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for outcome in failed:
        console.print(f"\n{outcome.run.name} failed after {outcome.attempts} attempts:", style="bold red")
        console.print(outcome.error, markup=False, soft_wrap=True)
        console.print(f"whole log: {outcome.run.directory / 'log.txt'}", markup=False, soft_wrap=True)
    if failed or any(outcome.state == "interrupted" for outcome in outcomes):
        console.print("\nTo go on with what is not finished, give the same command again:", markup=False)
        console.print(f"  {shlex.join(['softaug', *sys.argv[1:]])}", markup=False, soft_wrap=True)
