"""The result of a study: its trials in order of score, the importance of each field, and the preset file."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.files import write_atomically
from softaug.presets import preset_content
from softaug.tuning.display import best_trial, over_trials
from softaug.tuning.optuna_study import import_optuna
from softaug.tuning.plan import StudySettings
from softaug.tuning.study import FINISHED
from softaug.versions import VERSION

PRESET_FILE, TABLE_FILE, TRIALS_FILE = "preset.json", "study.md", "trials.csv"
FEWEST_TRIALS = 6
"""With fewer sampled trials, importances would be noise."""
TOP = 0.25
"""Importance asks what tells the best quarter from all."""


@dataclass(frozen=True)
class TrialResult:
    """One trial that is over."""

    number: int
    is_base: bool
    state: str
    """finished, pruned, diverged, invalid or failed"""
    score: float | None
    """mean of normalized areas; None unless finished"""
    areas: dict[str, float]
    """task -> area (not normalized), mean over seeds"""
    decisions_per_second: float | None
    values: dict[str, Any]
    """config fields of this trial; empty for the base preset"""
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """A study as it stands."""

    settings: StudySettings
    trials: tuple[TrialResult, ...]
    """the best first, then those without a score by number"""
    base_values: dict[str, Any]
    """of the searched fields in the base preset, of the first task"""
    importance: dict[str, float]
    """field -> share of 1, the largest first; empty with too few trials"""
    preset: Path | None
    """the file with the best trial's values"""

    @property
    def best(self) -> TrialResult | None:
        return self.trials[0] if self.trials and self.trials[0].score is not None else None

    @property
    def base(self) -> TrialResult | None:
        return next((trial for trial in self.trials if trial.is_base), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "settings": self.settings.to_json(),
            "preset": str(self.preset) if self.preset else None,
            "importance": self.importance,
            "trials": [vars(trial) for trial in self.trials],
        }


def summarize(settings: StudySettings, out: Path, study: Any, command: str) -> Summary:
    """Read the study and write ``trials.csv``, ``study.md`` and ``preset.json``."""
    frozen = over_trials(study)
    results = [_result(settings, trial) for trial in frozen]
    results.sort(key=lambda r: (r.score is None, -(r.score or 0.0), r.number))
    base = settings.configs({})[0]
    best = best_trial(frozen)
    path = out / PRESET_FILE
    if best is not None:
        values = next(result.values for result in results if result.number == best.number)
        origin = {
            "command": command,
            "trial": best.number,
            "trials": len(frozen),
            "score": best.user_attrs["score"],
            "tasks": list(settings.tasks),
            "method": settings.method,
            "softaug": VERSION,
        }
        write_atomically(path, preset_content(settings.base, settings.preset_values(values), origin))
    summary = Summary(
        settings,
        tuple(results),
        {name: getattr(base, name) for name in settings.parameters.names},
        importance(settings, frozen),
        path if best is not None else None,
    )
    write_atomically(out / TRIALS_FILE, trials_csv(summary))
    write_atomically(out / TABLE_FILE, markdown(summary, command))
    return summary


def importance(settings: StudySettings, trials: Sequence[Any]) -> dict[str, float]:
    """PED-ANOVA: which fields tell the best quarter of trials from all. Pruned trials count as not among the best.

    It needs no more than Optuna itself (fANOVA would need scikit-learn), and ranks only, so that the scores of
    trials that were pruned at different rungs need not be compared.
    """
    optuna = import_optuna()
    names = settings.parameters.names
    sampled = [t for t in trials if set(names) <= t.params.keys() and t.user_attrs.get("ending") != "failed"]
    scores = [t.user_attrs["score"] for t in sampled if "score" in t.user_attrs]
    if len(sampled) < FEWEST_TRIALS or len(scores) < 2 or len(names) < 2:
        return {}
    worst = min(scores) - 1.0
    copy = optuna.create_study(direction="maximize")
    for trial in sampled:
        value = trial.user_attrs.get("score", worst)
        copy.add_trial(
            optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=value)
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fields with a single value so far
        found = optuna.importance.get_param_importances(copy, evaluator=evaluator, params=names)
    return {name: float(value) for name, value in found.items()}


def trials_csv(summary: Summary) -> str:
    """Every trial in a row."""
    tasks, names = summary.settings.tasks, summary.settings.parameters.names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "trial",
            "state",
            "score",
            *(f"area {task}" for task in tasks),
            "decisions_per_second",
            *names,
            "note",
        ]
    )
    for trial in summary.trials:
        values = summary.base_values if trial.is_base else trial.values
        writer.writerow(
            [
                trial.number,
                trial.state,
                "" if trial.score is None else trial.score,
                *(trial.areas.get(task, "") for task in tasks),
                "" if trial.decisions_per_second is None else trial.decisions_per_second,
                *(shown(values.get(name, "")) for name in names),
                "base preset" if trial.is_base else trial.note,
            ]
        )
    return text.getvalue()


def markdown(summary: Summary, command: str) -> str:
    """The study for a document: command, how scores are made, trials, importances."""
    settings, names = summary.settings, summary.settings.parameters.names
    lines = ["# Study", "", "```sh", command, "```", "", scoring(settings), ""]
    lines += [_row(["trial", "state", "score", *names]), _row(["---"] * (3 + len(names)))]
    for trial in summary.trials:
        values = summary.base_values if trial.is_base else trial.values
        score = "" if trial.score is None else f"{trial.score:.4g}"
        name = f"{trial.number} (base)" if trial.is_base else str(trial.number)
        lines.append(_row([name, trial.state, score, *(shown(values.get(n, "")) for n in names)]))
    if summary.importance:
        lines += ["", "Importance (PED-ANOVA, the best quarter of trials):", ""]
        lines += [_row(["field", "importance"]), _row(["---", "---"])]
        lines += [_row([name, f"{value:.2f}"]) for name, value in summary.importance.items()]
    return "\n".join(lines) + "\n"


def scoring(settings: StudySettings) -> str:
    """How a score comes about, in a sentence."""
    budget = "its length" if settings.seconds is None else f"{settings.seconds:g} seconds of training"
    ranges = ", ".join(
        f"{task} {low:g} to {high:g}"
        for task, (low, high) in settings.ranges.items()
        if (low, high) != (0, 1)
    )
    scaled = f", normalized so that these returns are 0 and 1: {ranges}" if ranges else ""
    runs = len(settings.tasks) * len(settings.seeds)
    mean = f"; mean of {runs} runs" if runs > 1 else ""
    return f"Score: mean training return over {budget}{scaled}{mean}."


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _result(settings: StudySettings, frozen: Any) -> TrialResult:
    attributes = frozen.user_attrs
    base = bool(attributes.get("base"))
    state = FINISHED if "score" in attributes else attributes.get("ending", "failed")
    return TrialResult(
        frozen.number,
        base,
        state,
        attributes.get("score"),
        attributes.get("areas", {}),
        attributes.get("decisions_per_second"),
        {} if base else _values(settings, frozen),
        attributes.get("note", ""),
    )


def _values(settings: StudySettings, frozen: Any) -> dict[str, Any]:
    optuna = import_optuna()
    fixed = optuna.trial.FixedTrial(frozen.params)
    return settings.parameters.suggest(fixed) if frozen.params else {}
