"""Any policy in the benchmark's modes: an ONNX file, a Stable-Baselines3 file, a function, or an object.

softaug.evaluate("policy.onnx", task="walker_walk", modes=["train", "video_easy"], episodes=10)
softaug.evaluate(lambda obs: np.zeros(6), task="walker_walk", episodes=2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.evaluation.onnx_policies import onnx_source
from softaug.evaluation.policy import Policy
from softaug.evaluation.policy_evaluation import PolicySettings, evaluate_policy
from softaug.evaluation.policy_sources import PolicySource
from softaug.evaluation.python_policies import callable_source, object_source

AnyPolicy = str | Path | Policy | Callable[[np.ndarray], Any] | PolicySource


def open_policy(policy: AnyPolicy) -> PolicySource:
    """The source of a policy: a file (``.onnx``, or ``.zip`` of Stable-Baselines3), `module:callable`, or an object."""
    if isinstance(policy, PolicySource):
        return policy
    if not isinstance(policy, str | Path):
        return object_source(policy)
    path, suffix = Path(policy), Path(policy).suffix.lower()
    if suffix == ".onnx":
        return onnx_source(path)
    if suffix == ".zip":
        from softaug.integrations.sb3_policy import sb3_source

        return sb3_source(path)
    if ":" in str(policy) and not path.exists():
        return callable_source(str(policy))
    if path.is_dir():
        raise UserError(f"{path} is a directory; if it is a run, evaluate it as one: softaug eval {path}")
    raise UserError(
        f"{policy} is no policy that can be read; give a file that ends in .onnx, one of Stable-Baselines3 that ends in "
        ".zip, or module:callable"
    )


def evaluate(
    policy: AnyPolicy,
    task: str | None = None,
    modes: Sequence[str] | str | None = None,
    episodes: int = 10,
    *,
    image_size: int | None = None,
    frame_stack: int | None = None,
    action_repeat: int | None = None,
    render: str | None = None,
    seed: int = 0,
    workers: int = 1,
    name: str | None = None,
    out: str | Path | None = None,
    videos: str | None = None,
    colors: str | None = None,
    test_env: str | None = None,
    image_key: str = "",
    train_seed: int = 0,
    decisions: int | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Test a policy that was made elsewhere, in the episodes that `softaug eval` plays with a run of softaug.

    policy: a function that takes an observation, uint8 (3k, H, W), and returns an action in [-1, 1], float (A,); an object
        with `act` (and, if it likes, `begin_episode(seed)` and `observe(obs, action, next_obs)`); an ONNX file; a file of
        Stable-Baselines3; or `module:callable`.
    task: a task of softaug, or `module:callable` of your own environment. modes: a list, or one text
        with commas; by default the benchmark's five.
    image_size, frame_stack, action_repeat, render: of the observations, as in `softaug.make_env`; by default what the
        policy's file says, else those of `make_env`.
    seed: of the episodes. workers: processes; the results do not depend on it.
    name, out: keep the results under this name, in this directory (by default runs/TASK-NAME-SEED), for `report` and
        `reproduce`; the same evaluation continues after an interruption. Without both, nothing is written.
    train_seed, decisions: of the policy's training, for tables.
    trust: import the environment that the policy's file names as its task; not needed if you give the task.

    The result is that of `softaug eval --json`: `results` has a row for each mode, with its `returns`.
    """
    settings = PolicySettings(
        task, name, image_size, frame_stack, action_repeat, render, test_env, image_key, train_seed, decisions
    )
    report, _ = evaluate_policy(
        open_policy(policy),
        settings,
        modes=modes,
        episodes=episodes,
        seed=seed,
        workers=workers,
        videos=videos,
        colors=colors,
        out=out,
        keep=name is not None or out is not None,
        trust=trust,
        quiet=quiet,
    )
    return report
