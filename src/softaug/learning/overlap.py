"""An agent's update on two threads: the same parts as `Agent.update`, the same numbers, another schedule."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from softaug.learning.agent import Agent, Seen
    from softaug.learning.replay import Replay
    from softaug.learning.sac import Metrics


class TwoThreads:
    """Runs parts of an update that do not touch each other at the same time; the results are the same to the last bit.

    - the Bellman target, and the critic's forward pass;
    - the auxiliary task's data, and the critic's backward pass and step;
    - the actor's step, and the auxiliary task's gradients: both need the encoder as the critic's step left it.
    """

    def __init__(self, device: torch.device):
        self.device = device
        # It starts with the first function; functions run one after the other.
        self._second = ThreadPoolExecutor(1, thread_name_prefix="softaug-update")

    def are_faster(self) -> bool:
        """On a GPU, or where torch has threads of its own on all cores, a second thread would only be in the way."""
        return self.device.type == "cpu" and torch.get_num_threads() == 1

    def update(self, agent: Agent, replay: Replay) -> Metrics:
        """`Agent.update`."""
        start, sac = self._second.submit, agent.sac
        seen = agent.sample(replay)
        target = start(agent.bellman_target, seen)
        prepared = start(_prepare, agent, replay, seen)

        features = agent.shared_features(seen)
        values = sac.critic_values(seen.critic, seen.batch.action, seen.critic_too, features)
        metrics = sac.step_critic(values, target.result())
        metrics["batch_reward"] = seen.batch.reward.mean()
        if agent.is_due(agent.target_every):
            sac.update_target()

        actor = None
        if agent.is_due(agent.actor_every):
            actor = start(sac.update_actor, seen.actor, agent.generator, features)
        auxiliary_data = prepared.result()
        auxiliary_loss = agent.auxiliary_gradients(auxiliary_data) if agent.auxiliary_is_due() else None
        if actor is not None:
            metrics |= actor.result()
        if auxiliary_loss is not None:
            metrics["aux_loss"] = auxiliary_loss
            agent.step_auxiliary()
        return metrics


def _prepare(agent: Agent, replay: Replay, seen: Seen) -> Any:
    data = agent.sample_for_auxiliary(replay, seen)
    prepared = agent.prepare_auxiliary(data) if agent.auxiliary_is_due() else None
    agent.gather_ahead(replay)
    return prepared
