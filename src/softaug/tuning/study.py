"""The study: asks Optuna for trials, trains their runs, prunes them at rungs, and continues after a crash.

Everything is in the output directory: ``study.db`` (Optuna's SQLite file), ``tune.json`` (the settings) and the run
directories of every trial. Decisions are made by this process alone, from the runs' ``metrics.jsonl``. Killed at any
time, it takes up the trials that were running from their own run directories. With frames as the budget and one run at
a time, a study that was killed and continued ends with the same trials and scores as one that was not: runs resume
exactly, and the draws of a trial follow from the seed, its number and the trials before it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.interrupt import Interrupt
from softaug.storage.run_files import RunFiles
from softaug.sweep.plan import PlannedRun
from softaug.sweep.supervise import EXIT_DIVERGED, FAILED, POLL_SECONDS, Outcome, describe
from softaug.tuning.display import TuneDisplay
from softaug.tuning.objective import Curve, read_curve
from softaug.tuning.optuna_study import import_optuna, make_sampler
from softaug.tuning.plan import DATABASE, StudySettings
from softaug.tuning.runners import Runner

READ_SECONDS = 1.0
MOST_FAILURES = 3
"""Trials that may fail in a row before the study gives up."""
FINISHED, PRUNED, DIVERGED, INVALID = "finished", "pruned", "diverged", "invalid"


@dataclass
class LiveTrial:
    """A trial that is not over."""

    trial: Any
    values: dict[str, Any]
    runs: list[PlannedRun]
    steps: list[int]
    """rungs that are still to come, as Optuna's steps"""
    is_base: bool
    ending: str = ""
    """pruned, diverged, invalid or failed, once decided; its processes may still be saving"""
    note: str = ""
    curves: dict[Path, Curve] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.trial.number

    def read(self) -> None:
        """Read the metrics of all runs."""
        self.curves = {run.directory: read_curve(RunFiles(run.directory).metrics) for run in self.runs}

    def curve(self, run: PlannedRun) -> Curve:
        return self.curves.get(run.directory, Curve())


class Tuner:
    """Drives a study until `trials` trials are over, all of its decisions in one thread."""

    def __init__(
        self,
        settings: StudySettings,
        out: Path,
        study: Any,
        runner: Runner,
        trials: int,
        display: TuneDisplay,
    ):
        self.settings, self.out, self.study, self.runner = settings, out, study, runner
        self.trials, self.display = trials, display
        self.optuna = import_optuna()
        self.interrupt = Interrupt()
        self.live: list[LiveTrial] = []
        self.running: dict[Path, tuple[LiveTrial, PlannedRun]] = {}
        self.stopped: set[Path] = set()
        """runs that were told to stop and still save"""
        self.failures = 0
        self._read_at = -READ_SECONDS

    # The loop

    def run(self) -> bool:
        """Returns whether all trials are over; False after Ctrl-C."""
        with self.interrupt.handled():
            try:
                self.take_up()
                while self.step():
                    time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:  # the second one
                self.runner.kill()
            except self.optuna.exceptions.StorageInternalError as error:
                raise UserError(
                    f"{self.out / DATABASE} cannot be written ({str(error.__cause__ or error).splitlines()[0]}); see that the "
                    "disk has space and give the same command again"
                ) from error
        return not self.live and self.asked() >= self.trials

    def step(self) -> bool:
        """Read everything once; returns whether there is something left to wait for."""
        for outcome in self.runner.ended():
            self.handle(outcome)
        if self.interrupt.requested:
            self.display.note("Interrupted: the runs save their checkpoints. Ctrl-C again kills them.")
            self.stop(list(self.running.values()))
        elif time.monotonic() - self._read_at >= READ_SECONDS:
            self._read_at = time.monotonic()
            for live in list(self.live):
                self.watch(live)
            self.fill()
        self.display.refresh(self.study, self.live, self.running, self.trials)
        return bool(self.running) or (not self.interrupt.requested and bool(self.live))

    def asked(self) -> int:
        """Trials that were begun, in this session or before."""
        waiting = self.optuna.trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self.study.get_trials(deepcopy=False))

    def take_up(self) -> None:
        """Continue the trials that were running when the study was interrupted or killed, and begin new ones."""
        running = self.optuna.trial.TrialState.RUNNING
        for frozen in self.study.get_trials(deepcopy=False, states=(running,)):
            self.study.sampler = make_sampler(self.optuna, self.settings, frozen.number)
            self.open(self.optuna.trial.Trial(self.study, frozen._trial_id))
        for live in list(self.live):
            self.watch(live)
        self.fill()

    # Trials

    def ask(self) -> None:
        self.study.sampler = make_sampler(self.optuna, self.settings, self.asked())
        self.open(self.study.ask())

    def open(self, trial: Any) -> None:
        """Draw the values of `trial`, or find those it was given before, and plan its runs."""
        attributes = trial.user_attrs
        base = bool(attributes.get("base"))
        drawn = {} if base and not attributes["in_space"] else self.settings.parameters.suggest(trial)
        live = LiveTrial(trial, {} if base else drawn, [], [], base)
        try:
            live.runs = self.settings.runs(self.out, trial.number, live.values)
        except UserError as error:  # values that exclude each other, such as a crop larger than the image
            live.ending, live.note = INVALID, str(error)
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        live.steps = [s for s in self.settings.steps([run.config for run in live.runs]) if s not in reported]
        if not live.ending:
            live.ending, live.note = attributes.get("ending", ""), attributes.get("note", "")
        self.live.append(live)

    def watch(self, live: LiveTrial) -> None:
        """Decide what the metrics of a trial's runs mean for it."""
        if not live.ending:
            live.read()
            self.decide_rungs(live)
        ours = [pair for pair in self.running.values() if pair[0] is live]
        if live.ending:
            self.stop(ours)
            if not ours:
                self.end(live)
        elif not ours and all(self.done(live, run) for run in live.runs):
            self.complete(live)
        else:
            self.stop([pair for pair in ours if self.done(live, pair[1])])  # its time is up
            self.make_room(live, ours)

    def decide_rungs(self, live: LiveTrial) -> None:
        """Report the score at every rung that all runs have reached, and prune the trial if it is behind."""
        while live.steps and all(self.reached(live, run, live.steps[0]) for run in live.runs):
            step = live.steps.pop(0)
            score = self.score(live, step)
            if score is None:  # episodes are longer than the rung
                continue
            live.trial.report(score, step)
            # Asked for the base too, whose score counts at the rung; but it is what others are compared with.
            if live.trial.should_prune() and not live.is_base:
                whole = self.settings.max_step
                self.decide_end(live, PRUNED, f"at {100 * step / whole:.0f}% of the budget, with {score:.4g}")
                return

    def decide_end(self, live: LiveTrial, ending: str, note: str) -> None:
        """Noted at once: a study killed while the processes save must not decide otherwise."""
        live.ending, live.note = ending, note
        live.trial.set_user_attr("note", note)
        live.trial.set_user_attr("ending", ending)

    def make_room(self, live: LiveTrial, ours: list[tuple[LiveTrial, PlannedRun]]) -> None:
        """Pause runs that are past the next rung while others of the trial have not begun their way to it.

        So that with more runs than workers a poor trial costs the first part of all its runs, not all of most.
        """
        if not live.steps or len(self.running) < (self.runner.workers or 1):
            return
        behind = [
            run for run in live.runs if self.waiting(run) and not self.reached(live, run, live.steps[0])
        ]
        ahead = [pair for pair in ours if self.reached(live, pair[1], live.steps[0])]
        stopping = sum(run.directory in self.stopped for _, run in ours)
        self.stop(ahead[: max(0, len(behind) - stopping)])

    def complete(self, live: LiveTrial) -> None:
        score = self.score(live, None)
        if score is None:
            if live.is_base:
                raise UserError(
                    "no training episode of the base preset ended within the budget, so there is no curve; give a larger "
                    "budget in another --out, or shorter episodes (--episode-decisions)"
                )
            self.decide_end(live, INVALID, "no training episode ended within the budget")
            self.end(live)
            return
        areas = {run: self.area(live, run, None) for run in live.runs}
        by_task: dict[str, float] = {
            task: float(np.mean([area for run, area in areas.items() if run.config.task == task]))
            for task in self.settings.tasks
        }
        live.trial.set_user_attr("areas", by_task)
        rates = [rate for run in live.runs if (rate := live.curve(run).rate) is not None]
        live.trial.set_user_attr("decisions_per_second", float(np.mean(rates)) if rates else None)
        live.trial.set_user_attr("score", score)
        live.trial.set_user_attr("ending", FINISHED)
        for run in live.runs:  # a run that ended by the time budget has it still
            shutil.rmtree(RunFiles(run.directory).replay, ignore_errors=True)
        if live.is_base and not live.trial.user_attrs["in_space"]:
            # Without values it has nothing to teach the sampler.
            self.study.tell(live.trial, state=self.optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(live.trial, score)
        self.over(live)

    def end(self, live: LiveTrial) -> None:
        """A trial without a score is over."""
        if live.ending == FINISHED:  # killed between its score and Optuna's note of it
            live.read()
            self.complete(live)
            return
        if live.ending == FAILED:
            self.failures += 1
            if live.is_base or self.failures >= MOST_FAILURES:
                # Not told to Optuna: the next session tries it again.
                what = "the base preset" if live.is_base else f"{self.failures} trials in a row"
                raise UserError(f"{what} failed ({live.note}); fix that and give the same command again")
        self.decide_end(live, live.ending, live.note)
        for run in live.runs:
            files = RunFiles(run.directory)
            for part in (files.replay, files.checkpoints):
                shutil.rmtree(part, ignore_errors=True)
        states = self.optuna.trial.TrialState
        # To the sampler a diverged or impossible trial is as bad as one that was pruned at once.
        self.study.tell(live.trial, state=states.FAIL if live.ending == FAILED else states.PRUNED)
        self.over(live)

    def over(self, live: LiveTrial) -> None:
        self.live.remove(live)
        if live.ending != FAILED:
            self.failures = 0
        self.display.ended(self.study, live.number)

    # Runs

    def fill(self) -> None:
        """Give free workers something to do: what a rung waits for, then other runs, then a new trial."""
        while len(self.running) < (self.runner.workers or 1):
            chosen = self.next_run()
            if chosen is not None:
                self.start(*chosen)
            elif self.asked() < self.trials:
                self.ask()
            else:
                return

    def next_run(self) -> tuple[LiveTrial, PlannedRun] | None:
        found = [
            (live, run)
            for live in self.live
            if not live.ending
            for run in live.runs
            if self.waiting(run) and not self.done(live, run)
        ]
        ahead = [bool(live.steps) and self.reached(live, run, live.steps[0]) for live, run in found]
        return found[min(range(len(found)), key=lambda i: (ahead[i], i))] if found else None

    def start(self, live: LiveTrial, run: PlannedRun) -> None:
        self.running[run.directory] = (live, run)
        self.runner.start(run)

    def stop(self, pairs: list[tuple[LiveTrial, PlannedRun]]) -> None:
        for _, run in pairs:
            if run.directory not in self.stopped:
                self.stopped.add(run.directory)
                self.runner.stop(run)

    def handle(self, outcome: Outcome) -> None:
        """A run's process has ended; one that was only stopped waits for its next turn."""
        live, run = self.running.pop(outcome.run.directory)
        self.stopped.discard(run.directory)
        if outcome.state == FAILED and not live.ending:
            lines = [line for line in outcome.error.splitlines() if line]
            if f"({describe(EXIT_DIVERGED)})" in lines:
                self.decide_end(live, DIVERGED, f"{run.name} diverged")
            else:  # decided for this session alone
                killed = bool(lines) and lines[-1].startswith(
                    "(killed by"
                )  # says more than the last words of its log
                cause = lines[-1].strip("()") if killed else lines[-2] if len(lines) > 1 else outcome.error
                live.ending, live.note = (
                    FAILED,
                    f"{cause.removeprefix('softaug: error: ')}; see {RunFiles(run.directory).log}",
                )

    def waiting(self, run: PlannedRun) -> bool:
        return run.directory not in self.running

    def reached(self, live: LiveTrial, run: PlannedRun, step: int) -> bool:
        curve, settings = live.curve(run), self.settings
        return run.begun() == "finished" or curve.reached(settings.budget(run.config, step), settings.axis)

    def done(self, live: LiveTrial, run: PlannedRun) -> bool:
        """Whether a run has used its budget."""
        if run.begun() == "finished":
            return True
        axis = self.settings.axis
        return axis == "seconds" and live.curve(run).reached(self.settings.budget(run.config), axis)

    def area(self, live: LiveTrial, run: PlannedRun, step: int | None) -> float | None:
        return live.curve(run).area(self.settings.budget(run.config, step), self.settings.axis)

    def score(self, live: LiveTrial, step: int | None) -> float | None:
        """The trial's score at a rung or at the end; None where a run has no episode yet."""
        areas = {run: area for run in live.runs if (area := self.area(live, run, step)) is not None}
        return self.settings.score(areas) if len(areas) == len(live.runs) else None


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep a second `softaug tune` away from `out`."""
    from softaug.training.preparation import RunDirectory

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made ({error.strerror}); give another --out") from None
    if RunFiles(out).exist:
        raise UserError(f"{out} holds a run, not a study; give another --out")
    directory = RunDirectory(out)
    try:
        yield
    finally:
        directory.close()
