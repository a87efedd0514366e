"""What a run is: one frozen dataclass and its JSON form.

The defaults are the paper's (its Table III). `make_config` layers, later ones winning: these defaults, the
method's own numbers (`methods.py`), the preset (`presets.py`), and what the user gives.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from softaug.config.checks import check
from softaug.config.own_environment import parse_test_env
from softaug.errors import UserError, unknown
from softaug.files import check_name, read_object, write_atomically
from softaug.methods import EARLIER_ALIASES, METHODS, Method, get_method
from softaug.presets import METHOD_TASK_PRESETS, PRESETS, TASK_PRESETS, get_preset
from softaug.tasks import action_repeat, frame_stack


def option(default: Any, help_text: str, *, runtime: bool = False, later: bool = False) -> Any:
    """A field with its help.

    runtime: it may change on resume because it cannot change results.
    later: absent from older files; the default is used.
    """
    return field(default=default, metadata={"help": help_text, "runtime": runtime, "later": later})


@dataclass(frozen=True)
class Config:
    """Every value of a run. Lengths are in decisions (agent steps); one decision is action_repeat frames."""

    task: str = option(
        "walker_walk",
        "task: domain_task of the DeepMind Control suite, or module:callable of your own environment",
    )
    method: str = option("soda_overlay", f"method: {', '.join(METHODS)}")
    preset: str = option(
        "paper",
        "paper (the numbers of the method's paper), small (two CPU cores), gb2 (DMControl-GB2's numbers), or a preset "
        "file of softaug tune",
    )
    seed: int = option(0, "seed of everything: networks, environment, sampling, augmentation")
    decisions: int = option(500_000, "length of training in decisions")

    image_size: int = option(100, "rendered height and width in pixels")
    crop_size: int = option(84, "height and width the networks see")
    frame_stack: int = option(3, "consecutive frames in an observation (k); robot_push: 1")
    action_repeat: int = option(
        0,
        "frames per decision; 0: the task's own (8 cartpole_swingup, 2 finger_spin, 1 robot_push and your own environment, else 4)",
    )
    test_env: tuple[str, ...] = option(
        (),
        "your own environment's test distributions: module:callable (called test) or name=module:callable, comma-separated",
        later=True,
    )
    image_key: str = option(
        "", "your own environment: which entry of a dict observation is the image", later=True
    )
    episode_decisions: int = option(
        0,
        "your own environment: decisions until an episode is cut off; 0: the environment's own time limit",
        later=True,
    )
    render: str = option(
        "exact",
        "exact (dm_control's image, pixel by pixel), fast (smaller shadow map), coarse (fast, and round bodies of fewer "
        "triangles) or aliased (fast, and without smooth edges)",
    )
    images: str = option(
        "", "overlay images: a folder, a registered name or 'procedural'; empty: registered, else procedural"
    )
    videos: str = option(
        "", "test videos: a folder or 'procedural'; empty: the official ones if registered, else procedural"
    )
    colors: str = option(
        "",
        "test colors: an official .pt file or the folder of both; empty: the registered one, else drawn from its distribution",
    )

    filters: tuple[int, ...] = option((32,) * 11, "output channels of the encoder's 3x3 convolutions")
    strides: tuple[int, ...] = option((2,) + (1,) * 10, "strides of the encoder's convolutions")
    conv_init: str = option(
        "delta_orthogonal",
        "first convolution weights: delta_orthogonal (the paper's: only the center tap) or orthogonal (all taps)",
        later=True,
    )
    frame_layers: int = option(
        0,
        "the encoder's first layers that see each frame alone (0: all layers see the whole stack)",
        later=True,
    )
    frame_join: str = option(
        "differences",
        "what the layer after frame_layers sees: differences (the newest frame's features, and how they change from frame "
        "to frame) or features (each frame's, as SimGRL does)",
        later=True,
    )
    frame_differences: float = option(
        0.0,
        "how strongly the encoder's first layer sees motion: it sees the newest frame, and the differences of successive "
        "frames times this number; 0: the frames themselves",
        later=True,
    )
    pixel_offset: float = option(
        0.0, "subtracted from pixels in 0..1 before the encoder (SADA, DrQ-v2: 0.5)", later=True
    )
    final_relu: bool = option(
        False, "ReLU after the encoder's last convolution too (SADA, DrQ-v2)", later=True
    )
    share_features: bool = option(
        False,
        "encode each observation once, as DrQ-v2 does: the actor learns on the critic's features, and the target Q "
        "functions on the online encoder's",
        later=True,
    )
    pad_own_layers: int = option(3, "PAD: the last layers that RL and the auxiliary task do not share")
    masker_filters: int = option(32, "MaDi: filters in the masker's two hidden layers", later=True)
    projection_dim: int = option(100, "size of every projection (K)")
    hidden_dim: int = option(1024, "width of the actor's and critic's MLPs")
    critic_norm: bool = option(False, "LayerNorm in the hidden layers of the Q functions", later=True)

    batch_size: int = option(128, "RL batch")
    discount: float = option(0.99, "discount gamma per decision")
    n_step: int = option(1, "decisions of reward before the bootstrap")
    mean_reward: bool = option(
        False,
        "learn from the mean reward of a decision's frames instead of their sum (logged returns stay sums)",
        later=True,
    )
    replay_capacity: int = option(500_000, "transitions in the replay")
    replay_memory: str = option("disk", "disk (memory-mapped in the run directory) or ram", runtime=True)
    random_decisions: int = option(1_000, "decisions with random actions at the start")
    initial_updates: int = option(1_000, "catch-up updates after them")
    update_every: int = option(1, "decisions between updates")
    updates_at_once: int = option(1, "updates each time", later=True)
    actor_lr: float = option(1e-3, "Adam learning rate of the actor")
    critic_lr: float = option(1e-3, "Adam learning rate of the critic and encoder")
    critic_weight_decay: float = option(
        0.0, "Adam's weight decay of the critic and encoder (SGQN on small objects: 1e-5)", later=True
    )
    alpha_lr: float = option(1e-4, "Adam learning rate of the temperature")
    alpha_beta: float = option(0.5, "Adam's first beta for the temperature (SADA: 0.9)", later=True)
    actor_every: int = option(2, "updates per actor update")
    target_every: int = option(2, "updates per target update")
    critic_tau: float = option(0.01, "EMA step of the target Q functions")
    encoder_tau: float = option(0.05, "EMA step of the target encoder and projection")
    initial_temperature: float = option(0.1, "alpha at the start")
    aux_batch_size: int = option(128, "batch of SODA's task (256); CURL and PAD use the RL batch")
    aux_every: int = option(1, "updates per auxiliary update (SODA, PAD: 2)")
    aux_lr: float = option(
        1e-3, "Adam learning rate of the auxiliary task, its heads and the encoder (SODA: 3e-4)"
    )
    soda_tau: float = option(0.005, "SODA: EMA step of the target network psi")
    soda_projections: bool = option(
        False,
        "SODA: the task shapes the actor's and the critic's projections too, not the encoder alone",
        later=True,
    )
    overlay_alpha: float = option(0.5, "overlay: weight of the foreign image")
    sgqn_quantile: float = option(
        0.95, "SGQN: pixels below this quantile of a frame's saliency are masked", later=True
    )

    eval_every: int = option(10_000, "decisions between evaluations; 0: only at the end")
    eval_episodes: int = option(10, "episodes per mode and evaluation")
    eval_modes: tuple[str, ...] = option(
        ("train", "color_hard", "video_easy"), "modes to evaluate in, comma-separated"
    )
    eval_video: bool = option(False, "keep a video of each mode's first evaluation episode", runtime=True)
    checkpoint_every: int = option(10_000, "decisions between checkpoints")
    keep_checkpoints: int = option(
        2, "how many of the last checkpoints to keep, in addition to the best", runtime=True
    )
    log_every: int = option(250, "decisions between lines of losses in metrics.jsonl")
    tensorboard: bool = option(True, "write TensorBoard events", runtime=True)
    wandb: str = option("", "Weights & Biases project to log to (needs softaug[tracking])", runtime=True)

    device: str = option("auto", "auto, cpu, cuda or mps")
    precision: str = option("fp32", "fp32, tf32 (CUDA) or bf16 (CUDA autocast)")
    compile: bool = option(False, "torch.compile the encoder")
    threads: int = option(0, "torch threads of the learner; 0: torch's own choice")
    env_process: bool = option(
        True, "step the environment in its own process, in parallel with learning", runtime=True
    )
    prefetch: str = option(
        "auto",
        "gather the next batch on a thread during an update: on, off or auto (on with CUDA); same results",
        runtime=True,
        later=True,
    )
    overlap: str = option(
        "auto",
        "on a CPU, compute the independent parts of an update on two threads: on, off or auto (on with one torch thread "
        "and several cores); same results",
        runtime=True,
        later=True,
    )
    workers: int = option(1, "processes for evaluation", runtime=True)

    def __post_init__(self) -> None:
        # The row's own name: what an alias stands for may change, a run's method must not.
        object.__setattr__(self, "method", get_method(self.method).name)
        check(self)

    @property
    def row(self) -> Method:
        """The method's row."""
        return get_method(self.method)

    @property
    def own_env(self) -> bool:
        """Whether the task is the user's own environment, `module:callable`."""
        return ":" in self.task

    @property
    def frames_per_decision(self) -> int:
        """The action repeat, also where it is left to the task."""
        return self.action_repeat or (1 if self.own_env else action_repeat(self.task))

    @property
    def reward_scale(self) -> float:
        """What rewards are multiplied by before the agent learns from them."""
        return 1 / self.frames_per_decision if self.mean_reward else 1.0

    @property
    def own_modes(self) -> dict[str, str]:
        """The modes of the user's own environment -> the `module:callable` that makes each; `train` first."""
        return {"train": self.task, **dict(map(parse_test_env, self.test_env))} if self.own_env else {}

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values; `from_json` is its inverse."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Config:
        """Read what `to_json` wrote; unknown or missing fields are an error that names them."""
        types = get_type_hints(Config)
        values = {f.name: f.default for f in dataclasses.fields(Config) if f.metadata["later"]} | dict(values)
        if wrong := sorted(types.keys() ^ values.keys()):
            raise UserError(
                f"the config has unknown or missing fields ({', '.join(wrong)}); was it written by another version?"
            )
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        for name, value in fields.items():
            if not is_a(value, types[name]):
                raise UserError(f"the config's {name} cannot be {value!r:.80}; restore it or start a new run")
        fields["method"] = EARLIER_ALIASES.get(fields["method"], fields["method"])
        return Config(**fields)


def make_config(
    task: str = "walker_walk", method: str = "soda", preset: str = "paper", **overrides: Any
) -> Config:
    """The config of one run: the paper's defaults < the method's numbers < the preset < what the method, then the task,
    then the method on that task needs otherwise under it < `overrides`.

    preset: a name, or a preset file (`softaug tune` writes them), whose values win over those of its base preset. The
        config holds them all: it does not need the file again.
    """
    row, chosen = get_method(method), get_preset(preset)
    refuse_training(row)
    refuse_unknown_fields(overrides)
    check_preset_values(preset, chosen.values)
    base = row.paper_preset if chosen.base == "paper" else chosen.base
    if base not in PRESETS:
        raise unknown(f"paper_preset of {row.name}", base, PRESETS)
    layers: tuple[Mapping[str, Any], ...] = (
        row.numbers,
        row.tasks.get(task, {}),
        PRESETS[base],
        row.presets.get(chosen.base, {}),
        TASK_PRESETS.get((base, task), {}),
        METHOD_TASK_PRESETS.get((base, task, row.name), {}),
        chosen.values,
        overrides,
    )
    values: dict[str, Any] = {}
    for layer in layers:
        values.update(layer)
    values.update(task=task, method=row.name, preset=chosen.label)
    values.setdefault("frame_stack", frame_stack(task))
    if ":" in task and "eval_modes" not in overrides:
        # The benchmark's modes are those of its own tasks: a custom environment has the modes its author gives.
        names = dict(map(parse_test_env, values.get("test_env", ())))
        values["eval_modes"] = ("train", *names)
    if not row.crops:
        # DrQ and SVEA render at the network's size and shift instead of cropping: either size gives the other.
        given = {**chosen.values, **overrides}
        if "image_size" not in given:
            values["image_size"] = values.get("crop_size", Config.crop_size)
        elif "crop_size" not in given:
            values["crop_size"] = values["image_size"]
    return Config(**values)


def refuse_training(row: Method) -> None:
    """Refuse a policy that was made elsewhere where a method is trained."""
    if row.foreign:
        raise UserError(
            f"{row.title} is a policy that was made elsewhere, which can only be evaluated; name a method"
        )


NOT_IN_PRESETS = ("task", "method", "preset", "seed")


def check_preset_values(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what a preset file cannot set: unknown fields, a run's identity, values of the wrong type."""
    types = get_type_hints(Config)
    for field_name, value in values.items():
        if field_name not in types or field_name in NOT_IN_PRESETS:
            raise UserError(f"the preset file {name} cannot set {field_name!r}; remove it from the file")
        if not is_a(value, types[field_name]):
            raise UserError(f"the preset file {name} has {field_name} {value!r}, which cannot be; correct it")


def refuse_unknown_fields(names: Collection[str]) -> None:
    known = {f.name for f in dataclasses.fields(Config)}
    for name in sorted(set(names) - known):
        raise unknown("config field", name, sorted(known))


def default_directory(config: Config) -> Path:
    """Where a run, or the results of a policy made elsewhere, go unless the user says otherwise."""
    task = config.task.translate({ord(":"): ".", ord("<"): None, ord(">"): None})
    if config.row.foreign:
        return Path("runs") / f"{task}-{config.row.title.replace(' ', '_')}-{config.seed}"
    return Path("runs") / f"{task}-{config.method}-{config.preset}-{config.seed}"


def write_config(config: Config, path: Path) -> None:
    """Write `config` as indented JSON, atomically."""
    write_atomically(path, json.dumps(config.to_json(), indent=2) + "\n")


def read_config(path: Path) -> Config:
    """Read what `write_config` wrote."""
    check_name(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; give the directory of a softaug run")
    try:
        return Config.from_json(read_object(path, "restore it or start a new run"))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def is_a(value: Any, kind: Any) -> bool:
    """Whether `value` may stand in a field annotated with `kind`: a plain type or a tuple of one."""
    if kind in (bool, str):
        return isinstance(value, kind)
    if kind in (int, float):  # JSON writes 1.0 as it likes; a bool is no number here
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, tuple) and all(is_a(item, kind.__args__[0]) for item in value)
