"""``softaug reproduce ITEM``: the paper's tables and figures, and later benchmarks', from runs; missing ones are made."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.commands.sweep import add_backend_arguments, chosen_backend
from softaug.errors import UserError, unknown
from softaug.presets import PRESETS
from softaug.results.reading import find_runs, read_run, runs_below
from softaug.results.records import MEDIA_ORDER, RunRecord
from softaug.results.reproduce.collect import count, select, select_policies
from softaug.results.reproduce.console import Plan, show, show_plan
from softaug.results.reproduce.grids import ITEMS, FigureItem, Item, SamplesItem, TableItem, make_items
from softaug.results.reproduce.missing_runs import (
    EPISODES,
    Evaluating,
    check_images,
    evaluate,
    evaluate_on_ray,
    parse_seed_count,
    plan_evaluations,
    plan_runs,
    read_again,
)
from softaug.results.reproduce.tables import TableResult, make_table

if TYPE_CHECKING:
    from softaug.results.reproduce.writing import WrittenItem
    from softaug.sweep import Outcome, PlannedRun

FAILED, INTERRUPTED = 1, 130
PAPER_SEEDS = 5
# The grid says these; `--workers` are runs at a time here, as in `softaug sweep`. The last are for own environments.
NOT_OFFERED = (
    "task", "method", "seed", "preset", "decisions", "eval_modes", "workers",
    "test_env", "image_key", "episode_decisions",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.HelpFormatter  # each help says itself what happens without the flag
    parser.epilog = (
        "Any config flag applies to every new run. Values in brackets are the paper's; a method's own "
        "numbers and --preset small replace some."
    )
    parser.add_argument(
        "item", metavar="ITEM", help=f"table or figure: {', '.join(ITEMS)}; or all (of the paper's)"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--preset",
        metavar="NAME",
        help="paper, small or gb2; by default paper (item gb2: gb2), with --only-existing that of the runs",
    )
    what.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=f"number of seeds; by default {PAPER_SEEDS}, with --only-existing all",
    )
    what.add_argument("--tasks", metavar="A,B", help="tasks instead of the paper's")
    what.add_argument(
        "--published",
        action="store_true",
        help="figures: over frames, with DrQ-v2's and MR.Q's published training curves as thin lines",
    )
    what.add_argument(
        "--decisions", type=int, metavar="N", help="length of training; by default the preset's"
    )
    what.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="test episodes per mode; by default "
        + ", ".join(f"{episodes} in {preset}" for preset, episodes in EPISODES.items()),
    )
    what.add_argument(
        "--media",
        metavar="KIND",
        help=f"test media to report: {', '.join(MEDIA_ORDER)}; by default what most runs have",
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--out",
        type=Path,
        default=Path("reproduced"),
        metavar="DIR",
        help="tables and figures; new runs go to DIR/runs [reproduced]",
    )
    where.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="existing runs, folders of them, or zoo:NAME [those in OUT/runs]",
    )
    where.add_argument("--only-existing", action="store_true", help="train and evaluate nothing")
    how = parser.add_argument_group("how")
    add_backend_arguments(how)
    how.add_argument(
        "--eval-workers",
        type=int,
        metavar="N",
        help="processes for the last evaluation, with Ray CPUs of the cluster; by default as many as `softaug eval` "
        "takes, with Ray all",
    )
    how.add_argument("--dry-run", action="store_true", help="say what would be trained; train nothing")
    how.add_argument(
        "--cost",
        metavar="N,N",
        help="print GPU-hours, disk and time for these numbers of runs at a time (for example 1,8,64); train nothing",
    )
    how.add_argument(
        "--gpu-tflops",
        type=float,
        metavar="X",
        help="for --cost: what a GPU is assumed to sustain [5]",
    )
    how.add_argument(
        "--bench",
        type=Path,
        metavar="DIR",
        help="for --cost: env.json and update.json of `softaug bench`; without it environments are timed now",
    )
    how.add_argument("--json", action="store_true", help="print the result as JSON")
    how.add_argument("--quiet", action="store_true", help="show no progress")
    config = parser.add_argument_group("config of the runs that are made")
    add_config_arguments(config, leave_out=NOT_OFFERED)


def run(args: argparse.Namespace) -> int:
    tasks = None if args.tasks is None else [part.strip() for part in args.tasks.split(",") if part.strip()]
    items = make_items(args.item, tasks)
    if args.preset is not None and args.preset not in PRESETS:
        raise unknown("preset", args.preset, PRESETS)
    if args.media is not None and args.media not in MEDIA_ORDER:
        raise unknown("media", args.media, MEDIA_ORDER)
    if args.episodes is not None and args.episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {args.episodes}")
    if args.out.exists() and not args.out.is_dir():
        raise UserError(f"{args.out} is a file; give a directory as --out")
    # Also where nothing is to be trained: a misspelled backend would otherwise pass unnoticed.
    chosen_backend(args)
    progress = Console(file=sys.stderr, highlight=False, quiet=args.quiet)
    console = Console(file=sys.stderr, highlight=False)  # what must be heard, also with --quiet
    if args.only_existing:
        if args.dry_run:
            raise UserError(
                "--dry-run says what would be trained, --only-existing trains nothing; give one of them"
            )
        seeds = None if args.seeds is None else parse_seed_count(args.seeds)
        needs_runs = any(not isinstance(item, SamplesItem) for item in items)
        published = all(isinstance(item, TableItem) and item.shows_published for item in items)
        if not needs_runs or (published and args.runs is None and not (args.out / "runs").exists()):
            records = []
        else:
            records = [read_run(path) for path in find_runs(args.runs or [args.out / "runs"])]
        return _write(args, items, records, seeds, args.preset, progress, console)
    args.preset = args.preset or getattr(items[0], "preset", "paper")
    seeds = parse_seed_count(args.seeds if args.seeds is not None else PAPER_SEEDS)
    if args.cost is not None:
        return _cost(args, items, seeds)
    there, missing = _plan(args, items, seeds)
    episodes = args.episodes or EPISODES.get(args.preset, EPISODES["paper"])
    if args.dry_run:
        lacking = plan_evaluations(items, there, episodes)
        tables = any(isinstance(item, TableItem) for item in items)
        plan = Plan(args.preset, args.out / "runs", there, missing, lacking, episodes, tables)
        if args.json:
            print(json.dumps(plan.to_json(), indent=1))
        else:
            show_plan(plan, args.item)
        return 0
    outcomes = _train(args, missing, progress)
    if any(outcome.state == "interrupted" for outcome in outcomes):
        _say(
            console,
            "interrupted; to continue, give the same command again:\n  "
            + shlex.join(["softaug", *sys.argv[1:]]),
        )
        return INTERRUPTED
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for outcome in failed:  # before anything else can go wrong
        _say(
            console,
            f"\n{outcome.run.name} failed after {count([outcome.attempts], 'attempt')}:\n{outcome.error}",
        )
    there = read_again(there, missing)
    jobs = plan_evaluations(items, [r for r in there if r.finished], episodes)
    _evaluate(args, jobs, episodes, progress, console)
    try:
        records = [*read_again(there, ()), *_policies(args)]
        status = _write(args, items, records, seeds, args.preset, progress, console)
    except UserError as error:
        if not failed:
            raise
        _say(console, f"\nsoftaug: error: {error}")
        return FAILED
    return FAILED if failed else status


def _cost(args: argparse.Namespace, items: Sequence[Item], seeds: Sequence[int]) -> int:
    """What the whole grid would cost, runs that there are included."""
    from softaug.sweep.cost import GPU_TFLOPS, Benchmarks, grid_cost, read_benchmarks, show_cost

    try:
        workers = [int(part) for part in args.cost.split(",")]
    except ValueError:
        workers = []
    if not workers or min(workers) < 1:
        raise UserError(
            f"--cost {args.cost!r} is not a list of numbers of runs at a time; give for example 1,8,64"
        )
    tflops = GPU_TFLOPS if args.gpu_tflops is None else args.gpu_tflops
    if not 0 < tflops < float("inf"):
        raise UserError(f"--gpu-tflops must be above 0, not {tflops:g}")
    _, runs = plan_runs(items, [], seeds, args.out / "runs", preset=args.preset, **_overrides(args))
    tables = [item for item in items if isinstance(item, TableItem)]
    keys = {(run.config.task, run.config.method) for run in runs}
    test_modes = {key: len({m for table in tables for m in table.modes_of(*key)}) for key in keys}
    cost = grid_cost(
        runs,
        test_modes,
        episodes=args.episodes or EPISODES.get(args.preset, EPISODES["paper"]),
        workers=workers,
        gpu_tflops=tflops,
        benchmarks=Benchmarks() if args.bench is None else read_benchmarks(args.bench),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if args.json:
        print(json.dumps(cost, indent=1))
    else:
        show_cost(cost, Console(highlight=False))
    return 0


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The config fields that were given for every run."""
    given = {name: value for name, value in given_arguments(args).items() if name not in NOT_OFFERED}
    return given if args.decisions is None else {**given, "decisions": args.decisions}


def _plan(
    args: argparse.Namespace, items: Sequence[Item], seeds: Sequence[int]
) -> tuple[list[RunRecord], list[PlannedRun]]:
    own = args.out / "runs"
    found = [*(find_runs(args.runs) if args.runs else []), *runs_below(own)]
    records = [read_run(path) for path in dict.fromkeys(path.resolve() for path in found)]
    there, missing = plan_runs(items, records, seeds, own, preset=args.preset, **_overrides(args))
    # What cannot be put together is refused now, not after days of training.
    for item in items:
        if not isinstance(item, SamplesItem):
            select(there, item.grid, preset=args.preset, decisions=args.decisions, seeds=seeds)
    if args.backend == "local":  # elsewhere there may be other images
        check_images(there, missing)
    return there, missing


def _policies(args: argparse.Namespace) -> list[RunRecord]:
    """The results of policies that were made elsewhere, among the runs that were given."""
    records = [read_run(path) for path in find_runs(args.runs)] if args.runs else []
    return [record for record in records if record.config.row.foreign]


def _train(args: argparse.Namespace, missing: Sequence[PlannedRun], progress: Console) -> list[Outcome]:
    if not missing:
        return []
    from softaug.sweep import run_sweep

    _say(progress, f"training {count([len(missing)], 'run')} of preset {args.preset}, in {args.out / 'runs'}")
    return run_sweep(missing, **vars(chosen_backend(args)), quiet=args.quiet)


def _evaluate(
    args: argparse.Namespace, jobs: Sequence[Evaluating], episodes: int, progress: Console, console: Console
) -> None:
    def warn(job: Evaluating, reason: str) -> None:
        _say(console, f"warning: {job.path} was not evaluated in {', '.join(job.modes)}: {reason}")

    if args.backend == "ray" and jobs:
        _say(progress, f"evaluating {count([len(jobs)], 'run')} on Ray, {episodes} episodes per mode")
        evaluate_on_ray(
            jobs, episodes, address=args.address, workers=args.eval_workers, quiet=args.quiet, warn=warn
        )
        return
    for number, job in enumerate(jobs, start=1):
        _say(
            progress,
            f"evaluating {number}/{len(jobs)}: {job.path}, {', '.join(job.modes)}, {episodes} episodes each",
        )
        try:
            if job.problem:
                raise UserError(job.problem)
            evaluate(job, episodes, args.eval_workers)
        except UserError as error:  # a run without checkpoints, say: its own last evaluation has to do
            warn(job, str(error))


def _write(
    args: argparse.Namespace,
    items: Sequence[Item],
    records: Sequence[RunRecord],
    seeds: Sequence[int] | None,
    preset: str | None,
    progress: Console,
    console: Console,
) -> int:
    """Collect, write and show each item; those that have no run at all are left out of `all`."""
    from softaug.results.reproduce import writing

    asked = None if seeds is None else len(seeds)
    written: list[tuple[WrittenItem, TableResult | None]] = []
    for item in items:
        if isinstance(item, SamplesItem):
            drawn = writing.write_samples(item, args.out, lambda task: _say(progress, f"{task} drawn"))
            written.append((drawn, None))
            continue
        selection = select(records, item.grid, preset=preset, decisions=args.decisions, seeds=seeds)
        if isinstance(item, TableItem):
            selection = replace(selection, policies=select_policies(records, item.cells))
            item = item.with_policies(dict.fromkeys(r.config.method for r in selection.policies))
        if not (selection.runs or selection.policies) and not (
            isinstance(item, TableItem) and item.shows_published
        ):
            if len(items) == 1:
                raise UserError(_nothing(item, records, preset, args.decisions))
            _say(console, f"{item.name}: left out, none of its runs is finished")
        elif isinstance(item, TableItem):
            table = make_table(item, selection, media=args.media, asked_seeds=asked)
            written.append((writing.write_table(table, args.out), table))
        else:
            drawn = writing.write_curves(
                item, selection, args.out, media=args.media, asked_seeds=asked, published=args.published
            )
            written.append((drawn, None))
    if not written:
        raise UserError(
            "no run that any table or figure needs is finished; leave out --only-existing to train them"
        )
    if args.json:
        print(json.dumps({"items": [part.to_json() for part, _ in written]}, indent=1))
    else:
        for part, made in written:
            show(part, made)
    return 0


def _nothing(
    item: TableItem | FigureItem, records: Sequence[RunRecord], preset: str | None, decisions: int | None
) -> str:
    """Why there is nothing to show."""
    fitting = [r for r in records if (r.config.task, r.config.method) in item.grid]
    if not fitting:
        return f"none of the {len(records)} runs is one that {item.name} needs; see `softaug reproduce {item.name} --dry-run`"
    found = Counter(f"preset {r.config.preset}, {r.config.decisions:,} decisions, {r.state}" for r in fitting)
    wanted = f"preset {preset}" if preset else "any preset"
    wanted += f", {decisions:,} decisions" if decisions else ""
    return f"no finished run of {item.name} ({wanted}); there are: " + "; ".join(
        f"{n} of {text}" for text, n in found.items()
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
