"""A worker that trains nothing and does as it is told, and a tiny config for one that trains."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from softaug.sweep import PlannedRun, plan_grid
from softaug.sweep.supervise import Orders

# Its argument maps a seed to what its attempts do before one finishes: "finish", "fail", "diverge", "die", "train" (until it is
# interrupted, like training) or "stuck" (until it is killed).
WORKER = """
import json, os, signal, sys, time
from pathlib import Path

request = json.loads(sys.stdin.buffer.readline())
run, config = Path(request["directory"]), request["config"]
attempt = (run / "log.txt").read_text().count("--- ")
what = [*json.loads(sys.argv[1]).get(str(config["seed"]), []), *["finish"] * attempt][attempt - 1]
(run / "config.json").write_text(json.dumps(config))
with (run / "worked.txt").open("a") as file:
    file.write(f"{os.getpid()} {request['threads']} {os.getcwd()}\\n")
print(f"seed {config['seed']} does {what}", flush=True)
if what == "fail":
    print("the disk is full", file=sys.stderr)
    sys.exit(1)
if what == "diverge":
    sys.exit(3)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "train":
    def stop(*_):
        (run / "saved").touch()
        sys.exit(130)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    (run / "training").touch()
    while os.read(0, 1):
        pass
    stop()
if what == "stuck":
    signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (run / "training").touch()
    time.sleep(600)
(run / "final_eval.json").write_text("{}")
"""


def orders(does: dict[int, list[str]] | None = None, *, retries: int = 2, sweep: str = "this") -> Orders:
    """Orders for the fake worker."""
    command = (
        sys.executable,
        "-c",
        WORKER,
        json.dumps({str(seed): what for seed, what in (does or {}).items()}),
    )
    return Orders(sweep, retries, threads=1, cwd=str(Path.cwd()), command=command)


def grid(out: Path, seeds: int = 1, **overrides: Any) -> list[PlannedRun]:
    """`seeds` runs of a config that trains in a second or two on the real environment."""
    return plan_grid(["cartpole_balance"], ["sac"], range(seeds), out, **{**TINY, **overrides})


TINY: dict[str, Any] = {
    "preset": "small",
    "decisions": 150,
    "image_size": 20,
    "crop_size": 16,
    "frame_stack": 2,
    "action_repeat": 20,
    "filters": (4, 4),
    "strides": (2, 1),
    "pad_own_layers": 1,
    "projection_dim": 8,
    "hidden_dim": 16,
    "batch_size": 8,
    "aux_batch_size": 8,
    "random_decisions": 30,
    "initial_updates": 10,
    "replay_capacity": 70,
    "eval_every": 0,
    "eval_episodes": 1,
    "eval_modes": ("train",),
    "checkpoint_every": 25,
    "log_every": 10,
    "tensorboard": False,
    "device": "cpu",
    "env_process": False,
}


def flags(**overrides: Any) -> list[str]:
    """`TINY` for the command line."""
    given = ["--tasks", "cartpole_balance", "--methods", "sac"]
    for name, value in {**TINY, **overrides}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            given += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return given
