"""Kill training runs with SIGKILL at random times, resume them, and compare with runs that were never interrupted.

    python tests/kill_test.py --kills 100 --seed 1 --out results/kill_test.json

Each run is killed up to `KILLS_PER_RUN` times, at times drawn uniformly over the length of an undisturbed run, and
then finishes. Its weights, optimizer, generators, replay cursors, best weights (as bytes), metrics and last evaluation
must equal the undisturbed run's, bit for bit; only the wall clock is left out. Exit status 1 if any differs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fakes import tiny_config, train_dot
from run_outcome import assert_same, outcome

from softaug.config import Config, make_config
from softaug.files import write_atomically
from softaug.training.preparation import git_commit

KILLS_PER_RUN = 4
REAL = {
    "task": "cartpole_swingup", "preset": "small", "decisions": 100, "random_decisions": 40, "initial_updates": 15, "action_repeat": 20,
    "batch_size": 16, "aux_batch_size": 16, "image_size": 36, "crop_size": 32, "checkpoint_every": 20, "eval_every": 0,
    "eval_episodes": 1, "eval_modes": ("train",), "images": "procedural", "threads": 1, "replay_capacity": 60,
    "tensorboard": False, "device": "cpu",
}  # fmt: skip


@dataclass
class Scenario:
    """A run to be killed, and what came of it."""

    config: Config
    terminates: bool = False
    real: bool = False
    kills: int = 0
    kills_before_a_checkpoint: int = 0
    runs: int = 0
    different: list[str] = field(default_factory=list)


def scenarios() -> dict[str, Scenario]:
    return {
        "soda": Scenario(tiny(method="soda_overlay")),
        "curl, environment in its own process": Scenario(tiny(method="curl", env_process=True, n_step=3)),
        "pad": Scenario(tiny(method="pad")),
        "soda, wrapping replay, irregular episodes": Scenario(
            tiny(method="soda_overlay", replay_capacity=40, checkpoint_every=15), terminates=True
        ),
        "sac, wrapping replay in RAM": Scenario(tiny(replay_capacity=40, replay_memory="ram")),
        "sac, checkpoint before the catch-up updates": Scenario(
            tiny(random_decisions=50, initial_updates=60)
        ),
        "soda, cartpole_swingup, wrapping replay": Scenario(make_config(method="soda", **REAL), real=True),
        "curl, cartpole_swingup, wrapping replay": Scenario(make_config(method="curl", **REAL), real=True),
        "pad, cartpole_swingup, wrapping replay": Scenario(make_config(method="pad", **REAL), real=True),
    }


def tiny(**overrides: Any) -> Config:
    """A run of a second or two, most of it after the first checkpoint."""
    sizes = {
        "decisions": 120,
        "random_decisions": 40,
        "checkpoint_every": 25,
        "eval_every": 60,
        "eval_episodes": 1,
    }
    return tiny_config(**{**sizes, **overrides})


def train_real(config: Config, out: Path) -> None:
    """Begin or resume a run on dm_control."""
    import torch

    from softaug.training.run import train

    torch.set_num_threads(1)
    train(config, out, resume=(out / "config.json").exists(), quiet=True)


def start(scenario: Scenario, out: Path) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kill_test", "softaug.training.run", "torch._dynamo"])
    target, options = (train_real, {}) if scenario.real else (train_dot, {"terminates": scenario.terminates})
    process = context.Process(target=target, args=(scenario.config, out), kwargs=options)
    process.start()
    return process


def finish(scenario: Scenario, out: Path) -> None:
    process = start(scenario, out)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the run in {out} ended with {process.exitcode}")


def kill_and_resume(
    scenario: Scenario, out: Path, seconds: float, rng: np.random.Generator, left: int
) -> int:
    """One run with at most `left` kills; returns how many it had."""
    kills = 0
    while kills < min(KILLS_PER_RUN, left):
        process = start(scenario, out)
        process.join(rng.uniform(0, seconds))
        process.kill()
        process.join()
        if process.exitcode == 0:
            return kills
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"the run in {out} ended with {process.exitcode}")
        kills += 1
        if not any((out / "checkpoints").glob("[0-9]*")):
            scenario.kills_before_a_checkpoint += 1
    finish(scenario, out)
    return kills


def summary(args: argparse.Namespace, found: dict[str, Scenario], began: float) -> str:
    values = {
        "command": f"python tests/kill_test.py --kills {args.kills} --seed {args.seed} --out results/kill_test.json",
        "seed": args.seed,
        "kills": sum(s.kills for s in found.values()),
        "runs": sum(s.runs for s in found.values()),
        "different": sum(len(s.different) for s in found.values()),
        "seconds": round(time.monotonic() - began),
        "git_commit": git_commit(),
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", "mujoco", "dm_control", "numpy")
        },
        "scenarios": {
            name: {
                "method": s.config.method,
                "environment": s.config.task if s.real else "tests/fakes.py",
                "kills": s.kills,
                "kills_before_a_checkpoint": s.kills_before_a_checkpoint,
                "runs": s.runs,
                "bit_exact_runs": s.runs - len(s.different),
                "different": s.different,
            }
            for name, s in found.items()
        },
    }
    return json.dumps(values, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="of the times of the kills [random]")
    parser.add_argument("--out", type=Path, default=None, help="where to write the summary as JSON")
    args = parser.parse_args()
    if args.seed is None:
        args.seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {args.seed}", flush=True)
    rng, found, began, kills = np.random.default_rng(args.seed), scenarios(), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="softaug-kill-test-") as name:
        directory = Path(name)
        references: dict[str, tuple[float, dict[str, Any]]] = {}
        for number, (title, scenario) in enumerate(found.items()):
            out = directory / f"reference-{number}"
            started = time.monotonic()
            finish(scenario, out)
            references[title] = (time.monotonic() - started, outcome(out))
            print(f"undisturbed: {title}, {references[title][0]:.1f} s", flush=True)
        titles = list(found)
        while kills < args.kills:
            title = titles[sum(s.runs for s in found.values()) % len(titles)]
            scenario, (seconds, expected) = found[title], references[title]
            out = directory / "run"
            here = kill_and_resume(scenario, out, seconds, rng, args.kills - kills)
            kills, scenario.kills, scenario.runs = kills + here, scenario.kills + here, scenario.runs + 1
            try:
                assert_same(outcome(out), expected)
            except AssertionError as error:
                scenario.different.append(f"run {scenario.runs}: {error}")
            shutil.rmtree(out)
            state = "exact" if not scenario.different else f"DIFFERENT {scenario.different[-1]}"
            print(f"{kills:4d}/{args.kills} kills  {title}: {here} kills, {state}", flush=True)
            if args.out is not None:
                write_atomically(args.out, summary(args, found, began))
    different = sum(len(s.different) for s in found.values())
    print(f"{kills} kills, {sum(s.runs for s in found.values())} runs, {different} not bit-exact")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
