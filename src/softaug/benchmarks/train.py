"""`softaug bench train`: a short real training run, its parts, and its speed against this machine's limit or other code.

Decisions per second are those of real runs of ``softaug train`` in processes of their own, from the times in their metrics
once learning has begun. With ``--against`` another checkout (a path or a commit) trains in turns with this one.

The parts come from a run of its own in which nothing overlaps (the environment in this process, the update on one
thread), so that they add up; the real run, where they overlap, is faster than their sum. Only clocks are added: its
numbers are those of any other run. encoder: convolutions, forward and backward; heads: the rest of an update (MLPs,
losses); optimizer: Adam and moving averages; step: physics and everything of the environment but rendering.

The limit: the encoder's useful work (see `bench update`) at the speed of a large matrix product with the run's number of
threads, halved where updates use two threads; or the environment's step and render, which run at the same time; or all of
it divided by the cores: whichever is longest.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softaug.benchmarks.update import MATMUL_SIZE, useful_gflop
from softaug.config import Config, make_config
from softaug.errors import UserError
from softaug.learning.beside import overlaps
from softaug.machine import available_cores
from softaug.presets import PRESETS
from softaug.storage.run_files import RunFiles

PARTS = ("act", "step", "render", "replay", "augment", "encoder", "heads", "optimizer", "logging", "other")
RANDOM_DECISIONS, LOG_EVERY = 150, 25
CATCH_UP = 100
"""Updates before anything is timed: procedural overlay images are made when first drawn, once per run."""


class Clock:
    """Exclusive times: what a part calls of other parts is theirs, except for parts that keep it all."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.decisions, self.total = 0, 0.0
        self.running = False
        self._stack: list[str] = []
        self._mark = 0.0

    def switch(self) -> None:
        """Charge the time since the last switch to the part that is running."""
        now = time.perf_counter()
        if self._stack and self.running:
            self.seconds[self._stack[-1]] += now - self._mark
        self._mark = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.switch()
        self._stack.append("act" if "act" in self._stack else name)
        try:
            yield
        finally:
            self.switch()
            self._stack.pop()

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return call

    def milliseconds(self) -> dict[str, float]:
        """Per decision; they add up to its whole time."""
        return {name: 1e3 * seconds / max(self.decisions, 1) for name, seconds in self.seconds.items()}


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Clocks around the parts of training, for as long as the context lasts."""
    from softaug.envs import dmc  # not dm_control itself: this one chooses a GL back end that works
    from softaug.learning import agent, augment, networks, replay, sac
    from softaug.learning.auxiliary import soda
    from softaug.training import log, stepper
    from softaug.training import loop as training_loop

    encode, decide = networks.Encoder.features, training_loop.Training.decide

    def timed_encode(self: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        with clock.part("encoder"):
            features = encode(self, *arguments, **options)
        if features.requires_grad:  # from here on, the backward pass is the encoder's
            features.register_hook(lambda gradient: enter_encoder())
        return features

    def enter_encoder() -> None:
        clock.switch()
        clock._stack[-1] = "encoder"

    def timed_decide(self: Any) -> None:
        clock.running = self.updates_due() > 0
        begun = time.perf_counter()
        with clock.part("other"):
            decide(self)
        if clock.running:
            clock.decisions += 1
            clock.total += time.perf_counter() - begun
        clock.running = False

    patches: list[tuple[Any, str, Any]] = [
        (networks.Encoder, "features", timed_encode),
        (training_loop.Training, "decide", timed_decide),
    ]
    for owner, names, part in (
        (agent.Agent, ("act",), "act"),
        (agent.Agent, ("update",), "heads"),
        (torch.Tensor, ("backward",), "heads"),
        (torch.autograd, ("grad",), "heads"),
        (stepper.InProcessStepper, ("send", "receive", "reset"), "step"),
        (dmc.Camera, ("render",), "render"),
        (replay.Replay, ("sample", "sample_observations", "add", "begin_episode"), "replay"),
        (augment.RandomCrop, ("__call__",), "augment"),
        (augment.RandomShift, ("__call__",), "augment"),
        (augment.RandomConv, ("__call__",), "augment"),
        (augment.RandomOverlay, ("__call__",), "augment"),
        (augment.MovingOverlay, ("__call__",), "augment"),
        (augment.RandomRotate, ("__call__",), "augment"),
        (augment.OneOf, ("__call__",), "augment"),
        (torch.optim.Adam, ("step",), "optimizer"),
        (sac.SAC, ("update_target",), "optimizer"),
        (soda.SodaTask, ("update_target",), "optimizer"),
        (log.RunLog, ("train", "episode"), "logging"),
        (log.MeanLosses, ("add",), "logging"),
    ):
        patches += [(owner, name, clock.timed(part, getattr(owner, name))) for name in names]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, function in patches:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def measure_parts(config: Config, directory: Path, **train_options: Any) -> dict[str, float]:
    """Milliseconds of each part of a decision that learns, in a run where nothing overlaps."""
    import dataclasses

    from softaug.training.run import train

    clock = Clock()
    with instrumented(clock):
        alone = dataclasses.replace(config, env_process=False, overlap="off")
        train(alone, directory / "parts", quiet=True, **train_options)
    return clock.milliseconds()


def short_run(task: str, method: str, preset: str, decisions: int) -> dict[str, Any]:
    """What is given to `make_config`, or as flags to ``softaug train``, for such a run."""
    return {
        "task": task,
        "method": method,
        "preset": preset,
        "decisions": RANDOM_DECISIONS + decisions,
        "random_decisions": RANDOM_DECISIONS,
        "initial_updates": CATCH_UP,
        "log_every": LOG_EVERY,
        "eval_every": 0,
        "eval_episodes": 1,
        "eval_modes": "train",
        "checkpoint_every": 1_000_000,
        "replay_capacity": 5_000,
        "device": "cpu",
    }


def real_rate(source: Path, settings: dict[str, Any], out: Path) -> float:
    """Decisions per second of a run by the code in `source` (a folder that holds the package), while it learns."""
    flags = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "softaug.cli", "train", *flags, "--out", str(out.absolute()), "--quiet"],
        cwd=source,  # the current directory comes before PYTHONPATH, and may hold another softaug
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UserError(
            f"training with {source} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        )
    lines = [json.loads(line) for line in RunFiles(out).metrics.read_text().splitlines()]
    return rate_of(lines, settings["random_decisions"])


def rate_of(lines: list[dict[str, Any]], random_decisions: int) -> float:
    """Decisions per second between the first and the last line of losses after learning began."""
    learning = [line for line in lines if line["kind"] == "train" and line["decisions"] > random_decisions]
    first, last = learning[0], learning[-1]
    return (last["decisions"] - first["decisions"]) / max(last["seconds"] - first["seconds"], 1e-9)


def checkout(against: str, directory: Path) -> Path:
    """The folder with the package of a path or of a commit of the repository this code is in."""
    path = Path(against).expanduser()
    for candidate in (path / "src", path):
        if (candidate / "softaug" / "__init__.py").is_file():
            return candidate.resolve()
    repository = Path(__file__).resolve().parents[3]
    if shutil.which("git") is None:
        raise UserError(
            f"--against {against} is no folder with softaug in it, and a commit needs git; install git."
        )
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", "--end-of-options", against, "src"],
        capture_output=True,
    )
    if archive.returncode:
        raise UserError(
            f"--against {against}: neither a folder with softaug in it nor a commit of {repository}; give one of them."
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory / "against", filter="data")
    return directory / "against" / "src"


def matmul_gflops(threads: int) -> float:
    """Speed of a large matrix product, the best of ten."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    square, times = torch.rand(2, MATMUL_SIZE, MATMUL_SIZE), []
    for _ in range(10):
        begun = time.perf_counter()
        torch.mm(square[0], square[1])
        times.append(time.perf_counter() - begun)
    torch.set_num_threads(before)
    return 2 * MATMUL_SIZE**3 / 1e9 / min(times)


def limit(config: Config, parts: dict[str, float], peak_gflops: float) -> dict[str, float]:
    """The shortest possible decision, ms: see the module's text."""
    learner = 1e3 * useful_gflop(config) * config.updates_at_once / config.update_every / peak_gflops
    environment = parts["step"] + parts["render"]
    threads = 2 if overlaps(config.overlap, torch.device("cpu"), config.threads) else 1
    decision = max(learner / threads, environment, (learner + environment) / available_cores())
    return {"learner_ms": learner, "environment_ms": environment, "threads": threads, "decision_ms": decision}


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    settings = short_run(args.task, args.method, args.preset, args.decisions)
    config = make_config(**{**settings, "eval_modes": ("train",)})
    sources = {"this": Path(__file__).resolve().parents[2]}
    if args.against:
        sources["against"] = checkout(args.against, directory)
    rates: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(args.rounds):
        for name, source in sources.items():
            print(f"round {number + 1}/{args.rounds}: {name} ...", file=sys.stderr, flush=True)
            rates[name].append(real_rate(source, settings, directory / f"{name}-{number}"))
    print("parts ...", file=sys.stderr, flush=True)
    parts = measure_parts(config, directory)
    peak = matmul_gflops(config.threads)
    shortest = limit(config, parts, peak)
    rate = float(np.median(rates["this"]))
    result = {
        **{name: getattr(config, name) for name in ("task", "method", "preset", "threads")},
        "decisions": args.decisions,
        "load": os.getloadavg()[0],
        "parts_ms": parts,
        "decisions_per_second": rates,
        "ms_per_decision": 1e3 / rate,
        "peak_gflops": peak,
        "limit": shortest,
        "of_limit": shortest["decision_ms"] * rate / 1e3,
    }
    if args.against:
        pairs = zip(rates["this"], rates["against"], strict=True)
        result |= {
            "against": args.against,
            "ratio": float(np.median([ours / other for ours, other in pairs])),
        }
    return result


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    total = sum(result["parts_ms"].values())
    table = Table(
        title=f"A decision of {result['task']}, {result['method']}, preset {result['preset']}, nothing overlapping",
        box=box.SIMPLE_HEAD,
    )
    for name in ("part", "ms", "%"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for name, ms in result["parts_ms"].items():
        table.add_row(name, f"{ms:.2f}", f"{100 * ms / total:.1f}")
    table.add_row("[bold]all[/]", f"{total:.2f}", "100.0")
    console = Console(highlight=False)
    console.print(table)
    shortest, rates = result["limit"], result["decisions_per_second"]
    console.print(
        f"Real runs: {float(np.median(rates['this'])):.2f} decisions/s, {result['ms_per_decision']:.1f} ms a decision; "
        f"load {result['load']:.1f}."
    )
    console.print(
        f"This machine's limit: {shortest['decision_ms']:.1f} ms a decision, if {shortest['learner_ms']:.1f} ms of the encoder's "
        f"useful work (at the matmul peak, {result['peak_gflops']:.0f} GFLOP/s; threads: {shortest['threads']}) and "
        f"{shortest['environment_ms']:.1f} ms of step and render shared the cores perfectly. Reached: {result['of_limit']:.0%}."
    )
    if "ratio" in result:
        console.print(
            f"Against {result['against']} ({float(np.median(rates['against'])):.2f} decisions/s, in turns): "
            f"{result['ratio']:.2f} times as many decisions per second."
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", default="walker_stand", help="task of the DeepMind Control suite")
    parser.add_argument("--method", default="soda_overlay", help="method")
    parser.add_argument("--preset", default="small", choices=PRESETS, help="sizes of images and networks")
    parser.add_argument("--decisions", type=int, default=500, help="decisions with learning, per run")
    parser.add_argument("--rounds", type=int, default=2, help="real runs of each checkout, in turns")
    parser.add_argument(
        "--against", default="", metavar="COMMIT|PATH", help="other code to train in turns with"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.decisions < 3 * LOG_EVERY or args.rounds < 1:
        raise UserError(f"bench train needs --decisions from {3 * LOG_EVERY} and --rounds from 1.")
    with tempfile.TemporaryDirectory(prefix="softaug-bench-") as directory:
        return measure(args, Path(directory))
