"""Policies of Stable-Baselines3: the same actions as the library's own, without unpickling anything."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from fakes import DotEnv
from torch import nn

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC, TD3

import softaug
import softaug.envs
from softaug.cli import main
from softaug.errors import UserError
from softaug.integrations.sb3_policy import Sb3Policy, sb3_source

SIZE = 40


class Discrete(DotEnv):
    def __init__(self) -> None:
        super().__init__(size=SIZE)
        self.action_space = gymnasium.spaces.Discrete(3)


def dot() -> DotEnv:
    return DotEnv(size=SIZE)


def observations(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 6, SIZE, SIZE), dtype=np.uint8)


@pytest.mark.parametrize(
    ("learner", "settings"),
    [
        (PPO, {}),
        (PPO, {"use_sde": True}),
        (PPO, {"policy_kwargs": {"activation_fn": nn.ReLU, "net_arch": [8, 6], "features_extractor_kwargs": {"features_dim": 16}}}),
        (A2C, {}),
        (SAC, {"buffer_size": 2, "policy_kwargs": {"net_arch": {"pi": [8], "qf": [9]}, "share_features_extractor": True}}),
        (TD3, {"buffer_size": 2, "policy_kwargs": {"net_arch": [8]}}),
    ],
)  # fmt: skip
def test_a_file_acts_as_its_model(learner: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    model = learner("CnnPolicy", dot(), seed=3, **settings)
    model.save(tmp_path / "agent")
    source = sb3_source(tmp_path / "agent.zip")
    assert (source.name, source.image_size, source.frame_stack) == ("agent", SIZE, 2)
    policy = pickle.loads(pickle.dumps(source.make))()  # as in a worker
    policy.begin_episode(0)
    for obs in observations(5):
        np.testing.assert_array_equal(policy.act(obs), model.predict(obs, deterministic=True)[0])


def test_a_file_is_evaluated_as_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(softaug.envs, "make_env", lambda task, mode, seed, **_: DotEnv(mode, seed, size=SIZE))
    model = PPO("CnnPolicy", dot(), seed=0)
    model.save(tmp_path / "ppo")
    out = tmp_path / "results"
    command = [
        "eval",
        "--policy",
        str(tmp_path / "ppo.zip"),
        "--task",
        "walker_walk",
        "--modes",
        "train,color_hard",
    ]
    assert main([*command, "--episodes", "2", "--workers", "1", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    sizes: dict[str, Any] = {"image_size": SIZE, "frame_stack": 2, "quiet": True}
    same = softaug.evaluate(Sb3Policy(model), "walker_walk", ["train", "color_hard"], 2, **sizes)
    assert [row["returns"] for row in report["results"]] == [row["returns"] for row in same["results"]]
    assert report["method"] == "policy:ppo"


# ---- what others may put into a file ---------------------------------------------------------------------------------


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def rewritten(source: Path, target: Path, change: Any) -> Path:
    """A copy of a model's file in which `change(name, content)` stands for each part."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sb3") / "ppo.zip"
    PPO("CnnPolicy", dot(), seed=0, policy_kwargs={"net_arch": [8]}).save(path)
    return path


def test_pickled_settings_are_not_opened(saved: Path, tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    poison = base64.b64encode(pickle.dumps(Touch(trap))).decode()

    def change(name: str, content: bytes) -> bytes:
        if name != "data":
            return content
        data = json.loads(content)
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = poison
        return json.dumps(data).encode()

    file = rewritten(saved, tmp_path / "ppo.zip", change)
    policy = sb3_source(file).make()
    policy.begin_episode(0)
    assert policy.act(observations(1)[0]).shape == (2,)
    assert not trap.exists()
    with pytest.raises(Exception):  # noqa: B017 - the library's own loader does open them
        PPO.load(file)
    assert trap.exists(), "the trap works"


def test_pickled_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    trap = tmp_path / "executed"

    def change(name: str, content: bytes) -> bytes:
        if name != "policy.pth":
            return content
        buffer = io.BytesIO()
        torch.save({"action_net.weight": Touch(trap)}, buffer)
        return buffer.getvalue()

    file = rewritten(saved, tmp_path / "ppo.zip", change)
    with pytest.raises(
        UserError, match=r"are not plain tensors.*if you trust it, load it in a function of your own"
    ):
        sb3_source(file)
    assert not trap.exists()


def with_data(saved: Path, target: Path, **values: Any) -> Path:
    def change(name: str, content: bytes) -> bytes:
        return json.dumps({**json.loads(content), **values}).encode() if name == "data" else content

    return rewritten(saved, target, change)


def test_what_cannot_be_rebuilt_is_refused(saved: Path, tmp_path: Path) -> None:
    for values, said in (
        ({"policy_kwargs": {":serialized:": "", "features_extractor_class": "<class 'mine.CNN'>"}}, "has features_extractor_class"),
        ({"policy_kwargs": {"net_arch": [10**9]}}, "has net_arch"),
        ({"policy_kwargs": {"net_arch": [9]}}, "do not fit its settings"),
        ({"policy_kwargs": {"net_arch": "os.system"}}, "has net_arch os.system"),
        ({"policy_kwargs": {"activation_fn": ["x"]}}, "has activation_fn ['x']"),
        ({"observation_space": {"_shape": [40, 40, 6]}}, "observations of shape [40, 40, 6]"),
        ({"observation_space": None}, "observations of shape None"),
        ({"action_space": {"low": "[-2. -2.]", "high": "[2. 2.]"}}, "actions from [-2. -2.] to [2. 2.]"),
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:
            sb3_source(with_data(saved, tmp_path / "changed.zip", **values))
        assert said in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(UserError, match="is no model of Stable-Baselines3"):
        sb3_source(tmp_path / "text.zip")
    rewritten(saved, tmp_path / "half.zip", lambda name, content: None if name == "policy.pth" else content)
    with pytest.raises(UserError, match="is no model of Stable-Baselines3"):
        sb3_source(tmp_path / "half.zip")
    DQN("CnnPolicy", Discrete(), buffer_size=2).save(tmp_path / "dqn")
    with pytest.raises(UserError, match="is no PPO, A2C, SAC or TD3"):
        sb3_source(tmp_path / "dqn.zip")


def test_a_damaged_file_is_refused_in_one_sentence(saved: Path, tmp_path: Path) -> None:
    numbered = io.BytesIO()
    torch.save({0: torch.zeros(1)}, numbered)
    # An opcode that pops from an empty stack, a name that was never put there, and weights without names.
    for stored in (b"\x80\x02s.", b"\x80\x02h\x05.", b"", numbered.getvalue()):
        file = rewritten(
            saved,
            tmp_path / "damaged.zip",
            lambda name, content, stored=stored: stored if name == "policy.pth" else content,
        )
        with pytest.raises(UserError):
            sb3_source(file)
    for packing in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "packed.zip", "w", packing) as packed:
            packed.writestr("data", json.dumps({"a": list(range(1000))}))
            packed.writestr("policy.pth", b"")
        content = bytearray((tmp_path / "packed.zip").read_bytes())
        content[48:80] = bytes(byte ^ 255 for byte in content[48:80])
        (tmp_path / "packed.zip").write_bytes(content)
        with pytest.raises(UserError, match=r"is no model of Stable-Baselines3"):
            sb3_source(tmp_path / "packed.zip")
