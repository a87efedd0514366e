"""Save and restore a dm_control task in the middle of an episode, as arrays and JSON values.

The next steps after a restore are the same bit for bit, also in another environment object made with the same
arguments.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from dm_control.rl.control import Environment

ModelArrays = dict[str, np.ndarray]

# Never edited by a task and large, or (textures) owned by the color modes.
_SKIPPED_PREFIXES = ("tex_", "mesh_", "skin_", "flex_", "oct_", "bvh_", "name", "text_", "paths")


def model_arrays(model: mujoco.MjModel) -> ModelArrays:
    """Views of the arrays a task may edit at the start of an episode (reacher's target, finger's damping)."""
    arrays = {}
    for name in dir(model):
        if not name.startswith(("_", *_SKIPPED_PREFIXES)):
            value = getattr(model, name)
            if isinstance(value, np.ndarray):
                arrays[name] = value
    return arrays


def save_task(environment: Environment, compiled: ModelArrays) -> dict[str, Any]:
    """`compiled`: copies of the model's arrays as they were before the first episode."""
    model, data = environment.physics.model.ptr, environment.physics.data.ptr
    signature = mujoco.mjtState.mjSTATE_INTEGRATION
    integration = np.empty(mujoco.mj_stateSize(model, signature), np.float64)
    mujoco.mj_getState(model, data, integration, signature)
    edited = {
        name: array.copy()
        for name, array in model_arrays(model).items()
        if not np.array_equal(array, compiled[name])
    }
    return {
        "integration": integration,
        # Accelerations' sensors are those of the last step; nothing recomputes them at rest.
        "sensordata": data.sensordata.copy(),
        "model": edited,
        "task": _plain_attributes(environment.task),
        "random": save_random_state(environment.task.random),
        "step_count": environment._step_count,
        "reset_next_step": environment._reset_next_step,
    }


def load_task(environment: Environment, compiled: ModelArrays, state: dict[str, Any]) -> None:
    """The reverse of `save_task`."""
    model, data = environment.physics.model.ptr, environment.physics.data.ptr
    for name, array in model_arrays(model).items():
        array[...] = state["model"].get(name, compiled[name])
    mujoco.mj_resetData(model, data)
    mujoco.mj_setState(model, data, np.asarray(state["integration"]), mujoco.mjtState.mjSTATE_INTEGRATION)
    # dm_control leaves the data as after mj_step1. mj_forward would overwrite the solver's warm start.
    mujoco.mj_step1(model, data)
    data.sensordata[:] = state["sensordata"]
    if model.nhfield:
        # quadruped_escape draws a new terrain for each episode.
        contexts = environment.physics.contexts
        with contexts.gl.make_current() as gl:
            for index in range(model.nhfield):
                gl.call(mujoco.mjr_uploadHField, model, contexts.mujoco.ptr, index)
    for name, value in state["task"].items():
        setattr(environment.task, name, value)
    load_random_state(environment.task.random, state["random"])
    environment._step_count = int(state["step_count"])
    environment._reset_next_step = bool(state["reset_next_step"])


def _plain_attributes(task: Any) -> dict[str, Any]:
    """A task's numbers; some change within an episode (hopper) or are set at its start (dog)."""
    plain = {}
    for name, value in vars(task).items():
        if isinstance(value, np.generic):
            plain[name] = value.item()
        elif isinstance(value, np.ndarray):
            plain[name] = value.copy()
        elif isinstance(value, bool | int | float | str):
            plain[name] = value
    return plain


def save_random_state(random: np.random.RandomState) -> dict[str, Any]:
    state = random.get_state(legacy=False)
    assert isinstance(state, dict)
    return {
        "key": state["state"]["key"].copy(),
        "pos": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def load_random_state(random: np.random.RandomState, state: dict[str, Any]) -> None:
    random.set_state(
        (
            "MT19937",
            np.asarray(state["key"], np.uint32),
            int(state["pos"]),
            int(state["has_gauss"]),
            float(state["gauss"]),
        )
    )
