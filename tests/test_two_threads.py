"""The second thread: the same numbers as without it, whoever is late, and no failure is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from test_agent import every_method, weights
from tiny import replay_for, same, tiny_agent

from softaug.learning.overlap import TwoThreads

CPU = torch.device("cpu")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def equal_metrics(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class OneThread(TwoThreads):
    def are_faster(self) -> bool:
        return False


class Late(TwoThreads):
    """Everything on the second thread is late: what the caller changes meanwhile would show."""

    def __init__(self) -> None:
        super().__init__(CPU)
        submit = self._second.submit

        def late(function, *args):
            time.sleep(0.02)
            return function(*args)

        self._second.submit = lambda function, *args: submit(late, function, *args)  # type: ignore[method-assign]


@every_method
def test_updates_are_the_same_to_the_last_bit_with_and_without_a_second_thread(method, one_thread):
    replay, agents = replay_for(method), [tiny_agent(method) for _ in range(3)]
    agents[1].two_threads, agents[2].two_threads = OneThread(CPU), Late()
    for _ in range(4):
        two, one, late = (agent.update(replay) for agent in agents)
        assert equal_metrics(two, one) and equal_metrics(two, late)
        assert list(two) == list(one) == list(late)  # the order in metrics.jsonl
    assert same(weights(agents[0]), weights(agents[1])) and same(weights(agents[0]), weights(agents[2]))
    for agent in agents[1:]:
        assert torch.equal(agent.generator.get_state(), agents[0].generator.get_state())
        assert torch.equal(agent.aux_generator.get_state(), agents[0].aux_generator.get_state())


def threads_of_an_update() -> list[str]:
    """The threads on which an update of SODA prepares its data and takes its gradients."""
    agent, names = tiny_agent("soda"), []
    prepare, loss_of = agent.auxiliary.prepare, agent.auxiliary.loss_of
    agent.auxiliary.prepare = lambda *data: names.append(threading.current_thread().name) or prepare(*data)
    agent.auxiliary.loss_of = lambda data: names.append(threading.current_thread().name) or loss_of(data)
    agent.update(replay_for("soda"))
    return names


def test_one_torch_thread_gets_a_second_one_next_to_it(one_thread):
    here = threading.current_thread().name
    prepared, learned = threads_of_an_update()
    assert prepared.startswith("softaug-update") and learned == here


@pytest.mark.parametrize(("device", "threads"), [("cpu", 2), ("cuda", 1)])
def test_with_torchs_own_threads_or_on_a_gpu_there_is_no_second_one(device, threads, one_thread):
    torch.set_num_threads(threads)
    assert not TwoThreads(torch.device(device)).are_faster()
    if device == "cpu":
        assert set(threads_of_an_update()) == {threading.current_thread().name}


def test_an_agent_says_what_failed_on_the_second_thread(one_thread):
    agent = tiny_agent("soda")

    def fail(*_):
        raise RuntimeError("no image left")

    agent.auxiliary.prepare = fail
    with pytest.raises(RuntimeError, match="no image left"):
        agent.update(replay_for("soda"))
