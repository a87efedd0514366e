"""The learner on another device than the CPU, without a GPU: fake tensors have a device and shapes, but no data.

torch's `FakeTensorMode` raises where devices mix and where data are asked for; `NoHostCopies` adds copies from the device
to the host. The device is `lazy`, which torch knows but never uses: a build without CUDA ends the whole process when
autograd meets a fake tensor on `cuda`. Our code asks for `cuda` by name only where memory is pinned (tested below),
for tf32 and for the timing of benchmarks. What this cannot show: numbers, speed, and that the kernels work on a GPU.
CUDA was not run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeImages
from tiny import ACTION_DIM, obs_shape, tiny_method, tiny_replay
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import softaug.learning.agent
from softaug.evaluation.policy import make_policy
from softaug.learning import augment
from softaug.learning.agent import Agent, make_agent
from softaug.methods import METHODS
from softaug.training.log import MeanLosses

DEVICE = torch.device("lazy:0")


class HostGenerator(torch.Generator):
    """A generator whose state is a fake tensor, on the host as real ones' are."""

    def get_state(self) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: Tensor) -> None:
        assert state.device.type == "cpu" and state.dtype == torch.uint8


class DeviceGenerator(HostGenerator):
    """Stands in for `torch.Generator("cuda")`, which a build without CUDA does not have."""

    device = DEVICE


class HostSynchronisation(AssertionError):
    """The host would wait for the device."""


class NoHostCopies(TorchDispatchMode):
    """Refuses whatever brings data from the device to the host: `item`, `bool`, `nonzero`, `cpu`, copies."""

    READS = (
        torch.ops.aten._local_scalar_dense,
        torch.ops.aten.is_nonzero,
        torch.ops.aten.equal,
        torch.ops.aten.nonzero,
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = any(tensor.device.type == DEVICE.type for tensor in inputs)
        if on_device and func.overloadpacket in self.READS:
            raise HostSynchronisation(str(func))
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if on_device and any(tensor.device.type == "cpu" for tensor in outputs):
            raise HostSynchronisation(str(func))
        return result


class OneFakeMode(FakeTensorMode):
    """Copied modules (targets, moving averages) stay in the same world."""

    def __deepcopy__(self, memo: dict) -> FakeTensorMode:
        return self


def apply_by_replacing(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """`nn.Module._apply` (below `to`) swaps tensors in place, which fake ones do not allow: replace them instead."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    part._parameters[name] = nn.Parameter(fn(parameter), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else fn(buffer)
    return module


@pytest.fixture
def fake_device(monkeypatch) -> Iterator[FakeTensorMode]:
    """A world in which `cuda` exists, without data."""
    mode = OneFakeMode()
    from_numpy, numpy = torch.from_numpy, Tensor.numpy

    def fake_from_numpy(array: np.ndarray) -> Tensor:
        return mode.from_tensor(from_numpy(array))

    def fake_numpy(tensor: Tensor) -> np.ndarray:
        if not hasattr(tensor, "fake_mode"):
            return numpy(tensor)
        assert tensor.device.type == "cpu", "only tensors on the CPU become arrays"
        return np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def fake_generator(device: Any = "cpu") -> torch.Generator:
        return HostGenerator() if torch.device(device).type == "cpu" else DeviceGenerator()

    monkeypatch.setattr(torch, "from_numpy", fake_from_numpy)
    monkeypatch.setattr(torch, "Generator", fake_generator)
    monkeypatch.setattr(Tensor, "numpy", fake_numpy)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    optimizer = importlib.import_module("torch.optim.optimizer")
    fused = optimizer._get_fused_kernels_supported_devices()
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused, DEVICE.type])
    monkeypatch.setattr(nn.Module, "_apply", apply_by_replacing)
    monkeypatch.setattr(torch, "autocast", lambda device, dtype, enabled: nullcontext())
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    monkeypatch.setattr(softaug.learning.agent, "choose_device", lambda name: DEVICE)
    with mode:
        yield mode


def fake_agent(method: str, **overrides: Any) -> Agent:
    config = tiny_method(method, device="cuda", **overrides)
    return make_agent(config, obs_shape(config), ACTION_DIM, images=FakeImages())


def learner_tensors(agent: Agent) -> Iterator[tuple[str, Tensor]]:
    for part in (agent.sac, agent.auxiliary):
        if part is not None:
            for name, tensor in part.state_dict(keep_vars=True).items():
                yield name, tensor
                if tensor.grad is not None:
                    yield f"{name}.grad", tensor.grad
    for name, optimizer in agent.optimisers.items():
        for entry in optimizer.state.values():
            for field, value in entry.items():
                yield f"{name}.{field}", value


@pytest.mark.parametrize(("method", "n_step"), [*((method, 1) for method in METHODS), ("pad", 3)])
def test_a_methods_life_on_another_device(method, n_step, fake_device):
    config = tiny_method(method, n_step=n_step)
    replay = tiny_replay(config)
    agent, losses = fake_agent(method, n_step=n_step), MeanLosses()
    obs = np.zeros(obs_shape(config), np.uint8)
    assert agent.act(obs).shape == (ACTION_DIM,)
    fired: set[str] = set()
    with NoHostCopies():
        for _ in range(3):  # actor, targets and auxiliary tasks are due every second time
            metrics = agent.update(replay)
            losses.add(metrics)
            fired |= metrics.keys()
            for name, value in metrics.items():
                assert value.device.type == DEVICE.type, name
    assert {"critic_loss", "actor_loss", "alpha"} <= fired
    assert ("aux_loss" in fired) == (agent.auxiliary is not None)
    everything = dict(learner_tensors(agent))
    assert any(name.endswith(".grad") for name in everything)
    assert not [name for name, tensor in everything.items() if tensor.device.type != DEVICE.type]

    state = agent.state()
    assert all(leaf.device.type == "cpu" for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    other = fake_agent(method, n_step=n_step, seed=1)
    other.load_state(state)
    assert not [name for name, tensor in learner_tensors(other) if tensor.device.type != DEVICE.type]
    with NoHostCopies():
        other.update(replay)

    weights = agent.policy_weights()
    assert all(tensor.device.type == "cpu" for tensor in weights.values())
    policy = make_policy(config, weights, obs_shape(config), ACTION_DIM, adapt=config.row.adapts)
    assert policy.act(obs).shape == (ACTION_DIM,)


# --- the checks can fail ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: bool(t.sum() > 0),
        lambda t: t.cpu(),
        lambda t: t.to("cpu", non_blocking=True),
        lambda t: torch.zeros(3).copy_(t),
        lambda t: t.nonzero(),
        lambda t: torch.equal(t, t),
    ],
)
def test_reading_from_the_device_is_refused(read, fake_device):
    tensor = torch.zeros(3, device=DEVICE)
    with NoHostCopies():
        tensor + 1
        with pytest.raises((HostSynchronisation, DataDependentOutputException)):
            read(tensor)


def test_mixing_devices_is_refused(fake_device):
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(3, device=DEVICE) + torch.zeros(3)


def test_a_forgotten_tensor_on_the_cpu_is_found(fake_device, monkeypatch):
    """Crop offsets drawn on the CPU, as if somebody had left out the device."""
    monkeypatch.setattr(
        augment, "draw_integers", lambda choices, count, generator: torch.zeros(count, dtype=torch.int64)
    )
    with pytest.raises(RuntimeError, match="device"):
        fake_agent("sac").update(tiny_replay(tiny_method("sac")))


# --- what is particular to CUDA --------------------------------------------------------------------------


def test_uploads_to_cuda_go_through_pinned_memory(fake_device, monkeypatch):
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    image = torch.zeros(2, 3, dtype=torch.uint8)
    assert augment.upload(image, torch.device("cuda:0")).device == torch.device("cuda:0")
    assert augment.upload(image, torch.device("cpu")) is image
    assert len(pinned) == 1
