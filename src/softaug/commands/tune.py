"""Search hyperparameters for your tasks, and write the best as a preset file."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.commands.sweep import add_backend_arguments, chosen_backend, names
from softaug.errors import UserError
from softaug.sweep import Backend, parse_seeds
from softaug.sweep.plan import check_media
from softaug.sweep.supervise import Orders
from softaug.tuning.display import TuneDisplay
from softaug.tuning.objective import return_ranges
from softaug.tuning.optuna_study import import_optuna, open_study
from softaug.tuning.plan import StudySettings, make_settings, record_settings
from softaug.tuning.runners import LocalRunner, RayRunner, Runner
from softaug.tuning.space import DEFAULT_SPACE, read_space
from softaug.tuning.study import Tuner, locked
from softaug.tuning.summary import Summary, scoring, shown, summarize

INTERRUPTED = 130
SHOWN_TRIALS = 10
# The study's own flags stand for these; `--workers` are runs at a time here.
NOT_OFFERED = ("task", "method", "seed", "preset", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.HelpFormatter  # defaults stand in brackets, as those of the config
    parser.epilog = (
        "Example: softaug tune --tasks walker_stand --method sac --frames 40000 --trials 30 --workers 2 --out runs/tune. "
        "Give the same command again to continue after Ctrl-C or a crash, with more --trials to extend the study. "
        f"Searched unless --space says otherwise: {', '.join(DEFAULT_SPACE)}. See docs/tune.md."
    )
    what = parser.add_argument_group("what to tune for")
    what.add_argument("--tasks", metavar="A,B", help="tasks; the score is the mean of their normalized areas")
    what.add_argument("--env", metavar="MODULE:CALLABLE", help="your own environment instead of --tasks")
    what.add_argument("--method", default="sac", metavar="NAME", help="method of every trial [%(default)s]")
    what.add_argument(
        "--seeds", default="0", metavar="0-4", help="seeds of every trial: 0-4, or 0,2,5 [%(default)s]"
    )
    what.add_argument(
        "--preset",
        default="small",
        metavar="NAME",
        help="preset to improve: paper, small, gb2 or a preset file [%(default)s]",
    )
    what.add_argument(
        "--frames", type=int, metavar="N",
        help="length of a run in frames (environment steps); or give --decisions; by default the preset's",
    )  # fmt: skip
    what.add_argument(
        "--seconds", type=float, metavar="X",
        help="time budget of a run: the area is over seconds of training, so that speed counts",
    )  # fmt: skip
    what.add_argument(
        "--return-range", action="append", default=[], metavar="[TASK=]LOW,HIGH",
        help="returns that become 0 and 1; for your own environment (the suite's are 0,1000)",
    )  # fmt: skip
    search = parser.add_argument_group("search")
    search.add_argument(
        "--trials", type=int, default=30, metavar="N", help="trials, the base preset included [%(default)s]"
    )
    search.add_argument("--space", type=Path, metavar="FILE", help="fields to search (JSON or TOML)")
    search.add_argument(
        "--pruner",
        default="halving",
        metavar="NAME",
        help="halving (successive halving), hyperband or none [%(default)s]",
    )
    search.add_argument(
        "--reduction",
        type=int,
        default=3,
        metavar="N",
        help="successive halving: about one of N trials passes a rung, and the next rung is N times as far [%(default)s]",
    )
    search.add_argument(
        "--rungs",
        type=int,
        default=2,
        metavar="N",
        help="decisions about pruning before the end: by default at 1/9 and 1/3 of the budget [%(default)s]",
    )
    search.add_argument(
        "--sampler-seed", type=int, default=0, metavar="N", help="seed of the search itself [%(default)s]"
    )
    search.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the study, its runs, tables and preset.json"
    )
    how = parser.add_argument_group("how")
    add_backend_arguments(how)
    how.add_argument("--json", action="store_true", help="print the result as JSON")
    how.add_argument("--quiet", action="store_true", help="show no progress")
    config = parser.add_argument_group("config of every run (fields that are not searched)")
    add_config_arguments(config, leave_out=NOT_OFFERED)


def run(args: argparse.Namespace) -> int:
    import_optuna()
    settings = settings_from(args)
    where = chosen_backend(args)
    if args.trials < 2:
        raise UserError(f"--trials must be at least 2 (the base preset and another), not {args.trials}")
    out: Path = args.out.absolute()
    check_media(settings.runs(out, 0, {}))
    command = shlex.join(["softaug", *sys.argv[1:]])
    with locked(out):
        record_settings(settings, out)
        study = open_study(settings, out)
        with (
            closing(make_runner(where)) as runner,
            closing(TuneDisplay(settings.seconds, quiet=args.quiet)) as display,
        ):
            display.say(scoring(settings))
            all_over = Tuner(settings, out, study, runner, args.trials, display).run()
        summary = summarize(settings, out, study, command)
    if args.json:
        print(json.dumps({"complete": all_over, **summary.to_json()}, indent=2))
    else:
        show(summary, args.out, Console(file=sys.stdout, highlight=False))
        if not all_over:
            print(f"\nInterrupted. To continue, give the same command again:\n  {command}")
    return 0 if all_over else INTERRUPTED


def settings_from(args: argparse.Namespace) -> StudySettings:
    """The study that the flags ask for."""
    if (args.tasks is None) == (args.env is None):
        raise UserError("give --tasks (such as walker_stand,cartpole_swingup) or --env module:callable")
    if args.env is not None and ":" not in args.env:
        raise UserError(
            f"--env {args.env} is not of the form module:callable; give for example --env my_robot:make_env"
        )
    tasks = (args.env,) if args.env is not None else tuple(names(args.tasks))
    overrides: dict[str, Any] = given_arguments(args)
    for name in NOT_OFFERED:
        overrides.pop(name, None)
    content = DEFAULT_SPACE if args.space is None else read_space(args.space)[1]
    if args.space is None:  # a field that is given is not searched
        content = {name: entry for name, entry in content.items() if name not in overrides}
        if not content:
            raise UserError(
                "every field that is searched is given as a flag; leave one of them out or give --space FILE"
            )
    return make_settings(
        tasks,
        args.method,
        args.preset,
        overrides,
        seeds=tuple(parse_seeds(args.seeds)),
        frames=args.frames,
        seconds=args.seconds,
        ranges=return_ranges(tasks, args.return_range),
        space=content,
        pruner=args.pruner,
        reduction=args.reduction,
        rungs=args.rungs,
        sampler_seed=args.sampler_seed,
    )


def make_runner(where: Backend) -> Runner:
    orders = Orders(sweep="tune", retries=where.retries, threads=where.threads, cwd=str(Path.cwd()))
    if where.backend == "local":
        return LocalRunner(orders, where.workers or 1)
    return RayRunner(orders, where.workers, address=where.address, gpus_per_run=where.gpus_per_run)


def show(summary: Summary, out: Path, console: Console) -> None:
    """The best trials, what they changed and what mattered."""
    if not summary.trials:
        console.print("No trial is over yet.")
        return
    settings = summary.settings
    trials = _table(f"trials · {out}", ["trial", "score", *_task_columns(settings), "decisions/s", "state"])
    for trial in summary.trials[:SHOWN_TRIALS]:
        rate = trial.decisions_per_second
        trials.add_row(
            f"{trial.number} (base)" if trial.is_base else str(trial.number),
            f"{trial.score:.4g}" if trial.score is not None else "–",
            *(f"{trial.areas[t]:.4g}" if t in trial.areas else "–" for t in _task_columns(settings)),
            f"{rate:.1f}" if rate is not None else "–",
            f"{trial.state} {trial.note}".strip(),
        )
    console.print(trials)
    if len(summary.trials) > SHOWN_TRIALS:
        console.print(
            f"and {len(summary.trials) - SHOWN_TRIALS} more in {out / 'trials.csv'}", soft_wrap=True
        )
    best = summary.best
    if best is None:
        return
    fields = _table("\nfields", ["field", "base", "best", *(["importance"] if summary.importance else [])])
    order = [*summary.importance, *(n for n in summary.base_values if n not in summary.importance)]
    for name in order:
        fields.add_row(
            name,
            shown(summary.base_values[name]),
            shown(best.values.get(name, summary.base_values[name])),
            *([f"{summary.importance[name]:.2f}"] if name in summary.importance else []),
        )
    console.print(fields)
    if not summary.importance:
        console.print("Too few trials for importances.", style="dim")
    if best.is_base:
        console.print("\nNo trial is better than the base preset.")
    console.print(f"\npreset: {summary.preset and out / 'preset.json'}; use it with:", soft_wrap=True)
    task = f"--env {settings.tasks[0]}" if ":" in settings.tasks[0] else f"--task {settings.tasks[0]}"
    console.print(
        f"  softaug train {task} --method {settings.method} --preset {out / 'preset.json'}", soft_wrap=True
    )


def _task_columns(settings: StudySettings) -> list[str]:
    return list(settings.tasks) if len(settings.tasks) > 1 else []


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 or name == "state" else "right")
    return table
