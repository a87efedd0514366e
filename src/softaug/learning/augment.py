"""Augmentations: a tensor of pixels in, a new one out, one draw per sample.

An `Augment` is called with pixels ``(B, 3k, H, W)`` in 0..255 (uint8 or float32) and a generator; all k
frames of a stack get the same draw, and the input is never changed. Tensors are kept in channels_last
memory, the order in which the replay stores frames and in which convolutions are fastest.

Two exceptions, each as in its authors' code: `RandomRotate` draws one angle per call, and `MovingOverlay` moves its
image from frame to frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from softaug.errors import UserError


class Augment(Protocol):
    """Pixels ``(B, 3k, H, W)`` and a generator in, new pixels ``(B, 3k, H', W')`` out."""

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor: ...


class Images(Protocol):
    """Where `Overlay` gets its foreign images from (see `softaug.media`)."""

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray: ...


def window(obs: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int]) -> Tensor:
    """The window of `size` (height, width) of each sample at its own offset; beyond the edge, edge pixels repeat.

    obs: (B, C, H, W); top, left: (B,) integers, negative ones allowed. Returns (B, C, *size).
    """
    batch, channels, height, width = obs.shape
    tall, wide = (size, size) if isinstance(size, int) else size
    if obs.device.type == "cpu" and _inside(top, height - tall) and _inside(left, width - wide):
        return _slices(obs, top, left, tall, wide)
    rows = (top[:, None] + torch.arange(tall, device=obs.device)).clamp_(0, height - 1)
    columns = (left[:, None] + torch.arange(wide, device=obs.device)).clamp_(0, width - 1)
    sample = torch.arange(batch, device=obs.device)
    pixel = (sample[:, None, None] * height + rows[:, :, None]) * width + columns[:, None, :]
    pixels = obs.permute(0, 2, 3, 1).reshape(-1, channels)  # a view of channels_last memory
    return pixels.index_select(0, pixel.flatten()).view(batch, tall, wide, channels).permute(0, 3, 1, 2)


def _inside(offsets: Tensor, largest: int) -> bool:
    return bool((offsets >= 0).all()) and bool((offsets <= largest).all())


def _slices(obs: Tensor, top: Tensor, left: Tensor, tall: int, wide: int) -> Tensor:
    """`window` where nothing lies beyond the edge: whole rows of a window are copied, several times faster on a CPU."""
    batch, channels, height, width = obs.shape
    rows = obs.permute(0, 2, 3, 1).reshape(batch, height, width * channels).numpy()
    out = np.empty((batch, tall, wide * channels), rows.dtype)
    for i, (y, x) in enumerate(zip(top.tolist(), left.tolist(), strict=True)):
        out[i] = rows[i, y : y + tall, x * channels : (x + wide) * channels]
    return torch.from_numpy(out).view(batch, tall, wide, channels).permute(0, 3, 1, 2)


def center_crop(obs: Tensor, size: int) -> Tensor:
    """The central window, used when acting and testing. obs: (..., H, W)."""
    top, left = (obs.shape[-2] - size) // 2, (obs.shape[-1] - size) // 2
    return obs[..., top : top + size, left : left + size]


class RandomCrop:
    """A window of `size` pixels at one of all valid offsets, uniformly (17 each way for 100 -> 84)."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        choices_y, choices_x = obs.shape[2] - self.size + 1, obs.shape[3] - self.size + 1
        if min(choices_y, choices_x) < 1:
            raise UserError(
                f"images of {obs.shape[2]} x {obs.shape[3]} pixels are too small for a crop of {self.size}; use larger ones"
            )
        return window(
            obs,
            draw_integers(choices_y, len(obs), generator),
            draw_integers(choices_x, len(obs), generator),
            self.size,
        )


class RandomShift:
    """Pad by `pad` pixels of the edge, then crop back to the old size at a random offset (DrQ, SVEA)."""

    def __init__(self, pad: int = 4):
        self.pad = pad

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        offsets = 2 * self.pad + 1
        top, left = (draw_integers(offsets, len(obs), generator) - self.pad for _ in range(2))
        return window(obs, top, left, (obs.shape[2], obs.shape[3]))


class RandomConv:
    """One random 3x3 convolution per sample, weights ~ N(0, 1), then a sigmoid."""

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        weights = torch.randn(len(obs), 3, 3, 3, 3, generator=generator, device=obs.device)
        return self.convolve(obs, weights)

    @staticmethod
    def convolve(obs: Tensor, weights: Tensor) -> Tensor:
        """Convolve sample i of obs (B, 3k, H, W) with weights[i] (3, 3, 3, 3), each frame of its stack alike."""
        batch, channels, height, width = obs.shape
        frames = channels // 3
        outside = torch.full((batch,), -1, device=obs.device)
        padded = window(obs, outside, outside, (height + 2, width + 2))  # replicate padding, still uint8
        kernels = (weights / 255).repeat(1, frames, 1, 1, 1)  # one group of channels per frame
        if obs.device.type == "cpu":
            # Sample by sample, without leaving channels_last: faster here than a group per sample and frame.
            out = torch.empty(batch, channels, height, width).contiguous(memory_format=torch.channels_last)
            for i in range(batch):
                out[i] = F.conv2d(padded[i : i + 1].to(torch.float32), kernels[i], groups=frames)[0]
        else:
            # One call for the batch, samples side by side as channels.
            side_by_side = padded.to(torch.float32).reshape(1, -1, height + 2, width + 2)
            out = F.conv2d(side_by_side, kernels.flatten(0, 1), groups=batch * frames).view(obs.shape)
            out = out.contiguous(memory_format=torch.channels_last)
        return out.sigmoid_().mul_(255)


class RandomOverlay:
    """(1 - alpha) o + alpha eps with one foreign image eps per sample, the same for its frames (the paper's Eq. 4)."""

    def __init__(self, images: Images, alpha: float = 0.5):
        self.images = images
        self.alpha = alpha
        self._ahead: Future[tuple[tuple[Any, ...], np.ndarray]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a thread of its own."""
        return {**self.__dict__, "_ahead": None, "_thread": None}

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        batch, channels, height, width = obs.shape
        images = upload(
            torch.from_numpy(self._sample((draw_seed(generator), batch, height, width))), obs.device
        )
        epsilon = torch.empty(batch, height, width, channels, dtype=torch.uint8, device=obs.device)
        for channel in range(channels):  # byte by byte: twice as fast as repeating three at a time
            epsilon[..., channel] = images[..., channel % 3]
        pixels = obs.permute(0, 2, 3, 1).to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        return pixels.lerp_(epsilon.to(torch.float32), self.alpha).permute(0, 3, 1, 2)

    def fetch_ahead(self, views: Callable[[torch.Generator], Tensor], generator: torch.Generator) -> None:
        """Start to sample the images of the next call, if it is made with the generator as `views` leaves it.

        views: makes pixels of that call's batch, height and width, on a thread, with a copy of `generator`. If the next
        call has another seed or shape after all, its images are sampled when it is made.
        """
        ahead = torch.Generator(generator.device).set_state(generator.get_state())

        def fetch() -> tuple[tuple[Any, ...], np.ndarray]:
            batch, _, height, width = views(ahead).shape
            request = (draw_seed(ahead), batch, height, width)
            return request, self._sample_now(request)

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="softaug-overlay")
        self._ahead = self._thread.submit(fetch)

    def _sample(self, request: tuple[Any, ...]) -> np.ndarray:
        if self._ahead is not None:
            fetched, images = self._ahead.result()
            self._ahead = None
            if fetched == request:
                return images
        return self._sample_now(request)

    def _sample_now(self, request: tuple[Any, ...]) -> np.ndarray:
        # The image source draws with numpy; its seed comes from our generator, so one state restores both.
        seed, batch, height, width = request
        return self.images.sample(batch, height, width, np.random.default_rng(seed))


class MovingOverlay:
    """`RandomOverlay` whose image moves by the same step from each frame of a stack to the next (SimGRL).

    The image is larger than the frames. The oldest frame gets its centre, frame i the window i steps further; the step is
    uniform over -6 .. 6 pixels each way at 84 pixels, and in proportion at other sizes.
    """

    SIZE, STEP = 84, 6

    def __init__(self, images: Images, alpha: float = 0.5):
        self.images, self.alpha = images, alpha

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        batch, channels, height, width = obs.shape
        frames = channels // 3
        step = self.largest_step(height)
        margin = self.margin(height, frames)
        rng = np.random.default_rng(draw_seed(generator))
        drawn = self.images.sample(batch, height + 2 * margin, width + 2 * margin, rng)
        images = upload(torch.from_numpy(drawn), obs.device).permute(0, 3, 1, 2)
        down, right = (draw_integers(2 * step + 1, batch, generator) - step for _ in range(2))
        epsilon = [
            window(images, margin + frame * down, margin + frame * right, (height, width))
            for frame in range(frames)
        ]
        pixels = obs.to(torch.float32, copy=True, memory_format=torch.channels_last)
        return pixels.lerp_(torch.cat(epsilon, dim=1).to(torch.float32), self.alpha)

    def largest_step(self, size: int) -> int:
        """Pixels between two frames, for frames of `size` pixels."""
        return max(1, round(self.STEP * size / self.SIZE))

    def margin(self, size: int, frames: int) -> int:
        """How much larger the image is than a frame, on each side: 18 pixels at 84, or what many frames need."""
        return max(3, frames - 1) * self.largest_step(size)


class RandomRotate:
    """Turn the image about its centre by an angle uniform in +-`degrees`, bilinear; beyond the edge, edge pixels repeat.

    All samples of a call share one angle, as in the authors' code of SADA.
    """

    def __init__(self, degrees: float = 180):
        self.degrees = degrees

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(1, generator=generator, device=obs.device)
        return self.rotate(obs, (2 * drawn - 1) * math.radians(self.degrees))

    @staticmethod
    def rotate(obs: Tensor, angle: Tensor) -> Tensor:
        """Turn obs (B, C, H, W) counter-clockwise by `angle`, in radians: (1,), or (B,) with one for each sample."""
        batch, _, height, width = obs.shape
        down, right = torch.meshgrid(
            torch.arange(height, device=obs.device) - (height - 1) / 2,
            torch.arange(width, device=obs.device) - (width - 1) / 2,
            indexing="ij",
        )
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        # Where a pixel of the result comes from, in units of half an image (as grid_sample wants it).
        grid = torch.stack(
            [(cos * right - sin * down) * 2 / width, (sin * right + cos * down) * 2 / height], dim=-1
        )
        pixels = obs.to(torch.float32).contiguous(memory_format=torch.contiguous_format)
        turned = F.grid_sample(
            pixels,
            grid.expand(batch, -1, -1, -1),
            mode="bilinear",
            padding_mode="border",
            align_corners=False,
        )
        return turned.contiguous(memory_format=torch.channels_last)


class Composed:
    """One augmentation after the other."""

    def __init__(self, *steps: Augment):
        self.steps = steps

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            obs = step(obs, generator)
        return obs


class OneOf:
    """One of several augmentations of equal size for each sample, all equally likely (SADA)."""

    def __init__(self, choices: Sequence[Augment]):
        self.choices = choices

    def __call__(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        # Drawn on the host: asking a GPU which samples drew what would wait for all its work.
        chosen = np.random.default_rng(draw_seed(generator)).integers(len(self.choices), size=len(obs))
        out = torch.empty_like(obs, dtype=torch.float32, memory_format=torch.channels_last)
        pixels = obs.permute(0, 2, 3, 1)  # indexing keeps this order
        for number, augment in enumerate(self.choices):
            samples = np.flatnonzero(chosen == number)
            if len(samples):
                index = upload(torch.from_numpy(samples), obs.device)
                some = pixels.index_select(0, index).permute(0, 3, 1, 2)
                out.index_copy_(0, index, augment(some, generator).to(torch.float32))
        return out


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`. Only a copy from pinned memory lets a GPU's host continue at once."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def draw_seed(generator: torch.Generator) -> int | list[int]:
    """A seed for numpy that follows from `generator`, so that one state restores both."""
    drawn = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    if generator.device.type == "cpu":
        return int(drawn)
    # Reading what a GPU drew would wait for all its work. Its generator's state lies on the host, and has moved on.
    return list(generator.get_state().numpy().tobytes())


def draw_integers(choices: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` integers, uniform over 0 .. choices - 1."""
    return torch.randint(choices, (count,), generator=generator, device=generator.device)
