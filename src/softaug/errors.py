"""The one exception for errors the user can fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: one sentence that says what is wrong and what to do.

    The command line prints it after ``softaug: error:`` and exits with status 2, without a traceback.
    """


def unknown(kind: str, name: object, choices: Iterable[str], *, others: str = "") -> UserError:
    """The error for a name that is none of `choices`: the nearest one first, then all. others: what else may be given."""
    known = list(choices)
    guess = did_you_mean(name, known)
    listed = f"{'Choose' if guess else 'choose'} one of {', '.join(known)}" if known else "there is none"
    return UserError(f"unknown {kind} {name!r}; {guess}{listed}{others}")


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """``"did you mean soda? "``, or nothing if no choice is similar."""
    lower = {choice.lower(): choice for choice in reversed(list(choices))}
    near = difflib.get_close_matches(str(name).lower(), lower, n=1)
    return f"did you mean {lower[near[0]]}? " if near else ""
