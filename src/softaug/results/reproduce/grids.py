"""What each table and figure holds: tasks, methods, modes and their arrangement. The paper's, and those of later work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from softaug.envs.modes import MODE_GROUPS, ordered_modes
from softaug.errors import UserError, unknown
from softaug.methods import METHODS, get_method
from softaug.results.published import find_published, method_label
from softaug.results.statistics import RETURN_SCALE
from softaug.tasks import PAPER_TASKS

ROBOT = "robot_push"
ROBOT_SCALE = 50.0
"""The highest return of an episode of 50 decisions with a reward of at most 1 (docs/robot_push.md)."""


@dataclass(frozen=True)
class Column:
    """A method in a table, under a common heading; `mode` is None where the rows say it."""

    label: str
    method: str
    mode: str | None = None
    group: str = ""


@dataclass(frozen=True)
class TableRow:
    """A task in a table; `mode` is None where the columns say it."""

    label: str
    task: str
    mode: str | None = None


@dataclass(frozen=True)
class Panel:
    """Rows times columns; a cell's mode comes from whichever of the two has one."""

    rows: tuple[TableRow, ...]
    columns: tuple[Column, ...]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(column.group for column in self.columns))


@dataclass(frozen=True)
class TableItem:
    """A table of returns."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    scale: float = RETURN_SCALE
    digits: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    """config values its runs need in addition to the preset's"""
    remark: str = ""
    """what must be said of the item itself"""
    preset: str = "paper"
    """of new runs, where the user does not say"""
    references: Literal["paper", "dmcgb", "dmcgb2"] = "paper"
    """whose numbers stand below ours: the paper's, or those that anybody reports for this benchmark"""

    @property
    def cells(self) -> list[tuple[str, str, str]]:
        """(mode, task, method) of every cell."""
        return [
            (row.mode or column.mode or "train", row.task, column.method)
            for panel in self.panels
            for row in panel.rows
            for column in panel.columns
        ]

    @property
    def grid(self) -> list[tuple[str, str]]:
        """(task, method) of every run it needs, for each seed. A method without a row is only reported by others."""
        return list(dict.fromkeys((task, method) for _, task, method in self.cells if method in METHODS))

    @property
    def shows_published(self) -> bool:
        """Whether it holds numbers of others in addition to the paper's: then it says something before there is any run."""
        return self.references != "paper" and any(
            found.benchmark == self.references for key in self.cells for found in find_published(*key)
        )

    def with_policies(self, names: Iterable[str]) -> TableItem:
        """The table with columns for these policies that were made elsewhere, next to the methods' of each mode."""
        names, panels = list(names), []
        for panel in self.panels:
            columns = list(panel.columns)
            for mode, group in dict.fromkeys((column.mode, column.group) for column in panel.columns):
                last = max(i for i, c in enumerate(columns) if (c.mode, c.group) == (mode, group))
                columns[last + 1 : last + 1] = [Column(get_method(n).label, n, mode, group) for n in names]
            panels.append(Panel(panel.rows, tuple(columns)))
        return replace(self, panels=tuple(panels))

    def modes_of(self, task: str, method: str) -> list[str]:
        """The modes in which a run must be evaluated."""
        return list(dict.fromkeys(m for m, t, name in self.cells if (t, name) == (task, method)))

    def label(self, method: str) -> str:
        """What the table calls a method."""
        return next(c.label for panel in self.panels for c in panel.columns if c.method == method)


@dataclass(frozen=True)
class FigureItem:
    """One of the paper's figures of learning curves: a row of panels per mode, a column per task."""

    name: str
    title: str
    tasks: tuple[str, ...]
    methods: dict[str, str]
    """method -> its label"""
    modes: dict[str, str]
    """mode -> what its panels are called"""
    across: bool = False
    """the modes side by side, not below each other"""
    overrides: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    @property
    def grid(self) -> list[tuple[str, str]]:
        return [(task, method) for task in self.tasks for method in self.methods]


@dataclass(frozen=True)
class SamplesItem:
    """The paper's sample images of every environment and augmentation; needs no runs."""

    name: str
    title: str
    tasks: tuple[str, ...]
    grid: tuple[()] = ()


Item = TableItem | FigureItem | SamplesItem

STATE_OF_THE_ART = {"curl": "CURL", "sac": "RAD", "pad": "PAD"}
OURS_AND_BASELINES = ("sac_dr", "sac_conv", "soda_conv", "sac_overlay", "soda_overlay")
ROBOT_MODES = {"train": "training", "random_colors": "random colors", "video_background": "video backgrounds"}
ROBOT_REMARK = "robot_push is a reconstruction, since the paper's environment was never released: not comparable with the paper"
ROBOT_OVERRIDES = {"eval_modes": tuple(ROBOT_MODES)}


def _label(method: str) -> str:
    return get_method(method).label


def _video_and_color(tasks: Sequence[str]) -> Item:
    video = {**STATE_OF_THE_ART, **{method: _label(method) for method in OURS_AND_BASELINES}}
    color = {**STATE_OF_THE_ART, "soda_overlay": _label("soda_overlay")}
    columns = [Column(label, method, "video_easy", "video backgrounds") for method, label in video.items()]
    columns += [Column(label, method, "color_hard", "random colors") for method, label in color.items()]
    panel = Panel(tuple(TableRow(task, task) for task in tasks), tuple(columns))
    return TableItem("video-and-color", "Generalization to video backgrounds and random colors", (panel,))


def _appendix(tasks: Sequence[str]) -> Item:
    methods = {**STATE_OF_THE_ART, "soda_overlay": _label("soda_overlay")}
    panels = [
        Panel(
            tuple(TableRow(task, task) for task in tasks),
            tuple(Column(label, method, mode, mode) for method, label in methods.items()),
        )
        for mode in ("color_easy", "video_hard")
    ]
    return TableItem("appendix", "Generalization to color_easy and video_hard", tuple(panels))


def _robot(tasks: Sequence[str]) -> Item:
    rows = tuple(TableRow(label, task, mode) for task in tasks for mode, label in ROBOT_MODES.items())
    columns = tuple(Column(_label(method), method) for method in ("sac", *OURS_AND_BASELINES))
    return TableItem(
        "robot",
        "Generalization in robotic manipulation",
        (Panel(rows, columns),),
        scale=ROBOT_SCALE,
        digits=1,
        overrides=ROBOT_OVERRIDES,
        remark=ROBOT_REMARK,
    )


def _curves(name: str, augmentation: str, tasks: Sequence[str]) -> Item:
    methods = ("sac", "sac_dr", f"sac_{augmentation}", f"soda_{augmentation}")
    return FigureItem(
        name,
        f"Random {'convolution' if augmentation == 'conv' else augmentation}",
        tuple(tasks),
        {method: _label(method) for method in methods},
        {"train": "training environment", "color_hard": "random colors"},
    )


def _curves_conv(tasks: Sequence[str]) -> Item:
    return _curves("curves-conv", "conv", tasks)


def _curves_overlay(tasks: Sequence[str]) -> Item:
    return _curves("curves-overlay", "overlay", tasks)


def _ablation(tasks: Sequence[str]) -> Item:
    methods = {"sac_conv": "Augment RL", "soda_both_conv": "Augment both", "soda_conv": "Augment SODA"}
    return FigureItem(
        "ablation", "Soft data augmentation", tuple(tasks), methods, {"train": "training environment"}
    )


def _robot_curves(tasks: Sequence[str]) -> Item:
    methods = {method: _label(method) for method in ("sac", *OURS_AND_BASELINES)}
    modes = {"train": "training environment", "random_colors": "random colors"}
    return FigureItem(
        "robot-curves",
        "Robotic manipulation",
        tuple(tasks),
        methods,
        modes,
        across=True,
        overrides=ROBOT_OVERRIDES,
        remark=ROBOT_REMARK,
    )


def _samples(tasks: Sequence[str]) -> Item:
    return SamplesItem("samples", "Samples of environments and augmentations", tuple(tasks))


LATER_METHODS = (
    "sac", "drq", "soda_overlay", "svea_overlay", "svea", "sgqn", "madi", "simgrl", "sada", "soda_sada", "soda_simgrl",
)  # fmt: skip
"""The columns of the tables of later work: those that have a row in the table of methods, or numbers of others."""

GB2_REMARK = (
    "DMControl-GB2's own settings are 84 px, action repeat 2 and 1,000,000 frames; its video modes are screen_* here, "
    "and not comparable with DMControl-GB's videos"
)
DISTRACTING_REMARK = "background videos: DAVIS 2017 where it is registered, else procedural"


def _later_table(
    name: str,
    title: str,
    tasks: Sequence[str],
    modes: Sequence[str],
    benchmark: Literal["dmcgb", "dmcgb2"],
    remark: str = "",
) -> Item:
    """A panel for each mode, all with the same columns."""
    reported = {
        found.method
        for mode in modes
        for task in tasks
        for found in find_published(mode, task)
        if found.benchmark == benchmark
    }
    methods = [method for method in LATER_METHODS if method in METHODS or method in reported]
    panels = [
        Panel(
            tuple(TableRow(task, task) for task in tasks),
            tuple(Column(method_label(method), method, mode, mode) for method in methods),
        )
        for mode in modes
    ]
    preset = "gb2" if benchmark == "dmcgb2" else "paper"
    return TableItem(name, title, tuple(panels), remark=remark, preset=preset, references=benchmark)


def _later_methods(tasks: Sequence[str]) -> Item:
    title = "Later methods in video_hard"
    return _later_table("later-methods", title, tasks, ["video_hard"], "dmcgb")


def _gb2(tasks: Sequence[str]) -> Item:
    modes = ordered_modes(MODE_GROUPS["gb2"])
    return _later_table("gb2", "DMControl-GB2", tasks, modes, "dmcgb2", GB2_REMARK)


def _distracting(tasks: Sequence[str]) -> Item:
    modes = MODE_GROUPS["distracting"]
    return _later_table("distracting", "Distracting Control Suite", tasks, modes, "dmcgb", DISTRACTING_REMARK)


DMC = tuple(PAPER_TASKS)
GB2_TASKS = (*DMC, "cheetah_run")
DISTRACTING_TASKS = (
    "ball_in_cup_catch", "cartpole_swingup", "cheetah_run", "finger_spin", "reacher_easy", "walker_walk",
)  # fmt: skip
WALKERS = ("walker_walk", "walker_stand")
ITEMS = {
    "video-and-color": (_video_and_color, DMC),
    "appendix": (_appendix, DMC),
    "robot": (_robot, (ROBOT,)),
    "curves-conv": (_curves_conv, DMC),
    "curves-overlay": (_curves_overlay, DMC),
    "ablation": (_ablation, WALKERS),
    "robot-curves": (_robot_curves, (ROBOT,)),
    "samples": (_samples, (*DMC, ROBOT)),
    "later-methods": (_later_methods, GB2_TASKS),
    "gb2": (_gb2, GB2_TASKS),
    "distracting": (_distracting, DISTRACTING_TASKS),
}
"""name -> what makes the item for a list of tasks, and its own tasks"""

LATER_ITEMS = ("later-methods", "gb2", "distracting")
"""Not the paper's, so not among `all`."""


def make_items(name: str, tasks: Sequence[str] | None = None) -> list[Item]:
    """The item called `name`, or `all` of the paper's, for their own tasks or for `tasks`.

    Of `all`, items that have none of `tasks` are left out.
    """
    if name != "all" and name not in ITEMS:
        raise unknown("item", name, [*ITEMS, "all"])
    items = []
    for item in [i for i in ITEMS if i not in LATER_ITEMS] if name == "all" else [name]:
        make, papers = ITEMS[item]
        if chosen := _tasks_for(item, papers, tasks):
            items.append(make(chosen))
    if not items:
        own = ROBOT if ITEMS[name][1] == (ROBOT,) else "tasks of the DeepMind Control suite"
        raise UserError(f"{name} is about {own}, not {', '.join(tasks or ())}; give other --tasks")
    return items


def _tasks_for(item: str, papers: Sequence[str], tasks: Sequence[str] | None) -> list[str]:
    if tasks is None:
        return list(papers)
    if item == "samples":
        return list(tasks)
    return [task for task in tasks if (task == ROBOT) == (ROBOT in papers)]
