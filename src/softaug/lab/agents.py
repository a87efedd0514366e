"""Who acts in the lab: runs (or whatever stands for one), as values that a worker process can be given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from softaug.config import Config
from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError
from softaug.evaluation.evaluate import callers_state_kept
from softaug.evaluation.onnx_policies import onnx_source
from softaug.evaluation.policy import Policy, PolicyFault
from softaug.evaluation.policy_sources import CheckedPolicy
from softaug.evaluation.runs import load_run, observation_shape
from softaug.media import video_source
from softaug.trust import require_trust

MAX_AGENTS = 4


@dataclass(frozen=True)
class LabAgent:
    """A policy and the config of its environment. Picklable."""

    name: str
    """Shown above its images."""
    config: Config
    make_policy: Callable[[], Policy]
    facts: str = ""
    """One line: task, method, how long it was trained."""


def load_agents(
    sources: Sequence[str], *, checkpoint: str = "last", videos: str = "", trust: bool = False
) -> list[LabAgent]:
    """The agents of run directories, zoo:NAME or FILE.onnx; all of one task, as they share its seeds."""
    if not 1 <= len(sources) <= MAX_AGENTS:
        raise UserError(f"give one to {MAX_AGENTS} agents, not {len(sources)}")
    if videos:
        video_source("easy", videos)
    agents = [_load(source, checkpoint, videos, trust) for source in sources]
    tasks = list(dict.fromkeys(agent.config.task for agent in agents))
    if len(tasks) > 1:
        raise UserError(f"the agents are of different tasks ({', '.join(tasks)}); give agents of one task")
    _check_actions(sources, agents)
    return _with_unique_names(agents)


def _check_actions(sources: Sequence[str], agents: Sequence[LabAgent]) -> None:
    """Refuse policies that cannot act, before a page needs them."""
    with closing(ConfigEnvs(agents[0].config)("train", 0)) as env:
        shape = env.action_space.shape
    assert shape is not None
    for source, agent in zip(sources, agents, strict=True):
        with callers_state_kept():
            policy = CheckedPolicy(agent.make_policy(), source, shape)
            try:
                policy.begin_episode()
                policy.act(np.zeros(observation_shape(agent.config), np.uint8))
            except PolicyFault as fault:
                raise UserError(f"{fault}; give one that was trained for {agent.config.task}") from fault


def _load(source: str, checkpoint: str, videos: str, trust: bool) -> LabAgent:
    if source.endswith(".onnx"):
        return _load_onnx(Path(source), videos, trust)
    run = load_run(source, checkpoint)
    require_trust(run.path, run.config, trust=trust)
    config = dataclasses.replace(run.config, videos=videos) if videos else run.config
    trained = f", {run.decisions:,} decisions" if run.decisions else ""
    return LabAgent(
        name=config.row.label,
        config=config,
        make_policy=run.policy(config.row.adapts),
        facts=f"{config.task}, {config.method}{trained}, {run.path.resolve().name}",
    )


def _load_onnx(path: Path, videos: str, trust: bool) -> LabAgent:
    """A policy in a file, which says its task (as those of `softaug export` do); its features are not known."""
    from softaug.evaluation.policy_evaluation import PolicySettings, policy_config

    source = onnx_source(path)
    config = dataclasses.replace(policy_config(source, PolicySettings(), trust=trust), videos=videos)
    return LabAgent(source.name, config, source.make, f"{config.task}, {path.name}")


def _with_unique_names(agents: list[LabAgent]) -> list[LabAgent]:
    names = [agent.name for agent in agents]
    return [
        dataclasses.replace(agent, name=f"{agent.name} ({index + 1})")
        if names.count(agent.name) > 1
        else agent
        for index, agent in enumerate(agents)
    ]
