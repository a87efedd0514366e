"""``softaug export RUN``: the trained policy as one file for robots and other programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from softaug.commands.eval import RUN_HELP, add_optional
from softaug.evaluation.export import FORMATS, check_format, export_examples, export_policy
from softaug.evaluation.runs import load_run
from softaug.files import output_file
from softaug.zoo import outputs_of

SUFFIX = {"onnx": ".onnx", "torchscript": ".pt"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", type=Path, help=RUN_HELP)
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="file format")
    add_optional(
        parser, "--out", type=Path, metavar="FILE", help="file to write (default: RUN/policy.onnx or .pt)"
    )
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="last, best or a number of decisions"
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    check_format(args.format)
    trained = load_run(args.run_dir, args.checkpoint)
    path = output_file(args.out) if args.out else outputs_of(args.run_dir) / f"policy{SUFFIX[args.format]}"
    examples = export_examples(trained)
    difference, metadata = export_policy(trained, path, args.format, examples)
    facts = {
        "file": str(path),
        "format": args.format,
        "bytes": path.stat().st_size,
        "max_difference": difference,
        "observations_checked": len(examples.observations),
        **metadata,
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    shape = ", ".join(map(str, metadata["observation_shape"]))
    console.print(f"[bold]{escape(str(path))}[/bold]  {args.format}, {facts['bytes'] / 1e6:.1f} MB")
    console.print(f"  {metadata['task']}, {metadata['method']}, after {metadata['decisions']} decisions")
    console.print(f"  pixels uint8 (B, {shape}) -> action float32 (B, {metadata['action_dim']})")
    console.print(
        f"  checked against the original on {len(examples.observations)} observations and on random pixels: "
        f"actions differ by at most {difference:.1e}"
    )
    return 0
