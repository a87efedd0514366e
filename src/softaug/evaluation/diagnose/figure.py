"""An image of the same states in every appearance, and of what in them moves the policy's action.

Attention is the gradient's size: how much the actions change with each pixel, sum over action dimensions of |d a / d
pixel|, largest over the channels of the stack, blurred. Bright where the policy attends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

from softaug.envs.observations import newest_frame
from softaug.evaluation.policy import MeanPolicy

PAIRS = 3
TILE, GAP, MARGIN = 132, 6, 18
LABEL_WIDTH, TITLE_HEIGHT, BLOCK_GAP = 78, 58, 14
INK, FAINT, PAPER = (30, 33, 38), (110, 115, 122), (255, 255, 255)
BLUR = 9
"""Pixels, twice: more than the product of the small encoder's strides, whose grid would show otherwise."""
# From nothing to most attention: dark to light, readable in gray too.
HEAT = np.array([(12, 10, 32), (84, 18, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], np.float64)


class Observations(Protocol):
    """Anything with observations, uint8 (n, 3k, H, W)."""

    @property
    def obs(self) -> np.ndarray: ...


def attention(policy: MeanPolicy, obs: np.ndarray) -> np.ndarray:
    """How much each pixel of obs, uint8 (n, 3k, H, W), moves the actions: float (n, H, W), 0 outside the crop."""
    pixels = torch.from_numpy(obs).to(torch.float32).requires_grad_(True)
    actions = policy(pixels)
    total = torch.zeros(obs.shape[0], *obs.shape[2:])
    for dimension in range(actions.shape[1]):
        (gradient,) = torch.autograd.grad(actions[:, dimension].sum(), pixels, retain_graph=True)
        total += gradient.abs().amax(1)
    return blur(total).numpy()


def blur(maps: torch.Tensor, size: int = BLUR) -> torch.Tensor:
    """(n, H, W) -> the same: means over `size` pixels, an odd number, twice."""
    blurred = maps[:, None]
    for _ in range(2):
        blurred = F.avg_pool2d(blurred, size, stride=1, padding=size // 2, count_include_pad=False)
    return blurred[:, 0]


def draw_pairs(
    policy: MeanPolicy | None,
    clean: np.ndarray,
    rendered: Mapping[str, Observations],
    results: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, Mapping[str, float]],
) -> Image.Image:
    """Some states, one below the other: what the network gets in each appearance, and its attention below that.

    policy: None draws no attention. clean: the states in the training appearance, uint8 (n, 3k, H, W). results, base: what `measures` made of them.
    """
    chosen = [int(index) for index in np.linspace(0, len(clean) - 1, min(PAIRS, len(clean)))]
    columns = {"train": clean[chosen], **{mode: states.obs[chosen] for mode, states in rendered.items()}}
    maps = {name: attention(policy, obs) for name, obs in columns.items()} if policy is not None else {}
    crop_size = clean.shape[-1] if policy is None else policy.crop_size
    labels = ((0, "seen"), (TILE + GAP, "attention"))[: 1 if policy is None else 2]
    width = 2 * MARGIN + LABEL_WIDTH + len(columns) * (TILE + GAP)
    block = len(labels) * (TILE + GAP) + BLOCK_GAP
    page = Image.new("RGB", (width, 2 * MARGIN + TITLE_HEIGHT + len(chosen) * block + 4), PAPER)
    pen = ImageDraw.Draw(page)
    font, small = ImageFont.load_default(15), ImageFont.load_default(12)
    for column, (name, obs) in enumerate(columns.items()):
        left = MARGIN + LABEL_WIDTH + column * (TILE + GAP)
        lines = _title(name if column else "training", results[name] if column else None, base)
        for line, text in enumerate(lines):
            place = (left + TILE / 2, MARGIN + (8, 26, 42)[line])
            pen.text(place, text, FAINT if line else INK, small if line else font, anchor="mm")
        for row in range(len(chosen)):
            top = MARGIN + TITLE_HEIGHT + row * block
            shown = [central(newest_frame(obs[row]), crop_size)]
            if name in maps:
                shown.append(heat_map(shown[0], central(maps[name][row], crop_size)))
            for (offset, _), image in zip(labels, shown, strict=True):
                tile = Image.fromarray(image).resize((TILE, TILE), Image.Resampling.BILINEAR)
                page.paste(tile, (left, top + offset))
            if column == 0:
                for offset, label in labels:
                    left_of = (left - 10, top + offset + TILE / 2)
                    pen.text(left_of, label, FAINT, small, anchor="rm")
    if maps:
        caption = "attention: how much a pixel moves the action, each image on its own scale"
        pen.text((MARGIN, page.height - MARGIN), caption, FAINT, small, anchor="ls")
    return page


def _title(
    name: str, result: Mapping[str, Any] | None, base: Mapping[str, Mapping[str, float]]
) -> tuple[str, str, str]:
    if "cosine_features" not in base:
        distance = (base if result is None else result)["action_distance"]["mean"]
        return (
            name,
            "(other states:" if result is None else "",
            f"action moves {distance:.2f}" + ")" * (result is None),
        )
    if result is None:
        cosine, distance = base["cosine_features"]["mean"], base["action_distance"]["mean"]
        return name, "(other states:", f"cos f {cosine:.2f}, action {distance:.2f})"
    cosine, distance = result["cosine_features"]["mean"], result["action_distance"]["mean"]
    return name, f"cos f {cosine:.2f}", f"action moves {distance:.2f}"


def central(image: np.ndarray, size: int) -> np.ndarray:
    """The central window of (H, W, ...)."""
    top, left = ((length - size) // 2 for length in image.shape[:2])
    return np.ascontiguousarray(image[top : top + size, left : left + size])


def heat_map(frame: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` (H, W) as colors over the faint gray image."""
    scale = float(np.quantile(values, 0.995))
    share = np.clip(values / scale, 0, 1) if scale > 0 else np.zeros_like(values)
    steps = share * (len(HEAT) - 1)
    lower = np.minimum(steps.astype(int), len(HEAT) - 2)
    weight = (steps - lower)[..., None]
    colors = HEAT[lower] * (1 - weight) + HEAT[lower + 1] * weight
    gray = frame.mean(-1, keepdims=True)
    return (0.8 * colors + 0.2 * gray).round().astype(np.uint8)
