"""The second thread: the same numbers as without it, whoever is late, and no failure is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from test_agent import every_method, weights
from tiny import replay_for, same, tiny_agent

from softaug.learning.overlap import Beside

CPU = torch.device("cpu")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class AtOnce(Beside):
    """Every function in the caller's thread, when it is started."""

    def start(self, function, /, *args, **kwargs):
        class Done:
            value = function(*args, **kwargs)

            def result(self):
                return self.value

        return Done()


class Late(Beside):
    """Every function on the second thread, and late: what the caller changes meanwhile would show."""

    def start(self, function, /, *args, **kwargs):
        def late():
            time.sleep(0.02)
            return function(*args, **kwargs)

        return super().start(late)


@every_method
def test_updates_are_the_same_to_the_last_bit_with_and_without_a_second_thread(method, one_thread):
    replay, agents = replay_for(method), [tiny_agent(method) for _ in range(3)]
    agents[1].beside, agents[2].beside = AtOnce(CPU), Late(CPU)
    for _ in range(4):
        plain, beside, late = (agent.update(replay) for agent in agents)
        assert same(plain, beside) and same(plain, late)
    assert same(weights(agents[0]), weights(agents[1])) and same(weights(agents[0]), weights(agents[2]))
    for agent in agents[1:]:
        assert torch.equal(agent.generator.get_state(), agents[0].generator.get_state())
        assert torch.equal(agent.aux_generator.get_state(), agents[0].aux_generator.get_state())


def test_functions_run_in_order_on_one_other_thread_that_has_torchs_number_of_threads(one_thread):
    beside = Beside(CPU)
    order: list[int] = []

    def note(number: int) -> tuple[str, int]:
        time.sleep(0.01 * (2 - number))
        order.append(number)
        return threading.current_thread().name, torch.get_num_threads()

    started = [beside.start(note, number) for number in range(3)]
    names, threads = zip(*(future.result() for future in started), strict=True)
    assert order == [0, 1, 2]
    assert len(set(names)) == 1 and names[0] != threading.current_thread().name
    assert set(threads) == {1}


@pytest.mark.parametrize(("device", "threads"), [("cpu", 2), ("cuda", 1)])
def test_with_torchs_own_threads_or_on_a_gpu_everything_stays_in_the_callers_thread(
    device, threads, one_thread
):
    torch.set_num_threads(threads)
    future = Beside(torch.device(device)).start(threading.get_ident)
    assert future.done() and future.result() == threading.get_ident()


def test_an_agent_says_what_failed_on_the_second_thread(one_thread):
    agent = tiny_agent("soda")

    def fail(*_):
        raise RuntimeError("no picture left")

    agent.auxiliary.prepare = fail
    with pytest.raises(RuntimeError, match="no picture left"):
        agent.update(replay_for("soda"))
