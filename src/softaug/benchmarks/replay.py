"""`softaug bench replay`: time to make a batch from a memory-mapped replay, next to a naive loop over samples.

A batch is gathered, stacked, cropped and turned into floats, as the encoder takes it. The file is larger than the
processor's caches, and is in the page cache: a disk is not what is measured here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softaug.benchmarks import plain_data
from softaug.benchmarks.common import EPISODE, make_replay
from softaug.config import make_config
from softaug.errors import UserError
from softaug.learning.augment import RandomCrop
from softaug.learning.memory import keep_freed_memory
from softaug.learning.replay import Replay

BATCHES = (128, 256)


def measure(decisions: int, repeats: int) -> dict[str, Any]:
    """Milliseconds per batch of observations: the shortest and the median of interleaved repeats."""
    config = make_config()
    rows = []
    with tempfile.TemporaryDirectory(prefix="softaug-bench-") as directory:
        print(f"filling a replay of {decisions} decisions ...", file=sys.stderr, flush=True)
        replay = make_replay(config, Path(directory), decisions)
        crop, rng, generator = RandomCrop(config.crop_size), np.random.default_rng(0), torch.Generator()
        for batch_size in BATCHES:
            print(f"batch of {batch_size} ...", file=sys.stderr, flush=True)
            timed: dict[str, list[float]] = {"sample": [], "crop": [], "float": [], "total": [], "naive": []}
            for _ in range(repeats + 1):
                marks = [time.perf_counter()]
                observations = replay.sample_observations(batch_size, rng)
                marks.append(time.perf_counter())
                view = crop(observations, generator)
                marks.append(time.perf_counter())
                view.to(torch.float32)
                marks.append(time.perf_counter())
                for name, seconds in zip(("sample", "crop", "float"), np.diff(marks), strict=True):
                    timed[name].append(float(seconds))
                timed["total"].append(marks[-1] - marks[0])
                timed["naive"].append(_naive_seconds(replay, batch_size, config.crop_size, rng, generator))
            best = {name: 1e3 * min(seconds[1:]) for name, seconds in timed.items()}
            middle = {name: 1e3 * float(np.median(seconds[1:])) for name, seconds in timed.items()}
            rows.append(
                {
                    "batch": batch_size,
                    "sample_ms": best["sample"],
                    "crop_ms": best["crop"],
                    "float_ms": best["float"],
                    "total_ms": best["total"],
                    "total_ms_median": middle["total"],
                    "naive_ms": best["naive"],
                    "naive_ms_median": middle["naive"],
                    "speedup": best["naive"] / best["total"],
                }
            )
        file_mb = replay.frames.nbytes / 1e6
    return {"threads": torch.get_num_threads(), "file_mb": file_mb, "batches": rows}


def _naive_seconds(
    replay: Replay, batch_size: int, crop_size: int, rng: np.random.Generator, generator: torch.Generator
) -> float:
    begun = time.perf_counter()
    plain_data.crop(plain_data.sample_observations(replay, batch_size, rng), crop_size, generator)
    return time.perf_counter() - begun


def show(result: dict[str, Any]) -> None:
    table = Table(
        title=f"A batch of 100x100 observations from a file of {result['file_mb']:.0f} MB, ms",
        caption=f"shortest of the repeats, {result['threads']} threads; naive: a loop over samples",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("batch", "gather, stack", "crop", "to float", "total", "naive", "speed-up"):
        table.add_column(name, justify="right")
    for row in result["batches"]:
        times = ("sample_ms", "crop_ms", "float_ms", "total_ms", "naive_ms")
        table.add_row(str(row["batch"]), *(f"{row[name]:.1f}" for name in times), f"{row['speedup']:.1f}x")
    Console().print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions in the replay (30 kB each)")
    parser.add_argument("--repeats", type=int, default=20, help="batches measured per size")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: torch's own choice")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.decisions < EPISODE or args.repeats < 1:
        raise UserError(f"bench replay needs --decisions of at least {EPISODE} and --repeats of at least 1")
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    keep_freed_memory()  # as training does; here the naive loop has it too
    return measure(args.decisions, args.repeats)
