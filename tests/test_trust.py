"""A run directory may come from anybody: code that it names is imported only if the run was trained here, or on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from onnx_files import save_onnx

import softaug
from softaug import cli, trust
from softaug.config import Config, make_config, write_config
from softaug.envs.custom.loading import load_callable, source_facts
from softaug.errors import UserError
from softaug.evaluation.diagnose import diagnose
from softaug.lab.agents import load_agents
from softaug.learning.agent import make_agent
from softaug.storage import checkpoint
from softaug.storage.run_files import run_directory_of
from softaug.training.run import train

EVIL = "import pathlib\npathlib.Path({marker!r}).touch()\ndef go():\n    pathlib.Path({marker!r}).touch()\n"


def shared_run(path: Path, spec: str) -> Config:
    """A finished run of an environment called `spec`, as somebody may send it: config, facts and weights."""
    config = make_config(
        spec, "sac", "small", image_size=16, crop_size=12, filters=(4, 4), strides=(2, 1), hidden_dim=8,
        projection_dim=4, frame_stack=2, test_env=(f"test={spec}",),
    )  # fmt: skip
    path.mkdir(parents=True)
    write_config(config, path / "config.json")
    (path / "run.json").write_text(json.dumps({"run_id": "0123456789ab", "media": {}}))
    agent = make_agent(config, (6, 16, 16), 2)
    checkpoint.save_tree(path / "checkpoints" / "000000100", {"counters": {}}, policy=agent.policy_weights())
    return config


def commands(run: Path, tmp_path: Path) -> dict[str, list[str]]:
    return {
        "eval": ["eval", str(run), "--episodes", "1", "--workers", "1"],
        "play": ["play", str(run), "--out", str(tmp_path / "x.mp4"), "--size", "16"],
        "diagnose": ["diagnose", str(run), "--states", "2"],
        "train": ["train", "--resume", str(run), "--quiet"],
    }


def in_own_process(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a user does: the folder above the run directories is the current one, and so on the path."""
    command = [sys.executable, "-m", "softaug.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", ["eval", "play", "diagnose", "train"])
@pytest.mark.parametrize("trusted", [False, True])
def test_code_inside_a_shared_run_is_never_executed(tmp_path: Path, command: str, trusted: bool) -> None:
    marker = tmp_path / "executed"
    run = tmp_path / "runs" / "shared"
    shared_run(run, "runs.shared.evil:go")
    for file in ("evil.py", "__init__.py"):
        (run / file).write_text(EVIL.format(marker=str(marker)))
    done = in_own_process([*commands(run, tmp_path)[command], *["--trust"] * trusted], tmp_path)
    assert done.returncode == 2 and not marker.exists(), done.stderr
    assert "Traceback" not in done.stderr
    expected = "nothing in a run directory is imported" if trusted else "give --trust"
    assert expected in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("command", ["eval", "play", "diagnose", "train"])
def test_code_beside_a_shared_run_is_imported_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    marker = tmp_path / "executed"
    (tmp_path / f"beside_{command}.py").write_text(EVIL.format(marker=str(marker)))
    run = tmp_path / "run"
    shared_run(run, f"beside_{command}:go")
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = commands(run, tmp_path)[command]
    assert cli.main(arguments) == 2 and not marker.exists()
    assert "give --trust" in capsys.readouterr().err
    cli.main([*arguments, "--trust", *(["--no-env-process"] if command == "train" else [])])
    assert marker.exists(), "--trust must import it"


@pytest.mark.parametrize("command", ["eval", "diagnose"])
def test_code_that_a_policys_file_names_is_imported_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    marker, module = tmp_path / "executed", f"named_by_file_{command}"
    (tmp_path / f"{module}.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = {"softaug": '"0.1.0"', "task": f'"{module}:go"', "test_env": f'"dark={module}:go"'}
    file = save_onnx(tmp_path / "shared.onnx", metadata=metadata)
    arguments = {
        "eval": ["eval", "--policy", str(file), "--out", str(tmp_path / "out"), "--workers", "1"],
        "diagnose": ["diagnose", "--policy", str(file), "--out", str(tmp_path / "out")],
    }[command]
    assert cli.main(arguments) == 2 and not marker.exists()
    said = capsys.readouterr().err
    assert f"names code to import ({module}:go)" in said and "--trust" in said
    with pytest.raises(UserError, match="trust=True"):
        softaug.evaluate(file)
    with pytest.raises(UserError, match="names code to import"):
        load_agents([str(file)])
    assert not marker.exists() and module not in sys.modules
    # The environment is none, which is said once it was imported and called.
    for consent in (["--trust"], ["--task", f"{module}:go"]):
        assert cli.main([*arguments, *consent]) == 2
        assert "which is no gymnasium.Env" in capsys.readouterr().err
        assert marker.exists()
        marker.unlink()


def test_report_and_export_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "beside_both.py").write_text(EVIL.format(marker=str(marker)))
    run = tmp_path / "run"
    shared_run(run, "beside_both:go")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["report", str(run), "--out", str(tmp_path / "page.html"), "--diagnose"]) == 0
    assert "give --trust" in (tmp_path / "page.html").read_text()
    assert cli.main(["export", str(run), "--format", "torchscript"]) == 0
    assert (run / "policy.pt").exists() and not marker.exists()


def test_facts_of_a_module_are_read_without_importing_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "facts_package"
    package.mkdir()
    marker = tmp_path / "executed"
    (package / "__init__.py").write_text(EVIL.format(marker=str(marker)))
    (package / "world.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "module_sha256" in source_facts("facts_package.world:go")
    assert not marker.exists()


def test_training_here_is_trust_and_copies_or_edits_do_not_inherit_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "run"
    config = shared_run(run, "somewhere:go")
    assert not trust.is_recorded(run, config)
    trust.record(run, config)
    trust.require_trust(run, config)
    monkeypatch.chdir(tmp_path)
    trust.require_trust(Path("run"), config)  # the same place by another name

    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(UserError, match="names code to import"):
        trust.require_trust(tmp_path / "copy", config)
    (run / "run.json").write_text(json.dumps({"run_id": "another"}))
    assert not trust.is_recorded(run, config), "another run was put in its place"
    (run / "run.json").write_text(json.dumps({"run_id": "0123456789ab"}))
    assert trust.is_recorded(run, config)
    write_config(make_config("elsewhere:go", "sac", "small"), run / "config.json")
    assert not trust.is_recorded(run, config), "its config was edited"


def test_a_record_that_others_can_write_to_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = shared_run(tmp_path / "run", "somewhere:go")
    trust.record(tmp_path / "run", config)
    (file,) = (tmp_path / "state").rglob("*.json")
    file.chmod(0o666)
    assert not trust.is_recorded(tmp_path / "run", config)


def test_softaugs_own_tasks_need_no_trust(tmp_path: Path) -> None:
    config = make_config("walker_walk", "sac", "small")
    assert not trust.is_recorded(tmp_path, config)
    trust.require_trust(tmp_path, config)  # raises nothing


def test_python_has_trust_too(tmp_path: Path) -> None:
    shared_run(tmp_path / "run", "no_such_module_at_all:go")
    with pytest.raises(UserError, match="trust=True"):
        diagnose(tmp_path / "run", states=2)
    with pytest.raises(UserError, match="there is no module"):
        diagnose(tmp_path / "run", states=2, trust=True)
    with pytest.raises(UserError, match="trust=True"):
        train(out=tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(UserError, match="there is no module"):
        train(out=tmp_path / "run", resume=True, quiet=True, trust=True, env_process=False)


def test_the_current_directory_is_not_on_the_path_inside_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shared_run(run, "inside_run_module:go")
    (run / "inside_run_module.py").write_text("def go(): pass\n")
    (run / "deeper").mkdir()
    assert run_directory_of(run / "deeper") == run and run_directory_of(tmp_path) is None
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(run)
    with pytest.raises(UserError, match="there is no module"):
        load_callable("inside_run_module:go")
    monkeypatch.syspath_prepend(str(run))
    with pytest.raises(UserError, match="nothing in a run directory is imported"):
        load_callable("inside_run_module:go")


def test_commands_inside_a_run_import_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in this process nor in those it starts, which Python gives the current directory as the first place."""
    shared_run(tmp_path / "run", "inside_run_module:go")
    marker = tmp_path / "imported"
    (tmp_path / "run" / "queue.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert cli.main(["eval", "nothing"]) == 2
    assert "" in sys.path and not os.environ["PYTHONSAFEPATH"], "elsewhere everything is as it was"
    monkeypatch.chdir(tmp_path / "run")
    assert cli.main(["eval", "nothing"]) == 2
    assert "" not in sys.path
    if sys.version_info >= (3, 11):
        subprocess.run([sys.executable, "-c", "import queue; queue.Queue"], check=True)
        assert not marker.exists()
