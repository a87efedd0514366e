"""`train`: check what was asked for, open the run's directory, wire the parts and let the loop run.

The loop itself, with evaluation, metrics and checkpoints, is in `loop.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from softaug import trust as trusting
from softaug.config import Config, default_directory, refuse_training
from softaug.envs.custom import given
from softaug.envs.custom.loading import MakeEnv
from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError
from softaug.evaluation.evaluate import EnvFactory
from softaug.files import read_object
from softaug.interrupt import Interrupt
from softaug.learning.agent import choose_device, make_agent
from softaug.learning.memory import check_memory, keep_freed_memory
from softaug.learning.replay import Replay
from softaug.media import ImageSource, image_source
from softaug.storage import checkpoint
from softaug.training import log, preparation
from softaug.training.loop import Counters, Training
from softaug.training.stepper import make_stepper


@dataclass(frozen=True)
class Result:
    """How a call of `train` ended."""

    out: Path
    decisions: int
    frames: int
    updates: int
    finished: bool
    """False: interrupted; `train(..., resume=True)` continues."""
    evaluation: dict[str, Any]
    """mode -> returns per episode, mean and standard deviation, after the last decision"""
    adapted: dict[str, Any] = field(default_factory=dict)
    """the same with adaptation during the episode, for methods that do that (PAD)"""

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "out": str(self.out)}


def train(
    config: Config | None = None,
    out: Path | str | None = None,
    *,
    env: MakeEnv | str | None = None,
    test_envs: Mapping[str, MakeEnv | str] | None = None,
    env_factory: EnvFactory | None = None,
    images: ImageSource | str | None = None,
    resume: bool = False,
    trust: bool = False,
    keep_replay: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train one agent in the directory `out` (by default runs/...), and evaluate it.

    config: made by `make_config`; without it, `settings` are what `make_config` is given (method="soda", seed=1, ...).
    env: an environment of your own: a function without arguments that returns a Gymnasium environment with continuous
        actions, or its `module:callable`. test_envs: name -> function of a distribution to evaluate in.
    env_factory: (mode, seed) -> environment with the interface of `softaug.make_env`, instead of `env`.
    images: the overlay's image source; by default the one the config names (a name here is the config's field).
    resume: continue the run in `out`; `config` may differ only where results cannot.
    trust: import the code that a run to resume names, although it was not trained here by you (see `softaug.trust`).
    keep_replay: keep the replay's files when the run is finished.
    """
    if isinstance(images, str):
        settings, images = {**settings, "images": images}, None
    if env is not None and env_factory is not None:
        raise UserError("give env or env_factory, not both")
    # Otherwise the caller names all code: a resumed run's config must be equal to the one given.
    code_from_run = resume and config is None and env is None and env_factory is None
    config, given_envs, notes = given.choose(config, out, env, test_envs, resume=resume, settings=settings)
    refuse_training(config.row)
    out = Path(out or default_directory(config))
    if code_from_run:
        trusting.require_trust(out, config, trust=trust)
    keep_freed_memory()
    with preparation.full_disk_explained(out), ExitStack() as stack:
        if config.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(config.threads)
        console = log.ConsoleProgress(f"{config.task} {config.method}", config.decisions, quiet=quiet)
        stack.enter_context(closing(console))
        for note in notes:
            console.say(note)
        if resume:
            run = stack.enter_context(closing(preparation.reopen_run(out, config)))
            if run.finished:
                console.say(f"{out} is finished already ({config.decisions:,} decisions); nothing to do.")
                return _finished(run, keep_replay)
        else:
            preparation.check_new(out)

        # Everything that can be wrong with the config shows here, before there is a directory.
        device = choose_device(config.device)
        if config.wandb:
            log.check_wandb()
        if images is None and config.row.uses_images:
            images = image_source(config.images or None)
        media = {} if env_factory else preparation.all_media(config, images)
        envs = env_factory or given_envs or ConfigEnvs(config)
        make_env = partial(envs, config.row.train_mode, config.seed)
        stepper = stack.enter_context(closing(make_stepper(make_env, own_process=config.env_process)))
        facts = preparation.run_facts(device, media, stepper.facts["gl_renderer"])
        facts["action_range"] = stepper.facts.get("action_range")
        obs_shape, action_shape = stepper.observation_space.shape, stepper.action_space.shape
        assert obs_shape is not None and action_shape is not None
        sizes = preparation.replay_sizes(
            config, stepper, fixed_length=env_factory is None and not config.own_env
        )
        in_memory = Replay.disk_bytes(**sizes) if config.replay_memory == "ram" else 0
        if device.type == "cpu":
            check_memory(config, action_shape[0], training=True, replay_bytes=in_memory)
        agent = make_agent(config, obs_shape, action_shape[0], images=images)
        preparation.check_disk(out, config, sizes)

        if not resume:
            run = stack.enter_context(closing(preparation.begin_run(out, config, facts)))
        elif changed := preparation.changed_facts(run, facts):
            console.say(f"warning: results may differ from an uninterrupted run's: {'; '.join(changed)}")
        try:
            trusting.record(run.path, config)
        except OSError as error:
            console.say(
                f"warning: other commands will need --trust for {out}: it could not be recorded ({error})"
            )
        tree = preparation.newest_tree(run, config, console.say)
        replay = Replay(
            run.replay if config.replay_memory == "disk" else None,
            **sizes,
            frame_stack=obs_shape[0] // 3,
            discount=config.discount,
        )
        if tree is not None:
            tree = preparation.with_sound_replay(run, tree, replay, console.say)
        metrics = stack.enter_context(closing(open_log(config, run, tree)))
        if config.decisions <= config.random_decisions:
            console.say(
                f"warning: nothing will be learned: all {config.decisions:,} decisions are random "
                f"(random_decisions is {config.random_decisions:,})"
            )
        interrupt = Interrupt()
        stack.enter_context(interrupt.handled())
        training = Training(config, run, agent, replay, stepper, envs, metrics, console, interrupt)
        if tree is None:
            training.begin_episode(seed=config.seed)
        else:
            training.restore(tree)
            console.say(f"resumed {out} after {training.counters.decisions:,} decisions")
        console.begin(training.counters.decisions)
        training.loop()
        if run.finished:
            return _finished(run, keep_replay)
        counters = training.counters
        console.close()
        console.say(
            f"stopped after {counters.decisions:,} decisions; continue with: softaug train --resume {out}"
        )
        return Result(out, counters.decisions, counters.frames, agent.updates, finished=False, evaluation={})


def open_log(config: Config, run: preparation.RunDirectory, tree: dict[str, Any] | None) -> log.RunLog:
    """The run's metrics, cut back to the checkpoint in `tree`, and the trackers the config names."""
    counters = Counters(**tree["counters"]) if tree is not None else Counters()
    sinks: list[log.Sink] = []
    if config.wandb:
        run_id = read_object(run.facts, preparation.REMEDY)["run_id"]
        sinks.append(
            log.WeightsAndBiases(config.wandb, name=run.path.name, run_id=run_id, config=config.to_json())
        )
    if config.tensorboard:
        sinks.append(log.TensorBoard(run.tensorboard, decisions=counters.decisions))
    return log.RunLog(log.MetricsFile(run.metrics, offset=counters.metrics_bytes), sinks)


def _finished(run: preparation.RunDirectory, keep_replay: bool) -> Result:
    final = preparation.read_final_eval(run)
    if keep_replay and run.replay.exists():
        run.replay_kept.touch()
    if not run.replay_kept.exists():  # a later `--resume` must not delete what was kept on purpose
        checkpoint.remove_directory(run.replay)
    return Result(run.path, finished=True, **final)
