"""``softaug report RUNS…``: one self-contained HTML page about runs, finished or in progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
import webbrowser
from pathlib import Path

from softaug.errors import UserError
from softaug.files import output_file

WATCH_SECONDS = 15.0
LEAST_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        type=Path,
        help="run directories, folders that contain some, zoo:NAME",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page to write"
    )
    parser.set_defaults(watch=None)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=WATCH_SECONDS,
        default=argparse.SUPPRESS,
        metavar="SECONDS",
        help=f"write the page again every N seconds while runs are in progress (without a number: {WATCH_SECONDS:g}), until Ctrl-C",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--samples", action=argparse.BooleanOptionalAction, default=True, help="render sample observations"
    )
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="measure invariance first for runs without it (see softaug diagnose)",
    )
    parser.add_argument("--json", action="store_true", help="print the page's content as JSON")


def run(args: argparse.Namespace) -> int:
    if args.watch is not None and not LEAST_SECONDS <= args.watch < float("inf"):
        raise UserError(f"--watch needs at least {LEAST_SECONDS:g} second, not {args.watch:g}")
    output_file(args.out)  # refused before anything is read
    from softaug.results.report import Reporter

    reporter = Reporter(args.runs, samples=args.samples, diagnose=args.diagnose, say=_say)
    before = reporter.state()
    written = reporter.write(args.out, reload_seconds=args.watch)
    for problem in written.content.problems:
        _say(f"note: {problem}")
    if args.open and not webbrowser.open(args.out.resolve().as_uri()):
        _say(f"no browser was found; open {args.out.resolve().as_uri()}")
    if args.watch is not None:
        _say(
            f"{args.out} follows {_runs(len(written.content.records))}, every {args.watch:g} s; stop with Ctrl-C"
        )
        try:
            while True:
                time.sleep(args.watch)
                if (now := reporter.state()) != before:
                    before = now
                    written = reporter.write(args.out, reload_seconds=args.watch)
        except KeyboardInterrupt:
            written = reporter.write(args.out)  # one that stands still
    if args.json:
        print(json.dumps(written.to_json(), indent=1))
    else:
        runs = _runs(len(written.content.records))
        print(f"report of {runs} written to {args.out} ({written.size / 1e6:.1f} MB)")
        print(f"open it in a browser: {args.out.resolve().as_uri()}")
    return 0


def _runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
