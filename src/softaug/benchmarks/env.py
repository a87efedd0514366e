"""Time of a decision and its parts, of a reset, and frames per second, per task and mode.

All modes of a task are measured in turns of a few decisions, so that other load on the machine falls on all of
them alike. Times are medians; a ratio is the median over the turns of the ratio within a turn. The ratio of processor
time counts all threads of this process, so software rendering too (not a GPU's), and is the steadier one on a busy
machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from softaug.benchmarks.common import Stopwatch
from softaug.envs import PAPER_TASKS, Mode, make_env
from softaug.envs.modes import MODE_GROUPS, MODE_NAMES, expand_groups
from softaug.errors import UserError
from softaug.tasks import domain_and_task

MODES = ("train", "color_easy", "color_hard", "video_easy", "video_hard")
DECISIONS_PER_TURN = 5
CHEAPER_RENDERING = ("fast", "coarse")
# Column -> field of `Timings`.
PARTS = (
    ("physics", "physics"),
    ("render", "render"),
    ("key", "chroma_key"),
    ("video", "video_frame"),
    ("rest", "rest"),
)
GOALS = {
    "chroma key of a 100x100 frame, ms": 0.7,
    "video decision / train decision": 1.15,
    "other mode's decision / train decision": 1.3,
    "any mode's processor time / train's": 1.3,
    "color reset / train reset": 3.0,
    "wrapper beyond physics and render, %": 5.0,
}


@dataclass
class Timings:
    """Medians of one task and mode, ms; frames_per_second by number of workers."""

    task: str
    mode: str
    decision: float
    physics: float
    render: float
    chroma_key: float
    video_frame: float
    rest: float
    reset: float
    decision_vs_train: float | None = None
    processor_vs_train: float | None = None
    reset_vs_train: float | None = None
    frames_per_second: dict[int, float] = field(init=False, default_factory=dict)


class TimedEnv:
    """An environment whose parts are timed while it runs random actions."""

    def __init__(self, task: str, mode: str, render: str = "exact") -> None:
        from softaug.envs import dmc
        from softaug.envs.effects import Effect

        self.task, self.mode = task, mode
        self.env = make_env(task, mode, render=render)
        inner = cast(dmc.DMCEnv, self.env.unwrapped)
        self.env.reset()
        self._watches = {part: Stopwatch() for part in ("physics", "render", "chroma_key", "video_frame")}
        for owner, method, part in (
            (inner._env, "step", "physics"),
            (inner._camera, "render", "render"),
            (inner, "_background", "video_frame"),
            (inner._effect, "show", "video_frame"),
        ):
            if type(owner) is Effect:  # a mode without one
                continue
            setattr(owner, method, self._watches[part].wrap(getattr(owner, method)))
        self._dmc, self._replace_green = dmc, dmc.replace_green
        self._rng = np.random.default_rng(0)
        self._decisions: list[dict[str, float]] = []
        self._processor: list[float] = []
        self._resets: list[float] = []

    def turn(self) -> None:
        """One reset and a few decisions."""
        # The chroma key is a function of the module, so it is wrapped for this turn only.
        self._dmc.replace_green = self._watches["chroma_key"].wrap(self._replace_green)
        start = time.perf_counter()
        self.env.reset()
        self._resets.append((time.perf_counter() - start) * 1000)
        processor = time.process_time()
        for _ in range(DECISIONS_PER_TURN):
            action = self._rng.uniform(-1, 1, self.env.action_space.shape).astype(np.float32)
            for watch in self._watches.values():
                watch.take()
            start = time.perf_counter()
            self.env.step(action)
            total = (time.perf_counter() - start) * 1000
            parts = {part: watch.take() * 1000 for part, watch in self._watches.items()}
            self._decisions.append({"decision": total, **parts, "rest": total - sum(parts.values())})
        self._processor.append(time.process_time() - processor)
        self._dmc.replace_green = self._replace_green

    def row(self, train: TimedEnv | None) -> Timings:
        """`train`: the environment measured in the same turns that the ratios are taken to."""
        decisions = self._decisions[DECISIONS_PER_TURN:]  # the first turn is a warm-up
        medians = {part: statistics.median(d[part] for d in decisions) for part in decisions[0]}
        row = Timings(task=self.task, mode=self.mode, reset=statistics.median(self._resets[1:]), **medians)
        if train is not None:
            row.decision_vs_train = median_ratio(self._decision_ms_by_turn(), train._decision_ms_by_turn())
            row.processor_vs_train = median_ratio(self._processor[1:], train._processor[1:])
            row.reset_vs_train = median_ratio(self._resets[1:], train._resets[1:])
        return row

    def _decision_ms_by_turn(self) -> list[float]:
        times = [d["decision"] for d in self._decisions[DECISIONS_PER_TURN:]]
        return [
            statistics.median(times[i : i + DECISIONS_PER_TURN])
            for i in range(0, len(times), DECISIONS_PER_TURN)
        ]


def median_ratio(times: list[float], base: list[float]) -> float:
    """Median of the ratios of times measured side by side."""
    return statistics.median(one / other for one, other in zip(times, base, strict=True))


def difference_to_exact(task: str, render: str, decisions: int = 20) -> float:
    """Mean absolute difference per channel (0..255) to exact frames of the same episode."""
    exact, cheaper = make_env(task), make_env(task, render=render)
    rng = np.random.default_rng(0)
    differences = []
    exact.reset(seed=0), cheaper.reset(seed=0)
    for _ in range(decisions):
        action = rng.uniform(-1, 1, exact.action_space.shape).astype(np.float32)
        pair = [env.step(action)[0][-3:].astype(np.int16) for env in (exact, cheaper)]
        differences.append(np.abs(pair[0] - pair[1]).mean())
    exact.close()
    cheaper.close()
    return float(np.mean(differences))


def _worker(pipe: Connection) -> None:
    """Obeys ("make", task, mode), ("run", decisions) -> env steps done, ("stop",)."""
    env: Any = None
    while True:
        command, *arguments = pipe.recv()
        if command == "stop":
            return
        if command == "make":
            if env is not None:
                env.close()
            env = make_env(*arguments)
            env.reset()
            frames = 0
        else:
            frames = 0
            for _ in range(arguments[0]):
                _, _, terminated, truncated, info = env.step(env.action_space.sample())
                frames += info["frames"]
                if terminated or truncated:
                    env.reset()
        pipe.send(frames)


class Workers:
    """Processes that step an environment each, all started once."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def make(self, task: str, mode: str) -> None:
        self._ask(len(self._pipes), "make", task, mode)
        self._ask(len(self._pipes), "run", 3)

    def frames_per_second(self, count: int, decisions: int) -> float:
        start = time.perf_counter()
        frames = self._ask(count, "run", decisions)
        return sum(frames) / (time.perf_counter() - start)

    def _ask(self, count: int, *message: Any) -> list[int]:
        for pipe in self._pipes[:count]:
            pipe.send(message)
        return [pipe.recv() for pipe in self._pipes[:count]]

    def stop(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(("stop",))
            process.join(timeout=30)


def measure(tasks: list[str], modes: list[str], decisions: int, workers: list[int]) -> dict[str, Any]:
    """Everything `softaug bench env` prints, as JSON values."""
    rows, cheaper = [], []
    for task in tasks:
        task_rows, cheaper_rows = measure_task(task, modes, decisions)
        rows += task_rows
        cheaper += cheaper_rows
    if workers:
        pool = Workers(max(workers))
        try:
            for row in rows:
                pool.make(row.task, row.mode)
                row.frames_per_second = {n: pool.frames_per_second(n, decisions) for n in workers}
        finally:
            pool.stop()
    return {
        "machine": describe_machine(),
        "decisions": decisions,
        "rows": [asdict(row) for row in rows],
        "cheaper_rendering": cheaper,
        "goals": check_goals(rows),
    }


def measure_task(task: str, modes: list[str], decisions: int) -> tuple[list[Timings], list[dict[str, Any]]]:
    """All modes of a task in turns, and the cheaper ways to render next to the first of them."""
    timed = [TimedEnv(task, mode) for mode in modes]
    cheaper = {render: TimedEnv(task, modes[0], render=render) for render in CHEAPER_RENDERING}
    everything = [*timed, *cheaper.values()]
    for turn in range(1 + -(-decisions // DECISIONS_PER_TURN)):
        for env in everything[:: 1 if turn % 2 else -1]:
            env.turn()
    train = next((env for env in timed if env.mode == "train"), None)
    rows = [env.row(train) for env in timed]
    cheaper_rows = {render: env.row(timed[0]) for render, env in cheaper.items()}
    for env in everything:
        env.env.close()
    return rows, [
        {
            "task": task,
            "mode": modes[0],
            "render": render,
            "exact_ms": rows[0].decision,
            "ms": row.decision,
            "time_vs_exact": row.decision_vs_train,
            "pixel_difference": difference_to_exact(task, render),
        }
        for render, row in cheaper_rows.items()
    ]


def describe_machine() -> dict[str, Any]:
    import dm_control.mujoco  # noqa: F401 - loads the GL back end
    import mujoco

    from softaug.envs.gl import choose_backend

    return {
        "cpus": os.cpu_count(),
        "gl": choose_backend(),
        "mujoco": mujoco.__version__,
        "load": os.getloadavg()[0],
    }


def check_goals(rows: list[Timings]) -> list[dict[str, Any]]:
    """Each goal with its worst and its median value over the rows it is about."""
    video = [row for row in rows if Mode.parse(row.mode).family == "video"]
    color = [row for row in rows if Mode.parse(row.mode).family == "color"]
    other = [row for row in rows if Mode.parse(row.mode).family not in ("train", "color", "video")]
    values = [
        [row.chroma_key for row in video],
        [row.decision_vs_train for row in video if row.decision_vs_train is not None],
        [row.decision_vs_train for row in other if row.decision_vs_train is not None],
        [
            row.processor_vs_train
            for row in rows
            if row.mode != "train" and row.processor_vs_train is not None
        ],
        [row.reset_vs_train for row in color if row.reset_vs_train is not None],
        [100 * row.rest / (row.physics + row.render) for row in rows],
    ]
    return [
        {
            "name": name,
            "goal": goal,
            "median": statistics.median(measured),
            "worst": max(measured),
            "met": max(measured) <= goal,
        }
        for (name, goal), measured in zip(GOALS.items(), values, strict=True)
        if measured
    ]


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    machine = result["machine"]
    workers = sorted({n for row in result["rows"] for n in row["frames_per_second"]})
    table = Table(
        title=f"ms per decision in total and in parts, and per reset (100x100, {machine['gl']}, {machine['cpus']} CPUs)",
        caption="physics: dm_control steps; ratio, CPU: a decision's time and processor time relative to train's"
        + ("; f/s xN: env steps per second, N workers" if workers else ""),
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    table.add_column("task, mode", overflow="fold")  # the longest names in two lines
    labels = [label for label, _ in PARTS]
    for name in ["total", "ratio", "CPU", *labels, "reset", *(f"f/s x{n}" for n in workers)]:
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for row in result["rows"]:
        if row["task"] != previous:
            table.add_row(f"[bold]{row['task']}[/]")
        ratios = [
            "" if r is None else f"{r:.2f}" for r in (row["decision_vs_train"], row["processor_vs_train"])
        ]
        parts = [f"{row[part]:.1f}" for _, part in PARTS]
        speeds = [f"{row['frames_per_second'][n]:.0f}" for n in workers]
        table.add_row(
            f"  {row['mode']}", f"{row['decision']:.1f}", *ratios, *parts, f"{row['reset']:.1f}", *speeds
        )
        previous = row["task"]
    console.print(table)

    cheaper = Table(
        title="Cheaper ways to render, next to the exact one",
        caption="difference: mean absolute, per channel, of 255",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("task", "mode", "render", "exact ms", "ms", "speed-up", "difference"):
        cheaper.add_column(name, justify="left" if name in ("task", "mode", "render") else "right")
    for row in result["cheaper_rendering"]:
        cheaper.add_row(
            row["task"],
            row["mode"],
            row["render"],
            f"{row['exact_ms']:.2f}",
            f"{row['ms']:.2f}",
            f"{1 / row['time_vs_exact']:.2f}x",
            f"{row['pixel_difference']:.3f}",
        )
    console.print(cheaper)

    goals = Table(title="Goals", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "goal", "median", "worst", ""):
        goals.add_column(name, justify="right" if name else "left")
    for goal in result["goals"]:
        goals.add_row(
            goal["name"],
            f"<= {goal['goal']:g}",
            f"{goal['median']:.2f}",
            f"{goal['worst']:.2f}",
            "[green]met[/]" if goal["met"] else "[red]missed[/]",
        )
    console.print(goals)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(PAPER_TASKS), help="dm_control suite tasks")
    parser.add_argument(
        "--modes",
        nargs="+",
        default=list(MODES),
        help=f"visual modes; all, {'|'.join(MODE_GROUPS)} stand for several",
    )
    parser.add_argument("--decisions", type=int, default=100, help="decisions measured per task and mode")
    parser.add_argument(
        "--workers", nargs="*", type=int, default=[1, 2], help="numbers of processes to measure"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    names = MODE_NAMES if args.modes == ["all"] else expand_groups(args.modes)
    modes = [Mode.parse(name).name for name in names]
    for task in args.tasks:
        domain_and_task(task)
    if args.decisions < 1 or any(count < 1 for count in args.workers):
        raise UserError("--decisions and --workers take whole numbers from 1.")
    return measure(args.tasks, modes, args.decisions, args.workers)
