"""Which policies the lab starts with, and which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import FakeImages
from tiny import obs_shape, tiny_method
from torch import Tensor

from softaug.config import write_config
from softaug.errors import UserError
from softaug.lab.agents import load_agents
from softaug.learning.agent import make_agent
from softaug.storage.checkpoint import save_checkpoint


def weights(actions: int = 6) -> dict[str, Tensor]:
    """Untrained ones for walker_stand, which has six actions."""
    config = tiny_method("sac", task="walker_stand")
    return dict(make_agent(config, obs_shape(config), actions, images=FakeImages()).policy_weights())


def saved(path: Path, policy: dict[str, Tensor]) -> str:
    write_config(tiny_method("sac", task="walker_stand"), path / "config.json")
    save_checkpoint(path / "checkpoints", 100, {}, policy, keep=1)
    return str(path)


def without_an_actor() -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights().items() if not name.startswith("actor.")}


def with_a_nan() -> dict[str, Tensor]:
    return {
        name: torch.full_like(tensor, torch.nan) if name.startswith("actor.") else tensor
        for name, tensor in weights().items()
    }


def test_policies_that_cannot_act_are_refused(tmp_path: Path) -> None:
    good = saved(tmp_path / "good", weights())
    assert [agent.config.task for agent in load_agents([good])] == ["walker_stand"]
    for name, policy, said in (
        ("empty", without_an_actor(), "the weights hold no actor"),
        ("diverged", with_a_nan(), "diverged returned the action .*nan"),
        ("short", weights(3), r"short returned an action of shape \(3,\) instead of \(6,\)"),
    ):
        with pytest.raises(UserError, match=said):
            load_agents([good, saved(tmp_path / name, policy)])


def test_videos_that_are_not_there_are_refused(tmp_path: Path) -> None:
    good = saved(tmp_path / "good", weights())
    with pytest.raises(UserError, match="nowhere"):
        load_agents([good], videos=str(tmp_path / "nowhere"))
