"""Studies with runs that are pretended: pruning, rungs, several tasks, budgets, failures, continuing."""

from __future__ import annotations

import json
import math
from contextlib import closing

import pytest

pytest.importorskip("optuna")

from softaug.config import make_config, write_config
from softaug.errors import UserError
from softaug.presets import get_preset
from softaug.sweep.supervise import FAILED, FINISHED, INTERRUPTED, Outcome
from softaug.tuning import study as study_module
from softaug.tuning.display import TuneDisplay
from softaug.tuning.objective import return_ranges
from softaug.tuning.optuna_study import open_study
from softaug.tuning.plan import make_settings, record_settings
from softaug.tuning.study import Tuner
from softaug.tuning.summary import summarize

SPACE = {"actor_lr": {"low": 1e-5, "high": 1e-1, "log": True}, "n_step": {"low": 1, "high": 4}}
EPISODE = 10
BEST_LR = 1e-2


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(study_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(study_module, "READ_SECONDS", 0.0)


class Killed(Exception):
    """The tuner's process is gone."""


class PretendedRuns:
    """A runner without processes: at each poll every run makes some decisions, better the nearer actor_lr is to 1e-2."""

    def __init__(self, workers=1, *, decisions=30, kill_after=None, diverges=(), fails=()):
        self.workers, self.decisions = workers, decisions
        self.running, self.stopping = {}, set()
        self.kill_after, self.diverges, self.fails = kill_after, diverges, fails
        self.history = []

    def start(self, run):
        assert run.directory not in self.running and len(self.running) < self.workers
        self.history.append(("start", run.directory))
        run.directory.mkdir(parents=True, exist_ok=True)
        write_config(run.config, run.directory / "config.json")
        self.running[run.directory] = run

    def stop(self, run):
        self.history.append(("stop", run.directory))
        self.stopping.add(run.directory)

    def ended(self):
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed
        outcomes = [outcome for run in list(self.running.values()) if (outcome := self.advance(run))]
        for outcome in outcomes:
            del self.running[outcome.run.directory]
            self.stopping.discard(outcome.run.directory)
        return outcomes

    def advance(self, run):
        trial = int(run.directory.parts[-3])
        if trial in self.fails:
            return Outcome(run, FAILED, 3, "the disk is full\n(exit status 1)")
        if trial in self.diverges:
            return Outcome(run, FAILED, 1, "softaug: error: training diverged\n(exit status 3)")
        if run.directory in self.stopping:
            return Outcome(run, INTERRUPTED, 1)
        path = run.directory / "metrics.jsonl"
        done = len(path.read_text().splitlines()) * EPISODE if path.exists() else 0
        with path.open("a") as file:
            for end in range(done + EPISODE, min(done + self.decisions, run.config.decisions) + 1, EPISODE):
                file.write(json.dumps(episode(run.config, end)) + "\n")
                done = end
        if done >= run.config.decisions:
            (run.directory / "final_eval.json").write_text("{}")
            return Outcome(run, FINISHED, 1)
        return None

    def kill(self):
        self.running.clear()

    def close(self):
        pass


def quality(config):
    return 1000 - 300 * abs(math.log10(config.actor_lr / BEST_LR))


def episode(config, end):
    value = quality(config) * end / config.decisions
    # Each update a decision takes a hundredth of a second for each step of the return.
    return {
        "kind": "episode",
        "decisions": end,
        "seconds": end * 0.01 * config.n_step,
        "return": value * (0.5 if config.task == "walker_walk" else 1),
    }


def settings(tasks=("walker_stand",), **others):
    overrides = {"decisions": 270, "random_decisions": 20, **others.pop("overrides", {})}
    values = {"seeds": (0,), "frames": None, "seconds": None, "space": SPACE, **others}
    return make_settings(tasks, "sac", "small", overrides, ranges=return_ranges(tasks, []), **values)


def tune(out, runner, trials=8, **others):
    chosen = settings(**others)
    record_settings(chosen, out)
    study = open_study(chosen, out)
    with closing(TuneDisplay(chosen.seconds, quiet=True)) as display:
        tuner = Tuner(chosen, out, study, runner, trials, display)
        complete = tuner.run()
    return complete, summarize(chosen, out, study, "softaug tune ...")


@pytest.mark.slow
def test_a_study_finds_what_is_better_and_writes_it_as_a_preset(tmp_path):
    complete, summary = tune(
        tmp_path, PretendedRuns(2), trials=25, pruner="none", overrides={"critic_lr": 2e-3}
    )
    assert complete and len(summary.trials) == 25
    assert summary.base.score is not None and summary.base.number == 0
    assert abs(math.log10((summary.best.values or summary.base_values)["actor_lr"] / BEST_LR)) < 0.5
    assert next(iter(summary.importance)) == "actor_lr", "n_step does nothing here"
    preset = get_preset(str(summary.preset))
    assert preset.values == {"critic_lr": 2e-3, "random_decisions": 20, **summary.best.values}, (
        "not the study's short decisions"
    )
    config = make_config("walker_stand", "soda", str(summary.preset), hidden_dim=99)
    assert (config.critic_lr, config.hidden_dim, config.decisions) == (2e-3, 99, 30_000)
    assert config.preset == "small+preset"
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 26
    assert "softaug tune ..." in (tmp_path / "study.md").read_text()


def test_scores_are_normalized_areas_averaged_over_tasks_and_seeds(tmp_path):
    _, summary = tune(
        tmp_path,
        PretendedRuns(),
        trials=2,
        tasks=("walker_stand", "walker_walk"),
        seeds=(0, 1),
        pruner="none",
    )
    base = summary.base
    # The base's learning rate is ten times too low: its return rises to 700 in 27 steps, of which the mean is 14/27.
    assert base.areas == pytest.approx({"walker_stand": 700 * 14 / 27, "walker_walk": 350 * 14 / 27})
    assert base.score == pytest.approx(0.525 * 14 / 27)
    assert sorted(p.name for p in (tmp_path / "trials/0001/walker_walk").iterdir()) == ["seed0", "seed1"]


@pytest.mark.parametrize("pruner", ["halving", "hyperband"])
def test_poor_trials_are_pruned_and_leave_no_replay(tmp_path, pruner):
    class WithReplay(PretendedRuns):
        def start(self, run):
            super().start(run)
            (run.directory / "replay").mkdir(exist_ok=True)

    _, summary = tune(tmp_path, WithReplay(), trials=14, pruner=pruner)
    pruned = [t for t in summary.trials if t.state == "pruned"]
    assert 3 <= len(pruned) < 14
    assert summary.base.state == "finished", "the base is what others are compared with"
    best = max(quality(make_config("walker_stand", "sac", "small", **t.values)) for t in summary.trials)
    winner = make_config("walker_stand", "sac", "small", **summary.best.values)
    if pruner == "halving":
        assert quality(winner) == best
    for trial in pruned:
        run = tmp_path / f"trials/{trial.number:04d}/walker_stand/seed0"
        decisions = len((run / "metrics.jsonl").read_text().splitlines()) * EPISODE
        assert decisions < 270 and not (run / "final_eval.json").exists()
        assert not (run / "replay").exists()
        assert "of the budget" in trial.note


def test_rungs_wait_until_something_is_learned():
    assert settings().steps(settings().configs({})) == [1, 3]  # 30 and 90 of 270 decisions; 20 are random
    late = settings(overrides={"random_decisions": 40})
    assert late.steps(late.configs({})) == [3]
    assert settings(pruner="none").steps(settings().configs({})) == []


def test_with_more_tasks_than_workers_a_poor_trial_costs_only_the_way_to_its_rung(tmp_path):
    tasks = ("walker_stand", "walker_walk", "walker_run")
    runner = PretendedRuns(1, decisions=10)
    _, summary = tune(tmp_path, runner, trials=8, tasks=tasks)
    pruned = [t.number for t in summary.trials if t.state == "pruned"]
    assert pruned
    for number in pruned:
        lengths = [
            len((tmp_path / f"trials/{number:04d}/{task}/seed0/metrics.jsonl").read_text().splitlines())
            for task in tasks
        ]
        assert max(lengths) < 27, "no task was trained to its end before the trial was judged"
    starts = [d for what, d in runner.history if what == "start" and "/0000/" in str(d)]
    assert len(starts) > len(tasks), "the base's runs were paused at rungs and continued"


def test_with_a_time_budget_speed_counts_and_runs_stop_when_it_is_over(tmp_path):
    space = {"n_step": {"low": 1, "high": 4}}
    _, summary = tune(
        tmp_path, PretendedRuns(decisions=10), trials=8, space=space, seconds=2.0, pruner="none"
    )
    scores = {(t.values or summary.base_values)["n_step"]: t.score for t in summary.trials}
    assert sorted(scores, key=lambda n: -scores[n]) == sorted(scores), "fewer seconds a decision score higher"
    slow = next(t for t in summary.trials if t.values.get("n_step") == max(scores))
    metrics = tmp_path / f"trials/{slow.number:04d}/walker_stand/seed0/metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert 2.0 <= last["seconds"] < 3.0 and last["decisions"] < 270


def test_frames_give_every_task_its_own_decisions(tmp_path):
    chosen = make_settings(
        ("walker_stand", "cartpole_swingup"), "sac", "small", {}, seeds=(0,), frames=80_000, seconds=None,
        ranges=return_ranges(("walker_stand", "cartpole_swingup"), []), space=SPACE,
    )  # fmt: skip
    assert [config.decisions for config in chosen.configs({})] == [20_000, 10_000]


def test_a_base_outside_the_space_is_measured_all_the_same(tmp_path):
    space = {"actor_lr": {"low": 1e-6, "high": 1e-5}}
    _, summary = tune(tmp_path, PretendedRuns(), trials=4, space=space)
    assert summary.base.score is not None and summary.best.is_base
    assert get_preset(str(summary.preset)).values["random_decisions"] == 20
    assert "actor_lr" not in get_preset(str(summary.preset)).values


def test_diverged_and_impossible_trials_count_as_poor_and_the_study_continues(tmp_path):
    space = {"crop_size": {"choices": [50, 999]}, "actor_lr": SPACE["actor_lr"]}
    complete, summary = tune(tmp_path, PretendedRuns(diverges=(2,)), trials=12, space=space)
    states = {t.number: t.state for t in summary.trials}
    assert complete and len(states) == 12
    assert states[2] in ("diverged", "invalid") and "invalid" in states.values()
    impossible = [t for t in summary.trials if t.state == "invalid"]
    assert all("crop_size 999 is larger" in t.note for t in impossible)


def test_a_base_that_fails_stops_the_study_and_is_tried_again(tmp_path):
    with pytest.raises(UserError, match=r"the base preset failed \(the disk is full; see .*log.txt\)"):
        tune(tmp_path, PretendedRuns(fails=(0,)), trials=3)
    complete, summary = tune(tmp_path, PretendedRuns(), trials=3)
    assert complete and summary.base.score is not None


def test_a_killed_run_says_so(tmp_path):
    class Kills(PretendedRuns):
        def advance(self, run):
            return Outcome(run, FAILED, 3, "1,000 decisions\n(killed by SIGKILL)")

    with pytest.raises(UserError, match=r"the base preset failed \(killed by SIGKILL; see"):
        tune(tmp_path, Kills(), trials=3)


def test_a_single_failure_does_not_stop_the_study(tmp_path):
    complete, summary = tune(tmp_path, PretendedRuns(fails=(1,)), trials=4)
    assert complete and {t.number: t.state for t in summary.trials}[1] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("polls", [2, 9])
def test_a_killed_study_continues_with_the_same_trials_and_scores(tmp_path, polls):
    whole = tune(tmp_path / "whole", PretendedRuns(), trials=6)[1]
    for _ in range(30):
        try:
            killed = tune(tmp_path / "killed", PretendedRuns(kill_after=polls), trials=6)[1]
            break
        except Killed:
            polls += 1
    assert killed.trials == whole.trials


def test_an_interrupt_leaves_trials_that_the_next_session_continues(tmp_path):
    class Interrupted(PretendedRuns):
        polls = 0

        def ended(self):
            self.polls += 1
            if self.polls == 6:
                self.tuner.interrupt.requested = True
            return super().ended()

    chosen, runner = settings(), Interrupted()
    record_settings(chosen, tmp_path)
    with closing(TuneDisplay(None, quiet=True)) as display:
        runner.tuner = Tuner(chosen, tmp_path, open_study(chosen, tmp_path), runner, 4, display)
        assert not runner.tuner.run()
    assert ("stop", runner.history[-1][1]) == runner.history[-1]
    complete, summary = tune(tmp_path, PretendedRuns(), trials=4)
    assert complete and len(summary.trials) == 4


def test_a_study_can_be_extended_but_not_changed(tmp_path):
    first = tune(tmp_path, PretendedRuns(), trials=3)[1]
    more = tune(tmp_path, PretendedRuns(), trials=5)[1]
    assert len(more.trials) == 5 and set(map(repr, first.trials)) <= set(map(repr, more.trials))
    with pytest.raises(UserError, match=r"other settings: reduction 2 \(was 3\)"):
        tune(tmp_path, PretendedRuns(), trials=5, reduction=2)


@pytest.mark.parametrize("content", ["[]", "null", "{}", "{", "[" * 100_000])
def test_damaged_settings_are_refused(tmp_path, content):
    tune(tmp_path, PretendedRuns(), trials=2)
    (tmp_path / "tune.json").write_text(content)
    with pytest.raises(UserError, match=r"tune.json is damaged .*; restore it or give another --out"):
        tune(tmp_path, PretendedRuns(), trials=3)


def test_a_study_without_its_settings_is_not_continued_with_others(tmp_path):
    tune(tmp_path, PretendedRuns(), trials=2)
    (tmp_path / "tune.json").unlink()
    with pytest.raises(UserError, match=r"settings .* are lost"):
        tune(tmp_path, PretendedRuns(), trials=3, seeds=(0, 1))


def test_a_study_begun_before_presets_could_be_improved_continues(tmp_path):
    tune(tmp_path, PretendedRuns(), trials=2)
    assert "start" not in json.loads((tmp_path / "tune.json").read_text())


def test_a_preset_file_is_improved_in_the_fields_it_sets(tmp_path):
    file = tmp_path / "first.json"
    given = {"actor_lr": 1e-4, "hidden_dim": 99, "decisions": 500}
    file.write_text(json.dumps({"softaug_preset": 1, "base": "small", "values": given}))
    ranges = return_ranges(("walker_stand",), [])
    overrides = {"random_decisions": 20}
    options = {"seeds": (0,), "seconds": None, "space": SPACE, "ranges": ranges}
    chosen = make_settings(("walker_stand",), "sac", str(file), overrides, frames=1080, **options)
    (base,), (tried,) = chosen.configs({}), chosen.configs({"actor_lr": 3e-3})
    assert (base.actor_lr, base.hidden_dim, base.decisions) == (1e-4, 99, 270)
    assert (tried.actor_lr, tried.hidden_dim) == (3e-3, 99)
    assert chosen.base_values() == {"actor_lr": 1e-4, "n_step": 3}
    assert chosen.preset_values({})["actor_lr"] == 1e-4, "the base as the best trial"
    assert chosen.preset_values({"actor_lr": 3e-3})["actor_lr"] == 3e-3
    again = make_settings(("walker_stand",), "sac", str(file), overrides, frames=None, **options)
    assert again.configs({})[0].decisions == 500


def test_a_trial_without_an_episode_counts_as_poor(tmp_path):
    class Silent(PretendedRuns):
        def advance(self, run):
            outcome = super().advance(run)
            if run.directory.parts[-3] == "0001":
                (run.directory / "metrics.jsonl").write_text("")
                (run.directory / "final_eval.json").write_text("{}")
                return Outcome(run, FINISHED, 1)
            return outcome

    complete, summary = tune(tmp_path, Silent(), trials=3, pruner="none")
    states = {trial.number: (trial.state, trial.note) for trial in summary.trials}
    assert complete and states[1] == ("invalid", "no training episode ended within the budget")
    assert states[0][0] == states[2][0] == "finished"


def test_a_full_disk_is_one_sentence_and_the_study_continues(tmp_path, monkeypatch):
    import optuna

    def full(*arguments):
        raise optuna.exceptions.StorageInternalError("an error")

    with monkeypatch.context() as patched:
        patched.setattr(optuna.trial.Trial, "report", full)
        with pytest.raises(UserError, match=r"study.db cannot be written .* give the same command again"):
            tune(tmp_path, PretendedRuns(), trials=3)
    assert tune(tmp_path, PretendedRuns(), trials=3)[0]


def test_a_database_of_another_optuna_is_refused(tmp_path):
    import sqlite3

    tune(tmp_path, PretendedRuns(), trials=2)
    with closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99'")
        database.commit()
    with pytest.raises(UserError, match=r"study.db is no study that can be opened"):
        tune(tmp_path, PretendedRuns(), trials=3)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    record_settings(settings(), tmp_path)
    (tmp_path / "study.db").write_text("not a database, but long enough to be read " * 20)
    with pytest.raises(UserError, match=r"study.db is no study"):
        tune(tmp_path, PretendedRuns())
