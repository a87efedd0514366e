"""A picture of the same states in every look, and of what in them moves the policy's action.

Attention is the gradient's size: how much the actions change with each pixel, sum over action dimensions of |d a / d
pixel|, largest over the channels of the stack, blurred. Bright where the policy looks.
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
# From nothing to most attention: dark to light, readable in grey too.
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
    blurred = total[:, None]
    for _ in range(2):
        blurred = F.avg_pool2d(blurred, BLUR, stride=1, padding=BLUR // 2, count_include_pad=False)
    return blurred[:, 0].numpy()


def draw_pairs(
    policy: MeanPolicy,
    clean: np.ndarray,
    looks: Mapping[str, Observations],
    results: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, Mapping[str, float]],
) -> Image.Image:
    """Some states, one below the other: what the network gets in each look, and its attention below that.

    clean: the states in the training look, uint8 (n, 3k, H, W). results, base: what `measures` made of them.
    """
    chosen = [int(index) for index in np.linspace(0, len(clean) - 1, min(PAIRS, len(clean)))]
    columns = {"train": clean[chosen], **{mode: look.obs[chosen] for mode, look in looks.items()}}
    maps = {name: attention(policy, obs) for name, obs in columns.items()}
    width = 2 * MARGIN + LABEL_WIDTH + len(columns) * (TILE + GAP)
    block = 2 * (TILE + GAP) + BLOCK_GAP
    page = Image.new("RGB", (width, 2 * MARGIN + TITLE_HEIGHT + len(chosen) * block + 4), PAPER)
    pen = ImageDraw.Draw(page)
    font, small = ImageFont.load_default(15), ImageFont.load_default(12)
    for column, (name, obs) in enumerate(columns.items()):
        left = MARGIN + LABEL_WIDTH + column * (TILE + GAP)
        lines = _title(name if column else "training look", results[name] if column else None, base)
        for line, text in enumerate(lines):
            place = (left + TILE / 2, MARGIN + (8, 26, 42)[line])
            pen.text(place, text, FAINT if line else INK, small if line else font, anchor="mm")
        for row in range(len(chosen)):
            top = MARGIN + TITLE_HEIGHT + row * block
            frame = _crop(newest_frame(obs[row]), policy.crop_size)
            heat = _heat(frame, _crop(maps[name][row], policy.crop_size))
            for offset, picture in ((0, frame), (TILE + GAP, heat)):
                tile = Image.fromarray(picture).resize((TILE, TILE), Image.Resampling.BILINEAR)
                page.paste(tile, (left, top + offset))
            if column == 0:
                for offset, label in ((0, "seen"), (TILE + GAP, "attention")):
                    beside = (left - 10, top + offset + TILE / 2)
                    pen.text(beside, label, FAINT, small, anchor="rm")
    caption = "attention: how much a pixel moves the action, each picture on its own scale"
    pen.text((MARGIN, page.height - MARGIN), caption, FAINT, small, anchor="ls")
    return page


def _title(
    name: str, result: Mapping[str, Any] | None, base: Mapping[str, Mapping[str, float]]
) -> tuple[str, str, str]:
    if result is None:
        cosine, distance = base["cosine_features"]["mean"], base["action_distance"]["mean"]
        return name, "(other states:", f"cos f {cosine:.2f}, action {distance:.2f})"
    cosine, distance = result["cosine_features"]["mean"], result["action_distance"]["mean"]
    return name, f"cos f {cosine:.2f}", f"action moves {distance:.2f}"


def _crop(picture: np.ndarray, size: int) -> np.ndarray:
    """The central window of (H, W, ...)."""
    top, left = ((length - size) // 2 for length in picture.shape[:2])
    return np.ascontiguousarray(picture[top : top + size, left : left + size])


def _heat(frame: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` (H, W) as colours over the faint grey picture."""
    scale = float(np.quantile(values, 0.995))
    share = np.clip(values / scale, 0, 1) if scale > 0 else np.zeros_like(values)
    steps = share * (len(HEAT) - 1)
    lower = np.minimum(steps.astype(int), len(HEAT) - 2)
    weight = (steps - lower)[..., None]
    colours = HEAT[lower] * (1 - weight) + HEAT[lower + 1] * weight
    grey = frame.mean(-1, keepdims=True)
    return (0.8 * colours + 0.2 * grey).round().astype(np.uint8)
