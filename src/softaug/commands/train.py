"""Train an agent, or continue a run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.config import Config, default_directory, make_config, read_config
from softaug.errors import UserError
from softaug.media.comparability import media_note
from softaug.methods import get_method
from softaug.presets import get_preset
from softaug.starting import imports_end_at_ctrl_c
from softaug.storage.run_files import RunFiles
from softaug.trust import add_trust_argument, require_trust

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Values in brackets are the paper's; a method's own numbers and --preset small replace some."
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--out", type=Path, metavar="DIR", help="directory of the run [runs/TASK-METHOD-PRESET-SEED]"
    )
    where.add_argument(
        "--env",
        metavar="MODULE:CALLABLE",
        help="your own environment instead of a --task: a function without arguments that returns a Gymnasium "
        "environment; the current directory is on the path (see also --test-env, --image-key, --episode-decisions)",
    )
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR, exactly")
    add_trust_argument(where)
    where.add_argument(
        "--keep-replay", action="store_true", help="keep the replay's files when the run is finished"
    )
    where.add_argument("--json", action="store_true", help="print the result as JSON")
    where.add_argument("--quiet", action="store_true", help="show no progress")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    config, out = choose_run(args)
    with imports_end_at_ctrl_c():  # torch takes a second, which errors above need not wait for
        from softaug.training.run import Result, train

    result: Result = train(
        config, out, resume=args.resume is not None, keep_replay=args.keep_replay, quiet=args.quiet
    )
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    elif result.finished:
        show(result.evaluation, result.adapted, out)
    return 0 if result.finished else INTERRUPTED


def choose_run(args: argparse.Namespace) -> tuple[Config, Path]:
    """The config and the directory that the flags ask for."""
    given = given_arguments(args)
    if args.env is not None:
        if ":" not in args.env:
            raise UserError(
                f"--env {args.env} is not of the form module:callable; give for example --env my_robot:make_env"
            )
        if given.setdefault("task", args.env) != args.env:
            raise UserError("--task and --env exclude each other; give one of them")
    if args.resume is not None:
        if args.out is not None:
            raise UserError("--out and --resume exclude each other; a resumed run stays in its directory")
        if "method" in given:
            given["method"] = get_method(given["method"]).name  # `soda` is `soda_overlay`: no difference
        if "preset" in given:
            given["preset"] = get_preset(given["preset"]).label  # of a file, as the config has it
        found = read_config(RunFiles(args.resume).config)
        require_trust(args.resume, found, trust=args.trust)
        return dataclasses.replace(found, **given), args.resume
    config = make_config(**given)
    return config, args.out or default_directory(config)


def show(evaluation: dict, adapted: dict, out: Path) -> None:
    """The last evaluation as a table for people."""
    table = Table(title=f"returns after training · {out}")
    table.add_column("mode")
    table.add_column("return", justify="right")
    table.add_column("episodes", justify="right")
    table.add_column("media")
    for modes, suffix in ((evaluation, ""), (adapted, " (adapted)")):
        for mode, values in modes.items():
            table.add_row(
                mode + suffix,
                f"{values['mean']:.1f} ± {values['std']:.1f}",
                str(len(values["returns"])),
                values["media"] or "–",
            )
    console = Console(file=sys.stdout)
    console.print(table)
    notes = {media_note(mode, values["media"], None) for mode, values in evaluation.items()}
    for note in sorted(notes - {""}):
        console.print(note)
