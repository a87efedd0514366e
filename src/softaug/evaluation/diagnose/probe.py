"""What a run's features know of the physics: a linear probe from frozen features to the simulator's state.

    probe = probe_runs([load_run("runs/sac"), load_run("runs/soda")], modes=["color_hard", "video_hard"])
    probe.runs[0]["r2"]["features"]["video_hard"]["components"]["hinge_1.vel"]

Half of the states are visited by the first run's policy, half by random actions. Ridge regression is fitted to features of
the training appearance and tested on held-out episodes in every mode, on the same physics. An encoder that has what the
regression reads keeps its R² if it does not mind the appearance; the encoder before training is the baseline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from softaug.config import Config
from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError
from softaug.evaluation.diagnose import DEFAULT_MODES, Counter, Progress, media_notes
from softaug.evaluation.diagnose.measures import encode
from softaug.evaluation.diagnose.paired_states import PairedState, collect_states, render_states
from softaug.evaluation.diagnose.physics_state import physics_state
from softaug.evaluation.diagnose.ridge import fit_ridge, score
from softaug.evaluation.diagnose.saliency import check_comparable, load_critic
from softaug.evaluation.policy import MeanPolicy, Policy
from softaug.evaluation.runs import Run, action_dim, observation_shape
from softaug.files import write_atomically
from softaug.learning.building import make_encoders
from softaug.learning.networks import Actor, Critic, channels_last, feature_shape, initialise
from softaug.storage.run_files import RunFiles
from softaug.versions import VERSION

DEFAULT_STATES, MOST_STATES = 600, 5_000
EPISODES, MOST_PER_EPISODE = 12, 64
"""Episodes that each of the two policies plays at least, and states taken from one of them at most."""


@dataclass(frozen=True)
class Probe:
    """What `probe_runs` measured, as JSON values (see docs/diagnose.md)."""

    task: str
    seed: int
    states: dict[str, int]
    components: tuple[str, ...]
    modes: tuple[str, ...]
    media: dict[str, str | None]
    runs: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return json.loads(
            json.dumps({"softaug": VERSION, **vars(self)})
        )  # tuples as lists, as a reader gets them

    def save(self, directory: str | Path) -> Path:
        """Write probe.json to `directory`, atomically."""
        file = RunFiles(directory).probe
        try:
            write_atomically(file, json.dumps(self.to_json(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write to {directory} ({error.strerror}); give another place") from None
        return file


def probe_runs(
    runs: Sequence[Run],
    *,
    modes: Sequence[str] | None = None,
    states: int = DEFAULT_STATES,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Probe:
    """R² of every component of the physics state, from the features of each run, in `train` and in each of `modes`.

    runs: of the same task; the policy of the first one acts. modes: by default the benchmark's four test modes.
    states: how many; a quarter of the episodes is held out.
    """
    modes = DEFAULT_MODES if modes is None else modes
    _check(runs, modes, states)
    modes = [mode for mode in modes if mode != "train"]
    data = _collect(runs[0], states, seed, progress)
    held_out = [state for state, test in zip(data.paired, data.test, strict=True) if test]
    seen = {_image_settings(runs[0].config): np.stack([state.obs for state in data.paired])}
    media: dict[str, str | None] = {}

    def observe(run: Run, mode: str, states: list[PairedState]) -> np.ndarray:
        """The states in the run's own environment; rendered once for all runs whose images are alike."""
        settings = _image_settings(run.config)
        if settings not in seen:
            with closing(ConfigEnvs(run.config)(mode, seed)) as env:
                counter = Counter(progress, mode, len(states))
                rendered = render_states(env, mode, states, seed, counter.advance)
            seen[settings], media[mode] = rendered.obs, rendered.media
        return seen[settings]

    probed: list[tuple[ProbedNetwork, ProbedNetwork]] = []
    for run in runs:
        obs = observe(run, "train", data.paired)
        trained = ProbedNetwork(_network(run), load_critic(run), obs, data)
        probed.append((trained, ProbedNetwork(_untrained(run), None, obs, data)))
        for network in probed[-1]:
            network.test("train", obs[data.test], data)
    for mode in modes:
        seen.clear()
        for run, networks in zip(runs, probed, strict=True):
            for network in networks:
                network.test(mode, observe(run, mode, held_out), data)
    media.pop("train", None)
    parts = {"fit": data.fitted, "validation": data.validation, "test": data.test}
    return Probe(
        task=runs[0].config.task,
        seed=seed,
        states={name: int(part.sum()) for name, part in parts.items()},
        components=tuple(data.names),
        modes=("train", *modes),
        media=media,
        runs=tuple(_describe(run, *networks) for run, networks in zip(runs, probed, strict=True)),
        notes=(*_missing_critics(runs, probed), *media_notes(runs[0].config, media)),
    )


@dataclass(frozen=True)
class Collected:
    """n states, their components (n, C), and which of them are for what: masks (n,)."""

    paired: list[PairedState]
    targets: np.ndarray
    names: list[str]

    @property
    def fitted(self) -> np.ndarray:
        return self._part < 2

    @property
    def validation(self) -> np.ndarray:
        return self._part == 2

    @property
    def test(self) -> np.ndarray:
        return self._part == 3

    @property
    def _part(self) -> np.ndarray:
        """By episodes. Episode i begins alike for the run's policy and for random actions, so they stay together."""
        return np.array([state.episode % 4 for state in self.paired])


class ProbedNetwork:
    """A frozen network with a regression from each of its stages, fitted in the training appearance."""

    def __init__(self, network: MeanPolicy, critic: Critic | None, obs: np.ndarray, data: Collected):
        """obs: uint8 (n, 3k, H, W), what the network sees of all the states."""
        self.network, self.critic = network, critic
        self._fits = {
            stage: fit_ridge(x, data.targets, data.fitted, data.validation)
            for stage, x in self._stages(obs).items()
        }
        self.scores: dict[str, dict[str, Any]] = {stage: {} for stage in self._fits}
        """{stage: {mode: scores}}"""

    def test(self, mode: str, obs: np.ndarray, data: Collected) -> None:
        """obs: of the states held out."""
        for stage, x in self._stages(obs).items():
            self.scores[stage][mode] = score(self._fits[stage], x, data.targets[data.test], data.names)

    @torch.no_grad()
    def _stages(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """What is probed, each float64 (n, D)."""
        encoded = encode(self.network, obs)
        assert encoded.features is not None and encoded.projection is not None
        stages = {"features": encoded.features, "actor_projection": encoded.projection}
        if self.critic is not None:
            stages["critic_projection"] = self.critic.projection(encoded.features.float()).double()
        return {name: stage.numpy() for name, stage in stages.items()}


class RandomActions:
    """Uniform actions: they lead to states that a trained policy avoids."""

    def __init__(self, action_dim: int):
        self.action_dim = action_dim
        self.begin_episode()

    def begin_episode(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self._rng.uniform(-1, 1, self.action_dim).astype(np.float32)

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        """Nothing to learn."""


def _collect(run: Run, count: int, seed: int, progress: Progress) -> Collected:
    """Half of the states from episodes of the run's policy, half from those of random actions."""
    half = count // 2
    actors: list[tuple[Policy, int]] = [
        (_network(run), half),
        (RandomActions(action_dim(run.weights)), count - half),
    ]
    paired: list[PairedState] = []
    counter = Counter(progress, "train", count)
    with closing(ConfigEnvs(run.config)("train", seed)) as env:
        for policy, share in actors:
            per_episode = min(MOST_PER_EPISODE, share // EPISODES)
            paired += collect_states(env, policy, share, seed, counter.advance, per_episode=per_episode)
        environment: Any = env.unwrapped
        model = environment.physics.model.ptr
        data = mujoco.MjData(model)
        rows = []
        for state in paired:
            mujoco.mj_setState(model, data, state.end, mujoco.mjtState.mjSTATE_INTEGRATION)
            rows.append(physics_state(model, data))
    return Collected(paired, np.array([list(row.values()) for row in rows]), list(rows[0]))


def _check(runs: Sequence[Run], modes: Sequence[str], states: int) -> None:
    if not modes or len(set(modes)) < len(modes):
        raise UserError(f"give at least one mode, and each mode once, not {list(modes)}")
    for run in runs:
        if run.config.own_env:
            raise UserError(
                f"a probe needs the physics state, which is not known of your own environment {run.config.task}; "
                "it works with the tasks of softaug.make_env"
            )
    check_comparable(runs)
    if len({run.config.frame_stack for run in runs}) > 1:
        raise UserError(
            "the runs see different numbers of frames; give --against a run with the same frame_stack"
        )
    if not 2 * EPISODES <= states <= MOST_STATES:
        raise UserError(
            f"states must be a number from {2 * EPISODES} to {MOST_STATES} for a probe, not {states}"
        )


def _image_settings(config: Config) -> tuple[Any, ...]:
    """Runs with the same ones see the same images of a state."""
    return config.image_size, config.render, config.videos, config.colors


def _network(run: Run) -> MeanPolicy:
    policy = run.policy()()
    assert isinstance(policy, MeanPolicy)
    return policy


def _untrained(run: Run) -> MeanPolicy:
    """The run's encoder as it was before training, with an untrained actor."""
    config, shape = run.config, observation_shape(run.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # as `make_agent` does
        encoder, _ = make_encoders(config, shape[0])
        features = int(np.prod(feature_shape(encoder, (shape[0], config.crop_size, config.crop_size))))
        actor = Actor(features, config.projection_dim, config.hidden_dim, action_dim(run.weights))
        initialise(actor)
    return channels_last(MeanPolicy(encoder, actor, config.crop_size, shape)).eval()


def _describe(run: Run, trained: ProbedNetwork, untrained: ProbedNetwork) -> dict[str, Any]:
    weights = {"name": run.checkpoint.name, "decisions": run.decisions, "weights_sha256": run.sha256}
    return {
        "run": str(run.path),
        "method": run.config.method,
        "checkpoint": weights,
        "r2": trained.scores,
        "untrained": untrained.scores,
    }


def _missing_critics(runs: Sequence[Run], probed: Sequence[tuple[ProbedNetwork, ProbedNetwork]]) -> list[str]:
    return [
        f"{run.path}: {run.checkpoint.name} keeps the policy only, so the critic's projection is not probed"
        for run, (trained, _) in zip(runs, probed, strict=True)
        if trained.critic is None
    ]
