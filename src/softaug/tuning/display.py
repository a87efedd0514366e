"""What people see of a study: a live table on a terminal, else a line for each trial that ends and one a minute."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from softaug.progress import LiveScreen
from softaug.sweep.display import duration, short

if TYPE_CHECKING:
    from softaug.tuning.study import LiveTrial

REFRESH_SECONDS = 1.0
PLAIN_SECONDS = 60.0


class TuneDisplay(LiveScreen):
    """Progress on stderr."""

    def __init__(self, seconds: float | None, *, quiet: bool = False, stream: TextIO | None = None):
        """seconds: the time budget of a run; None: its decisions are the budget."""
        super().__init__(quiet=quiet, stream=stream)
        self._seconds = seconds
        self._refreshed = -REFRESH_SECONDS
        self._eta = Eta()

    def ended(self, study: Any, number: int) -> None:
        """A trial is over."""
        frozen = study.get_trials(deepcopy=False)[number]
        text = f"trial {number:>3}  {said_end(frozen)}"
        if not self.live:
            self.say(text)
        else:  # trials.csv has what does not fit
            self.console.print(text, no_wrap=True, overflow="ellipsis", markup=False)

    def refresh(self, study: Any, live: Sequence[LiveTrial], running: Collection[Path], total: int) -> None:
        """Show where the trials are, at most every `REFRESH_SECONDS`."""
        now = time.monotonic()
        if self.console.quiet or now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        over = over_trials(study)
        parts = [self._part(trial) for trial in live]
        left = self._eta.left(len(over) + sum(parts), total, now)
        head = f"{len(over)}/{total} trials over; best {said_best(over)}"
        head += f"; about {duration(left)} left" if left is not None else ""
        if not self.live:
            if self.due(PLAIN_SECONDS):
                going = ", ".join(
                    f"trial {t.number} {100 * p:.0f}%" for t, p in zip(live, parts, strict=True)
                )
                self.say(f"{head}; {going}" if going else head)
            return
        below = Text(head, style="bold")
        below.append(f"\n{self._note}" if self._note else "")
        self.show(Group(self._table(live, parts, running), below))

    def _part(self, live: LiveTrial) -> float:
        """How much of a trial's budget is used, 0 to 1."""
        parts = [0.0]
        for run in live.runs:
            curve = live.curve(run)
            used, whole = (
                (curve.last_decisions, run.config.decisions)
                if self._seconds is None
                else (curve.last_seconds, self._seconds)
            )
            parts.append(min(1.0, used / whole))
        return sum(parts) / max(1, len(live.runs))

    def _table(self, live: Sequence[LiveTrial], parts: Sequence[float], running: Collection[Path]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for name in ("trial", "task", "seed", "decisions", "per s", "last return", "done"):
            table.add_column(name, justify="left" if name in ("trial", "task") else "right", no_wrap=True)
        for trial, part in zip(live, parts, strict=True):
            name = f"{trial.number} (base)" if trial.is_base else str(trial.number)
            for run in trial.runs:
                curve, goes = trial.curve(run), run.directory in running
                if not goes and len(trial.runs) > 1 and not curve.last_decisions:
                    continue
                table.add_row(
                    name,
                    run.config.task,
                    str(run.config.seed),
                    f"{short(curve.last_decisions)}/{short(run.config.decisions)}",
                    f"{curve.rate:.1f}" if goes and curve.rate is not None else "–",
                    f"{curve.returns[-1]:.4g}" if curve.returns else "–",
                    f"{100 * part:.0f}%",
                    style=None if goes else "dim",
                )
        return table


class Eta:
    """Time left, from how much of the study this session has done. A pruned trial counts as a whole one, so that the
    rate includes what pruning saves."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None

    def left(self, done: float, total: float, now: float) -> float | None:
        if self._begun is None:
            self._begun = (now, done)
        seconds, gained = now - self._begun[0], done - self._begun[1]
        return seconds * max(0.0, total - done) / gained if gained > 0.1 else None


def over_trials(study: Any) -> list[Any]:
    """The study's trials that are over, by number."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def best_trial(trials: Sequence[Any]) -> Any | None:
    """The one with the highest score; of equals, the first."""
    scored = [trial for trial in trials if "score" in trial.user_attrs]
    return max(scored, key=lambda trial: (trial.user_attrs["score"], -trial.number)) if scored else None


def said_best(trials: Sequence[Any]) -> str:
    best = best_trial(trials)
    if best is None:
        return "–"
    name = "base preset" if best.user_attrs.get("base") else f"trial {best.number}"
    return f"{best.user_attrs['score']:.4g} ({name})"


def said_end(frozen: Any) -> str:
    """How a trial ended, in a line."""
    attributes: Mapping[str, Any] = frozen.user_attrs
    if "score" in attributes:
        text = f"score {attributes['score']:.4g}"
    else:
        text = f"{attributes.get('ending', 'failed')} {attributes.get('note', '')}".strip()
    if attributes.get("base"):
        return f"{text}  (the base preset)"
    values = "  ".join(f"{name} {said_value(value)}" for name, value in frozen.params.items())
    return f"{text}  {values}"


def said_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
