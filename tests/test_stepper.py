"""Both steppers give the same results; what goes wrong in the child arrives here; the child never outlives us."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fakes import SIZE, DotEnv

from softaug.envs.observations import FrameStack
from softaug.errors import UserError
from softaug.training.stepper import InProcessStepper, ProcessStepper, make_stepper


class FailingEnv(DotEnv):
    """Fails at the second decision."""

    error: Exception = ZeroDivisionError("the world ended")

    def step(self, action):
        if self._decisions == 1:
            raise self.error
        return super().step(action)


class UserErrorEnv(FailingEnv):
    error = UserError("the video is missing; put it back")


class DyingEnv(DotEnv):
    def step(self, action):
        os._exit(7)


def cannot_be_made():
    raise UserError("unknown task 'walk'; choose another")


def episode(stepper, *, decisions=30, seed=3):
    """What a stepper returns over more than one episode, and its state at the end."""
    rng = np.random.default_rng(0)
    seen = [stepper.reset(seed=seed)]
    for _ in range(decisions):
        stepper.send(rng.uniform(-1, 1, 2).astype(np.float32))
        seen.append(result := stepper.receive())
        if result[2] or result[3]:
            seen.append(stepper.reset())
    return seen, stepper.get_state()


def assert_same(left, right):
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (tuple, list)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert type(left) is type(right) and left == right


@pytest.fixture(scope="module")
def child():
    stepper = ProcessStepper(partial(DotEnv, seed=1))
    yield stepper
    stepper.close()


def test_both_steppers_give_the_same(child):
    here = InProcessStepper(partial(DotEnv, seed=1))
    assert here.observation_space == child.observation_space and here.action_space == child.action_space
    assert (
        here.facts
        == child.facts
        == {
            "gl_renderer": None,
            "action_range": {"low": [-1.0, -1.0], "high": [1.0, 1.0]},
            "action_repeat": 2,
            "episode_decisions": 20,
        }
    )
    assert_same(episode(here), episode(child))


def test_a_decision_brings_one_frame_and_not_the_stack(child):
    """The newest of what the environment's own stack shows; the loop stacks them again."""
    env = DotEnv(seed=1)
    expected, _ = env.reset(seed=3)
    stack = FrameStack(child.observation_space.shape)
    frame, _ = child.reset(seed=3)
    assert frame.shape == (SIZE, SIZE, 3)
    np.testing.assert_array_equal(stack.begin(frame), expected)
    for _ in range(3):
        action = np.array([0.5, -0.2], np.float32)
        child.send(action)
        frame = child.receive()[0]
        assert frame.shape == (SIZE, SIZE, 3)
        np.testing.assert_array_equal(stack.add(frame), env.step(action)[0])


def test_the_state_moves_between_steppers(child):
    here = InProcessStepper(partial(DotEnv, seed=9))
    _, state = episode(child, decisions=7)
    here.set_state(state)
    for _ in range(30):
        action = np.array([0.3, -0.4], np.float32)
        here.send(action)
        child.send(action)
        left, right = here.receive(), child.receive()
        assert_same(left, right)
        if left[3]:
            assert_same(here.reset(), child.reset())


def test_receive_needs_a_send():
    with pytest.raises(RuntimeError, match=r"without a send"):
        InProcessStepper(DotEnv).receive()


@pytest.mark.parametrize("own_process", [False, True])
def test_errors_of_the_environment_arrive_with_their_text(own_process):
    stepper = make_stepper(FailingEnv, own_process=own_process)
    stepper.reset()
    stepper.send(np.zeros(2))
    stepper.receive()
    with pytest.raises((RuntimeError, ZeroDivisionError), match="the world ended"):
        stepper.send(np.zeros(2))
        stepper.receive()
    stepper.close()


@pytest.mark.parametrize("own_process", [False, True])
def test_user_errors_stay_user_errors(own_process):
    with pytest.raises(UserError, match="unknown task 'walk'"):
        make_stepper(cannot_be_made, own_process=own_process)
    stepper = make_stepper(UserErrorEnv, own_process=own_process)
    stepper.reset()
    stepper.send(np.zeros(2))
    stepper.receive()
    with pytest.raises(UserError, match="video is missing"):
        stepper.send(np.zeros(2))
        stepper.receive()
    stepper.close()


def test_a_dead_child_is_reported():
    stepper = ProcessStepper(DyingEnv)
    stepper.reset()
    stepper.send(np.zeros(2))
    with pytest.raises(UserError, match=r"ended unexpectedly \(exit code 7\)"):
        stepper.receive()
    stepper.close()


def test_close_ends_the_child(child):
    stepper = ProcessStepper(DotEnv)
    process = stepper._process
    assert process.is_alive()
    stepper.close()
    assert process.exitcode == 0


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from fakes import DotEnv
from softaug.training.stepper import ProcessStepper
if __name__ == "__main__":
    stepper = ProcessStepper(DotEnv)
    stepper.reset()
    print(stepper._process.pid, flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process whose parent does not wait for it stays in the table as a zombie.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def wait_until_gone(pid: int) -> bool:
    for _ in range(600):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def test_the_child_dies_with_a_killed_parent_and_leaves_signals_to_it(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parent)))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    time.sleep(0.2)
    assert is_running(pid)
    parent.kill()
    parent.wait()
    assert wait_until_gone(pid)


def test_a_script_that_forgets_to_close_ends_all_the_same(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parent)).replace("time.sleep(600)", ""))
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    assert wait_until_gone(int(done.stdout))


def software_gl_threads(pid: int) -> list[str]:
    """Names of the threads that Mesa's software renderer draws with in that process."""
    names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return [name for name in names if name.startswith("llvmpipe")]


@pytest.mark.slow
def test_both_steppers_give_the_same_on_a_real_environment():
    from softaug.envs import make_env

    make = partial(
        make_env, "ball_in_cup_catch", "color_random", 3, image_size=32, action_repeat=16, render="fast"
    )
    here, child = (make_stepper(make, own_process=own_process) for own_process in (False, True))
    try:
        assert here.facts["action_repeat"] == child.facts["action_repeat"] == 16
        assert_same(episode(here, decisions=70), episode(child, decisions=70))  # past an episode's end
        assert not software_gl_threads(child._process.pid)  # they would compete with the learner
        # What was saved here continues there.
        _, state = episode(here, decisions=15)
        child.set_state(state)
        for _ in range(10):
            for stepper in (here, child):
                stepper.send(np.array([0.5, -1], np.float32))
            assert_same(here.receive(), child.receive())
    finally:
        here.close()
        child.close()
