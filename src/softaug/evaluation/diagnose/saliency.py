"""What a critic looks at, as a video: SGQN's mask, guided and plain gradients, for one run or two next to each other.

    notes = film_saliency([load_run("runs/sac"), load_run("runs/soda")], "video_hard", "out")

The first run's policy acts. Every run sees the same physics in its own environment (its image size and stack), and its own
critic is asked for the value of the action taken. A checkpoint without a critic (`best`, a policy file) shows what moves
the actor's action instead, and says so.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from softaug.envs.factory import ConfigEnvs
from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.evaluation.diagnose.figure import FAINT, GAP, INK, MARGIN, PAPER, blur, central, heat_map
from softaug.evaluation.evaluate import EnvFactory, Task
from softaug.evaluation.policy import MeanPolicy
from softaug.evaluation.recording import Recorder
from softaug.evaluation.runs import Run, training_weights
from softaug.files import write_atomically
from softaug.learning.augment import center_crop
from softaug.learning.networks import Critic
from softaug.learning.saliency import action_gradient, q_gradient, saliency, saliency_mask

TILE, TITLE, LABEL = 192, 22, 22
COLUMNS = ("seen", "mask", "guided gradient", "gradient")
SMOOTH = 5
"""Pixels of blur: enough to hide the grid of the encoder's strides."""
SHOWN = 4
"""Moments in the image."""


@dataclass(frozen=True)
class Maps:
    """One observation and what matters in it, each (h, w): the newest frame of the stack, center crop."""

    frame: np.ndarray
    """uint8 (h, w, 3)"""
    mask: np.ndarray
    """bool: SGQN's mask"""
    guided: np.ndarray
    plain: np.ndarray
    value: float | None
    """Q1 of the action taken; None without a critic"""


@dataclass(frozen=True)
class Network:
    """A run's networks, and whether gradients are those of its critic or, without one, of its actor."""

    run: Run
    policy: MeanPolicy
    critic: Critic | None

    @property
    def label(self) -> str:
        after = "" if self.run.decisions is None else f" after {self.run.decisions:,} decisions"
        what = "critic" if self.critic is not None else "actor: the checkpoint has no critic"
        return f"{self.run.config.row.label}{after} ({what})"

    def maps(self, obs: np.ndarray, action: np.ndarray) -> Maps:
        """What matters in obs, uint8 (3k, H, W), for the value of the action or, without a critic, for the action."""
        view = center_crop(torch.from_numpy(obs)[None], self.policy.crop_size)
        actions = torch.as_tensor(action, dtype=torch.float32)[None]
        encoder, value = self.policy.encoder, None
        if self.critic is None:
            guided, plain = (
                action_gradient(encoder, self.policy.actor, view, guided=g) for g in (True, False)
            )
        else:
            guided, plain = (q_gradient(encoder, self.critic, view, actions, guided=g) for g in (True, False))
            with torch.no_grad():
                value = float(self.critic(encoder(view), actions)[0])
        mask = saliency_mask(guided, self.run.config.sgqn_quantile)[0, -1]
        smooth = [blur(saliency(gradient)[:, -1], SMOOTH)[0].numpy() for gradient in (guided, plain)]
        frame = central(newest_frame(obs), self.policy.crop_size)
        return Maps(frame, mask.numpy(), smooth[0], smooth[1], value)


def load_network(run: Run) -> Network:
    """The run's policy, not adapted, and the critic of its checkpoint if that has one."""
    policy = run.policy()()
    assert isinstance(policy, MeanPolicy)
    return Network(run, policy, load_critic(run))


def load_critic(run: Run) -> Critic | None:
    """The critic of the run's checkpoint; None where only the policy was kept (`best`, a published policy)."""
    weights = training_weights(run, "/agent/sac/critic.")
    if not weights:
        return None
    projection_dim, feature_dim = weights["projection.linear.weight"].shape
    hidden_dim, inputs = weights["q1.0.weight"].shape
    critic = Critic(
        feature_dim, projection_dim, hidden_dim, inputs - projection_dim, norm=run.config.critic_norm
    )
    critic.load_state_dict(weights)
    return critic.eval()


def film_saliency(
    runs: Sequence[Run],
    mode: str,
    out: str | Path,
    *,
    decisions: int = 100,
    seed: int = 0,
    fps: float = 15.0,
    env_factories: Sequence[EnvFactory] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[str]:
    """Write ``saliency_MODE.mp4`` and ``.png`` of `decisions` decisions of an episode to the directory `out`.

    runs: one or two (or more), of the same task. env_factories: (mode, seed) -> environment, one per run; by default each
    run's own. Returns sentences about what is not as one may expect.
    """
    check_comparable(runs)
    if decisions < 1:
        raise UserError(f"a video needs at least one decision, not {decisions}")
    networks = [load_network(run) for run in runs]
    factories = env_factories or [ConfigEnvs(run.config) for run in runs]
    env_seed, _ = Task(mode, 0).seeds(seed)
    shown = {int(i) for i in np.linspace(0, decisions - 1, SHOWN)}
    pages: list[Image.Image] = []
    path = Path(out) / f"{file_stem(mode)}.mp4"
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(factory(mode, env_seed))) for factory in factories]
        recorder = stack.enter_context(Recorder(path, fps=fps, min_size=1))
        seen = [env.reset(seed=env_seed, options={"episode": 0})[0] for env in envs]
        for decision in range(decisions):
            action = networks[0].policy.act(seen[0])
            page = draw_row(
                networks, [n.maps(obs, action) for n, obs in zip(networks, seen, strict=True)], mode
            )
            recorder.add(np.asarray(page))
            if decision in shown:
                pages.append(page)
            steps = [env.step(action) for env in envs]
            seen = [step[0] for step in steps]
            progress()
            if any(step[2] or step[3] for step in steps):
                break
    content = io.BytesIO()
    _below_each_other(pages).save(content, "png", optimize=True)
    write_atomically(path.with_suffix(".png"), content.getvalue())
    return [
        f"{network.run.path}: the checkpoint {network.run.checkpoint.name} keeps the policy only, so its rows show what "
        "moves the actor's action; give a numbered checkpoint of a run for its critic"
        for network in networks
        if network.critic is None
    ]


def file_stem(mode: str) -> str:
    """The name of a mode's video and image, without the ending."""
    return "saliency_" + re.sub(r"[^\w.-]+", "_", mode).strip("_")


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot see the same states."""
    first = runs[0].config
    for run in runs[1:]:
        task, repeat = run.config.task, run.config.frames_per_decision
        if task != first.task or repeat != first.frames_per_decision:
            raise UserError(
                f"{run.path} is a run of {task} with action repeat {repeat}, {runs[0].path} one of {first.task} with "
                f"{first.frames_per_decision}; give runs that can see the same states"
            )


def draw_row(networks: Sequence[Network], maps: Sequence[Maps], mode: str) -> Image.Image:
    """One moment: a row for each network, a column for each kind of map."""
    width = 2 * MARGIN + len(COLUMNS) * TILE + (len(COLUMNS) - 1) * GAP
    page = Image.new("RGB", (width, 2 * MARGIN + TITLE + len(maps) * (LABEL + TILE + GAP)), PAPER)
    pen = ImageDraw.Draw(page)
    font, small = ImageFont.load_default(14), ImageFont.load_default(12)
    for column, name in enumerate(COLUMNS):
        place = (MARGIN + column * (TILE + GAP) + TILE / 2, MARGIN + TITLE / 2)
        pen.text(place, f"{name} in {mode}" if column == 0 else name, FAINT, small, anchor="mm")
    for row, (network, one) in enumerate(zip(networks, maps, strict=True)):
        top = MARGIN + TITLE + row * (LABEL + TILE + GAP)
        value = "" if one.value is None else f", Q = {one.value:.1f}"
        pen.text((MARGIN, top + LABEL / 2), network.label + value, INK, font, anchor="lm")
        dimmed = np.where(one.mask[..., None], one.frame, one.frame // 5)
        tiles = (one.frame, dimmed, heat_map(one.frame, one.guided), heat_map(one.frame, one.plain))
        for column, pixels in enumerate(tiles):
            tile = Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
            page.paste(tile, (MARGIN + column * (TILE + GAP), top + LABEL))
    return page


def _below_each_other(pages: Sequence[Image.Image]) -> Image.Image:
    sheet = Image.new("RGB", (pages[0].width, sum(page.height for page in pages)), PAPER)
    top = 0
    for page in pages:
        sheet.paste(page, (0, top))
        top += page.height
    return sheet
