"""The loop: what it does in which order, that it learns, what it refuses, and that watching changes nothing."""

import dataclasses
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import DotEnv, DotFactory, FakeImages, tiny_config

import softaug.training.run
from softaug import cli
from softaug.config import make_config, read_config
from softaug.errors import UserError
from softaug.learning.agent import Agent
from softaug.methods import get_method
from softaug.storage import checkpoint
from softaug.training import log, preparation
from softaug.training.loop import Diverged, evaluation_seed, tensors_in
from softaug.training.run import train
from softaug.training.stepper import InProcessStepper


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(config, out: Path, **options: Any):
    return train(
        config, out, **{"env_factory": DotFactory(), "images": FakeImages(), "quiet": True, **options}
    )


def last_state(out: Path) -> dict[str, Any]:
    return checkpoint.load_tree(checkpoint.find_checkpoint(out))


def metrics(out: Path, *kinds: str) -> list[dict[str, Any]]:
    """Lines without the wall clock."""
    lines = [line for line in log.read_metrics(out / "metrics.jsonl") if not kinds or line["kind"] in kinds]
    return [{key: value for key, value in line.items() if key not in log.WALL_CLOCK} for line in lines]


def assert_same_agents(left: Path, right: Path) -> None:
    ours, theirs = (dict(tensors_in(last_state(out)["agent"])) for out in (left, right))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run of 240 decisions."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("train") / "finished"
    result = run(tiny_config(tensorboard=True), out)
    assert result.finished
    return out


def test_a_run_directory_holds_what_it_should(finished: Path):
    assert sorted(path.name for path in finished.iterdir() if not path.name.startswith(".")) == [
        "checkpoints", "config.json", "final_eval.json", "metrics.jsonl", "run.json", "tb",
    ]  # fmt: skip
    assert read_config(finished / "config.json") == tiny_config(tensorboard=True)
    facts = json.loads((finished / "run.json").read_text())
    assert (
        facts["versions"]["torch"] == torch.__version__ and facts["device"] == "cpu" and facts["threads"] == 1
    )
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "000000200",
        "000000240",
        "best",
    ]


def test_decisions_frames_and_updates_are_counted_apart(finished: Path):
    final = json.loads((finished / "final_eval.json").read_text())
    # 20 catch-up updates after 60 random decisions, then one at each decision after the first.
    assert (final["decisions"], final["frames"], final["updates"]) == (240, 480, 20 + 240 - 60 - 1)
    episodes = metrics(finished, "episode")
    assert [line["decisions"] for line in episodes] == list(range(20, 241, 20))
    assert all(line["frames"] == 2 * line["decisions"] and line["length"] == 20 for line in episodes)
    assert [line["decisions"] for line in metrics(finished, "train")] == [90, 120, 150, 180, 210, 240]
    assert [(line["decisions"], line["mode"]) for line in metrics(finished, "eval")] == [
        (decisions, mode) for decisions in (100, 200, 240) for mode in ("train", "color_hard")
    ]


def test_final_evaluation_is_that_of_the_last_weights(finished: Path):
    from softaug.evaluation.evaluate import evaluate
    from softaug.evaluation.runs import RunPolicy

    config = read_config(finished / "config.json")
    weights = checkpoint.load_weights(checkpoint.find_checkpoint(finished))
    seed = evaluation_seed(config.seed)
    again = evaluate(RunPolicy(config, weights), DotFactory(), config.eval_modes, config.eval_episodes, seed)
    assert json.loads((finished / "final_eval.json").read_text())["modes"] == again


def test_two_runs_of_a_seed_are_the_same_and_of_two_seeds_are_not(finished: Path, tmp_path: Path):
    run(tiny_config(), tmp_path / "same")
    assert metrics(tmp_path / "same") == metrics(finished)
    assert_same_agents(tmp_path / "same", finished)
    run(tiny_config(seed=1, decisions=60, eval_every=0), tmp_path / "other")
    assert metrics(tmp_path / "other", "episode")[0]["return"] != metrics(finished, "episode")[0]["return"]


def test_an_own_process_for_the_environment_changes_nothing(finished: Path, tmp_path: Path):
    run(tiny_config(env_process=True), tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(finished)
    assert_same_agents(tmp_path / "run", finished)


def test_neither_evaluations_nor_checkpoints_nor_the_replays_place_change_training(
    finished: Path, tmp_path: Path
):
    config = tiny_config(
        eval_every=0, eval_modes=("train",), eval_episodes=1, checkpoint_every=1000, replay_memory="ram"
    )
    run(config, tmp_path / "run")
    assert metrics(tmp_path / "run", "train", "episode") == metrics(finished, "train", "episode")
    assert_same_agents(tmp_path / "run", finished)


def test_the_update_sees_the_replay_before_the_decisions_transition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """While the environment steps: the order in which both steppers agree."""
    seen = []
    update = Agent.update

    def watched(self, replay):
        seen.append(replay.added)
        return update(self, replay)

    monkeypatch.setattr(Agent, "update", watched)
    run(tiny_config(decisions=66, initial_updates=2), tmp_path / "run")
    # 60 random decisions: three whole episodes of 21 slots, and the first slot of the fourth.
    assert seen == [64, 64, 65, 66, 67, 68, 69]


def test_updates_come_every_so_many_decisions(tmp_path: Path):
    result = run(tiny_config(decisions=100, update_every=4), tmp_path / "run")
    assert result.updates == 20 + (100 - 60 - 1) // 4


def test_several_updates_at_once(tmp_path: Path):
    result = run(tiny_config(decisions=100, update_every=4, updates_at_once=3), tmp_path / "run")
    assert result.updates == 20 + 3 * ((100 - 60 - 1) // 4)


def test_time_limits_bootstrap_and_real_ends_do_not(tmp_path: Path):
    run(tiny_config(decisions=130), tmp_path / "limit", keep_replay=True)
    run(
        tiny_config(decisions=130),
        tmp_path / "end",
        keep_replay=True,
        env_factory=DotFactory(terminates=True),
    )

    def ends(out: Path) -> int:
        return int(np.fromfile(out / "replay" / "terminated.bin", np.bool_).sum())

    assert ends(tmp_path / "limit") == 0
    shorter = [line for line in metrics(tmp_path / "end", "episode") if line["length"] < 20]
    assert ends(tmp_path / "end") >= len(shorter) > 0


def test_random_actions_come_first_and_then_the_policys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = {"act": 0, "random_action": 0}
    for name in calls:
        original = getattr(Agent, name)

        def counted(self, *args, _name=name, _original=original):
            calls[_name] += 1
            return _original(self, *args)

        monkeypatch.setattr(Agent, name, counted)
    run(tiny_config(decisions=100), tmp_path / "run")
    assert calls == {"random_action": 60, "act": 40}


def test_best_is_the_checkpoint_with_the_highest_recent_training_return(tmp_path: Path, finished: Path):
    from safetensors import safe_open

    returns = [line["return"] for line in metrics(finished, "episode")]
    scores = {n: np.mean(returns[: n // 20][-10:]) for n in (50, 100, 150, 200, 240)}
    with safe_open(finished / "checkpoints" / "best" / "policy.safetensors", "pt") as file:
        assert file.metadata()["decisions"] == str(max(scores, key=lambda n: scores[n]))
        assert float(file.metadata()["training_return"]) == max(scores.values())


@pytest.mark.slow
def test_a_pixel_task_is_learned_and_soda_generalises(tmp_path: Path):
    """SAC and SODA both move the dot to the middle; on another background only SODA still does."""
    reached = {}
    for method in ("sac", "soda_overlay"):
        config = tiny_config(
            method=method, decisions=700, random_decisions=200, initial_updates=200, hidden_dim=64, batch_size=32,
            aux_batch_size=32, alpha_lr=1e-3, eval_every=0, eval_episodes=10, checkpoint_every=1000,
        )  # fmt: skip
        reached[method] = run(config, tmp_path / method).evaluation
    # A still or random dot earns about 5, the best possible play about 18.5.
    assert reached["sac"]["train"]["mean"] > 14
    assert reached["soda_overlay"]["train"]["mean"] > 14
    assert reached["soda_overlay"]["color_hard"]["mean"] > 13
    assert reached["soda_overlay"]["color_hard"]["mean"] > reached["sac"]["color_hard"]["mean"]


@pytest.mark.parametrize(
    "method",
    [
        "sac_conv",
        "curl",
        "pad",
        "soda_conv",
        "soda_both_overlay",
        "svea_overlay",
        "drq",
        "sada",
        "simgrl",
        "sgqn",
        "madi",
        "soda_sada",
        "soda_simgrl",
    ],
)
def test_every_kind_of_method_runs(tmp_path: Path, method: str, device: str):
    crop_size = 10 if get_method(method).crops else 12
    config = tiny_config(
        method=method,
        decisions=66,
        crop_size=crop_size,
        eval_modes=("train",),
        eval_episodes=1,
        device=device,
    )
    result = run(config, tmp_path / "run")
    assert result.finished and bool(result.adapted) == (method == "pad")


# What is refused


def test_a_directory_with_a_run_is_not_overwritten(finished: Path):
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        run(tiny_config(), finished)


def test_resuming_a_finished_run_does_nothing_and_says_so(finished: Path, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    result = run(tiny_config(tensorboard=True), finished, resume=True, quiet=False)
    assert result.finished and result.decisions == 240 and result.evaluation["train"]["returns"]
    assert "is finished already" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}


def test_a_run_too_short_to_learn_says_so(tmp_path: Path, capsys):
    result = run(tiny_config(decisions=20), tmp_path / "run", quiet=False)
    assert result.finished and result.updates == 0
    assert "nothing will be learned: all 20 decisions are random" in capsys.readouterr().err


def test_resuming_a_finished_run_leaves_a_kept_replay_alone(tmp_path: Path):
    out = tmp_path / "run"
    run(tiny_config(), out, keep_replay=True)
    frames = (out / "replay" / "frames.bin").read_bytes()
    assert run(tiny_config(), out, resume=True).finished
    assert (out / "replay" / "frames.bin").read_bytes() == frames


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_damaged_file_of_a_run_is_one_sentence(finished: Path, tmp_path: Path, content: str | None):
    for name, others in (("final_eval.json", ()), ("run.json", ("final_eval.json",))):
        out = tmp_path / name
        shutil.copytree(finished, out)
        for other in others:
            (out / other).unlink()
        (out / name).unlink()
        if content is not None:
            (out / name).write_text(content)
        elif name == "final_eval.json":
            continue  # without it the run is simply not finished
        with pytest.raises(UserError, match=rf"{name} (is damaged|cannot be read)"):
            run(tiny_config(tensorboard=True), out, resume=True)


def test_a_place_that_cannot_be_written_to_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; give a directory"):
        run(tiny_config(), tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot be made \(Not a directory\); give another --out"):
        run(tiny_config(), tmp_path / "file" / "run")


def test_resuming_with_another_config_lists_the_differences(finished: Path):
    with pytest.raises(UserError, match=r"batch_size 32 \(was 16\); discount 0\.5 \(was 0\.9\)"):
        run(tiny_config(batch_size=32, discount=0.5), finished, resume=True)
    # What cannot change results may change.
    assert run(tiny_config(workers=2, keep_checkpoints=5, env_process=True), finished, resume=True).finished


def test_resuming_nothing_is_a_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist; give the directory of a softaug run"):
        run(tiny_config(), tmp_path / "nothing", resume=True)


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path):
    first = preparation.begin_run(tmp_path / "run", tiny_config(), {})
    with pytest.raises(UserError, match="another process is training"):
        run(tiny_config(), tmp_path / "run", resume=True)
    first.close()


def test_too_little_disk_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs 0\.0 GB of disk, but .* has 0\.0 GB free; make room"):
        run(tiny_config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_papers_replay_fits_into_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """500,000 decisions of 100 x 100 frames need at most 15.1 GB."""
    config = make_config("walker_walk", "soda", "paper")
    stepper = InProcessStepper(partial(DotEnv, frame_stack=3, size=100))
    stepper.facts = {"action_repeat": 4, "episode_decisions": None}
    sizes = preparation.replay_sizes(config, stepper, fixed_length=True)
    free = 0
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, free))
    with pytest.raises(UserError, match=r"the replay needs 15\.1 GB of disk, but .* has 0\.0 GB free"):
        preparation.check_disk(tmp_path, config, sizes)
    free = 15_100_000_000
    preparation.check_disk(tmp_path, config, sizes)
    # In RAM it is part of every checkpoint: two are kept while the third is written.
    with pytest.raises(UserError, match=r"needs 45\.\d GB"):
        preparation.check_disk(tmp_path, dataclasses.replace(config, replay_memory="ram"), sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "walker_wlak"}, "unknown task 'walker_wlak'"),
        ({"eval_modes": ("train", "video_hrad")}, "unknown mode 'video_hrad'"),
        ({"eval_modes": ("video_easy",), "videos": "/no/such/folder"}, "no such folder"),
        ({"method": "soda_overlay", "images": "/no/such/folder"}, "no such folder"),
        ({"wandb": "project"}, "install it with: pip install"),
    ],
)
@pytest.mark.parametrize("env_process", [False, True])
def test_a_mistake_in_the_config_shows_at_once_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str, env_process: bool
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=message):
        train(tiny_config(**changes, env_process=env_process), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_refused(tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match="device 'cuda' is not available"):
        run(tiny_config(device="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["loss", "weights", "action"])
def test_divergence_stops_the_run_and_spares_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    update, act = Agent.update, Agent.act

    def diverging(self, replay):
        losses = update(self, replay)
        if self.updates >= 60 and where == "loss":
            losses["critic_loss"] = torch.tensor(float("nan"))
        if self.updates >= 60 and where == "weights":
            self.sac.critic.requires_grad_(False)
            next(self.sac.target_critic.parameters()).fill_(float("inf"))
        return losses

    def nonsense(self, obs):
        return act(self, obs) * (float("nan") if self.updates >= 60 else 1)

    monkeypatch.setattr(Agent, "update", diverging)
    if where == "action":
        monkeypatch.setattr(Agent, "act", nonsense)
    # The first 60 updates are made in decision 100; checkpoints are at 50, 100, ...
    with pytest.raises(
        Diverged, match=r"training diverged: .* the last good checkpoint is .*000000100\. Try a lower"
    ):
        run(tiny_config(eval_every=0, log_every=1000), tmp_path / "run")
    state = last_state(tmp_path / "run")
    assert state["counters"]["decisions"] == 100
    assert all(torch.isfinite(t).all() for _, t in tensors_in(state["agent"]) if t.is_floating_point())
    assert not (tmp_path / "run" / "final_eval.json").exists()


class BrokenEnv(DotEnv):
    def step(self, action):
        raise UserError("the camera is gone; plug it in")


def broken(mode: str, seed: int) -> DotEnv:
    return BrokenEnv(mode, seed)


@pytest.mark.parametrize("env_process", [False, True])
def test_the_environments_mistakes_reach_the_user(tmp_path: Path, env_process: bool):
    with pytest.raises(UserError, match="the camera is gone"):
        run(tiny_config(env_process=env_process), tmp_path / "run", env_factory=broken)


# The command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """`softaug train` with the dot's environment in place of the config's."""
    monkeypatch.setattr(softaug.training.run, "ConfigEnvs", lambda config: DotFactory())
    flags = []
    for name, value in tiny_config().to_json().items():
        if name in ("task", "method", "preset", "seed", "decisions"):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        elif value != "":
            flags.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return [*flags, "--method=sac", "--preset=small", "--task=walker_walk"]


def test_the_command_trains_prints_json_and_names_its_directory(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *command, "--decisions=70", "--seed=3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (
        printed["out"] == "runs/walker_walk-sac-small-3"
        and printed["finished"]
        and printed["decisions"] == 70
    )
    assert len(printed["evaluation"]["color_hard"]["returns"]) == 2
    assert cli.main(["train", "--resume", printed["out"]]) == 0
    shown = capsys.readouterr()
    assert "finished already" in shown.err and "color_hard" in shown.out
    assert cli.main(["train", "--resume", printed["out"], "--method=rad", "--seed=4"]) == 2
    assert "begun with another config: seed 4 (was 3)." in capsys.readouterr().err
    assert cli.main(["train", *command, "--seed=3"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert cli.main(["train", "--resume", printed["out"], "--out=x"]) == 2


def test_an_interrupted_command_exits_with_130(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    import os
    import signal

    update = Agent.update

    def interrupting(self, replay):
        if self.updates == 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, replay)

    monkeypatch.setattr(Agent, "update", interrupting)
    out = str(tmp_path / "run")
    assert cli.main(["train", *command, "--decisions=100", "--out", out]) == 130
    assert f"--resume {out}" in capsys.readouterr().err
    assert cli.main(["train", "--resume", out, "--quiet"]) == 0
