"""The training loop: act, step, store, update, evaluate, checkpoint.

A run is exact: killed at any time and resumed, it ends with the same weights and metrics, bit for bit, as one
that was never interrupted (on the CPU). Three rules make it so: everything the next decision depends on is in the
checkpoint; checkpoints and evaluations change none of it; and what is written between checkpoints (metrics,
replay) can be cut back to the last one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from softaug.config import Config
from softaug.envs.observations import FrameStack
from softaug.errors import UserError
from softaug.evaluation.evaluate import EnvFactory, evaluate
from softaug.evaluation.runs import RunPolicy
from softaug.files import write_atomically
from softaug.interrupt import Interrupt
from softaug.learning.agent import Agent
from softaug.learning.replay import Replay
from softaug.storage import checkpoint
from softaug.training import log, preparation
from softaug.training.stepper import Stepper

RECENT_EPISODES = 10  # whose mean return chooses the best checkpoint


class Diverged(UserError):
    """A loss, weight or action is no longer a finite number."""


@dataclass
class Counters:
    """Where a run is. `decisions` are agent steps; `frames` are environment steps."""

    decisions: int = 0
    frames: int = 0
    episodes: int = 0
    episode_return: float = 0.0
    episode_decisions: int = 0
    recent_returns: list[float] = field(default_factory=list)
    best_return: float | None = None
    evaluated: int = 0
    """decisions at the last evaluation"""
    metrics_bytes: int = 0
    seconds: float = 0.0


@dataclass
class Training:
    """The parts of a run, wired by `softaug.training.run.train`, and what can happen to them."""

    config: Config
    run: preparation.RunDirectory
    agent: Agent
    replay: Replay
    stepper: Stepper
    env_factory: EnvFactory
    metrics: log.RunLog
    console: log.ConsoleProgress
    interrupt: Interrupt
    losses: log.MeanLosses = field(default_factory=log.MeanLosses)
    counters: Counters = field(default_factory=Counters)
    slots_saved: int = 0
    """slots the replay had been given at the last checkpoint"""
    saved: tuple[int, int, int] | None = None
    """`progress` at the last checkpoint"""

    def __post_init__(self) -> None:
        shape = self.stepper.observation_space.shape
        assert shape is not None
        self.stack = FrameStack(shape)
        self.obs = self.stack.obs
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._logged_at = (self._started, 0)  # time and decisions at the last line of losses

    # The loop

    def loop(self) -> None:
        """Train until the last decision or an interrupt, with a checkpoint at the end either way."""
        counters, config = self.counters, self.config
        while not self.interrupt.requested:
            if self.evaluation_is_due():
                self.evaluate()
            elif counters.decisions == config.decisions:
                break
            elif (
                counters.decisions == config.random_decisions and self.agent.updates < config.initial_updates
            ):
                self.catch_up()
            else:
                self.decide()
                if counters.decisions % config.log_every == 0:
                    self.log_losses()
                if self.checkpoint_is_due():
                    self.save()
                self.console.update(counters.decisions)
        if not self.run.finished and self.progress() != self.saved:
            self.save()

    def decide(self) -> None:
        """One decision, with the updates that are due computed while the environment steps."""
        action = self.choose_action()
        self.stepper.send(action)
        for _ in range(self.updates_due()):
            self.losses.add(self.agent.update(self.replay))
        frame, reward, terminated, truncated, info = self.stepper.receive()
        self.obs = self.stack.add(frame)
        # Only `terminated` ends the return: after a time limit (`truncated`) the target bootstraps.
        self.replay.add(action, reward, terminated, frame)
        self.counters.decisions += 1
        self.counters.frames += info.get("frames", self.stepper.facts["action_repeat"])
        self.counters.episode_return += reward
        self.counters.episode_decisions += 1
        if terminated or truncated:
            self.log_episode()
            self.begin_episode()

    def choose_action(self) -> np.ndarray:
        if self.counters.decisions < self.config.random_decisions:
            return self.agent.random_action()
        action = self.agent.act(self.obs)
        if not np.isfinite(action).all():
            raise self.diverged("the policy's action")
        return action

    def updates_due(self) -> int:
        learning = self.counters.decisions - self.config.random_decisions
        due = learning > 0 and learning % self.config.update_every == 0
        return self.config.updates_at_once if due else 0

    def catch_up(self) -> None:
        """The updates for the random decisions. An interrupt may fall between any two of them."""
        total = self.config.initial_updates
        while self.agent.updates < total and not self.interrupt.requested:
            self.losses.add(self.agent.update(self.replay))
            self.console.phase("catch-up updates", self.agent.updates, total)

    def begin_episode(self, seed: int | None = None) -> None:
        frame, _ = self.stepper.reset(seed=seed)
        self.obs = self.stack.begin(frame)
        self.replay.begin_episode(frame)
        self.counters.episode_return, self.counters.episode_decisions = 0.0, 0

    # Evaluation

    def evaluation_is_due(self) -> bool:
        counters, every = self.counters, self.config.eval_every
        due = counters.decisions == self.config.decisions or (every > 0 and counters.decisions % every == 0)
        return due and counters.evaluated < counters.decisions

    def evaluate(self) -> None:
        """Returns in every mode, in environments and with random draws of their own."""
        last = self.counters.decisions == self.config.decisions
        began = time.monotonic()
        try:
            with self.interrupt.raised():
                results = self.returns(adapt=False)
                # A policy that learns at test time (PAD) is tested both ways, once: it is slow.
                adapted = self.returns(adapt=True) if last and self.config.row.adapts else {}
        except KeyboardInterrupt:
            return  # nothing was written; the resumed run evaluates again
        for adapt, modes in ((False, results), (True, adapted)):
            for mode, values in modes.items():
                line = {
                    "adapt": adapt,
                    **{name: values[name] for name in ("returns", "mean", "std", "media")},
                }
                self.metrics.evaluation(mode, line, self.where(), self.clock())
                self.console.say(
                    f"{self.counters.decisions:>11,} decisions  {mode:<12} {'adapted ' if adapt else ''}"
                    f"return {values['mean']:.1f} ± {values['std']:.1f}"
                )
        self.counters.evaluated = self.counters.decisions
        # Not counted as slow decisions.
        self._logged_at = (self._logged_at[0] + time.monotonic() - began, self._logged_at[1])
        if last:
            text = json.dumps({**self.where(), "modes": results, "adapted": adapted}, indent=2) + "\n"
            write_atomically(self.run.final_eval, text)

    def returns(self, *, adapt: bool) -> dict[str, dict[str, Any]]:
        """mode -> returns per episode and what `softaug.evaluation.evaluate.evaluate` says more."""
        config, done = self.config, 0
        total = len(config.eval_modes) * config.eval_episodes
        self.console.phase("evaluation episodes", 0, total)

        def progress(mode: str, episode: int, value: float) -> None:
            nonlocal done
            done += 1
            self.console.phase("evaluation episodes", done, total)

        return evaluate(
            RunPolicy(config, self.agent.policy_weights(), adapt),
            self.env_factory,
            config.eval_modes,
            config.eval_episodes,
            evaluation_seed(config.seed),
            workers=config.workers,
            video_dir=self.run.videos / f"{self.counters.decisions:09d}"
            if config.eval_video and not adapt
            else None,
            progress=progress,
        )

    # Metrics

    def log_episode(self) -> None:
        counters = self.counters
        counters.episodes += 1
        counters.recent_returns = [*counters.recent_returns, counters.episode_return][-RECENT_EPISODES:]
        values = {
            "episode": counters.episodes,
            "return": counters.episode_return,
            "length": counters.episode_decisions,
        }
        self.metrics.episode(values, self.where(), self.clock())
        self.console.update(counters.decisions, {"return": counters.episode_return})

    def log_losses(self) -> None:
        """Mean losses since the last such line; a loss that is not finite ends the run here."""
        means = self.checked_losses()
        now, (then, before) = time.monotonic(), self._logged_at
        rate = {"decisions_per_second": round((self.counters.decisions - before) / max(now - then, 1e-9), 3)}
        self._logged_at = (now, self.counters.decisions)
        if means:
            self.metrics.train(means, self.where(), {**self.clock(), **rate})
            self.console.update(self.counters.decisions, means)
        self.losses.clear()

    def checked_losses(self) -> dict[str, float]:
        means = self.losses.means()
        for name, value in means.items():
            if not np.isfinite(value):
                raise self.diverged(f"{name} ({value})")
        return means

    def diverged(self, what: str) -> Diverged:
        complete = checkpoint.complete_checkpoints(self.run.checkpoints)
        good = f"the last good checkpoint is {complete[-1]}" if complete else "there is no checkpoint yet"
        return Diverged(
            f"training diverged: {what} is not finite after {self.counters.decisions:,} decisions and "
            f"{self.agent.updates:,} updates; {good}. Try a lower learning rate or another seed"
        )

    def where(self) -> dict[str, int]:
        return {
            "decisions": self.counters.decisions,
            "frames": self.counters.frames,
            "updates": self.agent.updates,
        }

    def clock(self) -> dict[str, float]:
        return {"seconds": round(self._seconds_before + time.monotonic() - self._started, 3)}

    # Checkpoints

    def checkpoint_is_due(self) -> bool:
        # Half the slack: what is written until the next checkpoint must spare the replay of the last two.
        slack = self.replay.slots - self.replay.window
        written = self.replay.added - self.slots_saved
        return self.at_regular_checkpoint() or (slack > 1 and written >= slack // 2)

    def at_regular_checkpoint(self) -> bool:
        return (
            self.counters.decisions % self.config.checkpoint_every == 0
            or self.counters.decisions == self.config.decisions
        )

    def save(self) -> None:
        """A checkpoint of everything, in place of one of the same decision; never of a diverged agent."""
        self.checked_losses()
        state = self.agent.state()
        for path, tensor in tensors_in(state):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise self.diverged(f"a value of {path}")
        policy = self.agent.policy_weights()
        counters = self.counters
        score = float(np.mean(counters.recent_returns)) if counters.recent_returns else -np.inf
        # Only at regular checkpoints: the best of a run must not depend on when it was interrupted.
        if self.at_regular_checkpoint() and score > (
            counters.best_return if counters.best_return is not None else -np.inf
        ):
            # Before the checkpoint that knows of it: a kill in between only means doing this again.
            counters.best_return = score
            facts = {"decisions": counters.decisions, "training_return": score}
            checkpoint.save_best(self.run.checkpoints, policy, facts)
        self.replay.flush()
        counters.metrics_bytes = self.metrics.file.offset()
        counters.seconds = self.clock()["seconds"]
        tree = {
            "counters": dataclasses.asdict(counters),
            "obs": self.obs,
            "losses": self.losses.state(),
            "agent": state,
            "replay": self.replay.state(),
            "env": self.stepper.get_state(),
        }
        keep = self.config.keep_checkpoints
        checkpoint.save_checkpoint(self.run.checkpoints, counters.decisions, tree, policy, keep=keep)
        self.slots_saved = self.replay.added
        self.saved = self.progress()

    def progress(self) -> tuple[int, int, int]:
        """What changes when the run continues: catch-up updates and evaluations come without a decision."""
        return self.counters.decisions, self.agent.updates, self.counters.evaluated

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue where `save` was."""
        self.counters = Counters(**tree["counters"])
        self.obs = self.stack.obs = tree["obs"]
        self.losses.load_state(tree["losses"], self.agent.device)
        self.agent.load_state(tree["agent"])
        self.replay.load_state(tree["replay"])
        self.slots_saved = self.replay.added
        if tree["env"] is not None:
            self.stepper.set_state(tree["env"])
        else:
            # Not exact, but sound: in the replay the old episode ends here as at a time limit. The seed follows from
            # where the run is, so that a run resumed twice at the same place is the same twice.
            self.console.say(
                "the environment cannot save its state (it has no get_state() and set_state(state)): the interrupted "
                "episode is dropped and a new one begins, so the run differs from one that was never interrupted"
            )
            self.begin_episode(seed=resume_seed(self.config.seed, self.counters.decisions))
        self.saved = self.progress()
        self._seconds_before = self.counters.seconds
        self._logged_at = (self._started, self.counters.decisions)


def evaluation_seed(seed: int) -> int:
    """A seed of its own for evaluations, the same at each, so that curves compare like with like."""
    return int(np.random.SeedSequence([seed, 2]).generate_state(1)[0] >> 1)


def resume_seed(seed: int, decisions: int) -> int:
    """The seed of the episode begun by a resume that could not continue the old one."""
    return int(np.random.SeedSequence([seed, 3, decisions]).generate_state(1)[0] >> 1)


def tensors_in(tree: Any, path: str = "agent") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a state tree with its path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from tensors_in(value, f"{path}.{key}")
