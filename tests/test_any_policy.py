"""Policies that were made elsewhere: the same episodes as a run's, results like a run's, and one sentence if they fail."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import policy_fakes
import pytest
import torch
from fabricated import fabricate_run
from fakes import SIZE, DotEnv, tiny_config
from onnx_files import save_onnx

import softaug
import softaug.envs
from softaug.cli import main
from softaug.config import Config, read_config, write_config
from softaug.errors import UserError
from softaug.evaluation.evaluate import evaluate as play
from softaug.evaluation.onnx_policies import onnx_source
from softaug.evaluation.onnx_weights import weight_files
from softaug.evaluation.python_policies import callable_source
from softaug.evaluation.run_evaluation import EvaluationOptions, evaluate_run
from softaug.learning.agent import make_agent
from softaug.methods import get_method
from softaug.results.reading import find_runs, read_run
from softaug.storage.checkpoint import save_checkpoint

OWN = {"task": "own_fakes:make_corner", "test_env": "dark=own_fakes:make_dark", "image_key": "camera"}
SMALL = {**OWN, "image_size": 16, "frame_stack": 2, "quiet": True}


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """softaug's tasks are dots."""

    def make_env(task: str, mode: str, seed: int, *, image_size: int, frame_stack: int, **_: Any) -> DotEnv:
        return DotEnv(mode, seed, frame_stack=frame_stack, size=image_size)

    monkeypatch.setattr(softaug.envs, "make_env", make_env)


def returns(report: dict[str, Any]) -> dict[str, list[float]]:
    return {row["mode"]: row["returns"] for row in report["results"]}


# ---- functions and objects -------------------------------------------------------------------------------------------


def test_a_function_plays_the_episodes_of_a_run(dots: None) -> None:
    report = softaug.evaluate(
        policy_fakes.to_the_middle,
        "walker_walk",
        ["train", "color_hard"],
        3,
        image_size=SIZE,
        frame_stack=2,
        seed=4,
    )

    class Naive:
        def begin_episode(self, seed: int = 0) -> None: ...
        def observe(self, *_: Any) -> None: ...
        def act(self, obs: np.ndarray) -> np.ndarray:
            return policy_fakes.to_the_middle(obs).detach().numpy().astype(np.float32)

    expected = play(Naive, DotEnv, ["train", "color_hard"], 3, seed=4)
    assert returns(report) == {mode: row["returns"] for mode, row in expected.items()}
    assert min(returns(report)["train"]) > 15, "it knows the way to the middle"


@pytest.mark.parametrize("policy", ["policy_fakes:draws", "policy_fakes:Counting", "policy_fakes:clumsy"])
def test_workers_make_no_difference(policy: str) -> None:
    one = softaug.evaluate(policy, modes=["train", "dark"], episodes=2, **SMALL)
    two = softaug.evaluate(policy, modes=["train", "dark"], episodes=2, workers=2, **SMALL)
    assert returns(one) == returns(two)
    assert one["results"][0]["episode_info"] == two["results"][0]["episode_info"]


def test_an_object_is_asked_in_order_and_its_seed_is_the_episodes() -> None:
    agent = policy_fakes.Counting()
    first = softaug.evaluate(agent, modes=["train"], episodes=2, **SMALL)
    assert returns(first) == returns(
        softaug.evaluate("policy_fakes:Counting", modes=["train"], episodes=2, **SMALL)
    )
    assert agent.decisions is not None and 0 < agent.decisions <= 15, "of the last episode alone"
    other = softaug.evaluate(agent, modes=["train"], episodes=2, **{**SMALL, "seed": 1})
    assert first["results"][0]["episode_info"] != other["results"][0]["episode_info"]


def test_own_policies_are_policies_too(dots: None, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    report, _ = evaluate_run(EvaluationOptions(run, ["train"], 2, workers=1))
    same = softaug.evaluate(
        softaug.load_policy(run), "walker_walk", ["train"], 2, image_size=SIZE, frame_stack=2, quiet=True
    )
    assert returns(same) == returns(report)


def test_a_lambda_has_one_process() -> None:
    with pytest.raises(UserError, match=r"cannot be sent to other processes.*use one worker"):
        softaug.evaluate(lambda obs: np.zeros(2), workers=2, **SMALL)
    with pytest.raises(UserError, match="int is no policy"):
        softaug.evaluate(3, **SMALL)  # type: ignore[arg-type]


# ---- what may go wrong -----------------------------------------------------------------------------------------------


NAN = "returned the action [ 0. nan] at decision 2 in train, episode"
RAISING = "raised ValueError: the crop is larger than the image (policy_fakes.py, line "
EXITING = "raised SystemExit: 3 (policy_fakes.py, line "


@pytest.mark.parametrize(
    ("policy", "said", "workers"),
    [
        ("Nan", NAN, 1),
        ("Raising", RAISING, 1),
        ("Exiting", EXITING, 1),
        ("batched", "returned an action of shape (1, 2) instead of (2,) at decision 0 in train, episode", 1),
        ("of_words", "returned str instead of an action at decision 0 in train, episode", 1),
        ("huge", "returned an action with a number that is too large at decision 0", 1),
        ("imaginary", "returned complex numbers (ndarray) instead of an action at decision 0", 1),
        (
            "unreadable",
            "returned Unreadable, which raised RuntimeError: the device is gone (policy_fakes.py, line ",
            1,
        ),
        # From another process: what it returned, what it raised, and what would have ended it.
        ("Nan", NAN, 2),
        ("Raising", RAISING, 2),
        ("Exiting", EXITING, 2),
    ],
)
def test_a_mistake_is_one_sentence(policy: str, said: str, workers: int) -> None:
    with pytest.raises(UserError) as caught:
        softaug.evaluate(f"policy_fakes:{policy}", modes=["train"], episodes=2, workers=workers, **SMALL)
    assert (
        said in str(caught.value)
        and "decision " in str(caught.value)
        and "in train, episode" in str(caught.value)
    )
    assert str(caught.value).startswith(f"the policy policy_fakes:{policy} ") and "\n" not in str(
        caught.value
    )


def test_finished_episodes_are_kept_when_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dark"
    command = [
        "eval",
        "--policy",
        "policy_fakes:DarkNan",
        "--out",
        str(out),
        "--episodes",
        "2",
        "--workers",
        "1",
    ]
    command += ["--task", OWN["task"], "--test-env", OWN["test_env"], "--image-key", "camera"]
    command += ["--image-size", "16", "--frame-stack", "2", "--json"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert (
        "returned the action [nan nan] at decision 0 in dark, episode 0; fix the policy (2 of 4 episodes"
        in said
    )
    assert "Traceback" not in said
    (journal,) = (out / "eval").glob("*.jsonl")
    assert [json.loads(line)["mode"] for line in journal.read_text().splitlines()] == ["train", "train"]
    # The same policy without the mode in which it fails plays nothing again.
    assert main([*command, "--modes", "train"]) == 0
    assert len(journal.read_text().splitlines()) == 2


def test_nothing_is_said_to_be_kept_in_a_deleted_directory(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"in dark, episode 0; fix the policy$"):
        softaug.evaluate("policy_fakes:DarkNan", modes=["train", "dark"], episodes=1, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        softaug.evaluate("policy_fakes:interrupted", modes=["train"], episodes=1, **{**SMALL, "quiet": False})
    assert "kept in" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("NeedsWeights", "raised TypeError: "),
        ("WithoutWeights", "raised OSError: no weights here (policy_fakes.py, line "),
        ("Quits", "raised SystemExit: 0 (policy_fakes.py, line "),
    ],
)
def test_a_class_that_cannot_be_made(policy: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--policy", f"policy_fakes:{policy}", "--task", "walker_walk"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the policy policy_fakes:{policy} cannot be made: " in line and said in line


def test_a_module_that_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exits_at_once.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["eval", "--policy", "exits_at_once:act", "--task", "walker_walk"]) == 2
    assert "its module raised SystemExit: 0 (exits_at_once.py, line 1)" in capsys.readouterr().err


@pytest.mark.parametrize("policy", [policy_fakes.rest, policy_fakes.draws, "policy_fakes:Draws"])
def test_the_callers_generators_are_left_alone(policy: Any) -> None:
    def drawn() -> list[Any]:
        return [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002

    def seed() -> None:
        random.seed(1)
        np.random.seed(2)  # noqa: NPY002
        torch.manual_seed(3)

    seed()
    expected = drawn()
    seed()
    softaug.evaluate(policy, modes=["train"], episodes=1, **SMALL)
    assert drawn() == expected


def test_settings_that_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    call = {**SMALL, "modes": ["train"], "episodes": 1}
    for given, said in (
        ({"image_size": 0}, "image_size must be at least 1, not 0"),
        ({"frame_stack": 0}, "frame_stack must be at least 1, not 0"),
        ({"action_repeat": 0}, "action_repeat must be at least 1, not 0"),
        ({"image_size": "32"}, "image_size must be a whole number, not '32'"),
        ({"image_size": True}, "image_size must be a whole number, not True"),
        ({"decisions": 1.5}, "decisions must be a whole number, not 1.5"),
        ({"episodes": "2"}, "episodes must be a whole number, not '2'"),
        ({"workers": None}, "workers must be a whole number, not None"),
        ({"seed": 0.5}, "seed must be a whole number, not 0.5"),
        ({"task": 5}, "task must be a text, not 5"),
        ({"name": 5}, "name must be a text, not 5"),
        ({"name": ""}, "a policy cannot be called ''"),
        ({"modes": 5}, "modes must be a list of names, not 5"),
        ({"modes": "tran"}, "tran"),
    ):
        with pytest.raises(UserError) as caught:
            softaug.evaluate(policy_fakes.rest, **{**call, **given})  # type: ignore[arg-type]
        assert said in str(caught.value)
    for flag in ("image_size", "frame_stack", "action_repeat"):
        command = [
            "--policy",
            "policy_fakes:rest",
            "--task",
            "walker_walk",
            "--" + flag.replace("_", "-"),
            "0",
        ]
        for name in ("eval", "diagnose"):
            assert main([name, *command]) == 2
            assert f"{flag} must be at least 1, not 0" in capsys.readouterr().err


def test_one_text_names_the_modes() -> None:
    sizes: dict[str, Any] = {**SMALL, "image_size": np.int64(16)}
    for modes in ("train", "train, dark"):
        report = softaug.evaluate(policy_fakes.rest, modes=modes, episodes=1, **sizes)
        assert list(returns(report)) == [mode.strip() for mode in modes.split(",")]


def test_names_that_are_wrong(tmp_path: Path) -> None:
    for policy, said in {
        "policy_fakes:nobody": "policy_fakes has no 'nobody'",
        "no_module_here:act": "there is no module 'no_module_here'",
        "policy_fakes:np.pi": "policy_fakes:np.pi is float, no policy",
        str(tmp_path): "is a directory; if it is a run",
        "weights.pt": "is no policy that can be read; give a file that ends in .onnx",
        "missing.onnx": "missing.onnx does not exist",
        "missing.zip": "missing.zip does not exist",
    }.items():
        with pytest.raises(UserError) as caught:
            softaug.evaluate(policy, **SMALL)
        assert said in str(caught.value)
    with pytest.raises(UserError, match="does not say what it was made for; give its task"):
        softaug.evaluate(policy_fakes.rest)
    with pytest.raises(UserError, match=r"a policy cannot be called '\.\./x'"):
        softaug.evaluate(policy_fakes.rest, name="../x", **SMALL)


def test_flags_of_runs_and_of_policies_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        ([], "give the directory of a run, or --policy"),
        (["runs/x", "--policy", "a:b"], "give the directory of a run, or --policy"),
        (["runs/x", "--image-size", "84"], "--image-size describes a --policy"),
        (["--policy", "policy_fakes:rest", "--adapt"], "--adapt and --checkpoint are for runs"),
    ):
        assert main(["eval", *arguments]) == 2
        assert said in capsys.readouterr().err


# ---- results ---------------------------------------------------------------------------------------------------------


def test_results_are_a_runs(tmp_path: Path, dots: None) -> None:
    sizes: dict[str, Any] = {"image_size": SIZE, "frame_stack": 2, "quiet": True, "name": "my (old) agent"}
    for seed in (0, 1):
        softaug.evaluate(
            policy_fakes.Counting(), "walker_walk", ["train", "color_hard"], 2, out=tmp_path / str(seed), train_seed=seed,
            decisions=5000, **sizes,
        )  # fmt: skip
    softaug.evaluate(policy_fakes.Counting(), "walker_walk", ["video_easy"], 2, out=tmp_path / "1", train_seed=1,
                     decisions=5000, **sizes)  # fmt: skip
    paths = find_runs([tmp_path])
    assert [path.name for path in paths] == ["0", "1"]
    record = read_run(paths[1])
    assert record.finished and record.decisions == 5000 and record.frames == 20_000
    assert set(record.final) == {"train", "color_hard", "video_easy"}
    assert record.config.method == "policy:my (old) agent" and record.config.row.title == "my (old) agent"
    assert record.facts["policy"]["callable"] == "policy_fakes:Counting"
    assert not (paths[1] / "checkpoints").exists()


def test_an_evaluation_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights"
    monkeypatch.setenv("FAKE_WEIGHTS", str(weights))
    weights.write_text("0.5")
    call = {**SMALL, "modes": ["train"], "out": tmp_path / "results"}
    two = softaug.evaluate("policy_fakes:Weights", episodes=2, **call)
    journal = tmp_path / "results" / "eval" / "policy-seed0.episodes.jsonl"
    assert len(journal.read_text().splitlines()) == 2
    three = softaug.evaluate("policy_fakes:Weights", episodes=3, **call)
    assert len(journal.read_text().splitlines()) == 3 and returns(three)["train"][:2] == returns(two)["train"]
    # Other weights in the file that it reads are another policy, also under the same name.
    weights.write_text("0.25")
    with pytest.raises(UserError, match="has results of another policy of that name"):
        softaug.evaluate("policy_fakes:Weights", episodes=3, **call)
    with pytest.raises(UserError, match="has results with image_size 16, not 20"):
        softaug.evaluate("policy_fakes:Weights", episodes=3, **{**call, "image_size": 20})
    assert len(journal.read_text().splitlines()) == 3


def test_first_episodes_are_recorded(tmp_path: Path, dots: None) -> None:
    command = [
        "eval",
        "--policy",
        "policy_fakes:rest",
        "--task",
        "walker_walk",
        "--modes",
        "train,color_hard",
    ]
    command += ["--image-size", str(SIZE), "--frame-stack", "2", "--episodes", "2", "--workers", "1"]
    assert main([*command, "--out", str(tmp_path / "rest"), "--video"]) == 0
    videos = sorted(path.name for path in (tmp_path / "rest" / "videos").rglob("*.mp4"))
    assert videos == ["color_hard.mp4", "train.mp4"]


def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    softaug.evaluate("policy_fakes:rest", modes=["train"], episodes=1, **SMALL)
    assert list(tmp_path.iterdir()) == []
    softaug.evaluate("policy_fakes:rest", modes=["train"], episodes=1, name="rest", **SMALL)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["own_fakes.make_corner-rest-0"]
    config = read_config(tmp_path / "runs" / "own_fakes.make_corner-rest-0" / "config.json")
    assert (config.task, config.decisions, config.image_size) == (OWN["task"], 0, 16)


def test_a_runs_directory_is_not_written_to(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    with pytest.raises(UserError, match="is the directory of a run"):
        softaug.evaluate("policy_fakes:rest", modes=["train"], episodes=1, out=run, **SMALL)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UserError, match="has other files"):
        softaug.evaluate("policy_fakes:rest", modes=["train"], episodes=1, out=tmp_path / "full", **SMALL)


def test_a_foreign_policy_is_never_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert get_method("policy:ppo").foreign
    with pytest.raises(UserError, match="ppo is a policy that was made elsewhere"):
        softaug.make_config("walker_walk", "policy:ppo")
    softaug.evaluate("policy_fakes:rest", modes=["train"], episodes=1, out=tmp_path / "rest", **SMALL)
    assert main(["train", "--resume", str(tmp_path / "rest"), "--trust"]) == 2
    assert "rest is a policy that was made elsewhere" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "rest")]) == 2
    assert "not the policy; give --policy" in capsys.readouterr().err


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def save_run(directory: Path, **overrides: Any) -> Path:
    config = tiny_config(**overrides)
    directory.mkdir()
    write_config(config, directory / "config.json")
    weights = make_agent(config, (6, SIZE, SIZE), 2).policy_weights()
    save_checkpoint(directory / "checkpoints", 240, {}, weights, keep=1)
    return directory


def test_an_exported_policy_acts_as_its_run(
    tmp_path: Path, dots: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    run, file = save_run(tmp_path / "run", render="fast"), tmp_path / "agent.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(file)]) == 0
    source = onnx_source(file)
    facts = (
        source.task,
        source.image_size,
        source.frame_stack,
        source.action_repeat,
        source.render,
        source.decisions,
    )
    assert facts == ("walker_walk", SIZE, 2, 4, "fast", 240)
    policy, original = source.make(), softaug.load_policy(run)
    rng = np.random.default_rng(0)
    for _ in range(5):
        obs = rng.integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
        np.testing.assert_allclose(policy.act(obs), original.act(obs), atol=1e-5)
    capsys.readouterr()
    modes = ["--modes", "train,color_hard", "--episodes", "3", "--workers", "1", "--json"]
    assert main(["eval", str(run), *modes]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert main(["eval", "--policy", str(file), "--out", str(tmp_path / "results"), *modes]) == 0
    theirs = json.loads(capsys.readouterr().out)
    for mode, values in returns(ours).items():
        np.testing.assert_allclose(returns(theirs)[mode], values, atol=1e-3)
    assert (theirs["method"], theirs["decisions"]) == ("policy:agent", 240)


def write_onnx(path: Path, module: torch.nn.Module, example: torch.Tensor, **options: Any) -> Path:
    pytest.importorskip("onnxscript")
    torch.onnx.export(module.eval(), (example,), str(path), dynamo=True, verbose=False, **options)
    return path


class Means(torch.nn.Module):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.mean((2, 3))[:, :2] / 128 - 1


def test_onnx_files_of_others(tmp_path: Path, dots: None) -> None:
    pytest.importorskip("onnxruntime")
    file = write_onnx(
        tmp_path / "means.onnx", Means(), torch.zeros(1, 6, SIZE, SIZE)
    )  # float pixels, a fixed batch
    source = onnx_source(file)
    assert (source.task, source.image_size, source.frame_stack) == (None, SIZE, 2)
    obs = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
    np.testing.assert_allclose(source.make().act(obs), obs.mean((1, 2))[:2] / 128 - 1, atol=1e-5)
    report = softaug.evaluate(file, "walker_walk", ["train"], 2, quiet=True)
    assert len(returns(report)["train"]) == 2
    with pytest.raises(UserError, match=f"takes image_size {SIZE}, not 84"):
        softaug.evaluate(file, "walker_walk", ["train"], 2, image_size=84)
    make = source.make
    file.write_bytes(file.read_bytes() + b"\x98\x06\x01")  # one more field, which readers pass over
    with pytest.raises(UserError, match="has changed since the start"):
        make()


def test_onnx_files_that_cannot_act(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(UserError, match="is no ONNX file"):
        onnx_source(tmp_path / "no.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(UserError, match="onnxruntime cannot run"):
        onnx_source(tmp_path / "empty.onnx")
    deep = save_onnx(tmp_path / "deep.onnx", metadata={"softaug": '"1"', "task": "[" * 200_000})
    with pytest.raises(UserError, match=r"the metadata 'task' of .* is nested too deeply"):
        onnx_source(deep)
    flat = write_onnx(tmp_path / "flat.onnx", torch.nn.Linear(4, 2), torch.zeros(1, 4))
    with pytest.raises(UserError, match=r"has shape \[1, 4\]; export a policy with one input of pixels"):
        onnx_source(flat)

    class Two(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return pixels.mean((2, 3)), pixels.amax((2, 3))

    two = write_onnx(tmp_path / "two.onnx", Two(), torch.zeros(1, 6, 16, 16), output_names=["mean", "value"])
    with pytest.raises(UserError, match="has the outputs mean, value; name the one with the action"):
        onnx_source(two)


def test_onnx_weights_in_files_of_their_own(tmp_path: Path) -> None:
    obs = np.full((6, 16, 16), 100, np.uint8)
    for name in ("policy.onnx.data", "weights.bin"):
        file = save_onnx(tmp_path / "policy.onnx", weights_file=name, value=0.5)
        first = onnx_source(file)
        assert first.make().act(obs) == pytest.approx([0.3, 0.3])
        graph = file.read_bytes()
        save_onnx(file, weights_file=name, value=-0.5)
        assert file.read_bytes() == graph, "only the weights are others"
        with pytest.raises(UserError, match="has changed since the start"):
            first.make()
        second = onnx_source(file)
        assert second.sha256 != first.sha256 and second.make().act(obs) == pytest.approx([-0.3, -0.3])
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UserError, match=r"in 'weights.bin' cannot be read \(No such file or directory\)"):
        onnx_source(file)
    (tmp_path / "inner").mkdir()
    (tmp_path / "elsewhere").write_bytes(bytes(48))
    for name in ("../elsewhere", str(tmp_path / "elsewhere"), ""):
        outside = save_onnx(tmp_path / "inner" / "policy.onnx", weights_file=name or "../")
        with pytest.raises(UserError, match="outside its folder"):
            onnx_source(outside)


def test_every_place_for_onnx_weights_is_found() -> None:
    onnx = pytest.importorskip("onnx")

    def tensor(name: str) -> Any:
        found = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [1], bytes(4), raw=True)
        onnx.external_data_helper.set_external_data(found, name, offset=2**40)
        return found

    def sparse(name: str) -> Any:
        return onnx.SparseTensorProto(values=tensor(name + "_values"), indices=tensor(name + "_indices"))

    attributes = {"one": tensor("t"), "more": [tensor("ts")], "thin": sparse("s"), "thins": [sparse("ss")]}
    inner = onnx.helper.make_graph([], "inner", [], [], [tensor("inner")])
    node = onnx.helper.make_node(
        "Any", ["x"], ["y"], body=inner, bodies=[inner], number=-1, share=0.5, **attributes
    )
    graph = onnx.helper.make_graph(
        [node], "outer", [], [], [tensor("outer")], sparse_initializer=[sparse("o")]
    )
    called = onnx.helper.make_node("Any", ["x"], ["y"], value=tensor("function"))
    function = onnx.helper.make_function("own", "F", ["x"], ["y"], [called], [])
    model = onnx.helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.CopyFrom(
        onnx.helper.make_graph([], "training", [], [], [tensor("training")])
    )
    content = model.SerializeToString()
    expected = {"t", "ts", "inner", "outer", "function", "training"}
    expected |= {f"{name}_{part}" for name in ("s", "ss", "o") for part in ("values", "indices")}
    assert weight_files(content) == sorted(expected)
    with pytest.raises(ValueError, match="cut off"):
        weight_files(content[:-1])


def test_onnxruntime_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'softaug\[onnx\]'"):
        onnx_source(tmp_path / "x.onnx")


def test_sources_know_their_names() -> None:
    assert callable_source("policy_fakes:Counting.act").name == "Counting.act"
    assert Config(method="policy:x", crop_size=100, image_size=100).row.title == "x"


# ---- next to runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def among_runs(tmp_path: Path, dots: None) -> Path:
    """Two seeds of SAC on one task, SAC and SODA on another, and a policy from elsewhere on the first only."""
    for task, method, seed in (
        ("walker_walk", "sac", 0), ("walker_walk", "sac", 1), ("walker_walk", "soda_overlay", 0),
        ("walker_stand", "sac", 0), ("walker_stand", "soda_overlay", 0),
    ):  # fmt: skip
        values = {"train": [500.0] * 2, "color_hard": [300.0 + seed] * 2}
        fabricate_run(
            tmp_path / "runs" / task / method / str(seed), task, method, seed, returns=values, media="fake"
        )
    for seed in (0, 1):
        softaug.evaluate(
            policy_fakes.Counting(), "walker_walk", ["train", "color_hard"], 2, name="my agent", train_seed=seed,
            image_size=SIZE, frame_stack=2, out=tmp_path / "runs" / f"mine{seed}", quiet=True, seed=seed,
        )  # fmt: skip
    return tmp_path / "runs"


def test_a_table_has_a_column_for_it(
    among_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "reproduce",
        "video-and-color",
        "--tasks",
        "walker_walk,walker_stand",
        "--only-existing",
        "--quiet",
    ]
    assert main([*command, "--runs", str(among_runs), "--out", str(tmp_path / "out"), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    text = json.dumps(item, ensure_ascii=False)
    assert "my agent: a policy made elsewhere (2 seeds), trained for an unknown number of decisions" in text
    page = (tmp_path / "out" / "video-and-color.md").read_text()
    assert "my agent" in page
    mean = float(np.mean([read_run(among_runs / f"mine{seed}").final["color_hard"].mean for seed in (0, 1)]))
    assert f"{mean:.0f} ±" in page or f"{mean:.0f}±" in page
    # It has one of two tasks: the methods' means over tasks are still over both.
    aggregates = [row for row in item["aggregates"] if row["mode"] == "color_hard"]
    assert {row["method"] for row in aggregates} == {"sac", "soda_overlay"}
    assert all(len(row["tasks"]) == 2 for row in aggregates)


def test_the_report_shows_it(among_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = tmp_path / "runs" / "unfinished"
    with pytest.raises(UserError, match="nan"):
        softaug.evaluate(
            "policy_fakes:Nan", "walker_walk", ["train"], 1, image_size=SIZE, frame_stack=2, out=unfinished
        )
    out = tmp_path / "report.html"
    assert main(["report", str(among_runs), "--out", str(out), "--no-samples", "--json"]) == 0
    rows = [
        row for row in json.loads(capsys.readouterr().out)["results"] if row["method"] == "policy:my agent"
    ]
    assert {row["mode"]: len(row["scores"]) for row in rows} == {"train": 2, "color_hard": 2}
    page = out.read_text()
    assert "my agent" in page and "policies made elsewhere" in page and "made elsewhere</td>" in page


@pytest.mark.slow
def test_how_far_its_actions_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On real physics: a policy of the image's mean color moves with the colors, one that does nothing does not."""
    file = write_onnx(tmp_path / "means.onnx", Means(), torch.zeros(1, 3, 16, 16))  # two actions
    command = ["diagnose", "--task", "point_mass_easy", "--modes", "color_hard", "--states", "2"]
    command += ["--render", "aliased", "--out", str(tmp_path)]
    assert main([*command, "--policy", str(file), "--json"]) == 0
    moved = json.loads(capsys.readouterr().out)["modes"]["color_hard"]
    assert moved["action_distance"]["mean"] > 0.02 and "cosine_features" not in moved
    assert (tmp_path / "diagnosis.png").is_file()
    assert main([*command, "--policy", "policy_fakes:rest", "--image-size", "16", "--frame-stack", "1"]) == 0
    still = capsys.readouterr().out
    assert (
        "0.00 ± 0.00" in still and "the policy does the same in every state" in still and "cos f" not in still
    )


@pytest.mark.slow
def test_a_diagnosis_and_results_of_one_policy_share_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In either order, by name or by place; those of another policy are refused."""
    monkeypatch.chdir(tmp_path)
    task = ["--task", "point_mass_easy", "--image-size", "16", "--frame-stack", "1", "--action-repeat", "50"]
    task += ["--render", "aliased", "--modes", "train"]
    diagnose = ["diagnose", *task, "--states", "2", "--policy"]
    evaluate = ["eval", *task, "--episodes", "1", "--workers", "1", "--policy"]
    for number, place in enumerate((["--name", "mine"], ["--out", "place"])):
        folder = [Path("runs/point_mass_easy-mine-0"), Path("place")][number]
        for first, second in ((diagnose, evaluate), (evaluate, diagnose)):
            assert main([*first, "policy_fakes:rest", *place]) == 0
            assert main([*second, "policy_fakes:rest", *place]) == 0
            assert {path.name for path in folder.iterdir()} >= {"diagnosis.json", "diagnosis.png", "eval"}
            before = (folder / "diagnosis.json").read_bytes()
            capsys.readouterr()
            assert main([*diagnose, "policy_fakes:Counting", *place]) == 2
            assert "has results " in capsys.readouterr().err
            assert (folder / "diagnosis.json").read_bytes() == before
            shutil.rmtree(folder)
        assert main([*diagnose, "policy_fakes:rest", *place]) == 0
        capsys.readouterr()
        assert main([*evaluate, "policy_fakes:Counting", *place]) == 2
        assert "diagnosis.json is of another policy or task; give another name" in capsys.readouterr().err
        assert sorted(path.name for path in folder.iterdir()) == ["diagnosis.json", "diagnosis.png"]
    run = save_run(tmp_path / "run")
    assert main([*diagnose, "policy_fakes:rest", "--out", str(run)]) == 2
    assert "is the directory of a run" in capsys.readouterr().err
