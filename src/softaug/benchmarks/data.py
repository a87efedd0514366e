"""`softaug bench data`: overlay images from a packed folder, and how long a learner waits for its data.

Images: batches from a folder, decoded and from its pack (`softaug data pack`), in turns. Without ``--images`` the folder
is made of 256 x 256 JPEG files for the occasion.

Waiting: SODA's update at paper size with the learner replaced by a sleep, which is what a GPU amounts to here. The agent, replay
and overlay are the real ones; networks, crops and blending, which a GPU would do, are left out, and so is the environment,
which in a real run takes its share of the processor. Waiting is all time that `Agent.update` spends before it has the
observations and images it asked for, and in starting to gather the next ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from softaug.benchmarks.common import Stopwatch, make_replay
from softaug.config import Config, make_config
from softaug.errors import UserError
from softaug.learning.agent import Agent, Seen, make_agent
from softaug.learning.augment import RandomOverlay
from softaug.learning.auxiliary.soda import SodaTask
from softaug.learning.memory import keep_freed_memory
from softaug.learning.replay import Replay
from softaug.media import folder_of
from softaug.media.folder_images import FolderImages
from softaug.media.packed_images import build

FILES = 400
GOALS = {"packed_ms": 15.0, "waiting": 0.05}


def sleeping_agent(config: Config, images: FolderImages, sleep_seconds: float) -> tuple[Agent, Stopwatch]:
    """SODA's agent without its computation, and the time it waits for overlay images."""
    agent = make_agent(config, (9, config.image_size, config.image_size), 6, images=images)
    waiting, nothing = Stopwatch(), torch.zeros(())
    overlay, task = agent.strong, agent.auxiliary
    assert isinstance(overlay, RandomOverlay) and isinstance(task, SodaTask)
    overlay._sample = waiting.wrap(overlay._sample)  # type: ignore[method-assign]
    crop = agent.weak

    def prepare(observations: Tensor, generator: torch.Generator) -> Tensor:
        for _ in range(2):  # what is drawn before the images; the thread that looks ahead draws the same
            view = crop(observations[:, :1], generator)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        overlay._sample((seed, len(view), *view.shape[2:]))
        if task.prefetch:
            task.fetch_ahead(observations, generator)
        return view

    def compute(*arguments: Any) -> dict[str, Tensor]:
        time.sleep(sleep_seconds)
        return {}

    agent._views = lambda batch: Seen(batch, batch.obs, None, batch.obs, batch.next_obs)  # type: ignore[method-assign]
    task.prepare = prepare  # type: ignore[method-assign, assignment]
    for owner, name, function in (
        (agent, "critic_pass", lambda seen: ([], None)),
        (agent.sac, "bellman_target", lambda *arguments: nothing),
        (agent.sac, "update_critic", compute),
        (agent.sac, "update_actor", lambda *arguments: {}),
        (agent.sac, "update_target", lambda: None),
        (agent, "auxiliary_gradients", lambda prepared: nothing),
        (agent, "step_auxiliary", lambda: None),
    ):
        setattr(owner, name, function)
    return agent, waiting


def measure_waiting(
    replay: Replay, images: FolderImages, *, updates: int, sleep_ms: float, prefetch: str
) -> dict[str, Any]:
    """Waiting per update and its share of the time, at paper size."""
    config = make_config(method="soda_overlay", device="cpu", prefetch=prefetch)
    agent, waiting = sleeping_agent(config, images, sleep_ms / 1e3)
    frame, action = np.zeros((config.image_size, config.image_size, 3), np.uint8), np.zeros(6, np.float32)
    with _timed_samples(replay, waiting):
        for update in range(-4, updates):
            if update == 0:  # the first ones warm up
                waiting.seconds, begun = 0.0, time.perf_counter()
            agent.update(replay)
            replay.add(action, 0.0, False, frame)
        total = time.perf_counter() - begun
    replay._guesses.clear()
    return {
        "prefetch": prefetch,
        "waiting_ms": 1e3 * waiting.seconds / updates,
        "update_ms": 1e3 * total / updates,
        "waiting": waiting.seconds / total,
    }


@contextmanager
def _timed_samples(replay: Replay, waiting: Stopwatch) -> Iterator[None]:
    names = ("sample", "sample_observations", "gather_ahead")
    for name in names:
        setattr(replay, name, waiting.wrap(getattr(replay, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(replay, name)  # the class's own again


def measure_images(folder: Path, *, batch: int, size: int, repeats: int) -> dict[str, Any]:
    """Shortest and median time of a batch, decoded and packed, in turns."""
    sources = {"decoded": FolderImages(folder, packed=False), "packed": FolderImages(folder)}
    times: dict[str, list[float]] = {name: [] for name in sources}
    cpu_times: dict[str, list[float]] = {
        name: [] for name in sources
    }  # of all threads: hardly moved by other work
    for repeat in range(repeats + 1):
        for name, source in sources.items():
            begun, cpu_begun = time.perf_counter(), time.process_time()
            source.sample(batch, size, size, np.random.default_rng(repeat))
            if repeat > 0:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
                cpu_times[name].append(time.process_time() - cpu_begun)
    best = {name: 1e3 * min(seconds) for name, seconds in times.items()}
    return {
        "batch": batch,
        "size": size,
        **{f"{name}_ms": value for name, value in best.items()},
        **{f"{name}_ms_median": 1e3 * float(np.median(seconds)) for name, seconds in times.items()},
        **{f"{name}_images_per_second": 1e3 * batch / value for name, value in best.items()},
        "speedup": best["decoded"] / best["packed"],
        **{f"{name}_cpu_ms": 1e3 * min(seconds) for name, seconds in cpu_times.items()},
        "pack": sources["packed"].describe()["packed"],
    }


def write_jpegs(folder: Path, count: int) -> Path:
    """Files like those of Places365: 256 x 256, some 20 kB each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)
    return folder


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    folder = Path(args.images) if args.images else write_jpegs(directory / "images", FILES)
    if not args.images:
        os.environ["SOFTAUG_HOME"] = str(directory / "home")  # this pack is not worth keeping
        build(folder, FILES, 256)
    print("overlay images ...", file=sys.stderr, flush=True)
    images = measure_images(folder, batch=256, size=84, repeats=args.repeats)
    print(f"filling a replay of {args.decisions} decisions ...", file=sys.stderr, flush=True)
    replay = make_replay(make_config(), directory / "replay", args.decisions)
    rows = []
    for prefetch in ("off", "on"):
        print(f"waiting, prefetch {prefetch} ...", file=sys.stderr, flush=True)
        rows.append(
            measure_waiting(
                replay, FolderImages(folder), updates=args.updates, sleep_ms=args.sleep_ms, prefetch=prefetch
            )
        )
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "sleep_ms": args.sleep_ms,
        "images": images,
        "waiting": rows,
    }


def show(result: dict[str, Any]) -> None:
    images, console = result["images"], Console()
    table = Table(
        title=f"{images['batch']} overlay images of {images['size']}x{images['size']} ({result['cpus']} CPUs, load {result['load']:.1f})",
        caption=f"shortest of the repeats; CPU: of all threads together; goal: at most {GOALS['packed_ms']:g} ms from a pack",
        box=box.SIMPLE_HEAD,
    )
    for name in ("from", "ms", "CPU ms", "images/s", "speed-up"):
        table.add_column(name, justify="left" if name == "from" else "right")
    for name in ("decoded", "packed"):
        speedup = f"{images['speedup']:.1f}x" if name == "packed" else ""
        times = (f"{images[f'{name}{kind}_ms']:.1f}" for kind in ("", "_cpu"))
        table.add_row(name, *times, f"{images[f'{name}_images_per_second']:.0f}", speedup)
    console.print(table)
    table = Table(
        title=f"Waiting for data, SODA at paper size, the learner a sleep of {result['sleep_ms']:g} ms",
        caption=f"goal with prefetching: at most {GOALS['waiting']:.0%}",
        box=box.SIMPLE_HEAD,
    )
    for name in ("prefetch", "waiting, ms an update", "update, ms", "waiting"):
        table.add_column(name, justify="left" if name == "prefetch" else "right")
    for row in result["waiting"]:
        table.add_row(
            row["prefetch"], f"{row['waiting_ms']:.2f}", f"{row['update_ms']:.1f}", f"{row['waiting']:.1%}"
        )
    console.print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", default="", help="packed images: a folder or a registered name")
    parser.add_argument("--repeats", type=int, default=10, help="batches of images measured")
    parser.add_argument("--updates", type=int, default=100, help="updates measured")
    parser.add_argument("--sleep-ms", type=float, default=30.0, help="the learner's time for an update")
    parser.add_argument("--decisions", type=int, default=5_000, help="decisions in the replay (30 kB each)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if min(args.repeats, args.updates) < 1 or args.decisions < 250 or args.sleep_ms < 0:
        raise UserError(
            "bench data needs --repeats and --updates from 1, --decisions from 250, --sleep-ms from 0."
        )
    if args.images:
        args.images = folder_of(args.images, "images")
        if "packed" not in FolderImages(args.images).describe():
            raise UserError(f"{args.images} is not packed; run `softaug data pack {args.images}` first.")
    torch.set_num_threads(1)  # the images' own threads are what uses the cores
    keep_freed_memory()
    home = os.environ.get("SOFTAUG_HOME")
    try:
        with tempfile.TemporaryDirectory(prefix="softaug-bench-") as directory:
            return measure(args, Path(directory))
    finally:
        os.environ.pop("SOFTAUG_HOME", None)
        if home is not None:
            os.environ["SOFTAUG_HOME"] = home
