"""The command line: ``softaug COMMAND ...``.

Each command lives in a file of its own under ``commands/`` with two functions, ``add_arguments(parser)``
and ``run(args) -> int`` (the exit status). Only the chosen command is imported, so that
``softaug --help`` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import softaug
from softaug.errors import UserError, did_you_mean, unknown
from softaug.files import check_name
from softaug.starting import imports_end_at_ctrl_c
from softaug.storage.run_files import run_directory_of
from softaug.versions import VERSION

COMMANDS = {
    "train": "train an agent",
    "sweep": "train a grid of tasks, methods and seeds, here or on a Ray cluster",
    "tune": "search hyperparameters for your tasks, and write the best as a preset file",
    "eval": "returns of a trained agent in the test distributions",
    "play": "record a video of a trained agent",
    "lab": "change the world live in the browser, and watch policies cope",
    "diagnose": "how far features and actions move when only the appearance of a state changes",
    "report": "one HTML page about runs: tables, curves, videos",
    "reproduce": "the paper's tables and figures; missing runs are trained",
    "export": "write encoder and policy as ONNX or TorchScript",
    "zoo": "list, get, add or update trained policies; zoo:NAME is accepted wherever a run is",
    "gallery": "images of every task in every mode",
    "data": "list, register, check or download images and videos",
    "bench": "measure speed on this machine",
    "doctor": "check that training can run here",
}


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors are one sentence that suggests the nearest flag or command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what is left over here, where the flags of the chosen command are known."""
        found, left_over = super().parse_known_args(args, namespace)
        if left_over:
            flag = next((word for word in left_over if word.startswith("-")), left_over[0]).partition("=")[0]
            guess = did_you_mean(flag, self._option_string_actions).rstrip("? ")
            self.error(f"unrecognized arguments: {' '.join(left_over)}{guess and '; ' + guess}")
        return found, left_over

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = action.metavar if isinstance(action.metavar, str) else action.dest
            raise argparse.ArgumentError(None, str(unknown(kind.lower(), value, map(str, action.choices))))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse takes `--flag=--` for a flag without its value.
        if action.option_strings and action.nargs in (None, argparse.ONE_OR_MORE) and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, not --")
        return super()._get_values(action, arg_strings)


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The whole parser; only `chosen`'s arguments are filled in."""
    parser = Parser(prog="softaug", description=(softaug.__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"softaug {VERSION}")
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


PLACES_AT_FAULT = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR,
     errno.ELOOP, errno.ENXIO, errno.EEXIST, errno.EBUSY, errno.ENOTEMPTY)
)  # fmt: skip
"""Errors of the operating system that are about the user's files and disks, not about this program."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a `UserError` becomes one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        import_nothing_from_a_run()
        with imports_end_at_ctrl_c():
            args = build_parser(chosen).parse_args(arguments)
        _check_names(args)
        return int(args.run(args) or 0)
    except UserError as error:
        print(f"softaug: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            said = f"the disk is full ({error}); free some space and try again"
        elif error.errno in PLACES_AT_FAULT:
            said = (
                f"{error.filename or 'a file'} cannot be used ({error.strerror}); check it, or name another"
            )
        else:
            raise
        print(f"softaug: error: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("softaug: interrupted", file=sys.stderr)
        return 130


def import_nothing_from_a_run() -> None:
    """A run directory may come from somebody else: if this is one, its files are no modules.

    Python puts the current directory on the path of `python -m` and of the processes that are started from here.
    """
    try:
        here = Path.cwd()
    except OSError:  # deleted
        return
    if run_directory_of(here) is not None:
        sys.path[:] = [place for place in sys.path if place not in ("", str(here))]
        os.environ["PYTHONSAFEPATH"] = "1"  # Python 3.11 and newer read it


def _check_names(args: argparse.Namespace) -> None:
    """Refuse paths that no file can have, wherever on the command line they are."""
    for value in vars(args).values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Path):
                check_name(item)
            elif isinstance(item, str) and "\0" in item:
                raise UserError(f"{item!r} contains a zero byte; remove it")


if __name__ == "__main__":
    sys.exit(main())
