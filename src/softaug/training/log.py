"""Where a run's numbers go: ``metrics.jsonl``, TensorBoard, Weights & Biases and the terminal.

``metrics.jsonl`` has one JSON object a line. Its ``kind`` is ``train`` (losses averaged over `log_every` decisions),
``episode`` or ``eval``. Everything but the wall clock (`WALL_CLOCK`) is reproducible bit for bit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from softaug.errors import UserError
from softaug.progress import Bars

WALL_CLOCK = ("seconds", "decisions_per_second")
"""The keys of a metrics line that depend on the machine's speed; all others are reproducible."""

RATE_SECONDS = 2.0
"""Time over which decisions per second are measured for the terminal."""


class MeanLosses:
    """Running means of the losses that updates return, summed on their device: no wait until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, losses: Mapping[str, torch.Tensor]) -> None:
        for name, value in losses.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """The mean of each loss since the last `clear`; this is where the device is waited for."""
        return {name: total.item() / self._counts[name] for name, total in self._sums.items()}

    def clear(self) -> None:
        self._sums.clear()
        self._counts.clear()

    def state(self) -> dict[str, Any]:
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state(self, tree: Mapping[str, Any], device: torch.device) -> None:
        self._sums = {name: value.to(device) for name, value in tree["sums"].items()}
        self._counts = dict(tree["counts"])


class MetricsFile:
    """``metrics.jsonl``: lines are appended; `offset` is where a resumed run cuts the file."""

    def __init__(self, path: Path, *, offset: int = 0):
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise UserError(
                f"{path} has {size} bytes, but the checkpoint was made after {offset}; restore the file to resume"
            )
        self._file = path.open("ab")
        self._file.truncate(offset)

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def offset(self) -> int:
        """Bytes so far, all of them on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl`` (of one `kind`); the unfinished last line of a killed run is left out."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give the metrics.jsonl of a softaug run")
    whole_lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines = [json.loads(line) for line in whole_lines]
    return [line for line in lines if kind is None or line["kind"] == kind]


class Sink(Protocol):
    """A place outside the run's own file that takes scalars."""

    def scalars(self, values: Mapping[str, float], decisions: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Events in ``tb/``; a resumed run hides what was written after its checkpoint (`purge_step`)."""

    def __init__(self, directory: Path, *, decisions: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=decisions + 1 if decisions else None)

    def scalars(self, values: Mapping[str, float], decisions: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, decisions)

    def close(self) -> None:
        self._writer.close()


def check_wandb() -> None:
    """Refuse to log to Weights & Biases where it is not installed."""
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise UserError(
            "logging to Weights & Biases needs wandb; install it with: pip install 'softaug[tracking]'"
        ) from None


class WeightsAndBiases:
    """A run in the given project. A resumed run continues in the same one."""

    def __init__(self, project: str, *, name: str, run_id: str, config: Mapping[str, Any]):
        check_wandb()
        import wandb

        self._run = wandb.init(project=project, name=name, id=run_id, config=dict(config), resume="allow")

    def scalars(self, values: Mapping[str, float], decisions: int) -> None:
        self._run.log({**values, "decisions": decisions}, step=decisions)

    def close(self) -> None:
        self._run.finish()


class RunLog:
    """Metrics to every place at once, in the order in which they happen."""

    def __init__(self, file: MetricsFile, sinks: list[Sink]):
        self.file = file
        self._sinks = sinks

    def train(
        self, losses: Mapping[str, float], where: Mapping[str, int], clock: Mapping[str, float]
    ) -> None:
        """Losses averaged since the last such line; `where` counts decisions, frames and updates."""
        self.file.write({"kind": "train", **where, **losses, **clock})
        self._scalars({f"train/{name}": value for name, value in {**losses, **clock}.items()}, where)

    def episode(
        self, values: Mapping[str, Any], where: Mapping[str, int], clock: Mapping[str, float]
    ) -> None:
        """A finished training episode: its number, return and length in decisions."""
        self.file.write({"kind": "episode", **where, **values, **clock})
        self._scalars({"episode/return": values["return"], "episode/length": values["length"]}, where)

    def evaluation(
        self, mode: str, values: Mapping[str, Any], where: Mapping[str, int], clock: Mapping[str, float]
    ) -> None:
        """Returns per episode of one mode, their mean and standard deviation."""
        self.file.write({"kind": "eval", **where, "mode": mode, **values, **clock})
        self._scalars({f"eval/{mode}": values["mean"]}, where)

    def close(self) -> None:
        self.file.close()
        for sink in self._sinks:
            sink.close()

    def _scalars(self, values: Mapping[str, float], where: Mapping[str, int]) -> None:
        for sink in self._sinks:
            sink.scalars(values, where["decisions"])


class ConsoleProgress(Bars):
    """A run's decisions on stderr: a bar on a terminal, else a line every `PLAIN_SECONDS`."""

    def __init__(self, title: str, total: int, *, quiet: bool = False, stream: TextIO | None = None):
        super().__init__("decisions", quiet=quiet, stream=stream, transient=False)
        self._title, self._total = title, total
        self._values: dict[str, float] = {}
        self._rate = 0.0
        self._last_tick = (time.monotonic(), 0)
        self.stage(title, 0, total)

    def begin(self, done: int) -> None:
        """Everything is set up, and `done` decisions were made before (by the run that is resumed)."""
        self._last_tick = (time.monotonic(), done)
        self.restart(self._title, done)

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """`done` decisions are done; `values` (last return, losses) replace those of the same name."""
        self._values.update(values or {})
        now, (then, before) = time.monotonic(), self._last_tick
        if now - then >= RATE_SECONDS:
            self._rate = (done - before) / (now - then)
            self._last_tick = (now, done)
        if self.live:
            self.stage(self._title, done, self._total, rate=f"{self._rate:.1f}/s")
            self.below.plain = self._shown()
        elif self.due():
            left = (
                str(timedelta(seconds=round((self._total - done) / self._rate))) if self._rate else "unknown"
            )
            self.say(
                f"{self._title}  {done:,}/{self._total:,} decisions ({100 * done / self._total:.1f}%)  "
                f"{self._rate:.1f}/s  ETA {left}  {self._shown()}"
            )

    def phase(self, name: str, done: int, total: int) -> None:
        """`done` of the `total` parts of a phase in which no decision is made: catch-up updates, an evaluation."""
        if self.live:
            self.below.plain = f"{name} {done:,}/{total:,}" if done < total else self._shown()
        elif done < total and self.due():
            self.say(f"{self._title}  {name} {done:,}/{total:,}")
        if done >= total:  # its time must not count as slow decisions
            self._last_tick = (time.monotonic(), self._last_tick[1])

    def _shown(self) -> str:
        shown = {
            name: value for name, value in self._values.items() if name == "return" or name.endswith("_loss")
        }
        return "  ".join(f"{name.removesuffix('_loss')} {value:.3g}" for name, value in shown.items())
