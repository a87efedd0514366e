"""Policies of Stable-Baselines3 (PPO, A2C, SAC, TD3 with `CnnPolicy`) for `softaug.evaluate` and `softaug eval --policy`.

    softaug.evaluate(Sb3Policy(model), task="walker_walk")          # a model in memory
    softaug.evaluate("ppo.zip", task="walker_walk")                 # the file of model.save("ppo")

Such a file holds pickled Python objects, and unpickling runs whatever code their author put there. So `PPO.load` is never
called here: the weights are read as plain tensors (`torch.load` with `weights_only`), the networks' sizes from the
JSON part of the file, and the policy is built again from Stable-Baselines3's own classes. What that cannot describe (a
class of your own) is refused; load such a model yourself and give it as an object or as module:callable.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from softaug.errors import UserError
from softaug.evaluation.policy_sources import PolicySource

try:
    from stable_baselines3.common.policies import ActorCriticCnnPolicy, BasePolicy
    from stable_baselines3.sac.policies import CnnPolicy as SACCnnPolicy
    from stable_baselines3.td3.policies import CnnPolicy as TD3CnnPolicy
except ImportError as error:
    raise UserError(
        f"Stable-Baselines3 is missing ({error}); install it with `pip install 'softaug[sb3]'`"
    ) from error

LARGEST_PART = 2**31
"""Bytes of an unpacked part of the file."""
WIDEST_LAYER = 2**13
REMEDY = "if you trust it, load it in a function of your own with Stable-Baselines3's `load` and give that as module:callable"
ACTIVATIONS = {
    str(kind): kind
    for kind in (nn.ReLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softplus)
}
PLAIN_SETTINGS = frozenset(
    ("net_arch", "ortho_init", "use_sde", "log_std_init", "full_std", "use_expln", "squash_output", "clip_mean",
     "n_critics", "share_features_extractor", "normalize_images", "features_extractor_kwargs")
)  # fmt: skip
WITHOUT_EFFECT = frozenset(("optimizer_class", "optimizer_kwargs"))
"""Settings that only training needs."""
UNREADABLE = (
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
)
"""What `torch.load` raises, with `weights_only`, for a damaged or hostile file: it follows the opcodes without checks."""
NATURE_CNN = "<class 'stable_baselines3.common.torch_layers.NatureCNN'>"


class Sb3Policy:
    """The deterministic actions of a Stable-Baselines3 model, or of its `policy`."""

    def __init__(self, model: Any):
        self._policy = getattr(model, "policy", model)
        self._state: Any = None
        self._starts = True

    def begin_episode(self, seed: int = 0) -> None:
        self._state, self._starts = None, True

    def act(self, obs: np.ndarray) -> np.ndarray:
        # The state is that of a recurrent policy (sb3-contrib); others return None.
        start = np.array([self._starts])
        action, self._state = self._policy.predict(obs, self._state, start, deterministic=True)
        self._starts = False
        return action

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class Sb3File:
    """Makes the policy of a file of Stable-Baselines3. Picklable."""

    path: Path
    sha256: str

    def __call__(self) -> Sb3Policy:
        content = _read(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UserError(f"{self.path} has changed since the start; start again")
        return Sb3Policy(_build(self.path, *_parts(self.path, content)))


def sb3_source(path: Path) -> PolicySource:
    """The policy in a file that `model.save` of Stable-Baselines3 wrote."""
    content = _read(path)
    described, weights = _parts(path, content)
    _build(path, described, weights)  # what cannot be built is refused here
    channels, size, _ = _observation_shape(path, described)
    sha256 = hashlib.sha256(content).hexdigest()
    steps = described.get("num_timesteps")
    return PolicySource(
        make=Sb3File(path.resolve(), sha256),
        title=str(path),
        name=path.stem,
        sha256=sha256,
        facts={"kind": "stable-baselines3", "file": path.name, "sha256": sha256},
        image_size=size,
        frame_stack=channels // 3,
        decisions=steps if isinstance(steps, int) and steps > 0 else None,
    )


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file that model.save of Stable-Baselines3 wrote")
    return path.read_bytes()


def _parts(path: Path, content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says of the model in JSON, and the policy's weights. Nothing is unpickled."""
    no_model = f"{path} is no model of Stable-Baselines3"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            texts = {name: archive.getinfo(name) for name in ("data", "policy.pth")}
            if any(part.file_size > LARGEST_PART for part in texts.values()):
                raise UserError(f"{path} unpacks to more than {LARGEST_PART:,} bytes; give another file")
            described = json.loads(archive.read("data"))
            stored = archive.read("policy.pth")
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RecursionError,
        RuntimeError,  # encrypted, or of an unknown compression
        EOFError,
        zlib.error,
        lzma.LZMAError,
        OSError,  # damaged bzip2
    ) as error:
        raise UserError(f"{no_model} ({error}); give a file that model.save wrote") from None
    try:
        weights = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise UserError(f"the weights in {path} are not plain tensors ({reason:.120}); {REMEDY}") from None
    plain = isinstance(weights, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    )
    if not plain or not isinstance(described, dict):
        raise UserError(
            f"{no_model} (its weights or settings are something else); give a file that model.save wrote"
        )
    return described, dict(weights)


def _observation_shape(path: Path, described: Mapping[str, Any]) -> tuple[int, int, int]:
    """(3k, H, H), which the file holds in JSON next to the pickled space."""
    space = described.get("observation_space")
    shape = space.get("_shape") if isinstance(space, dict) else None
    right = (
        isinstance(shape, list)
        and len(shape) == 3
        and all(isinstance(n, int) and 0 < n < 4096 for n in shape)
    )
    if not right or shape[0] % 3 or shape[1] != shape[2]:  # type: ignore[index]
        raise UserError(
            f"{path} was trained on observations of shape {shape}, not on those of softaug.make_env, (3k, H, H); load it "
            "in a function of your own that converts them, and give that as module:callable"
        )
    return shape[0], shape[1], shape[2]  # type: ignore[index]


def _build(path: Path, described: Mapping[str, Any], weights: Mapping[str, Tensor]) -> BasePolicy:
    kind = _policy_class(path, weights)
    settings = _settings(path, described, kind)
    pixels = spaces.Box(0, 255, _observation_shape(path, described), np.uint8)
    actions = spaces.Box(-1.0, 1.0, (_action_dim(path, described, weights),), np.float32)
    with torch.random.fork_rng(devices=[]):  # initial weights, overwritten below
        try:
            policy = kind(pixels, actions, lambda progress: 0.0, **settings)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"the policy in {path} cannot be built again ({reason:.120}); {REMEDY}") from None
    try:
        policy.load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the weights in {path} do not fit its settings ({reason:.120}); {REMEDY}") from None
    policy.set_training_mode(False)
    return policy


def _action_dim(path: Path, described: Mapping[str, Any], weights: Mapping[str, Tensor]) -> int:
    """A, by the last layer of the policy; its actions must lie between -1 and 1, as those of softaug.make_env do."""
    space = described.get("action_space")
    ends = [str(space.get(name)) for name in ("low", "high")] if isinstance(space, dict) else ["?", "?"]
    if [{*end.strip("[]").split()} for end in ends] != [{"-1."}, {"1."}]:
        raise UserError(
            f"{path} was trained on actions from {ends[0]:.60} to {ends[1]:.60}, not on those of softaug.make_env, from -1 to 1; "
            "load it in a function of your own that converts them, and give that as module:callable"
        )
    layers = [
        bias
        for name, bias in weights.items()
        if re.fullmatch(r"action_net\.bias|actor\.mu\.(\d+\.)?bias", name) and bias.ndim == 1
    ]
    if not layers:
        raise UserError(f"{path} has no layer of continuous actions; {REMEDY}")
    return len(layers[-1])


def _policy_class(path: Path, weights: Mapping[str, Tensor]) -> type[BasePolicy]:
    """By the names of its weights, since the class itself is pickled."""
    if not any(".cnn.0.weight" in name for name in weights):
        raise UserError(f"{path} has no NatureCNN on its images (`CnnPolicy`); {REMEDY}")
    if "action_net.weight" in weights:
        return ActorCriticCnnPolicy
    if any(name.startswith("actor.latent_pi.") for name in weights):
        return SACCnnPolicy
    if any(name.startswith("actor_target.") for name in weights):
        return TD3CnnPolicy
    raise UserError(f"{path} is no PPO, A2C, SAC or TD3 (a policy of continuous actions); {REMEDY}")


def _settings(path: Path, described: Mapping[str, Any], kind: type[BasePolicy]) -> dict[str, Any]:
    """`policy_kwargs`, as far as they are plain values or classes that are known by name."""
    found = described.get("policy_kwargs") or {}
    settings: dict[str, Any] = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        if name in (":type:", ":serialized:") or name in WITHOUT_EFFECT:
            continue
        if name == "activation_fn" and isinstance(value, str) and value in ACTIVATIONS:
            settings[name] = ACTIVATIONS[value]
        elif name == "features_extractor_class" and value == NATURE_CNN:
            continue  # the default
        elif name in PLAIN_SETTINGS and _is_plain(value):
            settings[name] = value
        else:
            raise UserError(f"the policy in {path} has {name} {value!s:.60}, which is not rebuilt; {REMEDY}")
    if described.get("use_sde") is True:
        settings["use_sde"] = True
    return settings


def _is_plain(value: Any) -> bool:
    """Whether a setting is made of numbers, truth values and layers of a sensible width."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return len(value) < 100 and all(_is_plain(item) for item in value)
    return value is None or (isinstance(value, bool | int | float) and -WIDEST_LAYER <= value <= WIDEST_LAYER)
