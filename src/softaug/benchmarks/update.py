"""`softaug bench update`: time of a decision's learning, per method, next to the plain version and the matmul peak.

Our learner and the plain one run in a process each and take turns with a large matrix product, round by round,
so that a busy machine slows all three alike. Numbers are medians over the rounds; `*_best` are from the shortest
times instead, which on a busy machine flatter the matrix product, as it is over soonest. A decision is one update;
times are averaged over the update schedule.

`--against METHOD` compares methods with each other instead: our learners take turns in one process, and each one's time
is a ratio to that method's in the same round. The ratio of processor time is the steadier one on a busy machine.

Useful work: the encoder's convolutions that the algorithm cannot do without. A forward pass counts once; a pass
that is trained counts three times (forward, gradient of weights, gradient of inputs), less the input gradient of
the first layer, which nobody needs. A plain update does the same useful work, whatever else it computes.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from softaug.benchmarks.common import ACTION_DIM, Stopwatch, make_replay
from softaug.benchmarks.plain import PlainLearner
from softaug.config import Config, make_config
from softaug.errors import UserError
from softaug.learning.agent import Agent, choose_device, make_agent
from softaug.learning.beside import Beside
from softaug.learning.memory import keep_freed_memory
from softaug.learning.replay import Replay
from softaug.media import image_source
from softaug.methods import METHODS, get_method
from softaug.presets import PRESETS

MATMUL_SIZE = 2048
GOALS = {"fraction_of_peak": 0.75, "speedup": 2.0, "replay_fraction": 0.03, "peak_rss_gb": 3.0}


# --- useful work -----------------------------------------------------------------------------------------


def layer_flops(config: Config) -> list[int]:
    """Floating-point operations of each convolution for one stack of frames, forward."""
    alone, frames = config.frame_layers, config.frame_stack
    channels, size, flops = 3 if alone else 3 * frames, config.crop_size, []
    for layer, (filters, stride) in enumerate(zip(config.filters, config.strides, strict=True), start=1):
        size = (size - 3) // stride + 1
        flops.append(2 * size * size * filters * channels * 9 * (frames if layer <= alone else 1))
        channels = filters * frames if layer == alone else filters
    return flops


def useful_gflop(config: Config) -> float:
    """The encoder's useful work per update, averaged over the schedule (see above)."""
    row, layers = config.row, layer_flops(config)
    # Images per update: the next view through the online and the target encoder, the actor's view; or only the first.
    actors = (2 if row.actor_sees == "both" else 1) / config.actor_every
    forward = config.batch_size * (1 if config.share_features else 2 + actors)
    trained = config.batch_size * (2.0 if row.critic_sees in ("both", "masked") else 1.0)
    if row.critic_sees == "masked":  # a gradient of inputs, forward and back
        forward += 2 * config.batch_size
    # SODA samples a batch of its own; CURL and PAD take RL's.
    auxiliary = (config.aux_batch_size if row.auxiliary == "soda" else config.batch_size) / config.aux_every
    if row.auxiliary in ("soda", "curl"):  # a target or key without gradient, and a prediction or query
        forward += auxiliary
        trained += auxiliary
    elif row.auxiliary == "sgqn":  # the mask again, and the prediction
        forward += 2 * auxiliary
        trained += auxiliary
    elif row.auxiliary == "inverse_dynamics":  # both ends of a transition
        trained += 2 * auxiliary
    work = forward * sum(layers) + trained * (3 * sum(layers) - layers[0])
    if row.masker:  # the target's masker is the online one
        masking = masker_flops(config)
        seen = config.batch_size * (1 if config.share_features else 1 + actors)
        work += seen * sum(masking) + trained * (3 * sum(masking) - masking[0])
    return work / 1e9


def masker_flops(config: Config) -> list[int]:
    """The same as `layer_flops` for MaDi's masker."""
    channels = (3, config.masker_filters, config.masker_filters, 1)
    pixels = config.frame_stack * config.crop_size**2
    return [2 * pixels * 9 * here * there for here, there in pairwise(channels)]


def schedule(config: Config) -> int:
    """Updates after which the schedule of actor, target and auxiliary task repeats."""
    return math.lcm(config.actor_every, config.target_every, config.aux_every)


# --- one learner in its own process ----------------------------------------------------------------------


def serve(connection: Connection, config: Config, variant: str, threads: int, directory: Path) -> None:
    """Answer "update" with seconds per update, "replay" with sampling's share of the time, "rss" with peak GB."""
    torch.set_num_threads(threads)
    if variant == "ours":
        keep_freed_memory()  # as training does; the plain learner goes without
    agent = ready_agent(config)
    learner = agent if variant == "ours" else PlainLearner(agent)
    replay = make_replay(config, directory / variant)
    while True:  # until `measure` ends this process
        request = connection.recv()
        if request == "update":
            begun = now(agent.device)
            for _ in range(schedule(config)):
                learner.update(replay)
            connection.send((now(agent.device) - begun) / schedule(config))
        elif request == "replay":
            connection.send(replay_share(agent, replay, schedule(config)))
        elif request == "rss":
            connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)  # Linux counts in kB


def ready_agent(config: Config) -> Agent:
    obs_shape = (3 * config.frame_stack, config.image_size, config.image_size)
    images = image_source(config.images or None) if config.row.uses_images else None
    if images is not None:
        # Procedural images are made when first drawn: draw them all before anything is timed.
        images.sample(4096, 4, 4, np.random.default_rng(0))
    return make_agent(config, obs_shape, ACTION_DIM, images=images)


def now(device: torch.device) -> float:
    """Seconds, after all work given to the device is done: a GPU's calls return before it has computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def replay_share(agent: Agent, replay: Replay, updates: int) -> float:
    """What part of `updates` updates goes into gathering, stacking, cropping and turning pixels into floats."""
    watch = Stopwatch(lambda: now(agent.device))
    # Whatever crops: PAD's task, for one, takes RL's crops.
    owners: list[Any] = [owner for owner in (agent, agent.auxiliary) if hasattr(owner, "weak")]
    weak, beside = agent.weak, agent.beside
    agent.beside = Beside(threaded=False)  # seconds of two threads would not add up
    for owner in owners:
        # Floats too: the encoder would make them, piece by piece.
        owner.weak = watch.wrap(lambda *arguments: weak(*arguments).to(torch.float32))
    names = ("sample", "sample_observations")
    timed_replay = SimpleNamespace(**{name: watch.wrap(getattr(replay, name)) for name in names})
    begun = now(agent.device)
    for _ in range(updates):
        agent.update(timed_replay)  # type: ignore[arg-type]
    share = watch.seconds / (now(agent.device) - begun)
    agent.beside = beside
    for owner in owners:
        owner.weak = weak
    return share


# --- the measurement -------------------------------------------------------------------------------------


def measure(config: Config, *, rounds: int, threads: int) -> dict[str, Any]:
    """One method: our learner, the plain one and the matrix product, interleaved."""
    device = torch.device(config.device)
    square = torch.rand(2, MATMUL_SIZE, MATMUL_SIZE, device=device)
    product = torch.empty(MATMUL_SIZE, MATMUL_SIZE, device=device)
    times: dict[str, list[float]] = {"matmul": [], "ours": [], "plain": []}
    shares = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="softaug-bench-") as directory:
        workers, connections = [], {}
        for variant in ("ours", "plain"):
            connections[variant], theirs = context.Pipe()
            arguments = (theirs, config, variant, threads, Path(directory))
            workers.append(context.Process(target=serve, args=arguments, daemon=True))
            workers[-1].start()
            theirs.close()
        try:
            for round_number in range(rounds + 1):
                for variant, connection in connections.items():
                    for _ in range(2):
                        begun = now(device)
                        torch.mm(square[0], square[1], out=product)
                        times["matmul"].append(now(device) - begun)
                    seconds = _ask(connection, "update")
                    if round_number > 0:  # the first round warms up: memory, kernels, page cache
                        times[variant].append(seconds)
                if round_number > 0:
                    shares.append(_ask(connections["ours"], "replay"))
            peak_rss_gb = _ask(connections["ours"], "rss")
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()
            for connection in connections.values():
                connection.close()
    return summary(config, times, shares, peak_rss_gb)


def _ask(connection: Connection, request: str) -> float:
    connection.send(request)
    return connection.recv()


def summary(
    config: Config, times: dict[str, list[float]], shares: list[float], peak_rss_gb: float
) -> dict[str, Any]:
    """A row of the result from the seconds of each round."""
    work, matmul_gflop = useful_gflop(config), 2 * MATMUL_SIZE**3 / 1e9

    def numbers(seconds: dict[str, float]) -> dict[str, float]:
        peak = matmul_gflop / seconds["matmul"]
        return {
            "ms_per_decision": 1e3 * seconds["ours"],
            "gflops": work / seconds["ours"],
            "peak_gflops": peak,
            "fraction_of_peak": work / seconds["ours"] / peak,
            "plain_ms_per_decision": 1e3 * seconds["plain"],
            "plain_gflops": work / seconds["plain"],
            "plain_fraction_of_peak": work / seconds["plain"] / peak,
            "speedup": seconds["plain"] / seconds["ours"],
        }

    best = numbers({name: min(seconds) for name, seconds in times.items()})
    return {
        "method": config.method,
        "useful_gflop": work,
        **numbers({name: float(np.median(seconds)) for name, seconds in times.items()}),
        "replay_fraction": float(np.median(shares)),
        "peak_rss_gb": peak_rss_gb,
        **{f"{name}_best": value for name, value in best.items()},
    }


def compare(configs: Sequence[Config], *, rounds: int) -> list[dict[str, Any]]:
    """A row for each method: its time of an update relative to the first's, all taking turns in this process."""
    keep_freed_memory()
    times: list[list[tuple[float, float]]] = [[] for _ in configs]
    with tempfile.TemporaryDirectory(prefix="softaug-bench-") as directory:
        agents = [ready_agent(config) for config in configs]
        replays = {
            shape: make_replay(config, Path(directory) / "x".join(map(str, shape)))
            for shape, config in {(each.image_size, each.frame_stack): each for each in configs}.items()
        }
        for round_number in range(rounds + 1):
            for i in list(range(len(configs)))[:: 1 if round_number % 2 else -1]:
                config, agent, updates = configs[i], agents[i], schedule(configs[i])
                begun, processor = now(agent.device), time.process_time()
                for _ in range(updates):
                    agent.update(replays[config.image_size, config.frame_stack])
                seconds = (now(agent.device) - begun, time.process_time() - processor)
                if round_number > 0:  # the first round warms up: memory, kernels, page cache
                    times[i].append((seconds[0] / updates, seconds[1] / updates))
    return [ratios(config, each, configs[0], times[0]) for config, each in zip(configs, times, strict=True)]


def ratios(
    config: Config, times: list[tuple[float, float]], base: Config, base_times: list[tuple[float, float]]
) -> dict[str, Any]:
    """A row of `compare` from (seconds, processor seconds) per update of each round."""

    def relative(which: int) -> float:
        return statistics.median(
            one[which] / other[which] for one, other in zip(times, base_times, strict=True)
        )

    return {
        "method": config.method,
        "ms_per_decision": 1e3 * statistics.median(seconds for seconds, _ in times),
        "time_ratio": relative(0),
        "processor_ratio": relative(1),
        "useful_ratio": useful_gflop(config) / useful_gflop(base),
        "rounds": len(times),
    }


# --- the command -----------------------------------------------------------------------------------------


def show_ratios(result: dict[str, Any]) -> None:
    table = Table(
        title=f"An update relative to {result['against']}'s, preset {result['preset']}, {result['device']}, "
        f"{result['threads']} threads",
        caption="medians over rounds; encoder: useful work of encoder and masker, counted",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name in ("method", "ms", "time", "processor time", "encoder"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in result["methods"]:
        columns = (row[name] for name in ("time_ratio", "processor_ratio", "useful_ratio"))
        table.add_row(row["method"], f"{row['ms_per_decision']:.1f}", *(f"{value:.2f}x" for value in columns))
    Console().print(table)


def show(result: dict[str, Any]) -> None:
    if "against" in result:
        show_ratios(result)
        return
    table = Table(
        title=f"Learning per decision, preset {result['preset']}, {result['device']}, {result['threads']} threads",
        caption="medians over rounds; GFLOP/s: useful encoder work; peak: fp32 matmul, interleaved",
        box=None,  # lines between the columns would make it wider than 80
        padding=(0, 2, 0, 0),
    )
    for name in (
        "method",
        "ms",
        "GFLOP/s",
        "of\npeak",
        "plain\nms",
        "of\npeak",
        "speed\nup",
        "replay",
        "RSS\nGB",
    ):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    paper = result["preset"] == "paper"
    for row in result["methods"]:
        soda = paper and row["method"].startswith("soda_")
        table.add_row(
            row["method"],
            f"{row['ms_per_decision']:.0f}" if paper else f"{row['ms_per_decision']:.1f}",
            f"{row['gflops']:.0f}",
            _judged(row, "fraction_of_peak", ".2f", soda),
            f"{row['plain_ms_per_decision']:.0f}" if paper else f"{row['plain_ms_per_decision']:.1f}",
            f"{row['plain_fraction_of_peak']:.2f}",
            _judged(row, "speedup", ".2f", paper) + "x",
            _judged(row, "replay_fraction", ".1%", paper),
            _judged(row, "peak_rss_gb", ".1f", soda),
        )
    console = Console()
    console.print(table)
    if paper:
        console.print(
            "Goals at paper size: SODA at least 0.75 of peak and at most 3 GB; "
            "every method at least 2x the plain version; replay at most 3%."
        )


def _judged(row: dict[str, Any], name: str, form: str, goal_applies: bool) -> str:
    text = format(row[name], form)
    if not goal_applies:
        return text
    at_least = name in ("fraction_of_peak", "speedup")
    met = row[name] >= GOALS[name] if at_least else row[name] <= GOALS[name]
    return f"[{'green' if met else 'red'}]{text}[/]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default="all", help="all, or names separated by commas")
    parser.add_argument("--preset", default="paper", choices=PRESETS, help="sizes of images and networks")
    parser.add_argument("--updates", type=int, default=6, help="updates measured per method")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: torch's own choice")
    parser.add_argument(
        "--device", default="cpu", help="cpu, cuda, mps, or auto (the first of cuda, mps, cpu)"
    )
    parser.add_argument(
        "--against",
        metavar="METHOD",
        default="",
        help="compare the methods' times with this one's, all in turns, instead of with the plain version",
    )
    parser.add_argument("--images", default="procedural", help="overlay images: a folder or 'procedural'")


def run(args: argparse.Namespace) -> dict[str, Any]:
    names = list(METHODS) if args.methods == "all" else [get_method(n).name for n in args.methods.split(",")]
    if args.updates < 1:
        raise UserError(f"--updates is {args.updates}; measure at least one update")
    device = choose_device(args.device).type
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    threads = torch.get_num_threads()
    settings = {"preset": args.preset, "device": device, "threads": threads, "updates": args.updates}
    if args.against:
        base = get_method(args.against).name
        configs = [
            make_config(method=name, preset=args.preset, device=device, images=args.images)
            for name in dict.fromkeys((base, *names))
        ]
        rounds = -(-args.updates // max(map(schedule, configs)))
        return {**settings, "against": base, "methods": compare(configs, rounds=rounds)}
    rows: list[dict[str, Any]] = []
    for name in names:
        print(f"{name} ({len(rows) + 1}/{len(names)}) ...", file=sys.stderr, flush=True)
        config = make_config(method=name, preset=args.preset, device=device, images=args.images)
        rounds = -(-args.updates // schedule(config))
        rows.append(measure(config, rounds=rounds, threads=threads))
    return {**settings, "methods": rows}
