"""What Optuna is asked for: the study's database, its pruner, and a sampler for each trial."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from softaug.errors import UserError
from softaug.tuning.plan import DATABASE, StudySettings

STUDY_NAME = "softaug"


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("softaug tune needs Optuna; install it with: pip install 'softaug[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Such as TPE's constant liar, which is what makes it useful for several workers.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_study(settings: StudySettings, out: Path) -> Any:
    """The Optuna study in `out`, made if it is not there; its first trial is the base preset."""
    optuna = import_optuna()
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{out / DATABASE}",
            study_name=STUDY_NAME,
            direction="maximize",
            pruner=make_pruner(optuna, settings),
            load_if_exists=True,
        )
        if not study.trials:
            values = settings.base_values()
            study.enqueue_trial(values or {}, user_attrs={"base": True, "in_space": values is not None})
    except Exception as error:  # of SQLAlchemy, which only Optuna knows
        if (
            # RuntimeError: a database of another version of Optuna
            not isinstance(error, (optuna.exceptions.OptunaError, RuntimeError))
            and "sqlalchemy" not in type(error).__module__
        ):
            raise
        raise UserError(
            f"{out / DATABASE} is no study that can be opened ({str(error).splitlines()[0]}); give another --out"
        ) from None
    return study


def make_pruner(optuna: Any, settings: StudySettings) -> Any:
    if settings.pruner == "none":
        return optuna.pruners.NopPruner()
    if settings.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=settings.reduction)
    return optuna.pruners.HyperbandPruner(
        min_resource=1, max_resource=settings.max_step, reduction_factor=settings.reduction
    )


def make_sampler(optuna: Any, settings: StudySettings, number: int) -> Any:
    """TPE for trial `number`: its draws do not depend on how often the study was interrupted."""
    seed = int(np.random.SeedSequence([settings.sampler_seed, number]).generate_state(1)[0])
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=settings.startup, constant_liar=True)
