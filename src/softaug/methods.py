"""The table of methods: a method is a row, not a class.

All methods share one learner (SAC). They differ in the weak view every observation gets, the strong
augmentation, *where* the strong view enters, the auxiliary task, and the mode they train in. Adding a method
means adding a row here and, at most, one file under ``auxiliary/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from softaug.errors import unknown

Weak = Literal["crop", "shift"]
Strong = Literal["conv", "overlay"]
Where = Literal["rl", "critic", "aux"]
Auxiliary = Literal["soda", "curl", "inverse_dynamics"]


@dataclass(frozen=True)
class Method:
    """One row. `strong_in` says where the strong view enters:

    - ``rl``: it replaces the weak view in the whole RL update, observation and next observation;
    - ``critic``: it is a second input of the critic's loss, never of its target (SVEA);
    - ``aux``: only the auxiliary task sees it (SODA).
    """

    name: str
    title: str
    weak: Weak = "crop"
    strong: Strong | None = None
    strong_in: frozenset[Where] = frozenset()
    auxiliary: Auxiliary | None = None
    train_mode: str = "train"
    adapts: bool = False
    """Whether the policy goes on learning at test time (PAD)."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The hyper-parameters in which the method's paper departs from the defaults of `softaug.config.Config`."""


SODA_NUMBERS = {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}
CURL_NUMBERS = {"aux_batch_size": 128, "aux_every": 1, "aux_lr": 1e-3}
PAD_NUMBERS = {"aux_batch_size": 128, "aux_every": 2, "aux_lr": 1e-3}

RL: frozenset[Where] = frozenset({"rl"})
CRITIC: frozenset[Where] = frozenset({"critic"})
AUX: frozenset[Where] = frozenset({"aux"})

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("sac", "SAC (RAD: random crop)"),
        Method("sac_dr", "SAC (domain randomisation)", train_mode="color_random"),
        Method("sac_conv", "SAC (conv)", strong="conv", strong_in=RL),
        Method("sac_overlay", "SAC (overlay)", strong="overlay", strong_in=RL),
        Method("curl", "CURL", auxiliary="curl", numbers=CURL_NUMBERS),
        Method("pad", "PAD", auxiliary="inverse_dynamics", adapts=True, numbers=PAD_NUMBERS),
        Method("soda_conv", "SODA (conv)", strong="conv", strong_in=AUX, auxiliary="soda", numbers=SODA_NUMBERS),
        Method("soda_overlay", "SODA (overlay)", strong="overlay", strong_in=AUX, auxiliary="soda", numbers=SODA_NUMBERS),
        Method("soda_both_conv", "Augment both (conv)", strong="conv", strong_in=RL | AUX, auxiliary="soda", numbers=SODA_NUMBERS),
        Method("soda_both_overlay", "Augment both (overlay)", strong="overlay", strong_in=RL | AUX, auxiliary="soda", numbers=SODA_NUMBERS),
        Method("drq", "DrQ", weak="shift"),
        Method("svea_conv", "SVEA (conv)", weak="shift", strong="conv", strong_in=CRITIC),
        Method("svea_overlay", "SVEA (overlay)", weak="shift", strong="overlay", strong_in=CRITIC),
    )
}  # fmt: skip

ALIASES = {"rad": "sac", "soda": "soda_overlay", "soda_both": "soda_both_overlay", "svea": "svea_conv"}
EARLIER_ALIASES = {**ALIASES, "svea": "svea_overlay"}
"""What an alias meant where a config was saved with it; today's configs hold the rows' own names."""


def get_method(name: str) -> Method:
    """The row called `name` (or its alias); an unknown name raises an error that lists the valid ones."""
    row = METHODS.get(ALIASES.get(name, name))
    if row is None:
        raise unknown("method", name, [*METHODS, *ALIASES])
    return row
