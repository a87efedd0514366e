"""``softaug eval RUN``: returns of a trained agent in the training appearance and the test distributions.

``softaug eval --policy FILE`` does the same with a policy that was made elsewhere (docs/any_policy.md).

Each finished episode is kept as a line of JSON next to the results. The same evaluation started again (same weights,
seed, media and settings) takes what is there and plays the rest, whether it was interrupted or asks for more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.envs.modes import MODE_GROUPS, split_modes
from softaug.errors import UserError
from softaug.evaluation.policy_evaluation import PolicySettings, evaluate_policy
from softaug.evaluation.run_evaluation import (
    DEFAULT_MODES,
    EvaluationOptions,
    default_workers,
    evaluate_run,
)
from softaug.methods import get_method
from softaug.trust import add_trust_argument

RUN_HELP = "directory of a run, or a published policy: zoo:NAME, hf:ORG/NAME"
POLICY_FLAGS = {
    "--policy": ("FILE", "an ONNX file, a .zip of Stable-Baselines3, or module:callable (observation -> action)"),
    "--task": ("NAME", "task, or module:callable of your own environment (default: the file's)"),
    "--name": ("NAME", "what tables call it (default: the file's or function's name)"),
    "--image-size": ("N", "height and width of the observations (default: the file's, else 100)"),
    "--frame-stack": ("N", "frames in an observation (default: the file's, else 3; robot_push: 1)"),
    "--action-repeat": ("N", "frames per decision (default: the file's or task's)"),
    "--render": ("NAME", "exact, fast, coarse or aliased (default: the file's, else exact)"),
    "--image-key": ("NAME", "your own environment: which entry of a dict observation is the image"),
    "--train-seed": ("N", "seed of its training: policies of one name and several seeds are averaged (default: 0)"),
    "--decisions": ("N", "decisions of its training, for tables (default: the file's, else unknown)"),
}  # fmt: skip
"""flag -> metavar (N: a whole number) and help"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tested_arguments(parser)
    add_optional(
        parser,
        "--modes",
        metavar="A,B",
        help=f"modes, comma-separated (default: {','.join(DEFAULT_MODES)}; for your own environment: all); "
        f"{'|'.join(MODE_GROUPS)} stand for a benchmark's",
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
    add_optional(
        parser,
        "--out",
        type=Path,
        metavar="PATH",
        help="results: a file (default: in RUN/eval); with --policy a directory (default: runs/TASK-NAME-SEED)",
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--video", action="store_true", help="record the first episode of each mode, for softaug report"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def add_tested_arguments(parser: argparse.ArgumentParser) -> None:
    """What `eval` and `diagnose` are about: a run, or a policy that was made elsewhere."""
    parser.set_defaults(run_dir=None)
    parser.add_argument(
        "run_dir",
        metavar="RUN",
        type=_path,
        nargs="?",
        default=argparse.SUPPRESS,
        help=f"{RUN_HELP}; or give --policy",
    )
    group: Any = parser.add_argument_group(
        "a policy that was made elsewhere, instead of RUN (docs/any_policy.md)"
    )
    for flag, (metavar, text) in POLICY_FLAGS.items():
        add_optional(group, flag, type=int if metavar == "N" else str, metavar=metavar, help=text)


def _path(text: str) -> Path | str:
    # Before Python 3.12, argparse gives a positional argument's default to its type, this mark included.
    return text if text is argparse.SUPPRESS else Path(text)


def policy_settings(args: argparse.Namespace) -> PolicySettings:
    """What the flags of `add_tested_arguments` say of a policy that was made elsewhere."""
    return PolicySettings(
        args.task, args.name, args.image_size, args.frame_stack, args.action_repeat, args.render,
        getattr(args, "test_env", None), args.image_key or "", args.train_seed or 0, args.decisions,
    )  # fmt: skip


def check_tested(args: argparse.Namespace) -> None:
    """Refuse flags that belong to the other of the two."""
    if (args.run_dir is None) == (args.policy is None):
        raise UserError(
            "give the directory of a run, or --policy with a policy that was made elsewhere, one of them"
        )
    for flag in POLICY_FLAGS if args.policy is None else ():
        if getattr(args, flag.removeprefix("--").replace("-", "_")) is not None:
            raise UserError(
                f"{flag} describes a --policy that was made elsewhere; a run has its own, so leave it out"
            )


def add_weights_arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights of a run, and on which test media: what `eval`, `play` and `diagnose` share."""
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


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `eval` and `play` share."""
    add_weights_arguments(parser)
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


def add_optional(parser: argparse._ActionsContainer, flag: str, **settings: Any) -> None:
    """A flag that is None if not given, whose help says itself what happens then (not "default: None")."""
    parser.set_defaults(**{flag.removeprefix("--").replace("-", "_"): None})
    parser.add_argument(flag, default=argparse.SUPPRESS, **settings)


def run(args: argparse.Namespace) -> int:
    check_tested(args)
    modes = None if args.modes is None else split_modes(args.modes)
    if args.policy is not None:
        report, out = _evaluate_policy(args, modes)
    else:
        names = {field.name for field in dataclasses.fields(EvaluationOptions)} - {"modes"}
        options = EvaluationOptions(modes=modes, **{name: getattr(args, name) for name in names})
        report, out = evaluate_run(options)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        _print_table(report, report["results"], out)
    return 0


def _evaluate_policy(args: argparse.Namespace, modes: Sequence[str] | None) -> tuple[dict[str, Any], Path]:
    from softaug.integrations.any_policy import open_policy

    if args.adapt is not None or args.checkpoint != "last":
        raise UserError("--adapt and --checkpoint are for runs; leave them out with --policy")
    return evaluate_policy(
        open_policy(args.policy),
        policy_settings(args),
        modes=modes,
        episodes=args.episodes,
        seed=args.seed,
        workers=args.workers,
        videos=args.videos,
        colors=args.colors,
        video=args.video,
        out=args.out,
        trust=args.trust,
    )


def _print_table(report: dict[str, Any], rows: Sequence[dict[str, Any]], out: Path) -> None:
    console = Console(highlight=False)
    adapts = any(row["adapt"] for row in rows)
    table = Table(
        title=f"{report['task']}, {get_method(report['method']).title}, {_trained(report['decisions'])}",
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
    modes = [row["mode"] for row in rows]
    for row in sorted(
        rows, key=lambda row: modes.index(row["mode"])
    ):  # with and without adaptation side by side
        cells = [row["mode"], *([("yes" if row["adapt"] else "no")] if adapts else [])]
        cells += [f"{row['mean']:.1f} ± {row['std']:.1f}", str(row["episodes"]), f"{row['decisions']:,}"]
        table.add_row(*cells, row["media"] or "–")
    console.print(table)
    for note in sorted({row["note"] for row in rows if row["note"]}):
        console.print(note)
    console.print(f"written to {out}", markup=False, soft_wrap=True)


def _trained(decisions: int | None) -> str:
    return f"{decisions} decisions of training" if decisions else "decisions of training unknown"
