"""Invariance, SODA's own claim, measured: how far features and actions move when only the appearance of a state changes.

    diagnosis = diagnose("runs/walker", modes=["color_hard", "video_hard"])
    diagnosis.modes["video_hard"]["cosine_features"]["mean"]
    diagnosis.save("runs/walker")            # diagnosis.json and diagnosis.png

The same physics states are rendered in the training appearance and in every mode (`paired_states.py`), go through the encoder and
the actor, and are compared (`measures.py`); `figure.py` draws some of the pairs and what the policy attends to.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from softaug.config import Config
from softaug.envs.factory import ConfigEnvs, media_facts, modes_of
from softaug.errors import UserError
from softaug.evaluation.diagnose.figure import draw_pairs
from softaug.evaluation.diagnose.measures import COLLAPSED, Encoded, act_on_each, baseline, compare, encode
from softaug.evaluation.diagnose.paired_states import RenderedStates, collect_states, render_states
from softaug.evaluation.evaluate import EnvFactory
from softaug.evaluation.policy import MeanPolicy
from softaug.evaluation.policy_evaluation import ForeignPolicy
from softaug.evaluation.runs import Run, load_run, training_weights
from softaug.files import write_atomically
from softaug.learning.auxiliary.soda import make_head
from softaug.media.comparability import media_note
from softaug.trust import require_trust
from softaug.versions import VERSION

DEFAULT_MODES = ("color_easy", "color_hard", "video_easy", "video_hard")
JSON_FILE, IMAGE_FILE = "diagnosis.json", "diagnosis.png"
MOST_STATES = 2_000

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is)"""


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` measured. `modes` and `baseline` are JSON (see docs/diagnose.md)."""

    run: str
    task: str
    method: str
    checkpoint: dict[str, Any]
    states: int
    seed: int
    modes: dict[str, dict[str, Any]]
    baseline: dict[str, dict[str, float]]
    notes: tuple[str, ...]
    image: Image.Image

    def to_json(self) -> dict[str, Any]:
        return {
            "softaug": VERSION,
            "run": self.run,
            "task": self.task,
            "method": self.method,
            "checkpoint": self.checkpoint,
            "states": self.states,
            "seed": self.seed,
            "modes": self.modes,
            "baseline": self.baseline,
            "notes": list(self.notes),
            "image": IMAGE_FILE,
        }

    def save(self, directory: str | Path) -> None:
        """Write diagnosis.png and diagnosis.json to `directory`, each atomically."""
        directory = Path(directory)
        content = io.BytesIO()
        self.image.save(content, "png", optimize=True)
        try:
            write_atomically(directory / IMAGE_FILE, content.getvalue())
            write_atomically(directory / JSON_FILE, json.dumps(self.to_json(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write to {directory} ({error.strerror}); give another place") from None


def diagnose(
    run: str | Path | Run | ForeignPolicy,
    *,
    checkpoint: str = "last",
    modes: Sequence[str] | None = None,
    states: int = 64,
    seed: int = 0,
    env_factory: EnvFactory | None = None,
    trust: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Diagnosis:
    """Compare a run's network on the same physics states in the training appearance and in each of `modes`.

    run: its directory (with `checkpoint`: `last`, `best` or a number of decisions) or what `load_run` gave; or a policy that
        was made elsewhere (`policy_evaluation.identify`), of which only the actions are compared.
    modes: by default the benchmark's four test modes, or all of the user's own environment.
    states: how many; the policy visits them in the mode `train`, in episodes of `seed`.
    env_factory: (mode, seed) -> environment; by default the run's own.
    trust: import the environment that the run names, although it was not trained here by you (see `softaug.trust`).
    """
    if isinstance(run, str | Path):
        run = load_run(run, checkpoint)
    if not 2 <= states <= MOST_STATES:
        raise UserError(f"states must be a number from 2 to {MOST_STATES}, not {states}")
    if modes is None:
        own = [mode for mode in modes_of(run.config) if mode != "train"]
        modes = own if run.config.own_env else DEFAULT_MODES
    if not modes or len(set(modes)) < len(modes):
        raise UserError(f"give at least one mode, and each mode once, not {list(modes)}")
    if env_factory is None:
        if isinstance(run, Run):
            require_trust(run.path, run.config, trust=trust)
        env_factory = ConfigEnvs(run.config)
    policy = run.policy()()
    network = (
        policy if isinstance(policy, MeanPolicy) else None
    )  # never adapted: what training made of it is measured
    soda = soda_projection(run) if isinstance(run, Run) else None

    def measured(obs: np.ndarray) -> Encoded:
        return act_on_each(policy, obs) if network is None else encode(network, obs, soda)

    with closing(env_factory("train", seed)) as env:
        counter = Counter(progress, "train", states)
        paired = collect_states(env, policy, states, seed, counter.advance)
    clean_obs = np.stack([state.obs for state in paired])
    clean = measured(clean_obs)
    base = baseline(clean)
    rendered: dict[str, RenderedStates] = {}
    results: dict[str, dict[str, Any]] = {}
    for mode in modes:
        with closing(env_factory(mode, seed)) as env:
            counter = Counter(progress, mode, states)
            rendered[mode] = render_states(env, mode, paired, seed, counter.advance)
        results[mode] = {
            **compare(clean, measured(rendered[mode].obs), base),
            "media": rendered[mode].media,
        }
    return Diagnosis(
        run=str(run.path),
        task=run.config.task,
        method=run.config.method,
        checkpoint={
            "name": run.checkpoint.name,
            "decisions": run.decisions,
            "weights_sha256": run.sha256,
        },
        states=states,
        seed=seed,
        modes=results,
        baseline=base,
        notes=tuple(_notes(run, base, rendered)),
        image=draw_pairs(network, clean_obs, rendered, results, base),
    )


def soda_projection(run: Run) -> nn.Module | None:
    """SODA's g of a run's training checkpoint; None for other methods and where only the policy was kept (`best`)."""
    if run.config.row.auxiliary != "soda":
        return None
    mine = training_weights(run, "/agent/auxiliary/g_theta.")
    if mine is None:
        return None
    weight = mine["0.weight"]
    head = make_head(weight.shape[1], weight.shape[0])
    head.load_state_dict(mine)
    return head.eval()  # BatchNorm with the statistics of training: each state by itself


def _notes(
    run: Run | ForeignPolicy, base: dict[str, dict[str, float]], rendered: dict[str, RenderedStates]
) -> list[str]:
    found = []
    if "cosine_features" in base and 1 - base["cosine_features"]["mean"] < COLLAPSED:
        found.append("the encoder does not tell states apart (collapsed): cosines near 1 mean nothing here")
    if base["action_distance"]["mean"] < COLLAPSED:
        found.append("the policy does the same in every state: action distances mean nothing here")
    return found + media_notes(run.config, {mode: states.media for mode, states in rendered.items()})


def media_notes(config: Config, media: Mapping[str, str | None]) -> list[str]:
    """What keeps the numbers of these modes from being compared with the paper's; `media` is what each has shown."""
    found = [
        media_note(mode, kind, media_facts(config, mode) if kind else None) for mode, kind in media.items()
    ]
    return list(dict.fromkeys(note for note in found if note))


class Counter:
    """Reports one stage of the work, step by step, to a `Progress`."""

    def __init__(self, progress: Progress, what: str, total: int):
        self._progress, self._what, self._total, self._done = progress, what, total, 0

    def advance(self) -> None:
        self._done += 1
        self._progress(self._what, self._done, self._total)
