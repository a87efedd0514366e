"""The table of methods: a method is a row, not a class.

All methods share one learner (SAC). They differ in the weak view every observation gets, the strong view, *what sees*
the strong view, the auxiliary task, and the mode they train in. A method is a row here, plus one file if it has a new
view or auxiliary task. `register` adds a row from outside the package (docs/methods/README.md, "Adding a method").
"""

from __future__ import annotations

import importlib
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from softaug.errors import UserError, unknown

Sees = Literal["weak", "strong"]
SeesBoth = Literal["weak", "strong", "both"]
CriticSees = Literal["weak", "strong", "both", "masked"]
TargetSees = Literal["weak", "strong", "raw"]
CriticLoss = Literal["sum", "mean", "consistency"]
Shares = Literal["encoder", "trunk"]
Line = Literal["solid", "dashed", "dotted", "dashdot"]
Hue = Literal["ink", "blue", "sky", "orange", "gold", "green", "teal", "pink", "brown"]


@dataclass(frozen=True)
class View:
    """What a config and a report must know of a view. `learning.views` builds it."""

    crops: bool = False
    """Whether it turns image_size into crop_size; any other weak view keeps the image's size."""
    uses_images: bool = False
    """Whether it mixes in foreign images (`--images`)."""


VIEWS: dict[str, View] = {
    "crop": View(crops=True),
    "shift": View(),
    "conv": View(),
    "overlay": View(uses_images=True),
    "conv_overlay": View(uses_images=True),
    "rotate": View(),
    "large_shift": View(),
    "rotate_shift": View(),
    "sada": View(uses_images=True),
    "moving_overlay": View(uses_images=True),
}
AUXILIARY_TASKS: set[str] = {"soda", "curl", "inverse_dynamics", "sgqn"}
"""The names that `learning.auxiliary.registry` can build."""


@dataclass(frozen=True)
class Method:
    """One row. A field with a value that does not exist, or that contradicts another field, is refused."""

    name: str
    title: str
    """In full, as in the report."""
    label: str = ""
    """Short, for tables and legends; the title unless given."""
    color: str = "#4d4d4d"
    """Of its curve in figures, ``#rrggbb``."""
    line: Line = "solid"
    """Of its curve in figures: color is never the only difference."""
    hue: Hue = "ink"
    """Its family's color on the report page, where each hue has a light and a dark tone."""
    weak: str = "crop"
    """The view that every observation gets, one of `VIEWS`."""
    strong: str | None = None
    """The view that is made from the weak one, for those of the next four fields that say so."""
    critic_sees: CriticSees = "weak"
    """Of the observation. ``both``: half of the loss on each view (SVEA). ``masked``: the weak view, and what is left of it
    inside its saliency mask (SGQN)."""
    actor_sees: SeesBoth = "weak"
    """Of the observation. ``both``: it acts on each view, and Q judges all actions on the weak one (SADA)."""
    critic_loss: CriticLoss = "sum"
    """Of the squared errors of both Q functions, their sum. ``mean``: half of it (SADA). ``consistency``: of the first view's,
    plus how far the second view's values lie from the first's (SGQN)."""
    target_sees: TargetSees = "weak"
    """What the Bellman target sees of the next observation. ``raw``: its center crop, neither cropped nor shifted at random
    (MaDi)."""
    masker: bool = False
    """Whether the encoder sees each frame through a learned soft mask (MaDi)."""
    auxiliary: str | None = None
    """The auxiliary task, one of `AUXILIARY_TASKS`."""
    auxiliary_sees: Sees = "weak"
    """``strong``: the auxiliary task is built with both views."""
    auxiliary_shares: Shares = "encoder"
    """``trunk``: the auxiliary task has the last `pad_own_layers` layers of the encoder for itself (PAD)."""
    train_mode: str = "train"
    adapts: bool = False
    """Whether the policy continues to learn at test time (PAD)."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The hyper-parameters in which the method's paper departs from the defaults of `softaug.config.Config`."""
    paper_preset: str = "paper"
    """The preset that holds the setting of the method's own paper: ``--preset paper`` means this one."""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """In which numbers the method's paper departs from `numbers` on a task."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the method needs otherwise under a preset; wins over the preset's numbers."""
    foreign: bool = False
    """A policy that was made elsewhere (`policy:NAME`): it is evaluated, never trained."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.title)
        _check(self)

    @property
    def strong_in_rl(self) -> bool:
        """Whether RL sees the strong view anywhere."""
        return not {"strong", "both"}.isdisjoint((self.critic_sees, self.actor_sees, self.target_sees))

    @property
    def uses_images(self) -> bool:
        """Whether one of its views mixes in foreign images."""
        return any(VIEWS[view].uses_images for view in (self.weak, self.strong) if view)

    @property
    def crops(self) -> bool:
        """Whether the weak view turns image_size into crop_size; else both must be equal."""
        return VIEWS[self.weak].crops


def _check(row: Method) -> None:
    if not row.foreign and not re.fullmatch(r"[a-z][a-z0-9_]*", row.name):
        raise UserError(f"a method cannot be called {row.name!r}; use small letters, digits and _")
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", row.color):
        raise UserError(f"the color of {row.name} must be written as #rrggbb, not {row.color!r}")
    chosen: dict[str, tuple[Any, tuple[str, ...]]] = {
        "weak view": (row.weak, tuple(VIEWS)),
        "critic_sees": (row.critic_sees, get_args(CriticSees)),
        "actor_sees": (row.actor_sees, get_args(SeesBoth)),
        "critic_loss": (row.critic_loss, get_args(CriticLoss)),
        "target_sees": (row.target_sees, get_args(TargetSees)),
        "auxiliary_sees": (row.auxiliary_sees, get_args(Sees)),
        "auxiliary_shares": (row.auxiliary_shares, get_args(Shares)),
        "line": (row.line, get_args(Line)),
        "hue": (row.hue, get_args(Hue)),
    }
    if row.strong is not None:
        chosen["strong view"] = (row.strong, tuple(VIEWS))
    if row.auxiliary is not None:
        chosen["auxiliary task"] = (row.auxiliary, tuple(sorted(AUXILIARY_TASKS)))
    for what, (value, valid) in chosen.items():
        if value not in valid:
            raise unknown(what, value, valid)
    if (row.strong is not None) != (row.strong_in_rl or row.auxiliary_sees == "strong"):
        raise UserError(
            f"{row.name} must either have a strong view that critic, actor, target or auxiliary task see, or none; "
            f"correct `strong` ({row.strong}) or the fields that end in `_sees`"
        )
    if row.critic_loss == "consistency" and row.critic_sees not in ("both", "masked"):
        raise UserError(
            f"the consistency loss of {row.name} compares two views; give critic_sees='both' or 'masked'"
        )
    if row.auxiliary is None and (row.auxiliary_sees, row.auxiliary_shares) != ("weak", "encoder"):
        raise UserError(
            f"{row.name} has no auxiliary task, so leave out auxiliary_sees and auxiliary_shares, or name the task"
        )


SODA_NUMBERS = {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}
CURL_NUMBERS = {"aux_batch_size": 128, "aux_every": 1, "aux_lr": 1e-3}
PAD_NUMBERS = {"aux_batch_size": 128, "aux_every": 2, "aux_lr": 1e-3}
SGQN_NUMBERS = {"aux_every": 2, "aux_lr": 3e-4, "sgqn_quantile": 0.95}
SGQN_THIN = {"sgqn_quantile": 0.98, "critic_weight_decay": 1e-5}
"""For tasks whose objects are small."""
SIMGRL_NUMBERS = {"frame_join": "features"}
SADA_NUMBERS = {"share_features": True, "actor_every": 1, "target_every": 1}
# Each frame alone through three convolutions of 16, then eight of 32 on all of them.
SIMGRL_TRUNK: dict[str, dict[str, Any]] = {
    "paper": {"filters": (16,) * 3 + (32,) * 8, "strides": (2,) + (1,) * 10, "frame_layers": 3},
    "small": {"frame_layers": 1},
    "gb2": {"frame_layers": 1},
}

STRONG_RL: dict[str, Any] = {"critic_sees": "strong", "actor_sees": "strong", "target_sees": "strong"}
SODA: dict[str, Any] = {"auxiliary": "soda", "auxiliary_sees": "strong", "numbers": SODA_NUMBERS}
SVEA: dict[str, Any] = {"weak": "shift", "critic_sees": "both"}
SGQN: dict[str, Any] = {
    "weak": "shift",
    "critic_sees": "masked",
    "critic_loss": "consistency",
    "auxiliary": "sgqn",
    "auxiliary_sees": "strong",
    "numbers": SGQN_NUMBERS,
    "tasks": {"cartpole_swingup": SGQN_THIN, "ball_in_cup_catch": SGQN_THIN},
}
SADA: dict[str, Any] = {
    "weak": "shift",
    "critic_sees": "both",
    "actor_sees": "both",
    "critic_loss": "mean",
    "numbers": SADA_NUMBERS,
    "paper_preset": "gb2",
    # The targets move at every update: half a step each keeps the preset's speed.
    "presets": {"small": {"critic_tau": 0.015, "encoder_tau": 0.025}},
}

# Colors are distinguishable with color-blindness (after Okabe and Ito).
METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("sac", "SAC (RAD: random crop)", "SAC", "#4d4d4d", "solid", "ink"),
        Method("sac_dr", "SAC (domain randomization)", "SAC (DR)", "#e69f00", "dashed", "gold", train_mode="color_random"),
        Method("sac_conv", "SAC (conv)", "", "#56b4e9", "dotted", "orange", strong="conv", **STRONG_RL),
        Method("sac_overlay", "SAC (overlay)", "", "#cc79a7", "dotted", "orange", strong="overlay", **STRONG_RL),
        Method("curl", "CURL", "", "#009e73", "dashdot", "green", auxiliary="curl", numbers=CURL_NUMBERS),
        Method("pad", "PAD", "", "#8a7a00", "dashed", "pink", auxiliary="inverse_dynamics", auxiliary_shares="trunk", adapts=True, numbers=PAD_NUMBERS),
        Method("soda_conv", "SODA (conv)", "", "#0072b2", "solid", "blue", strong="conv", **SODA),
        Method("soda_overlay", "SODA (overlay)", "", "#d55e00", "solid", "blue", strong="overlay", **SODA),
        Method("soda_both_conv", "Augment both (conv)", "", "#009e73", "dashed", "sky", strong="conv", **STRONG_RL, **SODA),
        Method("soda_both_overlay", "Augment both (overlay)", "", "#882255", "dashed", "sky", strong="overlay", **STRONG_RL, **SODA),
        Method("drq", "DrQ", "", "#332288", "dashdot", "brown", weak="shift"),
        Method("svea_conv", "SVEA (conv)", "", "#117733", "dotted", "teal", strong="conv", **SVEA),
        Method("svea_overlay", "SVEA (overlay)", "", "#882255", "dashdot", "teal", strong="overlay", **SVEA),
        Method("sada", "SADA", "", "#cc3311", "solid", "gold", strong="sada", **SADA),
        Method("simgrl", "SimGRL", "", "#44aa99", "solid", "teal", strong="moving_overlay", **SVEA, numbers=SIMGRL_NUMBERS, presets=SIMGRL_TRUNK),
        Method("sgqn", "SGQN", "", "#aa4499", "solid", "pink", strong="overlay", **SGQN),
        Method("madi", "MaDi", "", "#999933", "solid", "brown", strong="overlay", **SVEA, target_sees="raw", masker=True),
        Method("soda_sada", "SODA (SADA's views)", "", "#661100", "dashdot", "blue", strong="sada", **SODA),
        Method("soda_simgrl", "SODA (SimGRL's trunk and overlay)", "SODA (SimGRL)", "#6699cc", "dashed", "blue", strong="moving_overlay", **SODA | {"numbers": SODA_NUMBERS | SIMGRL_NUMBERS}, presets=SIMGRL_TRUNK),
    )
}  # fmt: skip

ALIASES = {"rad": "sac", "soda": "soda_overlay", "soda_both": "soda_both_overlay", "svea": "svea_conv"}
EARLIER_ALIASES = {**ALIASES, "svea": "svea_overlay"}
"""What an alias meant where a config was saved with it; today's configs hold the rows' own names."""

BUILT_IN = frozenset((*METHODS, *ALIASES))
BUILT_IN_VIEWS, BUILT_IN_TASKS = frozenset(VIEWS), frozenset(AUXILIARY_TASKS)


def register(row: Method) -> Method:
    """Add a method from outside the package, and return it.

    A name that was registered before gets the new row (as when a notebook cell is run again); the names of the
    package's own methods are taken. Register its views and its auxiliary task first.
    """
    refuse_taken("method", row.name, BUILT_IN)
    METHODS[row.name] = row
    return row


def refuse_taken(kind: str, name: str, taken: frozenset[str]) -> None:
    if name in taken:
        raise UserError(f"softaug has a {kind} called {name!r} already; choose another name")


PLUGINS = "SOFTAUG_PLUGINS"
"""The environment variable that names modules to import, comma-separated, so that commands and worker processes know
the methods that these modules register."""


def _import_plugins() -> None:
    for module in filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(","))):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:  # a package that the user's module lacks is their traceback to read
                raise
            raise UserError(
                f"{PLUGINS} names the module {module!r}, which is not there; put its directory on PYTHONPATH"
            ) from None


FOREIGN = "policy:"
"""Before the name of a policy that was made elsewhere, so that it cannot be taken for one of the methods."""
POLICY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._+()-]{0,58}[A-Za-z0-9+)])?")


def foreign_method(name: str) -> Method:
    """The row of the policy called `name`, which was made elsewhere. It is not in the table: files name it."""
    if not POLICY_NAME.fullmatch(name):
        raise UserError(
            f"a policy cannot be called {name!r:.80}; use at most 60 letters, digits, spaces and ._+()-, beginning "
            "with a letter or digit"
        )
    # Files hold only the name, so that is where its color comes from.
    number = zlib.crc32(name.encode())
    color, hue = FOREIGN_COLORS[number % len(FOREIGN_COLORS)]
    # `shift` is a view that keeps the image's size, as a policy that gets whole observations does.
    return Method(FOREIGN + name, name, name, color, "dotted", hue, weak="shift", foreign=True)


FOREIGN_COLORS: tuple[tuple[str, Hue], ...] = (
    ("#4d4d4d", "ink"), ("#0072b2", "blue"), ("#009e73", "green"), ("#e69f00", "gold"), ("#cc79a7", "pink"),
    ("#8c510a", "brown"), ("#117733", "teal"),
)  # fmt: skip


def get_method(name: str) -> Method:
    """The row called `name` (or its alias); an unknown name raises an error that lists the valid ones."""
    if name.startswith(FOREIGN):
        return foreign_method(name.removeprefix(FOREIGN))
    row = METHODS.get(ALIASES.get(name, name))
    if row is None:
        _import_plugins()
        row = METHODS.get(name)
    if row is None:
        raise unknown("method", name, [*METHODS, *ALIASES])
    return row
