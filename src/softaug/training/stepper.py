"""The training environment behind `send` and `receive`, in this process or in one of its own.

`send(action)` starts a decision and `receive()` returns what came of it; the learner computes in between. Both
steppers give the same results: the loop updates on the replay as it is before the decision's transition arrives.
What comes back is the newest frame alone: `observation_space` is the stacks that the loop makes of them.
This file does not import torch, so the environment's process starts quickly and stays small.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from softaug.envs.observations import single_frames
from softaug.errors import UserError
from softaug.interrupt import ctrl_c_left_to_parent, how_it_ended

StepResult = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
"""the newest frame, uint8 (H, W, 3), reward, terminated, truncated, info"""

CLOSE_SECONDS = 5.0


class InProcessStepper:
    """The environment in this process; the decision happens in `send`."""

    def __init__(self, make_env: Callable[[], gymnasium.Env]):
        env = make_env()
        self._env = single_frames(env)
        self._result: StepResult | None = None
        self.observation_space: gymnasium.Space = env.observation_space
        self.action_space: gymnasium.Space = self._env.action_space
        self.facts: dict[str, Any] = env_facts(self._env)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        return self._env.reset(seed=seed, options=options)

    def send(self, action: np.ndarray) -> None:
        """Start a decision; `action` is (A,) in [-1, 1]."""
        self._result = self.step(action)

    def step(self, action: np.ndarray) -> StepResult:
        """`send` and `receive` at once."""
        frame, reward, terminated, truncated, info = self._env.step(action)
        return frame, float(reward), bool(terminated), bool(truncated), info

    def receive(self) -> StepResult:
        """What came of the decision that `send` started."""
        if self._result is None:
            raise RuntimeError("receive() without a send() before it")
        result, self._result = self._result, None
        return result

    def get_state(self) -> Any:
        """A tree from which `set_state` restores the episode exactly."""
        return self._env.unwrapped.get_state()  # type: ignore[attr-defined]

    def set_state(self, state: Any) -> None:
        self._env.unwrapped.set_state(state)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._env.close()


class ProcessStepper:
    """The environment in a process of its own, so that rendering overlaps with learning.

    `make_env` is called in the child, which imports it by name (multiprocessing's "spawn": no copied locks, no
    copied GL context). The child ends when this process does, however that ends, and leaves signals to it.
    """

    def __init__(self, make_env: Callable[[], gymnasium.Env]):
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(make_env, child_end), name="softaug-environment", daemon=True
        )
        with ctrl_c_left_to_parent():
            self._process.start()
            # The child ignores SIGTERM, with which multiprocessing would end it at exit: close it before that.
            atexit.register(self.close)
        child_end.close()  # only the child holds it now, so its death shows as end-of-file here
        self._started = False
        try:
            self.observation_space, self.action_space, self.facts = self._answer()
        except BaseException:
            self.close()
            raise
        self._started = True

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        return self._ask("reset", seed, options)

    def send(self, action: np.ndarray) -> None:
        """Start a decision; `action` is (A,) in [-1, 1]."""
        self._request("step", action)

    def receive(self) -> StepResult:
        """What came of the decision that `send` started; waits for it."""
        return self._answer()

    def get_state(self) -> Any:
        """A tree from which `set_state` restores the episode exactly."""
        return self._ask("get_state")

    def set_state(self, state: Any) -> None:
        self._ask("set_state", state)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._connection.close()  # the child sees end-of-file and leaves
        self._process.join(CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._request(name, *arguments)
        return self._answer()

    def _request(self, name: str, *arguments: Any) -> None:
        try:
            self._connection.send((name, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None

    def _answer(self) -> Any:
        try:
            kind, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        if kind == "user_error":
            raise UserError(value)
        if kind == "error":
            raise RuntimeError(f"the environment's process failed:\n{value}")
        return value

    def _death(self) -> UserError:
        self._process.join(CLOSE_SECONDS)
        if not self._started:
            return UserError(
                f"the environment's process could not start ({how_it_ended(self._process.exitcode)}); if you call "
                "softaug from a script, do it under `if __name__ == '__main__':`, or set env_process=False"
            )
        return UserError(
            f"the environment's process ended unexpectedly ({how_it_ended(self._process.exitcode)}); nothing up to "
            "the last checkpoint is lost, resume the run to continue"
        )


Stepper = InProcessStepper | ProcessStepper


def make_stepper(make_env: Callable[[], gymnasium.Env], *, own_process: bool) -> Stepper:
    """The stepper of that kind."""
    return ProcessStepper(make_env) if own_process else InProcessStepper(make_env)


def env_facts(env: gymnasium.Env) -> dict[str, Any]:
    """What the loop must know: frames per decision, decisions per episode at most, and what renders."""
    base = env.unwrapped
    controls: Any = getattr(base, "controls", base.action_space)  # the range that [-1, 1] is mapped to
    return {
        "gl_renderer": getattr(base, "gl_renderer", None),
        "action_repeat": int(getattr(base, "action_repeat", 1)),
        "episode_decisions": getattr(base, "episode_decisions", None),
        "action_range": {"low": controls.low.flatten().tolist(), "high": controls.high.flatten().tolist()},
    }


def _serve(make_env: Callable[[], gymnasium.Env], connection: multiprocessing.connection.Connection) -> None:
    """The child: answer requests until the parent closes the connection or dies."""
    # Software GL would start a thread per core, and take from the learner what it needs.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    # Both may reach every process of a job (a terminal, a batch system): the parent decides what to do.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    watched: list[Any] = [connection, *([parent.sentinel] if parent is not None else [])]
    here: InProcessStepper | None = None
    try:
        here = InProcessStepper(make_env)
        connection.send(("ok", (here.observation_space, here.action_space, here.facts)))
        while connection in multiprocessing.connection.wait(watched):
            name, arguments = connection.recv()
            connection.send(("ok", getattr(here, name)(*arguments)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent closed the connection or died: the usual end
    except UserError as error:
        connection.send(("user_error", str(error)))
    except Exception:
        connection.send(("error", traceback.format_exc()))
    finally:
        if here is not None:
            here.close()
