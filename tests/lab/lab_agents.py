"""Tiny policies in real environments, for the tests of the lab."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from fakes import FakeImages
from tiny import obs_shape, tiny_method

from softaug.evaluation.runs import RunPolicy
from softaug.lab.agents import LabAgent
from softaug.learning.agent import make_agent

ACTIONS = {"walker_stand": 6, "robot_push": 2, "own_fakes:make_corner": 2}


def tiny_lab_agent(method: str = "sac", task: str = "walker_stand", seed: int = 0, **fields: Any) -> LabAgent:
    """An untrained policy of a few hundred weights, 16 pixels."""
    if task == "robot_push":
        fields = {"frame_stack": 1, **fields}
    config = tiny_method(method, task=task, render="aliased", **fields)
    torch.manual_seed(seed)
    agent = make_agent(
        dataclasses.replace(config, seed=seed), obs_shape(config), ACTIONS[task], images=FakeImages()
    )
    return LabAgent(f"{method} {seed}", config, RunPolicy(config, agent.policy_weights()), "tiny")
