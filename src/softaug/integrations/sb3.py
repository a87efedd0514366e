"""SODA for Stable-Baselines3: a callback next to SAC, TD3, PPO, A2C or DQN with `CnnPolicy`.

    model = PPO("CnnPolicy", env)
    soda = SodaCallback(augment=RandomConv())
    model.learn(1_000_000, callback=soda)
    model.save("ppo"), soda.save("ppo_soda.pt")

    model = PPO.load("ppo", env)                 # later, to continue
    soda = SodaCallback(augment=RandomConv())
    soda.load("ppo_soda.pt")
    model.learn(1_000_000, callback=soda, reset_num_timesteps=False)

The policy's features extractor is the encoder f, the learner's buffer the data: SODA only reads it, with random
numbers of its own, so RL keeps its clean data. PPO and A2C share one extractor between policy and value. SAC and
TD3 have one for the actor and one for the critic unless `share_features_extractor` is set; each of them gets a SODA
task of its own (`extractors="actor"`: only the one that acts at test time, for half the price). Target networks follow
by the learner's own moving average.

SODA's updates come after the learner's, never between the collection of a rollout and its update: PPO's ratios compare
with the policy that collected the data, which must be the same until then.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from softaug.errors import UserError, unknown
from softaug.files import write_atomically
from softaug.learning.augment import Augment, RandomOverlay
from softaug.learning.auxiliary.soda import SodaTask

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
except ImportError as error:
    raise UserError(
        f"Stable-Baselines3 is missing ({error}); install it with `pip install 'softaug[sb3]'`"
    ) from error

EXTRACTORS = ("all", "actor")


class SodaCallback(BaseCallback):
    """Adds SODA updates (the paper's Algorithm 1) to a Stable-Baselines3 learner.

    augment: the strong augmentation t, (B, C, H, W) pixels in 0..255; None: overlay of the registered images, else
        procedural ones. On stacks of gray frames (channels no multiple of 3) it is applied as if they were colored.
    every: RL gradient steps per SODA update (the paper's omega). batch_size: observations in one.
    weak: a view of the same size that both branches get, drawn independently, for example `RandomShift(4)`.
    lr, tau, projection_dim: see `SodaTask`. extractors: `all` or `actor`. seed: of heads, sampling, augmentations.
    """

    def __init__(
        self,
        augment: Augment | None = None,
        *,
        every: int = 2,
        batch_size: int = 256,
        weak: Augment | None = None,
        lr: float = 3e-4,
        tau: float = 0.005,
        projection_dim: int = 100,
        extractors: str = "all",
        seed: int = 0,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        if every < 1 or batch_size < 2:
            raise UserError(f"every ({every}) must be at least 1 and batch_size ({batch_size}) at least 2")
        if extractors not in EXTRACTORS:
            raise unknown("extractors", extractors, EXTRACTORS)
        self.augment, self.weak = augment, weak
        self.every, self.batch_size, self.extractors, self.seed = every, batch_size, extractors, seed
        self.lr, self.tau, self.projection_dim = lr, tau, projection_dim
        self.tasks: dict[str, SodaTask] = {}
        """By the name of the extractor in the policy, once learning has begun."""
        self.rl_updates = self.soda_updates = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._loaded: dict[str, Any] | None = None
        self._rollout: np.ndarray | None = None
        self._seen = 0

    # What Stable-Baselines3 calls.

    def _init_callback(self) -> None:
        found = find_extractors(self.model, self.extractors)
        known = {name: task.f_theta for name, task in self.tasks.items()}
        if known != found:  # the first time, or another model (a loaded one) than the last time
            if self.tasks and self._loaded is None:
                warnings.warn(
                    "this SodaCallback continues with another model: right for a loaded one; for a new one make a new "
                    "callback",
                    stacklevel=2,
                )
            state = self._loaded or (self._state() if self.tasks else None)
            self.tasks = self._make_tasks(found)
            if state is not None:
                self._load_state(state)
        elif self._loaded is not None:
            self._load_state(self._loaded)
        self._loaded = None

    def _on_training_start(self) -> None:
        self._seen = self.model._n_updates

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        # A rollout buffer is emptied before the next rollout starts. Its array is not written to again: the
        # learner makes a new one.
        if (buffer := getattr(self.model, "rollout_buffer", None)) is not None:
            self._rollout = buffer.observations

    def _on_rollout_start(self) -> None:
        self._catch_up()

    def _on_training_end(self) -> None:
        self._catch_up()

    # The updates.

    def _catch_up(self) -> None:
        """The SODA updates that are due after the learner's last gradient steps."""
        new = self._new_rl_updates()
        # Not from the totals of both: a loaded state may have been made with another `every`.
        due = (self.rl_updates % self.every + new) // self.every
        self.rl_updates += new
        for _ in range(due):
            observations = self._sample()
            losses = [_step(task, observations) for task in self.tasks.values()]
            self.logger.record_mean("soda/loss", float(torch.stack(losses).mean()))
            self.soda_updates += 1
        if due:
            self.logger.record("soda/updates", self.soda_updates)
        self._rollout = None

    def _new_rl_updates(self) -> int:
        """Gradient steps of the learner since the last time."""
        model: Any = self.model
        counted, self._seen = model._n_updates - self._seen, model._n_updates
        buffer = getattr(model, "rollout_buffer", None)
        if buffer is None or not hasattr(model, "batch_size"):
            return counted  # off-policy, and A2C: one batch a rollout
        # PPO counts epochs.
        return counted * -(-buffer.buffer_size * buffer.n_envs // model.batch_size)

    def _sample(self) -> Tensor:
        """Raw observations of the buffer, as pixels in 0..255: (B, C, H, W)."""
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if self._rollout is not None:
            stored, filled = self._rollout, len(self._rollout)
        else:
            stored, filled = buffer.observations, buffer.buffer_size if buffer.full else buffer.pos
        environments = stored.shape[1]
        index = torch.randint(filled * environments, (self.batch_size,), generator=self._generator).numpy()
        observations = torch.from_numpy(stored[index // environments, index % environments])
        highest = _highest(self.model.policy.observation_space)
        return observations if highest == 255 else observations * (255 / highest)

    def _make_tasks(self, found: dict[str, nn.Module]) -> dict[str, SodaTask]:
        space: Any = self.model.policy.observation_space
        normalized = self.model.policy.normalize_images and is_image_space(space)
        augment = self.augment
        if augment is None:
            from softaug.media import image_source

            augment = RandomOverlay(image_source(None))
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        tasks = {}
        for number, (name, extractor) in enumerate(found.items()):
            with torch.random.fork_rng(devices):  # RL draws as it would without SODA
                torch.manual_seed(self.seed + number)
                tasks[name] = SodaTask(
                    extractor,
                    _for_channels(augment, space.shape[0]),
                    obs_shape=space.shape,
                    weak=self.weak,
                    scale=1 / 255 if normalized else _highest(space) / 255,
                    projection_dim=self.projection_dim,
                    tau=self.tau,
                    lr=self.lr,
                    seed=self.seed + number,
                )
            if self.verbose:
                print(f"SODA shapes {name}")
        return tasks

    # Saving and loading. The encoder is the model's, and saved with it.

    def save(self, path: str | Path) -> None:
        """Write heads, moving average, optimizer and counters to one file, next to what `model.save` writes."""
        if not self.tasks:
            raise UserError("there is nothing to save yet; call save after model.learn(..., callback=...)")
        content = io.BytesIO()
        torch.save(self._state(), content)
        write_atomically(Path(path), content.getvalue())

    def load(self, path: str | Path) -> None:
        """Continue from a `save` at the next `model.learn`; the model is to be loaded by its own `load`."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; give a file that SodaCallback.save wrote") from None
        except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
            raise UserError(f"{path} cannot be read as a SodaCallback's state ({error})") from None
        if not isinstance(state, dict) or state.keys() != {"tasks", "rl_updates", "soda_updates", "sampling"}:
            raise UserError(f"{path} is no SodaCallback's state; give a file that SodaCallback.save wrote")
        self._loaded = state

    def _state(self) -> dict[str, Any]:
        tasks = {}
        for name, task in self.tasks.items():
            state = task.training_state()
            state["task"] = {k: v for k, v in state["task"].items() if not k.startswith("f_theta.")}
            tasks[name] = state
        return {
            "tasks": tasks,
            "rl_updates": self.rl_updates,
            "soda_updates": self.soda_updates,
            "sampling": self._generator.get_state(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        if state["tasks"].keys() != self.tasks.keys():
            raise UserError(
                f"the saved SODA shapes {', '.join(state['tasks'])}, but this model has {', '.join(self.tasks)}; use "
                "the same algorithm, policy and extractors"
            )
        for name, task in self.tasks.items():
            saved = state["tasks"][name]
            whole = {k: v for k, v in task.state_dict().items() if k.startswith("f_theta.")} | saved["task"]
            try:
                task.load_training_state({**saved, "task": whole})
            except (RuntimeError, ValueError) as error:
                raise UserError(
                    f"the saved SODA does not fit this model's {name} ({str(error).splitlines()[-1].strip()})"
                ) from None
            for group in task.optimiser.param_groups:  # Adam's state brings the old one
                group["lr"] = self.lr
        self.rl_updates, self.soda_updates = state["rl_updates"], state["soda_updates"]
        self._generator.set_state(state["sampling"])


class OnGreyFrames:
    """`augment`, made for RGB frames, on a stack of gray ones (B, k, H, W): colored, augmented, and gray again."""

    def __init__(self, augment: Augment):
        self.augment = augment

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        colored = self.augment(obs.repeat_interleave(3, dim=1), generator)
        return colored.to(torch.float32).unflatten(1, (-1, 3)).mean(2)


def find_extractors(model: BaseAlgorithm, which: str = "all") -> dict[str, nn.Module]:
    """The learned features extractors of a model's policy, by name; target networks are none of them."""
    policy = model.policy
    space = policy.observation_space
    name = type(model).__name__
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        raise UserError(f"SODA augments images, but the observations of this {name} are {space}")
    if np.any(space.low != 0) or len(np.unique(space.high)) != 1 or not np.isfinite(space.high).all():
        raise UserError(f"SODA needs images from 0 to one highest value, but the observations are {space}")
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None and normalizer.norm_obs:
        raise UserError(
            "VecNormalize changes the images, and SODA's augmentations need them as pixels; use VecNormalize(..., "
            "norm_obs=False)"
        )
    found: dict[str, nn.Module] = {
        path: module
        for path, module in policy.named_modules()
        if isinstance(module, BaseFeaturesExtractor)
        and "target" not in path
        and any(parameter.requires_grad for parameter in module.parameters())
    }
    if which == "actor":
        found = {path: module for path, module in found.items() if not path.startswith(("critic", "vf_"))}
    if not found:
        raise UserError(
            f"the policy of this {name} ({type(policy).__name__}) has no features extractor that learns, and so no "
            "encoder for SODA; use CnnPolicy"
        )
    return found


def _step(task: SodaTask, observations: Tensor) -> Tensor:
    """One SODA update in training mode (BatchNorm, Dropout), whatever the learner has set the extractor to."""
    was_training = task.f_theta.training
    task.train()
    loss = task.step(observations)
    task.f_theta.train(was_training)
    return loss


def _for_channels(augment: Augment, channels: int) -> Augment:
    return augment if channels % 3 == 0 else OnGreyFrames(augment)


def _highest(space: Any) -> float:
    """White: 255, or 1 for images that are stored as floats."""
    return float(space.high.flat[0])
