"""A batch and its views written as plainly as possible: one loop over samples, the draws of the fast version.

`plain` has the learner's step on them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from softaug.learning.augment import (
    Augment,
    Composed,
    MovingOverlay,
    OneOf,
    RandomConv,
    RandomCrop,
    RandomOverlay,
    RandomRotate,
    RandomShift,
    draw_integers,
    draw_seed,
)
from softaug.learning.replay import Batch, Replay


def stacks(replay: Replay, slots: np.ndarray) -> Tensor:
    """Observations, float (B, 3k, H, W), sample by sample and frame by frame."""
    observations = []
    for slot in slots:
        first = replay.starts[slot % replay.slots]
        wanted = [max(slot - age, first) for age in reversed(range(replay.frame_stack))]
        frames = [replay.frames[number % replay.slots].transpose(2, 0, 1) for number in wanted]
        observations.append(np.concatenate(frames))
    return torch.from_numpy(np.stack(observations)).float()


def sample(replay: Replay, batch_size: int, rng: np.random.Generator, n_step: int = 1) -> Batch:
    """The same transitions as `replay.sample` would give with this `rng`."""
    slots = replay._draw(batch_size, rng, replay._has_transition)
    rewards, discounts, next_slots = [], [], []
    for slot in slots:
        reward, discount = 0.0, 1.0
        for _ in range(n_step):
            here = slot % replay.slots
            if replay.last[here] or discount == 0:
                break
            reward += discount * float(replay.rewards[here])
            discount *= 0.0 if replay.terminated[here] else replay.discount
            slot += 1
        rewards.append(reward)
        discounts.append(discount)
        next_slots.append(slot)
    return Batch(
        obs=stacks(replay, slots),
        action=torch.from_numpy(np.stack([replay.actions[slot % replay.slots] for slot in slots])),
        reward=torch.tensor(rewards)[:, None],
        discount=torch.tensor(discounts)[:, None],
        next_obs=stacks(replay, np.array(next_slots)),
    )


def sample_observations(replay: Replay, batch_size: int, rng: np.random.Generator) -> Tensor:
    return stacks(replay, replay._draw(batch_size, rng, replay._has_stack))


def crop(obs: Tensor, size: int, generator: torch.Generator) -> Tensor:
    top = draw_integers(obs.shape[2] - size + 1, len(obs), generator)
    left = draw_integers(obs.shape[3] - size + 1, len(obs), generator)
    return torch.stack([o[:, y : y + size, x : x + size] for o, y, x in zip(obs, top, left, strict=True)])


def shift(obs: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    return crop(F.pad(obs, (pad, pad, pad, pad), mode="replicate"), obs.shape[2], generator)


def random_conv(obs: Tensor, generator: torch.Generator) -> Tensor:
    batch, channels, height, width = obs.shape
    weights = torch.randn(batch, 3, 3, 3, 3, generator=generator, device=generator.device)
    views = []
    for o, weight in zip(obs, weights, strict=True):
        frames = o.view(channels // 3, 3, height, width) / 255
        padded = F.pad(frames, (1, 1, 1, 1), mode="replicate")
        views.append(torch.sigmoid(F.conv2d(padded, weight)).view(channels, height, width) * 255)
    return torch.stack(views)


def overlay(obs: Tensor, augment: RandomOverlay, generator: torch.Generator) -> Tensor:
    batch, channels, height, width = obs.shape
    images = augment.images.sample(batch, height, width, np.random.default_rng(draw_seed(generator)))
    epsilon = torch.from_numpy(images).permute(0, 3, 1, 2).to(obs).repeat(1, channels // 3, 1, 1)
    return (1 - augment.alpha) * obs + augment.alpha * epsilon


def moving_overlay(obs: Tensor, augment: MovingOverlay, generator: torch.Generator) -> Tensor:
    batch, channels, height, width = obs.shape
    frames = channels // 3
    step, margin = augment.largest_step(height), augment.margin(height, frames)
    rng = np.random.default_rng(draw_seed(generator))
    images = augment.images.sample(batch, height + 2 * margin, width + 2 * margin, rng)
    down, right = (draw_integers(2 * step + 1, batch, generator) - step for _ in range(2))
    views = obs.clone()
    for i, image in enumerate(images):
        for frame in range(frames):
            top, left = margin + frame * int(down[i]), margin + frame * int(right[i])
            seen = torch.from_numpy(image[top : top + height, left : left + width]).permute(2, 0, 1).to(obs)
            rgb = slice(3 * frame, 3 * frame + 3)
            views[i, rgb] = (1 - augment.alpha) * obs[i, rgb] + augment.alpha * seen
    return views


def rotate(obs: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    """Pad by edge pixels, turn about the center, crop back: pixel by pixel from the four around where it comes from."""
    angle = math.radians(
        float((2 * torch.rand(1, generator=generator, device=generator.device) - 1) * degrees)
    )
    height, width = obs.shape[2:]
    pad = max(height, width)  # so large that nothing lies beyond
    padded = F.pad(obs, (pad, pad, pad, pad), mode="replicate")
    views = torch.empty_like(obs)
    for row in range(height):
        for column in range(width):
            down, right = row - (height - 1) / 2, column - (width - 1) / 2
            y = pad + (height - 1) / 2 + math.sin(angle) * right + math.cos(angle) * down
            x = pad + (width - 1) / 2 + math.cos(angle) * right - math.sin(angle) * down
            top, left = math.floor(y), math.floor(x)
            views[:, :, row, column] = sum(
                abs(1 - i - (y - top)) * abs(1 - j - (x - left)) * padded[:, :, top + i, left + j]
                for i in (0, 1)
                for j in (0, 1)
            )
    return views


def one_of(obs: Tensor, augment: OneOf, generator: torch.Generator) -> Tensor:
    chosen = np.random.default_rng(draw_seed(generator)).integers(len(augment.choices), size=len(obs))
    views = obs.clone()
    for number, choice in enumerate(augment.choices):
        if (chosen == number).any():
            views[chosen == number] = augmented(choice, obs[chosen == number], generator)
    return views


def augmented(augment: Augment, obs: Tensor, generator: torch.Generator) -> Tensor:
    """What `augment` makes of obs, plainly."""
    if isinstance(augment, Composed):
        for step in augment.steps:
            obs = augmented(step, obs, generator)
        return obs
    if isinstance(augment, OneOf):
        return one_of(obs, augment, generator)
    if isinstance(augment, RandomCrop):
        return crop(obs, augment.size, generator)
    if isinstance(augment, RandomShift):
        return shift(obs, augment.pad, generator)
    if isinstance(augment, RandomConv):
        return random_conv(obs, generator)
    if isinstance(augment, RandomRotate):
        return rotate(obs, augment.degrees, generator)
    if isinstance(augment, MovingOverlay):
        return moving_overlay(obs, augment, generator)
    assert isinstance(augment, RandomOverlay)
    return overlay(obs, augment, generator)
