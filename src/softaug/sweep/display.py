"""What people see of a sweep: a live table on a terminal, else a line for each change and every minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from softaug.progress import LiveScreen
from softaug.sweep.plan import PlannedRun
from softaug.sweep.progress import RunProgress, read_progress
from softaug.sweep.supervise import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, Outcome, read_status

READ_SECONDS = 2.0
"""Time between reads of the runs' files."""
PLAIN_SECONDS = 60.0
"""Time between lines about a run in progress, when the output is no terminal."""

WIDE = 100
"""Columns of a terminal on which everything has room."""

ORDER = (RUNNING, FAILED, INTERRUPTED, WAITING, FINISHED)
"""What to see first where not everything fits."""
STYLES = {RUNNING: "cyan", FINISHED: "green", FAILED: "bold red", INTERRUPTED: "yellow", WAITING: "dim"}


@dataclass(frozen=True)
class SweepRow:
    """One run as shown."""

    run: PlannedRun
    state: str
    attempts: int
    progress: RunProgress

    @property
    def seconds_left(self) -> float | None:
        return self.progress.seconds_left(self.run.config.decisions) if self.state == RUNNING else None

    @property
    def shown_state(self) -> str:
        return f"try {self.attempts}" if self.state == RUNNING and self.attempts > 1 else self.state


def read_row(run: PlannedRun, sweep: str) -> SweepRow:
    """The run as its files say, for a sweep in progress."""
    status = read_status(run, sweep)
    state = FINISHED if run.begun() == FINISHED else status.state if status is not None else WAITING
    return SweepRow(
        run, state, status.attempts if status is not None else 0, read_progress(run.directory, run.config)
    )


def outcome_row(outcome: Outcome) -> SweepRow:
    run = outcome.run
    return SweepRow(run, outcome.state, outcome.attempts, read_progress(run.directory, run.config))


class SweepDisplay(LiveScreen):
    """Follows the files of `runs`, on stderr. `refresh` may be called as often as one likes."""

    def __init__(
        self, runs: Sequence[PlannedRun], sweep: str, *, quiet: bool = False, stream: TextIO | None = None
    ):
        super().__init__(quiet=quiet, stream=stream)
        self._runs, self._sweep, self._quiet = runs, sweep, quiet
        self._read_at = -READ_SECONDS
        self._settled: dict[int, SweepRow] = {}
        self._told: dict[int, tuple[str, int, float]] = {}

    def note(self, text: str) -> None:
        if text != self._note:
            self._read_at = -READ_SECONDS
        super().note(text)

    def refresh(self) -> None:
        """Read the files and show what they say, at most every `READ_SECONDS`."""
        now = time.monotonic()
        if self._quiet or now - self._read_at < READ_SECONDS:
            return
        self._read_at = now
        rows = [self._row(number) for number in range(len(self._runs))]
        if self.live:
            left = sweep_seconds_left(rows)
            below = Text(summary(rows), style="bold")
            below.append(f"; about {duration(left)} left" if left is not None else "")
            below.append(f"\n{self._note}" if self._note else "")
            # Table heading and borders, the line about hidden rows and those below.
            fitting = max(3, self.console.height - 8)
            self.show(Group(table(rows, self.console.width, most=fitting), below))
        else:
            for number, row in enumerate(rows):
                self._tell(number, row, now)

    def _row(self, number: int) -> SweepRow:
        # A finished run's files do not change: in a large sweep most need not be read again.
        if number not in self._settled:
            row = read_row(self._runs[number], self._sweep)
            if row.state != FINISHED:
                return row
            self._settled[number] = row
        return self._settled[number]

    def _tell(self, number: int, row: SweepRow, now: float) -> None:
        state, attempts, when = self._told.get(number, (WAITING, 0, now))
        changed = (row.state, row.attempts) != (state, attempts)
        if changed or (row.state == RUNNING and now - when >= PLAIN_SECONDS):
            self._told[number] = (row.state, row.attempts, now)
            self.say(line(row))


def table(
    rows: Sequence[SweepRow], width: int, *, title: str | None = None, most: int | None = None
) -> Table:
    """All rows, or the `most` that matter now and how many are hidden, in `width` columns."""
    shown = list(rows)
    if most is not None and len(rows) > most:
        numbered = sorted(range(len(rows)), key=lambda i: (ORDER.index(rows[i].state), i))[:most]
        shown = [rows[i] for i in sorted(numbered)]
    hidden = len(rows) - len(shown)
    wide, going_on = width >= WIDE, any(row.state == RUNNING for row in rows)
    result = Table(
        title=title,
        caption=f"and {hidden} more" if hidden else None,
        box=None,
        padding=(0, 2 if wide else 1, 0, 0),
        title_justify="left",
        caption_justify="left",
        header_style="bold",
    )
    names = [
        "task",
        "method",
        "seed",
        "state",
        *(["decisions", "frames"] if wide or not going_on else ["done"]),
    ]
    names += ["per s", "ETA"] if going_on else []
    for name in [*names, "return"]:
        left = name in ("task", "method", "state")
        result.add_column(name, justify="left" if left else "right", no_wrap=name not in ("task", "method"))
    for row in shown:
        cells = _cells(row)
        result.add_row(*(cells[name] for name in [*names, "return"]))
    return result


def _cells(row: SweepRow) -> dict[str, str | Text]:
    config, progress, going = row.run.config, row.progress, row.state == RUNNING
    return {
        "task": config.task,
        "method": config.method,
        "seed": str(config.seed),
        "state": Text(row.shown_state, style=STYLES.get(row.state, "")),
        "decisions": f"{short(progress.decisions)}/{short(config.decisions)}",
        "done": f"{100 * progress.decisions // config.decisions}%",
        "frames": short(progress.frames),
        "per s": f"{progress.rate:.1f}" if going and progress.rate is not None else "–",
        "ETA": duration(row.seconds_left),
        "return": f"{progress.last_return:.0f}" if progress.last_return is not None else "–",
    }


def line(row: SweepRow) -> str:
    """One row as a line of a log."""
    progress, parts = row.progress, [f"{row.run.name}: {row.shown_state}"]
    if progress.decisions:
        parts.append(
            f"{progress.decisions:,}/{row.run.config.decisions:,} decisions ({progress.frames:,} frames)"
        )
    if row.state == RUNNING and progress.rate is not None:
        parts.append(f"{progress.rate:.1f} decisions/s")
    if row.seconds_left is not None:
        parts.append(f"ETA {duration(row.seconds_left)}")
    if progress.last_return is not None:
        parts.append(f"return {progress.last_return:.0f}")
    return "  ".join(parts)


def summary(rows: Sequence[SweepRow]) -> str:
    """How many runs are in which state."""
    counts = Counter(row.state for row in rows)
    return f"{len(rows)} run{'' if len(rows) == 1 else 's'}: " + ", ".join(
        f"{counts[state]} {state}" for state in ORDER if counts[state]
    )


def sweep_seconds_left(rows: Sequence[SweepRow]) -> float | None:
    """Until the whole sweep is done, if what waits takes as long as what runs; None before speeds are known."""
    running = [row for row in rows if row.state == RUNNING]
    left = [row.seconds_left for row in running if row.seconds_left is not None]
    whole = [
        row.run.config.decisions / row.progress.overall_rate for row in running if row.progress.overall_rate
    ]
    if not left or len(left) < len(running):
        return None
    waiting = sum(row.state == WAITING for row in rows)
    return max((sum(left) + waiting * sum(whole) / len(whole)) / len(running), *left)


def as_json(outcomes: Sequence[Outcome]) -> Mapping[str, object]:
    """The end of a sweep for programs."""
    runs = []
    for outcome in outcomes:
        config, progress = outcome.run.config, read_progress(outcome.run.directory, outcome.run.config)
        runs.append(
            {
                "task": config.task,
                "method": config.method,
                "seed": config.seed,
                "directory": str(outcome.run.directory),
                "state": outcome.state,
                "attempts": outcome.attempts,
                "decisions": progress.decisions,
                "frames": progress.frames,
                "last_return": progress.last_return,
                "error": outcome.error,
            }
        )
    counts = Counter(outcome.state for outcome in outcomes)
    return {**{state: counts[state] for state in (FINISHED, FAILED, INTERRUPTED)}, "runs": runs}


def short(count: int) -> str:
    """12,345 as 12.3k; so that a row fits a terminal of 80 columns."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.1f}k".replace(".0k", "k") if count < 1e6 else f"{count / 1e6:.2f}M"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds; from a hundred hours on, days and hours."""
    if seconds is None:
        return "–"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours < 100 else f"{hours // 24}d {hours % 24}h"
