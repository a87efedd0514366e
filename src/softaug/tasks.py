"""Task names and what each fixes; knows nothing of MuJoCo, so it costs nothing to import."""

from __future__ import annotations

from softaug.errors import unknown

# The five tasks of DMControl-GB and their action repeats.
PAPER_TASKS: dict[str, int] = {
    "walker_walk": 4,
    "walker_stand": 4,
    "cartpole_swingup": 8,
    "ball_in_cup_catch": 4,
    "finger_spin": 2,
}
DEFAULT_ACTION_REPEAT = 4
DEFAULT_FRAME_STACK = 3

# Robot push and the number of its action's components. Its env step is a whole decision, seen in one frame.
ROBOT_TASKS: dict[str, int] = {"robot_push": 2, "robot_push_3d": 3}
ROBOT_ACTION_REPEAT = 1
ROBOT_FRAME_STACK = 1

# Every dm_control suite task. Written out so that Gymnasium ids can be registered without importing
# dm_control (a second or more); a test compares it with `dm_control.suite.ALL_TASKS`.
SUITE: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
_DOMAIN_AND_TASK = {f"{domain}_{task}": (domain, task) for domain, tasks in SUITE.items() for task in tasks}
SUITE_TASKS: tuple[str, ...] = tuple(_DOMAIN_AND_TASK)
ALL_TASKS: tuple[str, ...] = (*SUITE_TASKS, *ROBOT_TASKS)


def domain_and_task(name: str) -> tuple[str, str]:
    """`"ball_in_cup_catch"` -> `("ball_in_cup", "catch")`; `"robot_push"` -> `("robot", "push")`."""
    try:
        return ("robot", name.removeprefix("robot_")) if name in ROBOT_TASKS else _DOMAIN_AND_TASK[name]
    except (KeyError, TypeError):
        others = [task for task in SUITE_TASKS if task not in PAPER_TASKS]
        raise unknown("task", name, [*PAPER_TASKS, *ROBOT_TASKS, *others]) from None


def action_repeat(name: str) -> int:
    """Env steps (frames) per agent decision: the paper's for its tasks, 4 for any other of the suite."""
    domain_and_task(name)
    return ROBOT_ACTION_REPEAT if name in ROBOT_TASKS else PAPER_TASKS.get(name, DEFAULT_ACTION_REPEAT)


def frame_stack(name: str) -> int:
    """Frames in an observation (k): 1 for the robot, else 3; also for a task that is not one of ours."""
    return ROBOT_FRAME_STACK if name in ROBOT_TASKS else DEFAULT_FRAME_STACK
