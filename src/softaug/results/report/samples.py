"""What the agents see: one state of a task in every mode, and the views its methods make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softaug.config import Config
from softaug.envs.modes import ordered_modes
from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.results.groups import Group

MAX_TASKS = 6
"""Rendering a task in five modes takes seconds; more tasks than this are named, not shown."""

DRAWS = 5
STEPS = 2
"""Random decisions before the image: the stack then holds three different frames."""


@dataclass(frozen=True)
class ModeImage:
    """One image, uint8 (H, W, 3)."""

    name: str
    detail: str
    image: np.ndarray


@dataclass(frozen=True)
class Views:
    """Draws of what the networks are given: uint8 (H, W, 3) each."""

    name: str
    detail: str
    images: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Sample:
    """A task's images; `problem` says why there are none, or not all."""

    task: str
    images: tuple[ModeImage, ...] = ()
    views: tuple[Views, ...] = ()
    problem: str = ""


@dataclass
class Samples:
    """Makes samples and keeps them, so that a page that is written again and again renders once."""

    _kept: dict[tuple, Sample] = field(default_factory=dict)

    def of(self, groups: Sequence[Group]) -> tuple[list[Sample], list[str]]:
        """One sample a task, and the tasks left out."""
        by_task: dict[str, list[Config]] = {}
        for group in groups:
            by_task.setdefault(group.task, []).append(group.config)
        shown = list(by_task)[:MAX_TASKS]
        samples = []
        for task in shown:
            key = tuple(by_task[task])
            if key not in self._kept:
                self._kept[key] = _sample(by_task[task])
            samples.append(self._kept[key])
        return samples, list(by_task)[MAX_TASKS:]


def _sample(configs: Sequence[Config]) -> Sample:
    first = configs[0]
    if first.own_env:  # that would import code which a run names; a page about runs needs none
        return Sample(first.task, problem="Your own environment is not rendered here; see softaug play.")
    wanted = {mode for config in configs for mode in ("train", config.row.train_mode, *config.eval_modes)}
    modes = ordered_modes(wanted)
    images: list[ModeImage] = []
    views: list[Views] = []
    problems: list[str] = []
    clean = None
    for mode in modes:
        try:
            obs, info = _observation(first, mode)
        except UserError as error:
            problems.append(f"{mode} could not be rendered here: {error}")
        except Exception as error:  # an environment or GL driver may fail in any way; the page says so
            problems.append(f"{mode} could not be rendered here ({type(error).__name__}: {error}).")
        else:
            clean = obs if mode == "train" else clean
            images.append(ModeImage(mode, str(info.get("media") or ""), newest_frame(obs)))
    if clean is not None:
        # A view is made of the one observation that was rendered: only for those who would have rendered it so.
        trained = [config for config in configs if not config.row.foreign]  # nothing else has views
        fitting = [config for config in trained if _shape(config) == _shape(first)]
        if left_out := [config for config in trained if _shape(config) != _shape(first)]:
            problems.append(_other_shapes(first, left_out))
        try:
            views = _views(fitting, clean)
        except UserError as error:  # overlay images that are not on this machine
            problems.append(f"The augmented views could not be made here: {error}")
    return Sample(first.task, tuple(images), tuple(views), " ".join(problems))


def _shape(config: Config) -> tuple[int, int]:
    return config.image_size, config.frame_stack


def _other_shapes(first: Config, left_out: Sequence[Config]) -> str:
    """The sentence on methods whose views are not shown."""

    def said(config: Config) -> str:
        size, frames = _shape(config)
        return f"{size} × {size} pixels and {frames} frame{'s' if frames > 1 else ''}"

    names = dict.fromkeys(
        f"{config.row.title} (preset {config.preset}, {said(config)})" for config in left_out
    )
    return f"Rendered with {said(first)}; not shown are the views of runs that render otherwise: {', '.join(names)}."


def _observation(config: Config, mode: str) -> tuple[np.ndarray, dict[str, Any]]:
    """An observation (3k, H, W) of the same physics state in every mode."""
    from softaug.envs.factory import ConfigEnvs

    env = ConfigEnvs(config)(mode, 0)
    try:
        obs, info = env.reset(seed=0, options={"episode": 0})
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            obs, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape or ()).astype(np.float32))
    finally:
        env.close()
    return obs, info


def _views(configs: Sequence[Config], obs: np.ndarray) -> list[Views]:
    """Each kind of view once: weak (what RL gets), then weak and strong."""
    import torch

    from softaug.learning.augment import Augment
    from softaug.learning.views import make_view
    from softaug.media import image_source

    stack = torch.from_numpy(np.stack([obs] * DRAWS)).contiguous(memory_format=torch.channels_last)
    made: dict[tuple, Views] = {}
    for config in configs:
        row = config.row
        source = image_source(config.images or None) if row.uses_images else None
        weak = make_view(row.weak, config, source)
        weak_name = f"random {row.weak} to {config.crop_size}" if row.crops else f"random {row.weak}"
        steps: list[tuple[tuple, str, str, list[Augment]]] = [
            ((row.weak, config.crop_size), weak_name, "", [weak])
        ]
        if row.strong is not None:
            strong = make_view(row.strong, config, source)
            mixed = (config.images, config.overlay_alpha) if source is not None else ()
            detail = f"{source.kind} images" if source is not None else ""
            name = f"{row.weak} + random {row.strong}"
            steps.append(((row.weak, row.strong, *mixed), name, detail, [weak, strong]))
        for key, name, detail, augments in steps:
            if key in made:
                continue
            generator = torch.Generator().manual_seed(0)
            view = stack
            for augment in augments:
                view = augment(view, generator)
            pixels = view.round().to(torch.uint8).numpy()
            made[key] = Views(name, detail, tuple(newest_frame(pixels[i]) for i in range(DRAWS)))
    return list(made.values())
