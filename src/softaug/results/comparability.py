"""Whether a number measured here may stand next to published ones, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from softaug.config import Config
from softaug.envs.modes import GB2_MODES
from softaug.methods import FOREIGN
from softaug.results.model import ModeResult, departures
from softaug.results.published import PAPER_SEEDS
from softaug.results.records import RunRecord
from softaug.tasks import ROBOT_TASKS, SUITE_TASKS, action_repeat

MOST_NAMED = 8
GB2_NAMES = frozenset(mode.name for mode in GB2_MODES)
GB2_PIXELS, GB2_ACTION_REPEAT, GB2_FRAMES = 84, 2, 1_000_000


def differences(records: Sequence[RunRecord], found: ModeResult) -> list[str]:
    """How `found`, a number of these runs, was made otherwise than the benchmark of its mode prescribes.

    Empty: it may stand next to published numbers.
    """
    config = records[0].config
    reasons = [*_setting(config)]
    if config.method.startswith(FOREIGN):
        reasons.append("trained elsewhere")
    elif found.mode in GB2_NAMES and config.preset in ("paper", "gb2"):
        reasons += gb2_differences(config, found)
    else:
        reasons += [*training_differences([config]), *_repeat_difference(config, found)]
    reasons += [note.split(": not comparable")[0] for note in found.notes]
    if not found.final:
        reasons.append("training not finished")
    if len(found.scores) < PAPER_SEEDS:
        reasons.append(
            f"{len(found.scores)} seed{'s' if len(found.scores) > 1 else ''} instead of {PAPER_SEEDS}"
        )
    return list(dict.fromkeys(reasons))


def gb2_differences(config: Config, found: ModeResult) -> list[str]:
    """What departs from DMControl-GB2's settings, under whatever preset."""
    reasons = []
    if config.crop_size != GB2_PIXELS:
        reasons.append(f"{config.crop_size} px instead of {GB2_PIXELS}")
    repeat = found.frames / found.decisions if found.decisions else GB2_ACTION_REPEAT
    if repeat != GB2_ACTION_REPEAT:
        reasons.append(f"action repeat {repeat:g} instead of {GB2_ACTION_REPEAT}")
    if found.frames != GB2_FRAMES:
        reasons.append(f"{found.frames:,} instead of {GB2_FRAMES:,} frames")
    return reasons


def training_differences(configs: Sequence[Config]) -> Iterator[str]:
    """How these runs were trained otherwise than the paper's, in a few words each."""
    if any(config.row.foreign for config in configs):
        yield "policies made elsewhere, whose training is not known"
    configs = [config for config in configs if not config.row.foreign]
    yield from (f"preset {preset}" for preset in sorted({config.preset for config in configs} - {"paper"}))
    papers = [config for config in configs if config.preset == "paper" and not config.own_env]
    if lengths := sorted({config.decisions for config in papers} - {Config.decisions}):
        shown = " and ".join(f"{decisions:,}" for decisions in lengths)
        yield f"{shown} instead of {Config.decisions:,} decisions"
    if changed := sorted({name for config in papers for name in departures(config)}):
        shown = ", ".join(changed[:MOST_NAMED]) + (" and more" if len(changed) > MOST_NAMED else "")
        yield f"other settings than the paper’s ({shown})"


def _repeat_difference(config: Config, found: ModeResult) -> Iterator[str]:
    """Under the preset `paper`, a method may have the settings of its own paper (SADA: action repeat 2)."""
    if found.decisions and config.task in SUITE_TASKS:
        repeat, usual = found.frames / found.decisions, action_repeat(config.task)
        if repeat != usual:
            yield f"action repeat {repeat:g} instead of {usual}"


def _setting(config: Config) -> Iterator[str]:
    """What the task itself is."""
    if config.own_env:
        yield "your own environment"
    if config.task in ROBOT_TASKS:
        yield f"{config.task} is a reconstruction"
