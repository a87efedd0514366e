"""What a whole grid costs with a GPU for each run: GPU-hours, disk, and time with so many runs at once.

Measured: a decision of each environment (`softaug bench env`), an update on a CPU for comparison (`softaug bench
update`), an action, and the sizes of replays and checkpoints. Assumed: what a GPU sustains (`gpu_tflops`). An update's
work is counted, not guessed: `benchmarks.update.useful_gflop`.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from softaug.benchmarks.common import ACTION_DIM, make_replay
from softaug.benchmarks.update import schedule, useful_gflop
from softaug.config import Config
from softaug.errors import UserError
from softaug.evaluation.policy import make_policy
from softaug.evaluation.runs import observation_shape
from softaug.learning.agent import make_agent
from softaug.media import image_source
from softaug.sweep.estimate import (
    Calibration,
    Speeds,
    checkpoint_size,
    decision_seconds,
    disk_of_run,
    episode_decisions,
    run_seconds,
    wall_seconds,
)
from softaug.sweep.plan import PlannedRun
from softaug.training.stepper import InProcessStepper

GPU_TFLOPS = 5.0
"""Assumed, in fp32: about a quarter of the 19.5 TFLOP/s that an A100 has without tensor cores."""
CPUS_PER_RUN = 2
"""the learner's process, and the environment's"""
TIMED_DECISIONS = 10


@dataclass(frozen=True)
class Benchmarks:
    """Seconds from the JSON files of `softaug bench`."""

    steps: Mapping[str, float] = field(default_factory=dict)
    """task -> a decision in the training environment, exact rendering"""
    updates: Mapping[str, float] = field(default_factory=dict)
    """method -> an update of the paper's size on that machine's CPU"""


def read_benchmarks(folder: Path) -> Benchmarks:
    """``env.json`` and ``update.json`` in `folder`."""
    try:
        env = json.loads((folder / "env.json").read_text())
        update = json.loads((folder / "update.json").read_text())
        return Benchmarks(
            {row["task"]: row["decision"] / 1e3 for row in env["rows"] if row["mode"] == "train"},
            {row["method"]: row["ms_per_decision"] / 1e3 for row in update["methods"]},
        )
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}); write it with `softaug bench env --json` or "
            "`softaug bench update --json`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} holds other JSON than `softaug bench env` and `softaug bench update` write "
            f"({type(error).__name__}: {error}); write env.json and update.json again"
        ) from None


def grid_cost(
    runs: Sequence[PlannedRun],
    test_modes: Mapping[tuple[str, str], int],
    *,
    episodes: int,
    workers: Sequence[int],
    gpu_tflops: float,
    benchmarks: Benchmarks,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The cost of training `runs` from nothing and of their test episodes, as JSON.

    test_modes: in how many modes a (task, method) plays `episodes` test episodes, each run for itself.
    workers: how many runs at a time, each with a GPU and `CPUS_PER_RUN` cores like this machine's.
    benchmarks: environments that are not among them are timed now.
    """
    measuring = _Measuring(benchmarks, say)
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        key = (run.config.task, run.config.method)
        if key not in kinds:
            config = dataclasses.replace(run.config, seed=0, device="cpu")
            kinds[key] = measuring.kind(config, gpu_tflops, test_modes.get(key, 0) * episodes)
    costs = [kinds[run.config.task, run.config.method] for run in runs]

    def total(name: str) -> float:
        return sum(cost[name] for cost in costs)

    testing = total("test_cpu_hours")
    gpu_hours = [cost["training_hours"] + cost["evaluating_hours"] for cost in costs]
    replays = sorted((cost["replay_bytes"] for cost in costs), reverse=True)
    return {
        "assumed": {
            "gpu_tflops": gpu_tflops,
            "cpus_per_run": CPUS_PER_RUN,
            "notes": [
                f"an update takes its useful encoder work divided by {gpu_tflops:g} TFLOP/s, all overheads included",
                "the environment steps in its own process while the GPU updates, as fast as measured",
                "an action takes as long as on this machine's CPU",
                "the GPU is held, idle, while a run evaluates itself, and the test episodes are played on the CPUs",
                "runs at the same time do not slow each other down",
            ],
        },
        "kinds": list(kinds.values()),
        "runs": len(runs),
        "decisions": sum(run.config.decisions for run in runs),
        "test_episodes": sum(test_modes.get((r.config.task, r.config.method), 0) * episodes for r in runs),
        "gpu_hours": sum(gpu_hours),
        "gpu_hours_training": total("training_hours"),
        "gpu_hours_evaluating": total("evaluating_hours"),
        "test_cpu_hours": testing,
        "kept_bytes": int(total("kept_bytes")),
        "workers": [
            {
                "workers": count,
                "training_wall_hours": wall_seconds(gpu_hours, count),
                "test_wall_hours": testing / (count * CPUS_PER_RUN),
                "replay_bytes": sum(replays[:count]),
            }
            for count in workers
        ],
    }


class _Measuring:
    """Measures each environment and each learner once."""

    def __init__(self, benchmarks: Benchmarks, say: Callable[[str], None]):
        self._benchmarks, self._say = benchmarks, say
        self._calibration = Calibration(1, say)
        self._steps: dict[str, float] = {}
        self._learners: dict[Config, tuple[float, float, int]] = {}

    def kind(self, config: Config, gpu_tflops: float, test_episodes: int) -> dict[str, Any]:
        """One run of a task and method."""
        stepper = self._calibration.stepper(config)
        measured = self._benchmarks.steps.get(config.task)
        step = self._step(config.task, stepper) if measured is None else measured
        act, test_act, checkpoint_bytes = self._learner(config)
        gflop = useful_gflop(config)
        speeds = Speeds(step, act, update=gflop / (1e3 * gpu_tflops))
        training, evaluating = run_seconds(config, stepper, speeds, overlapped=config.env_process)
        replay, kept = disk_of_run(config, stepper, checkpoint_bytes)
        cpu_update = self._benchmarks.updates.get(config.method)
        return {
            "task": config.task,
            "method": config.method,
            "step_ms": 1e3 * step,
            "step_from": "CPU time, measured now" if measured is None else "softaug bench env",
            "act_ms": 1e3 * act,
            "test_act_ms": 1e3 * test_act,
            "update_gflop": gflop,
            "cpu_update_ms": None if cpu_update is None else 1e3 * cpu_update,
            "gpu_update_ms": 1e3 * speeds.update,
            "training_hours": training / 3600,
            "evaluating_hours": evaluating / 3600,
            "test_cpu_hours": test_episodes * episode_decisions(stepper) * (step + test_act) / 3600,
            "replay_bytes": replay,
            "kept_bytes": kept,
        }

    def _step(self, task: str, stepper: InProcessStepper) -> float:
        """CPU time of a decision: what other work on the machine hardly changes."""
        if task not in self._steps:
            self._steps[task] = decision_seconds(stepper, time.process_time)
        return self._steps[task]

    def _learner(self, config: Config) -> tuple[float, float, int]:
        """CPU seconds of an action in training and in a test, and bytes of a checkpoint."""
        # A learner costs the same on every task whose observations have the same shape.
        key = dataclasses.replace(config, task="walker_walk", eval_modes=("train",))
        if key not in self._learners:
            self._say(f"measuring {config.method} ({config.preset}) ...")
            self._learners[key] = _measure_learner(config)
        return self._learners[key]


def _measure_learner(config: Config) -> tuple[float, float, int]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # Neither an action nor the size of a checkpoint depends on the batches.
    quick = dataclasses.replace(config, batch_size=4, aux_batch_size=4)
    shape = observation_shape(config)
    try:
        with tempfile.TemporaryDirectory(prefix="softaug-cost-") as directory:
            images = image_source(config.images or None) if config.row.uses_images else None
            agent = make_agent(quick, shape, ACTION_DIM, images=images)
            replay = make_replay(quick, Path(directory), decisions=300)
            for _ in range(schedule(config)):
                agent.update(replay)
        obs = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        act = _cpu_seconds(lambda: agent.act(obs))
        test_act = act
        if config.row.adapts:
            policy = make_policy(config, agent.policy_weights(), shape, ACTION_DIM, adapt=True)
            policy.begin_episode()
            test_act = _cpu_seconds(lambda: policy.observe(obs, policy.act(obs), obs))
    finally:
        torch.set_num_threads(before)
    return act, test_act, checkpoint_size(agent)


def _cpu_seconds(call: Callable[[], Any]) -> float:
    """Mean CPU time, on one thread the time that it takes on a machine without other work."""
    call()  # warms up
    begun = time.process_time()
    for _ in range(TIMED_DECISIONS):
        call()
    return (time.process_time() - begun) / TIMED_DECISIONS


def show_cost(cost: Mapping[str, Any], console: Console) -> None:
    """The assumptions, what was measured, and the totals, for people."""

    def table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for i, name in enumerate(names):
            made.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            made.add_row(*row)
        console.print(made)

    kinds = cost["kinds"]
    table(
        "A decision of the environment",
        ("task", "ms", "from"),
        [
            (task, f"{kind['step_ms']:.1f}", kind["step_from"])
            for task, kind in {kind["task"]: kind for kind in kinds}.items()
        ],
    )
    table(
        "\nAn update: its work, measured on a CPU (softaug bench update), assumed on a GPU; and an action",
        ("method", "GFLOP", "CPU ms", "GPU ms", "action ms"),
        [
            (
                method,
                f"{kind['update_gflop']:.0f}",
                "–" if kind["cpu_update_ms"] is None else f"{kind['cpu_update_ms']:.0f}",
                f"{kind['gpu_update_ms']:.1f}",
                f"{kind['act_ms']:.1f}",
            )
            for method, kind in {kind["method"]: kind for kind in reversed(kinds)}.items()
        ],
    )
    console.print("\n[bold]Assumed[/bold]")
    for note in cost["assumed"]["notes"]:
        console.print(f"- {note}", markup=False, soft_wrap=True)
    table(
        f"\n{cost['runs']} runs, {cost['decisions']:,} decisions, {cost['test_episodes']:,} test episodes",
        ("workers", "training", "test episodes", "replays, at a time", "checkpoints, at the end"),
        [
            (
                str(row["workers"]),
                _days(row["training_wall_hours"]),
                _days(row["test_wall_hours"]),
                f"{row['replay_bytes'] / 1e9:,.0f} GB",
                f"{cost['kept_bytes'] / 1e9:,.0f} GB",
            )
            for row in cost["workers"]
        ],
    )
    console.print(
        f"{cost['gpu_hours']:,.0f} GPU-hours ({cost['gpu_hours_training']:,.0f} training, "
        f"{cost['gpu_hours_evaluating']:,.0f} evaluating meanwhile), {cost['test_cpu_hours']:,.0f} CPU-hours of test "
        "episodes",
        soft_wrap=True,
        highlight=False,
    )


def _days(hours: float) -> str:
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
