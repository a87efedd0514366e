"""A study's settings, and the runs of one of its trials."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softaug.config import Config, make_config
from softaug.errors import UserError
from softaug.files import read_object, write_atomically
from softaug.methods import get_method
from softaug.presets import get_preset
from softaug.sweep.plan import PlannedRun
from softaug.tasks import action_repeat
from softaug.tuning.objective import Axis, normalized
from softaug.tuning.space import Space, make_space, searchable

PRUNERS = ("halving", "hyperband", "none")
SETTINGS_FILE = "tune.json"
DATABASE = "study.db"
MOST_STEPS = 1_000_000
"""The whole budget in units of the first rung; Optuna's pruners count in them."""


@dataclass(frozen=True)
class StudySettings:
    """What defines a study: a study that continues must have the same. JSON values only."""

    tasks: tuple[str, ...]
    method: str
    base: str
    """paper, small or gb2"""
    fixed: dict[str, Any]
    """config fields over the base preset, the same in every trial"""
    seeds: tuple[int, ...]
    frames: int | None
    """length of a run in frames; None: the config's decisions"""
    seconds: float | None
    """time budget of a run; None: its length"""
    ranges: dict[str, tuple[float, float]]
    space: dict[str, Any]
    pruner: str = "halving"
    reduction: int = 3
    rungs: int = 2
    sampler_seed: int = 0
    startup: int = 10
    """trials that are drawn at random before TPE models the scores"""
    start: dict[str, Any] = field(default_factory=dict)
    """searched fields that a preset file sets: part of the base, not of every trial"""

    def __post_init__(self) -> None:
        for name in ("tasks", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UserError(f"{name} must name at least one, and each once, not {list(values)}")
        if self.pruner not in PRUNERS:
            raise UserError(f"unknown pruner {self.pruner!r}; choose one of {', '.join(PRUNERS)}")
        if self.reduction < 2 or self.rungs < 1:
            raise UserError(
                f"--reduction must be at least 2 and --rungs at least 1, not {self.reduction} and {self.rungs}"
            )
        # Not computed as a power: that of large numbers takes forever.
        if self.rungs * math.log(self.reduction) > math.log(MOST_STEPS):
            raise UserError(
                f"--reduction {self.reduction} and --rungs {self.rungs} put the first rung below a millionth of the budget; "
                "give smaller ones"
            )
        if self.sampler_seed < 0:
            raise UserError(f"--sampler-seed must not be negative, as {self.sampler_seed} is")
        if self.frames is not None and self.frames < 1:
            raise UserError(f"--frames must be at least 1, not {self.frames}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UserError(f"--seconds must be positive, not {self.seconds}")
        if self.frames is not None and "decisions" in self.fixed:
            raise UserError("--frames and --decisions both give the length of a run; give one of them")
        if twice := sorted(set(self.space) & set(self.fixed)):
            raise UserError(
                f"{twice[0]} is both given and searched; leave --{twice[0].replace('_', '-')} out"
            )
        for task in self.tasks:
            if ":" not in task:
                action_repeat(task)  # refuses unknown names

    @property
    def axis(self) -> Axis:
        return "seconds" if self.seconds is not None else "decisions"

    @property
    def parameters(self) -> Space:
        return make_space(self.space, "the study's space")

    @property
    def max_step(self) -> int:
        """Optuna's name for the whole budget: rung k of n is at step reduction^k, the budget at reduction^n."""
        return self.reduction**self.rungs

    def budget(self, config: Config, step: int | None = None) -> float:
        """The budget of a run, or its part at a rung, on the study's axis."""
        whole = self.seconds if self.seconds is not None else config.decisions
        return whole if step is None else whole * step / self.max_step

    def steps(self, configs: list[Config]) -> list[int]:
        """The rungs of a trial, without those at which only random decisions are over."""
        if self.pruner == "none":
            return []
        steps = [self.reduction**k for k in range(self.rungs)]
        if self.axis == "seconds":
            return steps
        return [s for s in steps if all(self.budget(c, s) > c.random_decisions for c in configs)]

    def score(self, values: Mapping[PlannedRun, float]) -> float:
        """The mean of normalized areas."""
        scores = [normalized(area, self.ranges[run.config.task]) for run, area in values.items()]
        return sum(scores) / len(scores)

    def configs(self, values: Mapping[str, Any]) -> list[Config]:
        """The configs of a trial, seeds outermost."""
        return [self._config(task, seed, values) for seed in self.seeds for task in self.tasks]

    def _config(self, task: str, seed: int, values: Mapping[str, Any]) -> Config:
        # Only the training curve counts: one short evaluation at the end, which a run cannot do without.
        quiet = {"eval_every": 0, "eval_episodes": 1, "eval_modes": ("train",), "tensorboard": False}
        given = {**quiet, "keep_checkpoints": 1, **self.start, **self.fixed, **values}
        config = make_config(task, self.method, self.base, seed=seed, **given)
        decisions = config.decisions
        if self.frames is not None:
            decisions = math.ceil(self.frames / config.frames_per_decision)
        often: dict[str, Any] = {
            # A crash loses little, and a rung is seen soon after it is reached.
            "checkpoint_every": min(config.checkpoint_every, max(1, decisions // 5)),
            "log_every": min(config.log_every, max(1, decisions // 30)),
        }
        often = {name: value for name, value in often.items() if name not in self.fixed}
        return dataclasses.replace(config, decisions=decisions, **often)

    def runs(self, out: Path, number: int, values: Mapping[str, Any]) -> list[PlannedRun]:
        """The runs of trial `number`: ``OUT/trials/0007/TASK/seedN``."""
        home = out / "trials" / f"{number:04d}"
        return [
            PlannedRun(config, home / config.task.replace(":", ".") / f"seed{config.seed}")
            for config in self.configs(values)
        ]

    def base_values(self) -> dict[str, Any] | None:
        """The base preset's values of the searched fields, as Optuna stores them; None if it lies outside the space,
        or if its tasks have different ones."""
        space, found = self.parameters, []
        for config in self.configs({}):
            found.append(space.encoded({name: getattr(config, name) for name in space.names}))
        return found[0] if found[0] is not None and all(values == found[0] for values in found) else None

    def preset_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a preset file with the values of a trial holds."""
        return {**searchable(self.start), **searchable(self.fixed), **values}

    def to_json(self) -> dict[str, Any]:
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        if not self.start:  # studies from before it existed continue
            del values["start"]
        return values


def make_settings(
    tasks: tuple[str, ...], method: str, preset: str, overrides: Mapping[str, Any], **others: Any
) -> StudySettings:
    """Settings on top of a preset's name or file; every mistake in them shows here."""
    chosen = get_preset(preset)
    make_config(tasks[0] if tasks else "walker_walk", method, preset)  # refuses what is wrong with the file
    of_file = {name: value for name, value in chosen.values.items() if name not in overrides}
    if others.get("frames") is not None:  # given now, the length counts more than the file's
        of_file.pop("decisions", None)
    start = {name: of_file.pop(name) for name in others["space"] if name in of_file}
    fixed = {**of_file, **overrides}
    settings = StudySettings(tasks, get_method(method).name, chosen.base, fixed, start=start, **others)
    for parameter in settings.parameters.parameters:
        for choice in parameter.choices:
            if isinstance(choice, str):  # a name is right or wrong whatever the other values are
                settings.configs({parameter.name: choice})
    for config in settings.configs({}):
        if settings.axis == "decisions" and config.decisions <= config.random_decisions:
            raise UserError(
                f"nothing is learned in {config.decisions:,} decisions, of which {config.random_decisions:,} are "
                "random; give a larger budget or fewer --random-decisions"
            )
    return settings


def record_settings(settings: StudySettings, out: Path) -> None:
    """Note the settings of a new study in `out`, or refuse to continue one that has others."""
    path = out / SETTINGS_FILE
    now = settings.to_json()
    if not path.exists():
        if (out / DATABASE).exists():
            raise UserError(
                f"{out} holds a study whose settings ({SETTINGS_FILE}) are lost; restore the file or give another --out"
            )
        write_atomically(path, json.dumps(now, indent=2) + "\n")
        return
    remedy = "restore it or give another --out"
    before = read_object(path, remedy)
    if "tasks" not in before:
        raise UserError(f"{path} is damaged (it names no tasks); {remedy}")
    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if changed:
        said = "; ".join(f"{name} {now.get(name)!r} (was {before.get(name)!r})" for name in changed)
        raise UserError(f"{out} holds a study with other settings: {said}; give these, or another --out")
