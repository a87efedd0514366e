"""Which runs a sweep has, where each lives, and what has become of it so far. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from softaug.config import Config, make_config, read_config
from softaug.config.comparing import differences
from softaug.envs.modes import Mode
from softaug.errors import UserError
from softaug.methods import get_method
from softaug.storage.run_files import RunFiles
from softaug.tasks import action_repeat

Begun = Literal["new", "begun", "finished"]

MOST_SEEDS = 10_000


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid."""

    config: Config
    directory: Path
    """absolute: ``OUT/TASK/METHOD/seedN``"""

    @property
    def name(self) -> str:
        return f"{self.config.task} {self.config.method} seed {self.config.seed}"

    def begun(self) -> Begun:
        """What its directory holds now: nothing to continue from, a part of the run, or all of it."""
        if RunFiles(self.directory).finished:
            return "finished"
        return "begun" if RunFiles(self.directory).exist else "new"


def plan_grid(
    tasks: Iterable[str],
    methods: Iterable[str],
    seeds: Iterable[int],
    out: Path | str,
    *,
    preset: str = "small",
    **overrides: Any,
) -> list[PlannedRun]:
    """Every combination once, each in its own directory below `out`.

    Seeds are the outermost loop: a sweep that is stopped half-way has compared like with like. Overrides are
    fields of `softaug.Config`. Names are checked here, before anything is started, and so is every directory:
    one that holds a run with a config that could give other results is refused.
    """
    out = Path(out).absolute()
    rows = list(dict.fromkeys(get_method(name).name for name in methods))  # aliases name the same run
    tasks, seeds = list(dict.fromkeys(tasks)), list(dict.fromkeys(seeds))
    for what, given in (("task", tasks), ("method", rows), ("seed", seeds)):
        if not given:
            raise UserError(f"a sweep needs at least one {what}; name some")
    runs = [
        PlannedRun(
            make_config(task, method, preset, seed=seed, **overrides),
            out / task.replace(":", ".") / method / f"seed{seed}",  # a task may be module:callable
        )
        for seed in seeds
        for task in tasks
        for method in rows
    ]
    for run in runs:
        _check(run)
    return runs


def parse_seeds(text: str) -> list[int]:
    """``"0-4"`` or ``"0,2,5"`` or both: ``"0-2,7"``."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UserError(f"{part.strip()!r} is no seed; give seeds like 0-4 or 0,2,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if len(seeds) + last - first >= MOST_SEEDS:
            raise UserError(f"{text.strip()!r} are more than {MOST_SEEDS:,} seeds; give fewer")
        seeds.extend(range(first, last + 1))
    return seeds


def check_media(runs: Sequence[PlannedRun]) -> None:
    """Refuse a wrong name of images, videos or colors once, instead of in every run."""
    from softaug.envs.factory import media_facts
    from softaug.media import image_source

    seen: set[tuple[str, ...]] = set()
    for config in (run.config for run in runs):
        key = (config.images, config.videos, config.colors, config.row.strong or "", *config.eval_modes)
        if key in seen:
            continue
        seen.add(key)
        if config.images and config.row.uses_images:
            image_source(config.images)
        if config.videos or config.colors:
            for mode in config.eval_modes:
                media_facts(config, mode)


def _check(run: PlannedRun) -> None:
    config = run.config
    if not config.own_env:  # the modes of a user's own environment are its own, and the config knows them
        action_repeat(config.task)
        for mode in config.eval_modes:
            Mode.parse(mode)
    for parent in run.directory.parents:
        if parent.exists() and not parent.is_dir():
            raise UserError(f"{parent} is a file; give another --out")
    if run.begun() == "new":
        return
    found = read_config(RunFiles(run.directory).config)
    changed = differences(config, found)
    if found.replay_memory != config.replay_memory and run.begun() == "begun":
        changed.append(f"replay_memory {config.replay_memory!r} (was {found.replay_memory!r})")
    if changed:
        raise UserError(
            f"{run.directory} holds a run with another config: {'; '.join(changed)}. "
            "Sweep with that config, or give another --out"
        )
