"""The second thread: the same numbers as without it, whoever is late, and no failure is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from test_agent import every_method, weights
from tiny import replay_for, same, tiny_agent

from softaug.config import Config
from softaug.learning.beside import Beside, overlaps

CPU = torch.device("cpu")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Late(Beside):
    """Every function on the second thread, and late: what the caller changes meanwhile would show."""

    def start(self, function, /, *args, **kwargs):
        def late():
            time.sleep(0.02)
            return function(*args, **kwargs)

        return super().start(late)


@every_method
def test_updates_are_the_same_to_the_last_bit_with_and_without_a_second_thread(method, one_thread):
    replay = replay_for(method)
    agents = [tiny_agent(method, overlap=overlap) for overlap in ("off", "on", "on")]
    agents[2].beside = Late(threaded=True)
    for _ in range(4):
        alone, beside, late = (agent.update(replay) for agent in agents)
        assert list(alone) == list(beside) == list(late)
        assert same(alone, beside) and same(alone, late)
    assert same(weights(agents[0]), weights(agents[1])) and same(weights(agents[0]), weights(agents[2]))
    for agent in agents[1:]:
        assert torch.equal(agent.generator.get_state(), agents[0].generator.get_state())
        assert torch.equal(agent.aux_generator.get_state(), agents[0].aux_generator.get_state())


def test_the_actor_is_not_stepped_beside_a_task_that_shapes_it(one_thread):
    replay = replay_for("soda")
    agents = [tiny_agent("soda", soda_projections=True, overlap=overlap) for overlap in ("off", "on")]
    agents[1].beside = Late(threaded=True)
    for _ in range(4):
        alone, late = (agent.update(replay) for agent in agents)
        assert same(alone, late)
    assert same(weights(agents[0]), weights(agents[1]))


def test_functions_run_in_order_on_one_other_thread_that_has_torchs_number_of_threads(one_thread):
    beside = Beside(threaded=True)
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


def test_without_a_second_thread_a_function_runs_at_once_in_the_callers():
    future = Beside(threaded=False).start(threading.get_ident)
    assert future.done() and future.result() == threading.get_ident()


def test_auto_needs_one_torch_thread_and_a_core_to_spare_and_nothing_overlaps_on_a_gpu(monkeypatch):
    monkeypatch.setattr("softaug.learning.beside.available_cores", lambda: 2)
    assert overlaps("auto", CPU, 1)
    assert not overlaps("auto", CPU, 2) and not overlaps("auto", torch.device("cuda"), 1)
    assert overlaps("on", CPU, 2) and not overlaps("off", CPU, 1)
    assert not overlaps("on", torch.device("cuda"), 1)
    monkeypatch.setattr("softaug.learning.beside.available_cores", lambda: 1)
    assert not overlaps("auto", CPU, 1)


def test_a_resumed_run_may_overlap_where_it_did_not_before():
    assert Config.__dataclass_fields__["overlap"].metadata["runtime"]


def test_an_agent_says_what_failed_on_the_second_thread():
    agent = tiny_agent("soda", overlap="on")

    def fail(*_):
        raise RuntimeError("no image left")

    agent.auxiliary.prepare = fail
    with pytest.raises(RuntimeError, match="no image left"):
        agent.update(replay_for("soda"))
