"""The command line: ``softaug COMMAND ...``.

Each command lives in a file of its own under ``commands/`` with two functions, ``add_arguments(parser)``
and ``run(args) -> int`` (the exit status). Only the chosen command is imported, so that
``softaug --help`` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence

import softaug
from softaug.errors import UserError
from softaug.starting import imports_end_at_ctrl_c

COMMANDS = {
    "train": "train an agent",
    "sweep": "train a grid of tasks, methods and seeds, here or on a Ray cluster",
    "tune": "search hyper-parameters for your tasks, and write the best as a preset file",
    "eval": "returns of a trained agent in the test distributions",
    "play": "record a video of a trained agent",
    "diagnose": "how far features and actions move when only the look of a state changes",
    "report": "one HTML page about runs: tables, curves, videos",
    "reproduce": "the paper's tables and figures; runs that are missing are made",
    "export": "write encoder and policy as ONNX or TorchScript",
    "gallery": "a picture of every task in every mode",
    "data": "list, register, check or download images and videos",
    "bench": "measure speed on this machine",
    "doctor": "check that training can run here",
}


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The whole parser; only `chosen`'s arguments are filled in."""
    parser = argparse.ArgumentParser(prog="softaug", description=(softaug.__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"softaug {softaug.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_line in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=help_line,
            description=help_line,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        if name == chosen:
            module = importlib.import_module(f"softaug.commands.{name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a `UserError` becomes one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        with imports_end_at_ctrl_c():
            args = build_parser(chosen).parse_args(arguments)
        return int(args.run(args) or 0)
    except UserError as error:
        print(f"softaug: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"softaug: error: the disk is full ({error}); free some space and try again", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("softaug: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
