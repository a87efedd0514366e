"""Train a grid of tasks, methods and seeds, here or on a Ray cluster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.files import free_bytes
from softaug.storage.run_files import RunFiles
from softaug.sweep import (
    Backend,
    Outcome,
    PlannedRun,
    parse_seeds,
    plan_grid,
    run_sweep,
)
from softaug.sweep.display import as_json, duration, outcome_row, short, summary, table

INTERRUPTED = 130
PLAN = {"new": "make", "begun": "resume", "finished": "skip"}
# The grid's own flags stand for these; `--workers` are runs at a time here, `--eval-workers` the config's.
NOT_OFFERED = ("task", "method", "seed", "preset", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Any config flag applies to every run. Values in brackets are the paper's; a method's own numbers and "
        "--preset small replace some."
    )
    grid = parser.add_argument_group("grid")
    grid.add_argument("--tasks", required=True, metavar="A,B", help="tasks")
    grid.add_argument("--methods", required=True, metavar="X,Y", help="methods")
    grid.add_argument("--seeds", default="0", metavar="0-4", help="seeds: 0-4, or 0,2,5")
    grid.add_argument(
        "--preset",
        default="small",
        metavar="NAME",
        help="paper, small, gb2, or a preset file of softaug tune",
    )
    grid.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="runs go to DIR/TASK/METHOD/seedN"
    )
    how = parser.add_argument_group("how")
    add_backend_arguments(how)
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
    add_config_arguments(config, leave_out=NOT_OFFERED)


def add_backend_arguments(how: argparse._ArgumentGroup) -> None:
    """Where and how many at a time: what `sweep` and `reproduce` share."""
    how.add_argument(
        "--backend", default="local", metavar="NAME", help="local processes or ray [%(default)s]"
    )
    how.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster: host:port or auto; by default the sweep starts its own Ray",
    )
    how.add_argument(
        "--workers", type=int, metavar="N", dest="sweep_workers",
        help="runs at a time; by default one locally, with Ray as many as fit",
    )  # fmt: skip
    how.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="how often a failed run is tried again [%(default)s]",
    )
    how.add_argument(
        "--cpus-per-run", type=int, metavar="N",
        help="torch threads of a run, and what Ray reserves; by default the cores divided by --workers, on a cluster 2",
    )  # fmt: skip
    how.add_argument(
        "--gpus-per-run",
        type=float,
        default=0,
        metavar="X",
        help="GPUs that Ray reserves for a run [%(default)s]",
    )


def chosen_backend(args: argparse.Namespace) -> Backend:
    """What the flags of `add_backend_arguments` say."""
    return Backend(
        args.backend, args.address, args.sweep_workers, args.retries, args.cpus_per_run, args.gpus_per_run
    )


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
    if args.dry_run:
        return dry_run(runs, args)
    outcomes = run_sweep(runs, **vars(chosen_backend(args)), quiet=args.quiet)
    if args.json:
        print(json.dumps(as_json(outcomes), indent=2))
    else:
        show(outcomes, args.out)
    states = {outcome.state for outcome in outcomes}
    return 1 if "failed" in states else INTERRUPTED if "interrupted" in states else 0


def dry_run(runs: Sequence[PlannedRun], args: argparse.Namespace) -> int:
    """What would be made, resumed and skipped, with time and disk; nothing is written."""
    from softaug.sweep.estimate import disk_bytes, estimate, wall_seconds  # imports torch

    where = chosen_backend(args)
    threads, workers = where.threads, where.workers or 1
    estimates = estimate(runs, threads, say=lambda text: print(text, file=sys.stderr, flush=True))
    seconds = wall_seconds([e.seconds_left for e in estimates], workers)
    replays, kept = disk_bytes(estimates, workers)
    result = {
        "workers": workers,
        # Ray takes as many as the cluster has room for, which is not known before it is there.
        "workers_assumed": where.backend == "ray" and where.workers is None,
        "threads": threads,
        "seconds": seconds,
        "replay_bytes": replays,
        "kept_bytes": kept,
        "free_bytes": free_bytes(args.out),
        "runs": [
            {
                "task": e.run.config.task,
                "method": e.run.config.method,
                "seed": e.run.config.seed,
                "directory": str(e.run.directory),
                "plan": PLAN[e.begun],
                "decisions_done": e.decisions_done,
                "decisions": e.run.config.decisions,
                "seconds": e.seconds_left,
                "measured": e.cost.measured,
                "replay_bytes": e.cost.replay_bytes,
                "kept_bytes": e.cost.kept_bytes,
            }
            for e in estimates
        ],
    }
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show_plan(result, args.out)
    return 0


def show_plan(result: dict[str, Any], out: Path) -> None:
    """The plan for people."""
    console = Console(file=sys.stdout, highlight=False)
    plan = Table(
        title=f"plan · {out}", title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold"
    )
    for name in ("task", "method", "seed", "plan", "decisions", "time", "replay"):
        plan.add_column(name, justify="left" if name in ("task", "method", "plan") else "right")
    for entry in result["runs"]:
        done, decisions = entry["decisions_done"], entry["decisions"]
        left = entry["plan"] != "skip"
        plan.add_row(
            entry["task"],
            entry["method"],
            str(entry["seed"]),
            entry["plan"],
            f"{short(done)}/{short(decisions)}" if done else short(decisions),
            duration(entry["seconds"]) if left else "–",
            size(entry["replay_bytes"]) if left else "–",
        )
    console.print(plan)
    counts = Counter(entry["plan"] for entry in result["runs"])
    kinds = ", ".join(f"{counts[plan]} to {plan}" for plan in PLAN.values() if counts[plan])
    console.print(f"{counted(len(result['runs']), 'run')}: {kinds}")
    threads = counted(result["threads"], "thread")
    console.print(
        f"time: about {duration(result['seconds'])} with {result['workers']} at a time, {threads} each"
    )
    if result["workers_assumed"]:
        console.print(
            "  estimated for one run at a time; Ray trains as many as fit, so it takes less time and "
            "more disk for replays; --workers N estimates for N",
            style="dim",
            soft_wrap=True,
        )
    measured = {entry["measured"] for entry in result["runs"] if entry["plan"] != "skip"}
    if True in measured:
        console.print("  from runs of the same config in this directory", style="dim")
    if False in measured:
        console.print(
            "  from a short measurement on this machine just now; parallel runs may be slower",
            style="dim",
            soft_wrap=True,
        )
    need, free = result["replay_bytes"] + result["kept_bytes"], result["free_bytes"]
    console.print(
        f"disk: at most {size(result['replay_bytes'])} for replays, which are deleted when a run is finished, and "
        f"{size(result['kept_bytes'])} for checkpoints, which are kept; {size(free)} are free",
        style="bold red" if need > free else None,
        soft_wrap=True,
    )


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def show(outcomes: Sequence[Outcome], out: Path) -> None:
    """How every run ended, the logs of those that failed, and how to continue."""
    console = Console(file=sys.stdout, highlight=False)
    rows = [outcome_row(outcome) for outcome in outcomes]
    console.print(table(rows, console.width, title=f"sweep · {out}"))
    console.print(summary(rows), markup=False)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for outcome in failed:
        console.print(
            f"\n{outcome.run.name} failed after {counted(outcome.attempts, 'attempt')}:", style="bold red"
        )
        console.print(outcome.error, markup=False, soft_wrap=True)
        console.print(f"whole log: {RunFiles(outcome.run.directory).log}", markup=False, soft_wrap=True)
    if failed or any(outcome.state == "interrupted" for outcome in outcomes):
        console.print("\nTo continue what is not finished, give the same command again:", markup=False)
        console.print(f"  {shlex.join(['softaug', *sys.argv[1:]])}", markup=False, soft_wrap=True)
