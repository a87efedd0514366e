"""The evaluation of a policy that was made elsewhere, with results like those of a run.

Its directory has the files of a run that results are read from, and no weights:

config.json       the task and the images; the method is `policy:NAME`
run.json          where the policy comes from, and what its episodes belong to (a checksum)
eval/             the results, as `softaug eval` writes them for a run
final_eval.json   marks that there are results

So `report` and `reproduce` show it next to runs. Episodes are those of `softaug eval` on a run with the same seed.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.config import Config, default_directory, parse_test_env, write_config
from softaug.envs.factory import ConfigEnvs
from softaug.envs.modes import split_modes
from softaug.errors import UserError
from softaug.evaluation.evaluate import callers_state_kept
from softaug.evaluation.policy import Policy
from softaug.evaluation.policy_sources import CheckedMaker, PolicySource, check_picklable, fingerprint
from softaug.evaluation.run_evaluation import EvaluationOptions, check_modes, default_modes, play_missing
from softaug.files import read_object, write_atomically
from softaug.methods import FOREIGN
from softaug.storage.run_files import RunFiles
from softaug.tasks import action_repeat as default_action_repeat
from softaug.tasks import frame_stack as default_frame_stack
from softaug.versions import VERSION, versions

CHECKPOINT = "policy"
"""What results say where those of a run name the checkpoint."""


@dataclass(frozen=True)
class PolicySettings:
    """What the policy acts in, and what its results are called. None: as the policy's file says, else softaug's own."""

    task: str | None = None
    """A task of softaug, or module:callable of an environment."""
    name: str | None = None
    """What tables call the policy; by default its file's or function's name."""
    image_size: int | None = None
    frame_stack: int | None = None
    action_repeat: int | None = None
    render: str | None = None
    test_env: str | None = None
    """An environment of the user's own: name=module:callable of further modes, comma-separated."""
    image_key: str = ""
    train_seed: int = 0
    """Policies of one name and different seeds are averaged, as the seeds of a run are."""
    decisions: int | None = None
    """Of training, for tables; 0 or None: unknown."""


@dataclass(frozen=True)
class ForeignPolicy:
    """A policy that was made elsewhere, in the place of a run (`run_evaluation.Tested`)."""

    path: Path
    config: Config
    sha256: str
    make: Callable[[], Policy]
    facts: dict[str, Any]

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def decisions(self) -> int:
        return self.config.decisions

    def policy(self, adapt: bool = False) -> Callable[[], Policy]:
        return self.make


def evaluate_policy(
    source: PolicySource,
    settings: PolicySettings,
    *,
    modes: Sequence[str] | str | None = None,
    episodes: int = 10,
    seed: int = 0,
    workers: int = 1,
    videos: str | None = None,
    colors: str | None = None,
    video: bool = False,
    out: str | Path | None = None,
    keep: bool = True,
    trust: bool = False,
    quiet: bool = False,
) -> tuple[dict[str, Any], Path]:
    """Play `episodes` episodes in each of `modes`; the results (as of `softaug eval`) and the directory they are in.

    out: that directory; by default runs/TASK-NAME-SEED. keep: without it nothing stays on the disk.
    modes: a list, or one text with commas. video: record the first episode of each mode, as for a run.
    trust: import the environment that the policy's file names.
    """
    if isinstance(modes, str):
        modes = split_modes(modes)
    elif modes is not None:
        if not isinstance(modes, Iterable):
            raise UserError(f"modes must be a list of names, not {modes!r:.80}")
        modes = list(modes)
    episodes, workers = whole_number("episodes", episodes, 1), whole_number("workers", workers, 1)
    seed = whole_number("seed", seed, 0)
    config = policy_config(source, settings, modes, trust=trust)
    chosen = default_modes(config) if modes is None else check_modes(modes, config)
    if workers > 1:
        check_picklable(source)
    path = Path(out) if out is not None else default_directory(config)
    tested = identify(source, config, path)
    options = EvaluationOptions(
        path,
        chosen,
        episodes,
        workers,
        seed,
        videos=videos,
        colors=colors,
        checkpoint=CHECKPOINT,
        video=video,
    )
    media = dataclasses.replace(config, videos=videos or "", colors=colors or "")
    shown = dataclasses.replace(tested, config=media)
    if not keep:
        with tempfile.TemporaryDirectory() as folder:
            report, _ = play_missing(
                dataclasses.replace(options, out=Path(folder) / "results.json"),
                shown,
                kept=False,
                quiet=quiet,
            )
        return report, path
    _open_directory(tested)
    report, _ = play_missing(options, shown, quiet=quiet)
    _mark_finished(tested)
    return report, path


def policy_config(
    source: PolicySource,
    settings: PolicySettings,
    modes: Sequence[str] | None = None,
    *,
    trust: bool = False,
) -> Config:
    """The task and the images of an evaluation, as the config of a run that was never trained.

    A file may come from somebody else: an environment that it names is only taken from it with `trust`.
    """
    settings = _checked(settings)
    task = settings.task if settings.task is not None else source.task
    if task is None:
        raise UserError(
            f"{source.title} does not say what it was made for; give its task, for example walker_walk"
        )
    if settings.task is None and ":" in task and not trust:
        raise UserError(
            f"{source.title} names code to import ({task}); if you trust it, give that as the task yourself, or "
            "--trust (in Python: trust=True)"
        )
    size = _agreed("image_size", settings.image_size, source.image_size, source)
    size = Config.image_size if size is None else size
    stack = _agreed("frame_stack", settings.frame_stack, source.frame_stack, source)
    repeat = settings.action_repeat or (source.action_repeat if task == source.task else None) or 0
    if ":" not in task and repeat == default_action_repeat(task):
        repeat = 0  # as a run says it
    fields: dict[str, Any] = {
        "task": task,
        "method": FOREIGN + (source.name if settings.name is None else settings.name),
        "seed": settings.train_seed,
        "decisions": settings.decisions if settings.decisions is not None else source.decisions or 0,
        "image_size": size,
        "crop_size": size,
        "frame_stack": stack or default_frame_stack(task),
        "action_repeat": repeat,
        "render": settings.render if settings.render is not None else source.render or Config.render,
    }
    if ":" in task:
        entries = [entry.strip() for entry in (settings.test_env or "").split(",") if entry.strip()]
        names = dict(map(parse_test_env, entries))
        fields |= {
            "test_env": tuple(entries),
            "image_key": settings.image_key,
            "eval_modes": ("train", *names),
        }
    elif settings.test_env or settings.image_key:
        raise UserError(f"test_env and image_key are for your own environment; leave them out for {task}")
    elif modes is not None:
        fields["eval_modes"] = tuple(check_modes(modes))
    return Config(**fields)


def _checked(settings: PolicySettings) -> PolicySettings:
    """The settings, if each is of its type: Python does not look, and a command's 0 is not "as the file says"."""
    for name in ("task", "name", "render", "test_env", "image_key"):
        if not isinstance(value := getattr(settings, name), str | None):
            raise UserError(f"{name} must be a text, not {value!r:.80}")
    least = {"image_size": 1, "frame_stack": 1, "action_repeat": 1, "train_seed": 0, "decisions": 0}
    given = {name: value for name in least if (value := getattr(settings, name)) is not None}
    numbers: dict[str, Any] = {name: whole_number(name, value, least[name]) for name, value in given.items()}
    return dataclasses.replace(settings, **numbers)


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int, also if it is one of NumPy's."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise UserError(f"{name} must be a whole number, not {value!r:.80}")
    if number < least:
        raise UserError(f"{name} must be at least {least}, not {number}")
    return number


def _agreed(name: str, given: int | None, said: int | None, source: PolicySource) -> int | None:
    if given is not None and said is not None and given != said:
        raise UserError(f"{source.title} takes {name} {said}, not {given}; leave {name} out")
    return given if given is not None else said


def identify(source: PolicySource, config: Config, path: Path) -> ForeignPolicy:
    """The policy in the place of a run; made once here, so that a file that cannot be read shows at once."""
    with callers_state_kept(), closing(ConfigEnvs(config)("train", 0)) as env:
        assert env.action_space.shape is not None and env.observation_space.shape is not None
        make = CheckedMaker(source, env.action_space.shape)
        sha256 = fingerprint(source, make(), env.observation_space.shape)
    return ForeignPolicy(path, config, sha256, make, dict(source.facts))


def _open_directory(tested: ForeignPolicy) -> None:
    """Make the results' directory, or refuse one whose results are of something else."""
    files = RunFiles(tested.path)
    if tested.path.exists() and not tested.path.is_dir():
        raise UserError(f"{tested.path} is a file; give another name or place")
    if files.exist:
        _check_same(tested, files)
    elif tested.path.is_dir() and set(tested.path.iterdir()) - _diagnosis_files(files):
        raise UserError(f"{tested.path} has other files; give the results a directory of their own")
    _check_diagnosis(tested, files)
    facts = {
        "policy": tested.facts,
        "policy_sha256": tested.sha256,
        "softaug": VERSION,
        "versions": versions(),
    }
    try:
        tested.path.mkdir(parents=True, exist_ok=True)
        if not files.finished:
            write_config(tested.config, files.config)
            write_atomically(files.facts, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write to {tested.path} ({error.strerror}); give another place") from None


def _check_same(tested: ForeignPolicy, files: RunFiles) -> None:
    """Results of another policy, or on other images, must not come under one name."""
    remedy = "give another name or place, or delete it"
    found = read_object(files.config, remedy)
    if not str(found.get("method")).startswith(FOREIGN):
        raise UserError(f"{files.path} is the directory of a run; give the results a place of their own")
    if not files.finished:
        return  # no results yet; the journal's episodes have their own keys
    ours = tested.config.to_json()
    names = (
        "task", "method", "seed", "decisions", "image_size", "frame_stack", "action_repeat", "render", "image_key",
    )  # fmt: skip
    for name in names:
        if found.get(name) != ours[name]:
            raise UserError(
                f"{files.path} has results with {name} {found.get(name)!r}, not {ours[name]!r}; {remedy}"
            )
    if read_object(files.facts, remedy).get("policy_sha256") != tested.sha256:
        raise UserError(
            f"{files.path} has results of another policy of that name (its file or code has changed); {remedy}"
        )


def check_diagnosed(tested: ForeignPolicy, directory: Path) -> None:
    """Refuse a directory for the diagnosis that has results of another policy, or is that of a run."""
    files = RunFiles(directory)
    if files.exist:
        _check_same(tested, files)


def _diagnosis_files(files: RunFiles) -> set[Path]:
    """What `softaug diagnose` writes, which may come before the results."""
    return {files.diagnosis, files.diagnosis.with_suffix(".png")}


def _check_diagnosis(tested: ForeignPolicy, files: RunFiles) -> None:
    """Results must not come next to the diagnosis of another policy."""
    if not files.diagnosis.is_file():
        return
    remedy = "give another name or place, or delete that file"
    found = read_object(files.diagnosis, remedy)
    checkpoint = found.get("checkpoint")
    diagnosed = checkpoint.get("weights_sha256") if isinstance(checkpoint, dict) else None
    if found.get("task") != tested.config.task or diagnosed != tested.sha256:
        raise UserError(f"{files.diagnosis} is of another policy or task; {remedy}")


def _mark_finished(tested: ForeignPolicy) -> None:
    """What a reader of runs expects. The numbers themselves are in eval/."""
    decisions = tested.config.decisions
    frames = decisions * tested.config.frames_per_decision
    marker = {"decisions": decisions, "frames": frames, "modes": {}, "adapted": {}}
    write_atomically(RunFiles(tested.path).final_eval, json.dumps(marker, indent=1) + "\n")
