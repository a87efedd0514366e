"""What a sweep will cost: time and disk, for `softaug sweep --dry-run`.

Time comes from runs of the same task, method and config that `--out` holds already, whatever their seed. Where there
is none, it comes from a short calibration on this machine: some decisions of the environment and some updates.
"""

from __future__ import annotations

import dataclasses
import heapq
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softaug.benchmarks.common import ACTION_DIM, make_replay
from softaug.benchmarks.update import schedule
from softaug.config import Config, read_config
from softaug.config.comparing import differences
from softaug.envs.factory import ConfigEnvs
from softaug.evaluation.runs import observation_shape
from softaug.learning.agent import Agent, choose_device, make_agent
from softaug.learning.memory import keep_freed_memory
from softaug.learning.replay import Replay
from softaug.media import image_source
from softaug.storage.checkpoint import complete_checkpoints
from softaug.storage.run_files import RunFiles
from softaug.sweep.plan import Begun, PlannedRun
from softaug.sweep.progress import read_progress
from softaug.training.loop import tensors_in
from softaug.training.preparation import EPISODE_FRAMES, replay_sizes
from softaug.training.stepper import InProcessStepper, Stepper

CALIBRATION_DECISIONS = 20
CALIBRATION_SECONDS = 1.0
"""Updates are timed for at least this long, and at least once through their schedule."""


@dataclass(frozen=True)
class Cost:
    """Of one run as a whole."""

    seconds: float
    replay_bytes: int
    """on the disk while the run trains"""
    kept_bytes: int
    """of its checkpoints, which stay"""
    measured: bool
    """from a run in the same directory; else from a calibration"""


NOTHING = Cost(0.0, 0, 0, measured=True)


@dataclass(frozen=True)
class Estimate:
    """What is left to do of one run."""

    run: PlannedRun
    begun: Begun
    decisions_done: int
    seconds_left: float
    cost: Cost


def estimate(runs: Sequence[PlannedRun], threads: int, say: Callable[[str], None]) -> list[Estimate]:
    """What is left of every run, each kind measured once. threads: torch threads of a run."""
    costs: dict[Config, Cost] = {}
    calibration = Calibration(threads, say)
    estimates = []
    for run in runs:
        begun, kind = run.begun(), dataclasses.replace(run.config, seed=0)
        if begun == "finished":
            estimates.append(Estimate(run, begun, run.config.decisions, 0.0, NOTHING))
            continue
        if kind not in costs:
            costs[kind] = from_runs(run, calibration) or calibration.cost(kind)
        done = read_progress(run.directory, run.config).decisions if begun == "begun" else 0
        left = costs[kind].seconds * (1 - done / run.config.decisions)
        estimates.append(Estimate(run, begun, done, left, costs[kind]))
    return estimates


def wall_seconds(seconds: Sequence[float], workers: int) -> float:
    """How long `workers` take for jobs that are handed out in this order."""
    free_at = [0.0] * workers
    for job in seconds:
        heapq.heappush(free_at, heapq.heappop(free_at) + job)
    return max(free_at)


def disk_bytes(estimates: Sequence[Estimate], workers: int) -> tuple[int, int]:
    """The most that replays take at a time, and what stays when every run is finished."""
    unfinished = [e for e in estimates if e.begun != "finished"]
    # One that was interrupted has its replay on the disk until its turn comes.
    held = sum(e.cost.replay_bytes for e in unfinished if e.begun == "begun")
    new = sorted((e.cost.replay_bytes for e in unfinished if e.begun == "new"), reverse=True)
    return held + sum(new[:workers]), sum(e.cost.kept_bytes for e in unfinished)


def from_runs(run: PlannedRun, calibration: Calibration) -> Cost | None:
    """The cost as runs show it that differ from `run` in nothing but the seed."""
    rates, sizes = [], []
    for directory in sorted(run.directory.parent.glob("seed*")):
        if not RunFiles(directory).exist:
            continue
        found = read_config(RunFiles(directory).config)
        if differences(dataclasses.replace(found, seed=run.config.seed), run.config):
            continue
        checkpoints = complete_checkpoints(RunFiles(directory).checkpoints)
        rate = read_progress(directory, found).overall_rate
        if rate and checkpoints:
            rates.append(rate)
            sizes.append(sum(file.stat().st_size for file in checkpoints[-1].iterdir()))
    if not rates:
        return None
    config = run.config
    return Cost(
        config.decisions / float(np.mean(rates)),
        *disk_of_run(config, calibration.stepper(config), max(sizes)),
        measured=True,
    )


def disk_of_run(config: Config, stepper: Stepper, checkpoint_bytes: int) -> tuple[int, int]:
    """Bytes of the replay while the run trains, and of the checkpoints that stay."""
    replay = Replay.disk_bytes(**replay_sizes(config, stepper, fixed_length=not config.own_env))
    if config.replay_memory == "ram":  # then every checkpoint holds a copy
        return 0, config.keep_checkpoints * (checkpoint_bytes + replay)
    return replay, config.keep_checkpoints * checkpoint_bytes


@dataclass(frozen=True)
class Speeds:
    """Mean seconds of the parts of a decision."""

    step: float
    """of the environment, rendering and resets included"""
    act: float
    update: float


def run_seconds(config: Config, stepper: Stepper, speeds: Speeds, *, overlapped: bool) -> tuple[float, float]:
    """Of training and of the evaluations in it. overlapped: the environment steps while the learner updates."""
    step, act, update = speeds.step, speeds.act, speeds.update * config.updates_at_once / config.update_every
    learning = max(step, update) + act if overlapped else step + act + update
    random = min(config.random_decisions, config.decisions)
    training = random * step + config.initial_updates * speeds.update + (config.decisions - random) * learning
    evaluations = 1 + ((config.decisions - 1) // config.eval_every if config.eval_every else 0)
    episodes = evaluations * len(config.eval_modes) * config.eval_episodes
    return training, episodes * episode_decisions(stepper) * (step + act)


def episode_decisions(stepper: Stepper) -> int:
    """Length of an episode, at most."""
    facts = stepper.facts
    return facts["episode_decisions"] or -(-EPISODE_FRAMES // facts["action_repeat"])


class Calibration:
    """Measures each environment and each learner once, in this process."""

    def __init__(self, threads: int, say: Callable[[str], None]):
        self._threads, self._say = threads, say
        self._steppers: dict[Any, InProcessStepper] = {}
        self._decision_seconds: dict[Any, float] = {}
        self._updates: dict[Any, tuple[float, float, int]] = {}

    def stepper(self, config: Config) -> InProcessStepper:
        """The config's training environment."""
        key = (
            *(config.task, config.row.train_mode, config.render),
            *(config.image_size, config.frame_stack, config.action_repeat),
            *(config.image_key, config.episode_decisions),
        )
        if key not in self._steppers:
            make_env = partial(ConfigEnvs(config), config.row.train_mode, config.seed)
            self._steppers[key] = InProcessStepper(make_env)
            self._decision_seconds[self._steppers[key]] = decision_seconds(self._steppers[key])
        return self._steppers[key]

    def cost(self, config: Config) -> Cost:
        """The whole run from its parts. On the CPU the environment and the learner share the cores."""
        stepper = self.stepper(config)
        update, act, checkpoint_bytes = self._learner(config)
        on_cpu = choose_device(config.device).type == "cpu"
        speeds = Speeds(self._decision_seconds[stepper], act, update)
        training, evaluating = run_seconds(
            config, stepper, speeds, overlapped=config.env_process and not on_cpu
        )
        evaluating /= config.workers if not on_cpu else 1
        return Cost(training + evaluating, *disk_of_run(config, stepper, checkpoint_bytes), measured=False)

    def _learner(self, config: Config) -> tuple[float, float, int]:
        """Seconds of an update, of choosing an action, and bytes of a checkpoint."""
        # A learner costs the same on every task of ours; an own environment has settings that those refuse.
        task = config.task if config.own_env else "walker_walk"
        key = dataclasses.replace(config, task=task, seed=0)
        if key not in self._updates:
            self._say(f"measuring {config.method} ({config.preset}) ...")
            self._updates[key] = learner_cost(config, self._threads)
        return self._updates[key]


def decision_seconds(stepper: InProcessStepper, clock: Callable[[], float] = time.perf_counter) -> float:
    """Mean seconds of a decision with random actions, resets between episodes included."""
    rng = np.random.default_rng(0)
    shape = stepper.action_space.shape
    assert shape is not None
    stepper.reset(seed=0)
    begun = 0.0
    for decision in range(CALIBRATION_DECISIONS + 2):
        if decision == 2:  # the first ones load textures and warm caches
            begun = clock()
        stepper.send(rng.uniform(-1, 1, shape).astype(np.float32))
        _, _, terminated, truncated, _ = stepper.receive()
        if terminated or truncated:  # an own environment's episode may be short
            stepper.reset()
    return (clock() - begun) / CALIBRATION_DECISIONS


def learner_cost(config: Config, threads: int) -> tuple[float, float, int]:
    """Seconds of an update averaged over its schedule, seconds of an action, bytes of a checkpoint."""
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    keep_freed_memory()
    try:
        with tempfile.TemporaryDirectory(prefix="softaug-estimate-") as directory:
            images = image_source(config.images or None) if config.row.uses_images else None
            agent = make_agent(config, observation_shape(config), ACTION_DIM, images=images)
            # Long enough for a batch; noise, which is as much work as images.
            replay = make_replay(config, Path(directory), decisions=max(300, 2 * config.batch_size))
            if images is not None and images.kind == "procedural":
                # They are made when first drawn, once in a process: not what a long run's updates take.
                images.sample(4096, 4, 4, np.random.default_rng(0))
            updates = schedule(config)
            for _ in range(updates):
                agent.update(replay)
            update = _mean_seconds(lambda: agent.update(replay), at_least=updates, agent=agent)
            obs = np.zeros(observation_shape(config), np.uint8)
            act = _mean_seconds(lambda: agent.act(obs), at_least=3, agent=agent)
    finally:
        torch.set_num_threads(before)
    return update, act, checkpoint_size(agent)


def checkpoint_size(agent: Agent) -> int:
    """Bytes of its tensors, after the first update: optimizers have no state before."""
    trees = (agent.state(), agent.policy_weights())
    return sum(t.numel() * t.element_size() for tree in trees for _, t in tensors_in(tree))


def _mean_seconds(call: Callable[[], Any], *, at_least: int, agent: Agent) -> float:
    """Mean over whole rounds of `at_least` calls, for about `CALIBRATION_SECONDS`."""
    calls, begun = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - begun < CALIBRATION_SECONDS:
        for _ in range(at_least):
            call()
        calls += at_least
    if agent.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / calls
