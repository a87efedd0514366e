"""``softaug diagnose RUN``: what changes in a network when only the appearance of a state changes, and what it knows of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from softaug.commands.eval import (
    add_optional,
    add_tested_arguments,
    add_weights_arguments,
    check_tested,
    policy_settings,
)
from softaug.config import default_directory
from softaug.envs.modes import MODE_GROUPS, split_modes
from softaug.errors import UserError
from softaug.evaluation.diagnose import DEFAULT_MODES, IMAGE_FILE, JSON_FILE, Counter, Diagnosis, diagnose
from softaug.evaluation.diagnose.probe import DEFAULT_STATES, Probe, probe_runs
from softaug.evaluation.diagnose.saliency import file_stem, film_saliency
from softaug.evaluation.policy import PolicyFault
from softaug.evaluation.policy_evaluation import ForeignPolicy, check_diagnosed, identify, policy_config
from softaug.evaluation.run_evaluation import check_modes, with_media
from softaug.evaluation.runs import Run, load_run
from softaug.progress import Bars
from softaug.trust import add_trust_argument, require_trust
from softaug.zoo import outputs_of

SALIENCY_MODES = ("train", "video_hard")
COMPARED_STATES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tested_arguments(parser)
    add_optional(
        parser,
        "--modes",
        metavar="A,B",
        help=f"modes, comma-separated (default: {','.join(DEFAULT_MODES)}); "
        f"{'|'.join(MODE_GROUPS)} stand for a benchmark's",
    )
    add_optional(
        parser,
        "--states",
        type=int,
        metavar="N",
        help=f"physics states to compare (default: {COMPARED_STATES}; with --probe {DEFAULT_STATES})",
    )
    add_weights_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of states and appearances")
    add_optional(
        parser,
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where {JSON_FILE} and {IMAGE_FILE} go (default: RUN; with --policy runs/TASK-NAME-SEED)",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--saliency",
        action="store_true",
        help="instead: a video and an image per mode of what the critic looks at (--states: decisions shown)",
    )
    instead.add_argument(
        "--probe",
        action="store_true",
        help="instead: how well the physics state can be read from the features in each mode (R², probe.json)",
    )
    add_optional(
        parser,
        "--against",
        type=Path,
        action="append",
        metavar="RUN",
        help="with --saliency or --probe: another run, on the same states; may be repeated",
    )
    add_trust_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    check_tested(args)
    trained = _policy(args) if args.policy is not None else load_run(args.run_dir, args.checkpoint)
    trained = with_media(trained, args.videos, args.colors)
    out = args.out or (trained.path if args.policy is not None else outputs_of(args.run_dir))
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a directory")
    if isinstance(trained, ForeignPolicy):
        check_diagnosed(trained, out)
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, but is {args.seed}")
    modes = None if args.modes is None else check_modes(split_modes(args.modes), trained.config)
    if args.saliency or args.probe:
        if isinstance(trained, ForeignPolicy):
            flag = "--saliency" if args.saliency else "--probe"
            raise UserError(f"{flag} needs a run's networks, which a --policy does not show; give a run")
        if args.probe:
            return _probe(args, trained, modes, out)
        own = list(trained.config.own_modes)
        return _film(args, trained, modes or own or list(SALIENCY_MODES), out)
    if args.against is not None:
        raise UserError(
            "--against is for --saliency and --probe; to compare two runs' invariance, diagnose each of them"
        )
    with Bars("states") as bars:
        try:
            diagnosis = diagnose(
                trained,
                modes=modes,
                states=COMPARED_STATES if args.states is None else args.states,
                seed=args.seed,
                trust=args.trust,
                progress=bars.stage,
            )
        except PolicyFault as fault:
            raise UserError(f"{fault} during the diagnosis; fix the policy") from fault
    diagnosis.save(out)
    if args.json:
        print(json.dumps(diagnosis.to_json(), indent=1))
    else:
        _print_table(diagnosis, out)
    return 0


def _policy(args: argparse.Namespace) -> ForeignPolicy:
    """A policy that was made elsewhere; its results, if there are any, are in the same directory."""
    from softaug.integrations.any_policy import open_policy

    source = open_policy(args.policy)
    config = policy_config(source, policy_settings(args), trust=args.trust)
    return identify(source, config, default_directory(config))


def _film(args: argparse.Namespace, trained: Run, modes: list[str], out: Path) -> int:
    runs = _with_others(args, trained)
    decisions = COMPARED_STATES if args.states is None else args.states
    for run in runs:
        require_trust(run.path, run.config, trust=args.trust)
        check_modes(modes, run.config)
    files, notes = [], []
    with Bars("decisions") as bars:
        for mode in modes:
            advance = Counter(bars.stage, mode, decisions).advance
            notes += film_saliency(runs, mode, out, decisions=decisions, seed=args.seed, progress=advance)
            files += [str(out / f"{file_stem(mode)}{kind}") for kind in (".mp4", ".png")]
    notes = list(dict.fromkeys(notes))
    if args.json:
        print(json.dumps({"runs": [str(run.path) for run in runs], "files": files, "notes": notes}, indent=1))
        return 0
    console = Console(highlight=False)
    for line in (*notes, f"written to {', '.join(files)}"):
        console.print(line, markup=False, soft_wrap=True)
    return 0


def _with_others(args: argparse.Namespace, trained: Run) -> list[Run]:
    """The run and those it is compared with."""
    others = [load_run(path, args.checkpoint) for path in args.against or ()]
    return [trained, *(with_media(other, args.videos, args.colors) for other in others)]


def _probe(args: argparse.Namespace, trained: Run, modes: list[str] | None, out: Path) -> int:
    runs = _with_others(args, trained)
    states = DEFAULT_STATES if args.states is None else args.states
    with Bars("states") as bars:
        probe = probe_runs(runs, modes=modes, states=states, seed=args.seed, progress=bars.stage)
    file = probe.save(out)
    if args.json:
        print(json.dumps(probe.to_json(), indent=1))
        return 0
    console = Console(highlight=False)
    for result in probe.runs:
        console.print(_probe_table(probe, result))
    console.print(
        f"R² of a linear probe, fitted to {probe.states['fit'] + probe.states['validation']} states in the training "
        f"appearance, on {probe.states['test']} states of other episodes: 1 is exact, 0 no better than the mean. The last column is an "
        "untrained encoder in the training appearance. Means count what is below 0 as 0.",
        style="dim",
    )
    for line in (*probe.notes, f"written to {file}"):
        console.print(line, markup=False, soft_wrap=True)
    return 0


def _probe_table(probe: Probe, result: dict[str, Any]) -> Table:
    """Every component from the encoder's features, then the mean of each stage."""
    after = result["checkpoint"]["decisions"]
    title = f"{probe.task}, {result['method']}" + (f", {after} decisions of training" if after else "")
    table = Table(title=title, title_justify="left", title_style="bold", padding=(0, 0))
    table.add_column("from the features", overflow="fold")
    for column in (*probe.modes, "untrained"):
        table.add_column(column, justify="right", overflow="fold")

    def cells(stage: str, component: str | None = None) -> list[str]:
        untrained = result["untrained"].get(stage, result["untrained"]["actor_projection"])["train"]
        scores = [*(result["r2"][stage][mode] for mode in probe.modes), untrained]
        return [_r2(each["components"][component] if component else each["mean"]) for each in scores]

    for name in probe.components:
        table.add_row(name, *cells("features", name))
    table.add_section()
    for stage in result["r2"]:
        title = "mean" if stage == "features" else f"mean, {stage.replace('_', ' ')}"
        table.add_row(title, *cells(stage))
    return table


def _r2(value: float | None) -> str:
    if value is None:
        return "n/a"
    return "< -1" if value < -1 else f"{value:.2f}"


def _print_table(diagnosis: Diagnosis, out: Path) -> None:
    console = Console(highlight=False)
    trained = diagnosis.checkpoint["decisions"]
    after = "" if not trained else f", {trained} decisions of training"
    table = Table(
        title=f"{diagnosis.task}, {diagnosis.method}{after}",
        title_justify="left",
        title_style="bold",
    )
    titles = {"cosine_features": "cos f", "cosine_projection": "cos proj.", "cosine_soda": "cos g"}
    titles["action_distance"] = "|Δ action|"
    columns = {name: title for name, title in titles.items() if name in diagnosis.baseline}
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
    console.print(f"written to {out / JSON_FILE} and {IMAGE_FILE}", markup=False, soft_wrap=True)


def _relative(value: dict[str, Any]) -> str:
    return "–" if value["relative"] is None else f"{value['relative']:.2f}"


def _number(value: dict[str, Any]) -> str:
    return f"{value['mean']:.2f} ± {value['std']:.2f}"
