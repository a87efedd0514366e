"""Progress for people, on stderr: live on a terminal, else a persistent line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

PLAIN_SECONDS = 30.0
"""Time between lines of progress when the output is not a terminal."""


AnyScreen = TypeVar("AnyScreen", bound="LiveScreen")


class LiveScreen:
    """Where progress is shown. `live` says whether `show` has an effect; without it, say a line when one is `due`."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        auto_refresh: bool = False,
        transient: bool = True,
    ):
        """auto_refresh: draw four times a second, else with each `show`. transient: nothing stays in the end."""
        self.console = Console(file=stream or sys.stderr, quiet=quiet, highlight=False, emoji=False)
        self.live = self.console.is_terminal and not quiet
        self._last_line = time.monotonic()
        self._note = ""
        self._live = Live(console=self.console, auto_refresh=auto_refresh, transient=transient)
        if self.live:
            self._live.start()

    def say(self, text: str) -> None:
        """Prints a persistent line."""
        self.console.print(text, soft_wrap=True, markup=False)

    def note(self, text: str) -> None:
        """What the work as a whole is doing now: a line if it is new, on a terminal part of what is shown live."""
        if text != self._note:
            self._note = text
            if not self.live:
                self.say(text)

    def show(self, content: RenderableType) -> None:
        """Replaces what is shown live."""
        if self.live:
            self._live.update(content, refresh=not self._live.auto_refresh)

    def due(self, seconds: float = PLAIN_SECONDS) -> bool:
        """Whether there is no live output and the last True is `seconds` ago."""
        now = time.monotonic()
        if self.live or now - self._last_line < seconds:
            return False
        self._last_line = now
        return True

    def close(self) -> None:
        if self.live:
            self._live.stop()

    def __enter__(self: AnyScreen) -> AnyScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RateColumn(ProgressColumn):
    """The rate that the caller gives, else what rich measures: units, or MB of a download, per second."""

    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        if task.fields["rate"] or not task.speed:
            return Text(task.fields["rate"])
        return Text(f"{task.speed:,.1f} {self._unit}/s" if self._unit else f"{task.speed / 1e6:,.1f} MB/s")


class Bars(LiveScreen):
    """A bar for each stage of something long, with a line of text below all of them."""

    def __init__(self, unit: str, *, count: ProgressColumn | None = None, **options: Any):
        """unit: what is counted. count: the column that shows how many, if not as plain numbers."""
        super().__init__(auto_refresh=True, **options)
        self._bars = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            count or TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
            RateColumn(unit),
            TimeRemainingColumn(compact=True),
            console=self.console,
            speed_estimate_period=120,
        )
        self._stages: dict[str, TaskID] = {}
        self.below = Text(no_wrap=True, overflow="ellipsis", style="cyan")
        self.show(Group(self._bars, self.below))

    def stage(
        self, name: str, done: int, total: int | None, *, rate: str = "", title: str | None = None
    ) -> None:
        """`done` of `total` in the stage `name`. What was done before its first call does not count for the speed."""
        if name not in self._stages:
            self._stages[name] = self._bars.add_task(name, total=total, completed=done, rate=rate)
        self._bars.update(
            self._stages[name], completed=done, total=total, rate=rate, description=title or name
        )

    def restart(self, name: str, done: int) -> None:
        """What was done until now does not count for the speed."""
        self._bars.reset(self._stages[name], completed=done)
