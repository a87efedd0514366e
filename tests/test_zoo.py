"""The zoo: a run becomes a folder, and the folder is as good as the run wherever a run is accepted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import fabricate_run
from fakes import DotEnv, tiny_config, train_dot

import softaug.envs
from softaug.cli import main
from softaug.commands.zoo import ADVISED_BYTES
from softaug.config import read_config, write_config
from softaug.errors import UserError
from softaug.evaluation.runs import action_dim, load_policy, load_run
from softaug.evaluation.tour import TourFrame
from softaug.media.comparability import (
    OUTDATED_NOTE,
    PROCEDURAL_NOTE,
    PROCEDURAL_VIDEO_VERSIONS,
    media_note,
)
from softaug.results import publishing
from softaug.results.publishing import publish, update
from softaug.results.reading import find_runs, read_run
from softaug.training.loop import evaluation_seed
from softaug.zoo import PolicyFolder, locate, names, outputs_of
from softaug.zoo.folder import OPTIONAL, REQUIRED, policy_folders

NAME = "walker_walk-sac"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the fake environment, with machine-dependent names in its config and facts."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train_dot(tiny_config(task="walker_walk", method="sac", decisions=120, eval_every=0), run)
    facts = json.loads((run / "run.json").read_text())
    video = {
        "kind": "folder",
        "path": "/home/somebody/videos",
        "videos": 2,
        "names": ["a.mp4", "/home/somebody/b.mp4"],
    }
    facts["media"] = {"color_hard": video}
    (run / "run.json").write_text(json.dumps(facts))
    config = dataclasses.replace(
        read_config(run / "config.json"), videos="/home/somebody/videos", wandb="somebody"
    )
    write_config(config, run / "config.json")
    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory; environments are fake ones."""

    def make_env(task: str, mode: str, seed: int, *, frame_stack: int, **_: Any) -> DotEnv:
        return DotEnv(mode, seed, frame_stack=frame_stack)

    monkeypatch.setattr(softaug.envs, "make_env", make_env)
    monkeypatch.setattr("softaug.zoo.places.PACKAGED", tmp_path / "packaged")
    monkeypatch.delenv("SOFTAUG_ZOO", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def policy(here: Path, trained: Path) -> Path:
    return publish(trained, Path("zoo"))


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spoil(path: Path) -> None:
    """Change one byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_weights_are_the_runs_bit_for_bit(policy: Path, trained: Path) -> None:
    run, published = load_run(trained), load_run(f"zoo:{NAME}")
    assert (policy / "policy.safetensors").read_bytes() == (
        run.checkpoint / "policy.safetensors"
    ).read_bytes()
    assert published.weights.keys() == run.weights.keys()
    assert all(torch.equal(published.weights[key], run.weights[key]) for key in run.weights)
    assert (published.sha256, published.decisions) == (run.sha256, 120)
    obs = np.random.default_rng(0).integers(0, 256, (6, 12, 12), dtype=np.uint8)
    np.testing.assert_array_equal(load_policy(f"zoo:{NAME}").act(obs), load_policy(trained).act(obs))


def test_the_folder_has_exactly_its_files(policy: Path) -> None:
    assert set(content_of(policy)) == {*REQUIRED, *OPTIONAL} - {
        "replay.mp4"
    }  # the fake environment has no tour
    for line in (policy / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((policy / name).read_bytes()).hexdigest() == digest


def test_eval_of_the_policy_equals_that_of_the_run_and_writes_elsewhere(
    policy: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(policy)
    seed = str(evaluation_seed(0))
    common = ["--modes", "train,color_hard", "--episodes", "2", "--workers", "1", "--seed", seed, "--json"]
    common += ["--videos", "procedural"]
    returns = []
    for run in (f"zoo:{NAME}", str(policy), str(trained)):
        assert main(["eval", run, *common, *([] if run != str(trained) else ["--out", "of_run.json"])]) == 0
        returns.append([row["returns"] for row in json.loads(capsys.readouterr().out)["results"]])
    final = json.loads((trained / "final_eval.json").read_text())["modes"]
    assert returns == [[final[mode]["returns"] for mode in ("train", "color_hard")]] * 3
    assert content_of(policy) == before
    assert list((outputs_of(f"zoo:{NAME}") / "eval").glob("*.json"))


def test_results_name_everything_and_no_place_of_this_machine(policy: Path, trained: Path) -> None:
    results = PolicyFolder(policy).results()
    final = json.loads((trained / "final_eval.json").read_text())
    assert {row["mode"]: row["returns"] for row in results["results"]} == {
        mode: values["returns"] for mode, values in final["modes"].items()
    }
    assert (results["decisions"], results["frames"]) == (120, final["frames"])
    assert {"softaug", "torch", "mujoco", "dm_control"} <= results["training"]["versions"].keys()
    row = next(row for row in results["results"] if row["mode"] == "color_hard")
    assert row["source"] == {"kind": "folder", "videos": 2, "names": ["a.mp4", "b.mp4"]}
    assert row["eval_seed"] == evaluation_seed(0)
    assert not row["procedural"]
    assert [e[1] for e in results["training"]["curve"]] == [
        round(e.total, 3) for e in read_run(trained).curve
    ]
    assert not [name for name, content in content_of(policy).items() if b"somebody" in content]


def test_the_card_has_yaml_with_an_entry_for_each_result(policy: Path) -> None:
    yaml = pytest.importorskip("yaml")
    _, front, body = (policy / "README.md").read_text().split("---\n", 2)
    header, results = yaml.safe_load(front), PolicyFolder(policy).results()["results"]
    assert header["library_name"] == "softaug"
    assert {"reinforcement-learning", "walker_walk", "sac"} <= set(header["tags"])
    (model,) = header["model-index"]
    assert model["name"] == NAME
    said = [
        (entry["dataset"]["type"], *(metric["value"] for metric in entry["metrics"]))
        for entry in model["results"]
    ]
    assert said == [(f"walker_walk-{r['mode']}", round(r["mean"], 4), round(r["std"], 4)) for r in results]
    assert all(isinstance(value, float) for _, *values in said for value in values)
    for row in results:
        assert f"| {row['mode']} | {row['mean']:.1f} ± {row['std']:.1f} |" in body
    assert f"softaug eval zoo:{NAME}" in body


@pytest.mark.parametrize("name", ["policy.safetensors", "config.json", "results.json", "SHA256SUMS"])
def test_a_changed_file_is_refused(policy: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(policy / name)
    assert main(["eval", f"zoo:{NAME}", "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "damaged" in said and "get the policy again" in said
    with pytest.raises(UserError, match="damaged"):
        PolicyFolder(policy).verify()


def test_get_copies_what_is_whole_and_nothing_else(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (policy / "extra.py").write_text("print('not a file of a policy')")
    assert main(["zoo", "get", NAME, "--out", "copy"]) == 0
    assert set(content_of(Path("copy"))) == set(content_of(policy)) - {"extra.py"}
    assert main(["zoo", "get", f"zoo:{NAME}", "--out", "copy"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["zoo", "get", NAME]) == 0
    assert "is there already" in capsys.readouterr().out
    spoil(policy / "policy.safetensors")
    assert main(["zoo", "get", NAME, "--out", "second"]) == 2
    assert not [path for path in Path().iterdir() if "second" in path.name]


@pytest.mark.parametrize("name", ["README.md", "config.json"])
def test_no_file_from_elsewhere_is_copied_through_a_link(
    policy: Path, here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card has no checksum, so only this keeps a secret out of the copy; the rule holds for every file."""
    secret = here / "secret"
    (policy / name).rename(secret)
    (policy / name).symlink_to(secret)
    assert main(["zoo", "get", NAME, "--out", "copy"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{name} is a link to {secret}" in said
    assert not [path for path in here.iterdir() if "copy" in path.name]


def test_links_within_a_folder_and_within_a_cache_of_the_hub_are_copied(policy: Path, here: Path) -> None:
    (policy / "README.md").rename(policy / "card")
    (policy / "README.md").symlink_to("card")
    PolicyFolder(policy).copy(here / "first")
    assert (here / "first" / "README.md").read_bytes() == (policy / "card").read_bytes()
    assert not (here / "first" / "README.md").is_symlink()
    snapshot, blobs = here / "cache" / "snapshots" / "0a1b", here / "cache" / "blobs"
    shutil.copytree(here / "first", snapshot)
    blobs.mkdir()
    for file in snapshot.iterdir():
        file.rename(blobs / f"blob-{file.name}")
        file.symlink_to(f"../../blobs/blob-{file.name}")
    PolicyFolder(snapshot).copy(here / "second")
    assert content_of(here / "second") == content_of(here / "first")
    (snapshot / "README.md").unlink()
    (snapshot / "README.md").symlink_to((policy / "card").resolve())
    with pytest.raises(UserError, match="outside of its folder"):
        PolicyFolder(snapshot).copy(here / "third")


def rewrite_results(policy: Path, **changes: Any) -> None:
    """As somebody else may have written them: other values, and checksums that fit."""
    file = policy / "results.json"
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    sums = policy / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(file.read_bytes()).hexdigest()))


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a/b", ".hidden", ""])
def test_get_writes_nowhere_but_into_the_zoo(
    policy: Path, here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_results(policy, name=f"{here}{name}" if name == "/absolute" else name)
    before = set(here.rglob("*"))
    assert main(["zoo", "get", NAME]) == 2
    assert "a policy cannot be called" in capsys.readouterr().err
    assert set(here.rglob("*")) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"results": [{"mode": "train"}]},
        {"results": None},
        {"results": [{"mode": "train", "mean": "high", "returns": [1.0], "note": ""}]},
        {"results": [{"mode": "train", "mean": 900.0, "returns": [1.0, 2.0], "note": ""}]},
        {"results": [{"mode": "train", "mean": 10**400, "returns": [10**400], "note": ""}]},
        {"results": [{"mode": "train", "mean": float("nan"), "returns": [float("nan")], "note": ""}]},
        {"results": [{"mode": "\x1b[2Jtrain", "mean": 1.0, "returns": [1.0], "note": ""}]},
        {"task": "walker_walk\x1b[2J"},
        {"decisions": "many"},
        {"task": None},
    ],
)
def test_results_of_another_form_are_refused(
    policy: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_results(policy, **changes)
    assert main(["zoo", "list"]) == 0
    said = capsys.readouterr()
    assert "does not describe a policy" in said.err and "no policy yet" in said.out


def test_names_in_a_policy_are_no_markup(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite_results(policy, task="[/x]")
    assert main(["zoo", "list"]) == 0
    assert "[/x]" in capsys.readouterr().out


def test_names_are_looked_up_here_then_in_the_variable_then_in_the_package(
    policy: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("packaged", "named"):
        shutil.copytree(policy, here / place / NAME)
    shutil.copytree(policy, here / "packaged" / "cartpole-sac")
    monkeypatch.setenv("SOFTAUG_ZOO", str(here / "named"))
    assert locate(f"zoo:{NAME}") == Path("zoo", NAME)
    shutil.rmtree("zoo")
    assert locate(f"zoo:{NAME}") == here / "named" / NAME
    shutil.rmtree(here / "named" / NAME)
    assert locate(f"zoo:{NAME}") == here / "packaged" / NAME
    assert list(names()) == ["cartpole-sac", NAME]
    monkeypatch.setenv("SOFTAUG_ZOO", str(here / "nowhere"))
    with pytest.raises(UserError, match=r"SOFTAUG_ZOO is .*nowhere, which is not a directory"):
        locate(f"zoo:{NAME}")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("walker-sac", f"no policy 'walker-sac'; did you mean {NAME}"),
        ("zzz", "`softaug zoo list` shows all 1"),
        ("../zoo/walker_walk-sac", "cannot be called"),
        ("", "cannot be called"),
    ],
)
def test_an_unknown_name_is_one_sentence(policy: Path, name: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        load_run(f"zoo:{name}")


def test_modes_of_other_benchmarks_are_listed_in_a_table_of_their_own(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"mode": mode, "mean": mean, "returns": [mean], "note": ""}
        for mode, mean in [("train", 111.0), ("rotate_hard", 222.0)]
    ]
    rewrite_results(policy, results=rows)
    assert main(["zoo", "list"]) == 0
    first, second = re.split("─+", capsys.readouterr().out)[1:]
    assert (first.count(NAME), "111" in first, "222" in first) == (1, True, False)
    assert (second.count(f" {NAME} "), "222" in second, "111" in second) == (1, True, False)
    # A robot's returns are small, and that in train stands next to the others.
    robot = [
        {"mode": mode, "mean": mean, "returns": [mean], "note": ""}
        for mode, mean in [("train", 18.74), ("random_colors", -3.94)]
    ]
    rewrite_results(policy, results=robot, task="robot_push")
    assert main(["zoo", "list"]) == 0
    (only,) = re.split("─+", capsys.readouterr().out)[1:]
    assert "18.7" in only and "-3.9" in only


def test_a_folder_next_to_others_is_not_taken_for_a_policy(here: Path) -> None:
    Path("zoo", "notes").mkdir(parents=True)
    with pytest.raises(UserError, match="none at all"):
        locate("zoo:notes")


def test_the_list(policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["task"], listed["decisions"]) == (NAME, "walker_walk", 120)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["zoo", "list"]) == 0
    table = capsys.readouterr().out
    for word in (NAME, "color_hard", "120", f"{listed['results'][0]['mean']:.0f}"):
        assert word in table
    monkeypatch.setenv("COLUMNS", "60")  # room for modes on two lines, but not for task and method
    assert main(["zoo", "list"]) == 0
    table = capsys.readouterr().out
    assert NAME in table and "color_hard" not in table and "color_" in table and "task" not in table
    spoil(policy / "results.json")
    assert main(["zoo", "list"]) == 0
    said = capsys.readouterr()
    assert "damaged" in said.err and "no policy yet" in said.out


def test_the_list_prefers_todays_videos_and_marks_results_on_others(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    results = PolicyFolder(policy).results()
    today = PROCEDURAL_VIDEO_VERSIONS["easy"]
    row = results["results"][-1]
    old = row | video_row(today - 1, 1) | {"mean": 111.0, "returns": [111.0], "note": PROCEDURAL_NOTE}
    new = row | video_row(today, 1) | {"mean": 222.0, "returns": [222.0]}
    silent = row | {"mode": "train", "note": None, "source": None}
    for rows, shown in (([old, new], "222"), ([new, old], "222"), ([old, silent], "111")):
        rewrite(policy, "results.json", json.dumps({**results, "results": rows}).encode())
        assert main(["zoo", "list"]) == 0
        table = capsys.readouterr().out
        assert shown in table and OUTDATED_NOTE in table
        assert ("111" in table) == (shown == "111")
        assert (PROCEDURAL_NOTE in table) == (new in rows)


def test_a_policy_named_after_task_and_method_leaves_room_for_its_results(
    policy: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name, said_twice in ((f"{NAME}-long", False), ("other", True)):
        publish(trained, Path("zoo"), name=name, replay=False)
        assert main(["zoo", "list"]) == 0
        assert ("task" in capsys.readouterr().out) == said_twice


def test_report_shows_the_policy_with_what_was_measured_here(
    policy: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabricate_run(Path("runs/other"), task="walker_walk", method="soda", seed=1)
    more = ["--modes", "video_easy", "--episodes", "3", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", f"zoo:{NAME}", *more]) == 0
    capsys.readouterr()
    assert main(["report", f"zoo:{NAME}", "runs/other", "--out", "page.html", "--no-samples", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    shown = {(r["method"], r["mode"]) for r in said["results"]}
    assert {("sac", "train"), ("sac", "color_hard"), ("sac", "video_easy")} <= shown
    assert not said["problems"]
    # The same results for other weights are not this policy's.
    (file,) = (outputs_of(f"zoo:{NAME}") / "eval").glob("*.json")
    report = json.loads(file.read_text())
    file.write_text(json.dumps({**report, "weights_sha256": "0" * 64}))
    assert "video_easy" not in read_run(f"zoo:{NAME}").final
    diagnosis = outputs_of(policy) / "diagnosis.json"
    own = PolicyFolder(policy).results()["weights_sha256"]
    for weights, about_others in ((own, False), ("0" * 64, True)):
        diagnosis.write_text(json.dumps({"checkpoint": {"weights_sha256": weights}, "modes": {}}))
        assert main(["report", f"zoo:{NAME}", "--out", "page.html", "--no-samples", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert any("about other weights" in problem for problem in said["problems"]) == about_others


def test_folders_of_policies_are_found_like_folders_of_runs(policy: Path) -> None:
    assert find_runs(["zoo"]) == [policy]
    assert find_runs([f"zoo:{NAME}", "zoo"]) == [policy]
    record = read_run(policy)
    assert record.finished and record.decisions == 120


def test_nothing_is_written_into_a_policy(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content_of(policy)
    weights = hashlib.sha256((policy / "policy.safetensors").read_bytes()).hexdigest()
    assert outputs_of(f"zoo:{NAME}") == outputs_of(policy) == Path("runs", "zoo", f"{NAME}-{weights[:8]}")
    assert main(["train", "--resume", str(policy)]) == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert main(["eval", f"zoo:{NAME}", "--checkpoint", "best"]) == 2
    assert "leave --checkpoint out" in capsys.readouterr().err
    assert content_of(policy) == before


def test_export_writes_next_to_other_results(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"zoo:{NAME}", "--format", "torchscript", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["max_difference"] < 1e-4
    assert Path(facts["file"]) == outputs_of(policy) / "policy.pt"
    assert not (policy / "policy.pt").exists()


def test_add_takes_results_of_exactly_the_chosen_weights(here: Path, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    with pytest.raises(UserError, match=r"no test results of these weights.*--checkpoint best"):
        publish(run, Path("zoo"), checkpoint="best")
    settings = ["--modes", "train", "--episodes", "3", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", str(run), "--checkpoint", "best", *settings]) == 0
    best = PolicyFolder(publish(run, Path("zoo"), checkpoint="best", name="best")).results()
    assert [(row["mode"], row["episodes"]) for row in best["results"]] == [("train", 3)]
    # Of several results in a mode, the one with the most episodes.
    assert main(["eval", str(run), *settings]) == 0
    last = PolicyFolder(publish(run, Path("zoo"))).results()
    assert {row["mode"]: row["episodes"] for row in last["results"]} == {"train": 3, "color_hard": 2}


def test_add_refuses_what_it_cannot_publish(policy: Path, trained: Path, tmp_path: Path) -> None:
    for arguments, match in (
        ((trained, Path("zoo")), "exists already"),
        ((policy, Path("zoo")), "published already"),
    ):
        with pytest.raises(UserError, match=match):
            publish(*arguments)
    with pytest.raises(UserError, match="cannot be called"):
        publish(trained, Path("zoo"), name="a/b")
    before = content_of(policy)
    publish(trained, Path("zoo"), replace=True)
    assert content_of(policy) == before  # equal inputs give equal files
    Path("zoo/mine").mkdir()
    Path("zoo/mine/thesis.txt").write_text("do not lose")
    with pytest.raises(UserError, match="not replaced"):
        publish(trained, Path("zoo"), name="mine", replace=True)
    run = tmp_path / "unfinished"
    shutil.copytree(trained, run)
    (run / "final_eval.json").unlink()
    with pytest.raises(UserError, match="test them first with: softaug eval"):
        publish(run, Path("zoo"), name="other")
    assert sorted(path.name for path in Path("zoo").iterdir()) == ["mine", NAME]


def test_update_adds_what_was_measured_here(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content_of(policy)
    assert main(["zoo", "update", NAME]) == 2  # nothing was measured
    assert "test the policy first with: softaug eval" in capsys.readouterr().err
    settings = ["--modes", "train", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", f"zoo:{NAME}", "--episodes", "1", *settings]) == 0
    with pytest.raises(UserError, match="new, or has more episodes than the published"):
        update(policy)  # fewer episodes than the published two
    assert content_of(policy) == before
    assert main(["eval", f"zoo:{NAME}", "--episodes", "4", *settings]) == 0
    assert main(["zoo", "update", NAME]) == 0
    assert "in 4 episodes" in capsys.readouterr().out
    PolicyFolder(policy).verify()
    rows = {row["mode"]: row for row in PolicyFolder(policy).results()["results"]}
    assert {mode: row["episodes"] for mode, row in rows.items()} == {"train": 4, "color_hard": 2}
    report = next(r for r in (outputs_of(policy) / "eval").glob("*4ep*.json"))
    assert rows["train"]["returns"] == json.loads(report.read_text())["results"][0]["returns"]
    assert f"{rows['train']['mean']:.1f}" in (policy / "README.md").read_text()
    after = content_of(policy)
    assert {name for name in before if before[name] == after[name]} == {"config.json", "policy.safetensors"}


def test_update_refuses_what_is_no_policy_of_the_zoo(
    policy: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, said in (("nothing", "no policy 'nothing'"), ("hf:me/mine", "softaug zoo get hf:me/mine")):
        assert main(["zoo", "update", name]) == 2
        assert said in capsys.readouterr().err
    before = content_of(trained)
    assert main(["zoo", "update", str(trained)]) == 2
    assert "not a published policy" in capsys.readouterr().err
    assert content_of(trained) == before
    spoil(policy / "results.json")
    with pytest.raises(UserError, match="get the policy again"):
        update(policy)


def test_update_keeps_replay_and_reference(
    here: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder that is not in the zoo, and whose card names it in another way."""
    monkeypatch.setattr(publishing, "_record_replay", lambda run, rows, path, say: path.write_bytes(b"film"))
    elsewhere = publish(trained, Path("elsewhere"), reference="hf:me/walker")
    settings = ["--modes", "train", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", str(elsewhere), "--episodes", "3", *settings]) == 0
    assert main(["zoo", "update", str(elsewhere)]) == 0
    PolicyFolder(elsewhere).verify()
    after = content_of(elsewhere)
    assert after["replay.mp4"] == b"film"
    assert b"softaug eval hf:me/walker" in after["README.md"]
    assert b"zoo:" not in after["README.md"]
    assert [path.name for path in Path("elsewhere").iterdir()] == [elsewhere.name]


def test_update_keeps_results_with_and_without_adaptation_apart(policy: Path) -> None:
    row = PolicyFolder(policy).results()["results"][0]
    longer = {**row, "returns": [1.0, 2.0, 3.0], "adapt": True}
    chosen = publishing._best_rows([row, longer])
    assert [(row["adapt"], len(row["returns"])) for row in chosen] == [(False, 2), (True, 3)]


def test_update_refuses_folders_that_it_would_harm(
    policy: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--modes", "train", "--episodes", "3", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", str(policy), *settings]) == 0
    (here / "packaged").mkdir()
    shutil.copytree(policy, here / "packaged" / "mine")
    (here / "link").symlink_to(policy, target_is_directory=True)
    shutil.copytree(policy, here / "notes" / NAME)
    (here / "notes" / NAME / "notes.txt").write_text("do not lose")
    before = content_of(here)
    for name, said in (
        ("mine", "softaug zoo get mine"),
        ("zoo:mine", "softaug zoo get mine"),
        (str(here / "link"), "is a link"),
        (str(here / "notes" / NAME), "notes.txt"),
    ):
        assert main(["zoo", "update", name]) == 2
        assert said in capsys.readouterr().err
    assert content_of(here) == before


def test_an_interrupted_update_changes_nothing(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the new folder is complete, nor between the two renames that put it in place."""
    settings = ["--modes", "train", "--episodes", "3", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", str(policy), *settings]) == 0
    before = content_of(Path("zoo"))

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "make_card", interrupt)
        with pytest.raises(KeyboardInterrupt):
            update(policy)
    assert content_of(Path("zoo")) == before
    rename = Path.rename

    def interrupt_the_second(source: Path, target: Path) -> Path:
        if Path(target).name == NAME and not source.name.endswith("-replaced"):
            raise KeyboardInterrupt
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupt_the_second)
        with pytest.raises(KeyboardInterrupt):
            update(policy)
    assert content_of(Path("zoo")) == before
    assert [path.name for path in Path("zoo").iterdir()] == [NAME]
    assert [row["episodes"] for row in update(policy)] == [3]


@pytest.mark.parametrize("damage", [{"returns": 5}, {"source": 5, "mode": 7}, {"versions": [1]}], ids=str)
def test_update_of_a_policy_with_odd_results_is_one_sentence_or_works(
    policy: Path, damage: dict[str, Any]
) -> None:
    settings = ["--modes", "train", "--episodes", "3", "--workers", "1", "--videos", "procedural"]
    assert main(["eval", str(policy), *settings]) == 0
    results = PolicyFolder(policy).results()
    results["results"][-1] |= damage
    rewrite(policy, "results.json", json.dumps(results).encode())
    before = content_of(policy)
    try:
        update(policy)
    except UserError as error:
        assert re.search("is damaged|does not describe a policy", str(error))
        assert content_of(policy) == before
    else:
        PolicyFolder(policy).verify()


def video_row(version: int, episodes: int) -> dict[str, Any]:
    """A result on procedural easy videos of a version."""
    source = {"kind": "procedural", "level": "easy", "version": version}
    note = media_note("video_easy", "procedural", source)
    return {
        "mode": "video_easy",
        "adapt": False,
        "media": "procedural",
        "note": note,
        "source": source,
        "returns": [1.0] * episodes,
    }


def test_results_on_earlier_procedural_videos_give_way_to_those_on_todays() -> None:
    today = PROCEDURAL_VIDEO_VERSIONS["easy"]
    old, new, longer = video_row(today - 1, 10), video_row(today, 4), video_row(today, 5)
    assert (old["note"], new["note"]) == (OUTDATED_NOTE, PROCEDURAL_NOTE)
    for rows, best in (([old, new], new), ([new, old], new), ([new, longer], longer), ([old], old)):
        assert publishing._best_rows(rows) == [best]


def test_results_published_before_a_change_of_the_videos_say_so() -> None:
    old = {**video_row(PROCEDURAL_VIDEO_VERSIONS["easy"] - 1, 10), "note": PROCEDURAL_NOTE}
    assert [row["note"] for row in publishing._best_rows([old])] == [OUTDATED_NOTE]


@pytest.mark.parametrize(
    "damage",
    [
        {"std": "wide"},
        {"mean": 5.0},
        {"returns": ["high"]},
        {"returns": []},
        {"returns": None},
        {"returns": [float("nan")]},
        {"episode_info": [1]},
    ],
    ids=lambda damage: "-".join(damage),
)
def test_published_numbers_are_those_of_the_episodes(
    here: Path, trained: Path, damage: dict[str, Any]
) -> None:
    """A mean or deviation that is wrong, or not there, is computed; what cannot be is named."""
    run = here / "run"
    shutil.copytree(trained, run)
    final = json.loads((run / "final_eval.json").read_text())
    final["modes"]["train"] |= damage
    (run / "final_eval.json").write_text(json.dumps(final))
    if damage.keys() & {"mean", "std"}:
        (row, *_) = PolicyFolder(publish(run, here / "zoo", replay=False)).results()["results"]
        assert (row["mean"], row["std"]) == (np.mean(row["returns"]), np.std(row["returns"]))
    else:
        with pytest.raises(UserError, match=r"final_eval.json is damaged"):
            publish(run, here / "zoo", replay=False)
        assert not (here / "zoo").exists()


def rewrite(policy: Path, name: str, content: bytes) -> None:
    """As somebody else may have written a file, with its checksum."""
    sums = policy / "SHA256SUMS"
    old = hashlib.sha256((policy / name).read_bytes()).hexdigest()
    (policy / name).write_bytes(content)
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(content).hexdigest()))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("policy.safetensors", b"short", "other weights"),
        ("config.json", b"[]", "no JSON object"),
        ("config.json", b'{"task": 5}', "is damaged"),
    ],
)
def test_get_refuses_a_folder_that_cannot_be_used(
    policy: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, match: str
) -> None:
    rewrite(policy, name, content)
    assert main(["zoo", "get", NAME, "--out", "copy"]) == 2
    said = capsys.readouterr().err
    assert match in said and said.endswith("get the policy again\n") and not Path("copy").exists()
    assert main(["export", f"zoo:{NAME}"]) == 2
    assert "get the policy again" in capsys.readouterr().err


def test_weights_that_are_no_safetensors_are_refused(policy: Path) -> None:
    rewrite(policy, "policy.safetensors", b"short")
    rewrite_results(policy, weights_sha256=hashlib.sha256(b"short").hexdigest())
    with pytest.raises(UserError, match=r"is damaged .*; get the policy again"):
        PolicyFolder(policy).verify()


def test_get_and_add_touch_nothing_that_lies_beside_their_target(
    policy: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for parent in (Path(), Path("other")):
        (parent / ".writing-copy").mkdir(parents=True)
        (parent / ".writing-copy" / "mine").write_text("do not lose")
    assert main(["zoo", "get", NAME, "--out", "copy"]) == 0
    publish(trained, Path("other"), name="copy", replay=False)
    for parent in (Path(), Path("other")):
        assert (parent / ".writing-copy" / "mine").read_text() == "do not lose"
        assert sorted(path.name for path in parent.iterdir() if path.name.startswith(".")) == [
            ".writing-copy"
        ]
        assert (parent / "copy").stat().st_mode & 0o777 == Path("zoo").stat().st_mode & 0o777


def test_links_in_the_way_are_one_sentence_and_stay(
    policy: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("dangling").symlink_to("nowhere/zoo")
    Path("zoo/link").symlink_to(policy.absolute())
    before = content_of(policy)
    for arguments in (
        ["get", NAME, "--out", "dangling"],
        ["get", NAME, "--out", "dangling/copy"],
        ["get", NAME, "--out", "new/.."],
        ["add", str(trained), "--out", "dangling", "--no-replay"],
        ["add", str(trained), "--name", "link", "--replace", "--no-replay"],
    ):
        assert main(["zoo", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert Path("dangling").is_symlink() and Path("zoo/link").is_symlink() and content_of(policy) == before


def test_a_damaged_policy_is_named_in_the_report_and_others_are_shown(
    policy: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(trained, Path("zoo"), name="other", replay=False)
    rewrite_results(policy, name="x" * 300)
    rewrite(Path("zoo/other"), "results.json", b"[]")
    publish(trained, Path("zoo"), name="good", replay=False)
    assert main(["report", "zoo", "--no-samples", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "no JSON object" in page and "zoo/good" in page


@pytest.mark.parametrize(("episode", "shown"), [(500, [62, 62]), (50, [50, 50])])
def test_a_replay_shows_every_mode_also_where_episodes_are_short(
    here: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, episode: int, shown: list[int]
) -> None:
    def play_tour(run, modes, *, decisions, size, **_):
        every = [mode for mode in modes for _ in range(decisions or episode // len(modes))]
        return (TourFrame(mode, np.zeros((size, size, 3), np.uint8), 0, 0, 1) for mode in every[:episode])

    drawn: list[str] = []

    def panels(tours, *_):
        drawn.extend(frame.mode for frame in tours[0])
        return [np.zeros((8, 8, 3), np.uint8)]

    monkeypatch.setattr(publishing, "play_tour", play_tour)
    monkeypatch.setattr(publishing, "panels", panels)
    publish(trained, Path("zoo"))
    assert [drawn.count(mode) for mode in ("train", "color_hard")] == shown == [*Counter(drawn).values()]


def test_a_tensor_of_another_name_is_no_layer() -> None:
    weights = {
        "actor.mlp.4.bias": torch.zeros(6),
        "actor.mlp.x.bias": torch.zeros(2),
        "actor.mlp.0.bias": torch.zeros(9),
    }
    assert action_dim(weights) == 3


def test_the_policies_of_this_repository_are_whole_and_small() -> None:
    """1 MB each: everybody who clones the repository gets all of them."""
    folders = policy_folders(Path(__file__).parents[1] / "zoo")
    if not folders:
        pytest.skip("installed without the repository's zoo")
    for folder in folders:
        PolicyFolder(folder).verify()
        assert (folder / "policy.safetensors").stat().st_size <= ADVISED_BYTES, folder.name


def test_code_that_a_policy_names_is_not_imported(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy from elsewhere may name an environment of its own: that needs --trust."""
    Path("stranger.py").write_text("open('executed', 'w').close()\ndef make(): ...\n")
    values = json.loads((policy / "config.json").read_text())
    text = json.dumps({**values, "task": "stranger:make", "eval_modes": ["train"]})
    (policy / "config.json").write_text(text)
    sums = (policy / "SHA256SUMS").read_text().splitlines()
    new = [
        f"{hashlib.sha256(text.encode()).hexdigest()}  config.json" if "config.json" in s else s for s in sums
    ]
    (policy / "SHA256SUMS").write_text("\n".join(new) + "\n")
    assert main(["eval", f"zoo:{NAME}", "--workers", "1"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_eval_records_videos_for_the_report(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", f"zoo:{NAME}", "--modes", "train,color_hard", "--episodes", "2", "--workers", "1"]
    command += ["--videos", "procedural"]
    assert main(command) == 0
    assert read_run(policy).videos == {}
    first = json.loads(next(Path("runs/zoo").rglob("*ep*.json")).read_text())["results"]
    assert main([*command, "--video"]) == 0  # also of episodes that were played before
    videos = read_run(policy).videos
    assert sorted(videos) == ["color_hard", "train"]
    assert all(path.stat().st_size > 0 for path in videos.values())
    assert json.loads(next(Path("runs/zoo").rglob("*ep*.json")).read_text())["results"] == first
    stamps = {mode: path.stat().st_mtime_ns for mode, path in videos.items()}
    assert main([*command, "--video"]) == 0  # nothing is missing any more
    assert {mode: path.stat().st_mtime_ns for mode, path in videos.items()} == stamps
