"""Measure speed on this machine."""

from __future__ import annotations

import argparse
import importlib
import json

# Name -> what it measures; the code is softaug.benchmarks.NAME with `add_arguments`, `run` (-> JSON values) and `show`.
BENCHMARKS = {
    "env": "environments: time of a decision and its parts, of a reset, frames per second",
    "update": "learner: time of an update and its parts",
    "replay": "replay: time to store and to sample",
    "data": "overlay images from a packed folder, and how long a learner waits for its data",
    "lab": "softaug lab: frames per second, how soon a control takes effect, growth of memory",
    "train": "a short real run: parts of a decision, decisions per second, and the machine's limit",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"{name:8}{what}" for name, what in BENCHMARKS.items())
    parser.add_argument("benchmark", choices=BENCHMARKS, help="what to measure")
    parser.set_defaults(parser_class=type(parser))
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="its options: see `softaug bench NAME --help`"
    )


def run(args: argparse.Namespace) -> int:
    # Only the chosen benchmark is imported: some need torch, some MuJoCo.
    benchmark = importlib.import_module(f"softaug.benchmarks.{args.benchmark}")
    parser = args.parser_class(
        prog=f"softaug bench {args.benchmark}",
        description=BENCHMARKS[args.benchmark],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    benchmark.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(args.options)
    result = benchmark.run(options)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        benchmark.show(result)
    return 0
