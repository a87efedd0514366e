"""``softaug zoo``: policies that were trained before, to use (``zoo:NAME``) and to pass on."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softaug.envs.modes import BENCHMARK_MODES, ROBOT_MODES
from softaug.errors import UserError
from softaug.media.comparability import OUTDATED_NOTE, outdated
from softaug.zoo import PolicyFolder, locate, names
from softaug.zoo.places import HUB, ZOO, check_policy_name, is_packaged

ADVISED_BYTES = 1_000_000
"""Larger weights are published too, but make a repository of many policies heavy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every policy: task, method, length of training, returns")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    getting = actions.add_parser("get", help="copy a policy's folder, checked against its checksums")
    getting.add_argument("name", metavar="NAME", help="name in the zoo, or hf:ORG/NAME")
    getting.add_argument("--out", type=Path, metavar="DIR", help="folder to make (default: zoo/NAME)")
    adding = actions.add_parser("add", help="make a policy's folder from a run that was tested")
    adding.add_argument("run_dir", metavar="RUN", type=Path, help="directory of a run")
    adding.add_argument("--name", metavar="NAME", help="name of the policy (default: TASK-METHOD)")
    adding.add_argument(
        "--out", type=Path, default=Path("zoo"), metavar="DIR", help="folder of policies (default: zoo)"
    )
    adding.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="last, best or a number of decisions (default: last)",
    )
    adding.add_argument(
        "--replay",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="record the policy in the modes it was tested in",
    )
    adding.add_argument("--replace", action="store_true", help="replace the policy of this name")
    adding.add_argument("--push", metavar="ORG/NAME", help="also upload the folder to the Hugging Face Hub")
    updating = actions.add_parser(
        "update",
        help="add new test results to a policy's folder",
        description="Add what softaug eval measured of a policy, in runs/zoo of the current directory, to the policy's folder. "
        "Its card is written anew; weights, settings and replay stay.",
    )
    updating.add_argument("name", metavar="NAME", help="name in the zoo, or a policy's folder")


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "get": _get, "add": _add, "update": _update}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    policies: dict[str, dict[str, Any]] = {}
    for name, folder in names().items():
        try:
            policies[name] = PolicyFolder(folder).results()
        except UserError as error:
            print(f"note: {error}", file=sys.stderr)
    if args.json:
        print(json.dumps([{**results, "name": name} for name, results in policies.items()], indent=1))
        return 0
    if not policies:
        print("there is no policy yet; make one from a run with: softaug zoo add RUN")
        return 0
    modes = list(dict.fromkeys(row["mode"] for results in policies.values() for row in results["results"]))
    console = Console(highlight=False)
    for group, tested in _groups(policies, modes):
        console.print(_table(tested, group, console))
    rows = [row for results in policies.values() for row in results["results"]]
    notes = {OUTDATED_NOTE if outdated(row.get("source")) else row["note"] for row in rows}
    for note in sorted(filter(None, notes)):
        console.print(note, markup=False)
    console.print(
        f"use one as {ZOO}NAME wherever a run is accepted, for example: softaug eval {ZOO}{next(iter(policies))}"
    )
    return 0


def _groups(
    policies: dict[str, dict[str, Any]], modes: Sequence[str]
) -> Iterator[tuple[list[str], dict[str, dict[str, Any]]]]:
    """Modes and the policies tested in them, by benchmark: one table of all modes would be too wide for any terminal."""
    benchmark, robot = ({mode.name for mode in group} for group in (BENCHMARK_MODES, ROBOT_MODES))
    others = set(modes) - benchmark - robot
    for group in (benchmark, {"train", *robot}, others):
        tested = {}
        for name, about in policies.items():
            # The return in train stands in the first table, or next to those in the robot's modes.
            only_train = group is benchmark and not _means(about, robot) and _means(about, {"train"})
            if only_train or _means(about, group - {"train"}):
                tested[name] = about
        if tested:
            yield [mode for mode in modes if mode in group], tested


def _shown(mean: float, task: str) -> str:
    """Robot push has returns up to 50, the suite's tasks up to 1,000."""
    return f"{mean:.1f}" if task.startswith("robot_push") else f"{mean:.0f}"


def _means(results: dict[str, Any], modes: Collection[str]) -> dict[str, float]:
    """The mean return per mode; of several results (with and without adaptation, other media) the first, on today's procedural
    videos if there is one."""
    best_first = sorted(results["results"], key=lambda row: outdated(row.get("source")))
    return {row["mode"]: row["mean"] for row in reversed(best_first) if row["mode"] in modes}


def _table(policies: dict[str, dict[str, Any]], modes: Sequence[str], console: Console) -> Table:
    """The widest of these that fits: with task and method, with modes on two lines, or without what most names say."""
    named_alike = all(
        name.startswith(f"{about['task']}-{about['method']}") for name, about in policies.items()
    )
    for facts, padding, title in [
        (("task", "method"), 1, lambda mode: mode),
        (("task", "method"), 1, lambda mode: mode.replace("_", "_\n")),
        (() if named_alike else ("task", "method"), 0, lambda mode: mode.replace("_", "_\n")),
    ]:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0))
        for fact in ("name", *facts):
            table.add_column(fact, no_wrap=fact == "name", overflow="fold")
        for column in ("decisions", *modes):
            table.add_column(escape(title(column)), justify="right", overflow="fold")
        for name, about in policies.items():
            means = _means(about, modes)
            said = (name, *(about[fact] for fact in facts), f"{about['decisions']:,}")
            returns = [_shown(means[mode], about["task"]) if mode in means else "–" for mode in modes]
            table.add_row(*map(escape, said), *returns)
        if console.measure(table, options=console.options.update(width=1000)).maximum <= console.width:
            break
    return table


def _get(args: argparse.Namespace) -> int:
    reference = args.name if args.name.startswith((ZOO, HUB)) else f"{ZOO}{args.name}"
    folder = PolicyFolder(locate(reference))
    # The name is what its file says, which others wrote: it must not lead out of ./zoo.
    target = args.out or Path("zoo") / check_policy_name(folder.name)
    if target.exists() and target.resolve() == folder.path.resolve():
        folder.verify()
        print(f"{target} is there already, and its checksums are right")
        return 0
    folder.copy(target)
    print(f"written to {target}")
    return 0


def _add(args: argparse.Namespace) -> int:
    from softaug.results.publishing import publish
    from softaug.zoo import hub

    if args.push is not None:
        hub.check_push(args.push)
    folder = publish(
        args.run_dir,
        args.out,
        name=args.name,
        checkpoint=args.checkpoint,
        replay=args.replay,
        replace=args.replace,
        reference=None if args.push is None else f"{HUB}{args.push}",
        say=lambda text: print(f"note: {text}", file=sys.stderr),
    )
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    print(
        f"written to {folder}: " + ", ".join(f"{name} {size / 1e3:,.0f} kB" for name, size in sizes.items())
    )
    if sizes["policy.safetensors"] > ADVISED_BYTES:
        print(
            "note: the weights have more than 1 MB; a repository is a better place for smaller ones",
            file=sys.stderr,
        )
    if args.push is not None:
        try:
            address = hub.push(folder, args.push)
        except UserError as error:
            raise UserError(f"{error}. {folder} is complete; to upload it later, add --replace") from None
        print(f"uploaded to {address}")
    return 0


def _update(args: argparse.Namespace) -> int:
    from softaug.results.publishing import update

    if args.name.startswith(HUB):
        raise UserError(
            f"a policy of the hub cannot be changed here; copy it with: softaug zoo get {args.name}"
        )
    if args.name.startswith(ZOO) or not (Path(args.name).exists() or "/" in args.name):
        folder = locate(ZOO + args.name.removeprefix(ZOO))
        if is_packaged(folder):
            raise UserError(
                f"{folder.name} is a policy of the softaug package, which stays as it is; "
                f"copy it first with: softaug zoo get {folder.name}"
            )
    else:
        folder = Path(args.name)
    for row in update(folder):
        said = [f"{row['media']} media"] if row["media"] else []
        said += ["adapting"] if row["adapt"] else []
        about = f" ({', '.join(said)})" if said else ""
        print(f"{row['mode']}{about}: {row['mean']:.1f} in {row['episodes']} episodes")
    print(f"written to {folder}")
    return 0
