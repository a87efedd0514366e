"""The image in what an environment returns: the observation, one entry of it, or what `render()` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from softaug.errors import UserError


@dataclass(frozen=True)
class FrameReader:
    """How to get an image from what an environment returns."""

    layout: str
    """`hwc`, `chw`, `hw` (gray without a channel), or `render`: from `env.render()`, not from the observation."""
    name: str
    """Of the environment, for messages."""
    key: str = ""
    """Entry of a dict observation; empty: the observation itself."""
    shape: tuple[int, ...] = ()
    dtype: Any = np.uint8
    """Of the space: what `scale` was chosen for."""
    scale: float = 1.0
    """255 for floats between 0 and 1."""

    def of(self, obs: Any, env: gymnasium.Env) -> np.ndarray:
        """The image, uint8 (H, W, 3)."""
        if self.layout == "render":
            return self._rendered(env)
        image = np.asarray(obs[self.key] if self.key else obs)
        if image.shape != self.shape:
            raise UserError(
                f"{self.name} returned an image of shape {image.shape}, but its observation_space says "
                f"{self.shape}; correct the space"
            )
        if np.issubdtype(image.dtype, np.floating) != np.issubdtype(self.dtype, np.floating):
            raise UserError(
                f"{self.name} returned an image of {image.dtype}, but its observation_space says {self.dtype}; "
                "correct the space or the image, so that it is known what white is"
            )
        if np.issubdtype(image.dtype, np.floating) and not np.isfinite(image).all():
            raise UserError(
                f"{self.name} returned an image with NaN or infinite pixels; correct what makes it"
            )
        if self.layout == "chw":
            image = image.transpose(1, 2, 0)
        elif self.layout == "hw":
            image = image[:, :, None]
        if image.dtype != np.uint8 or self.scale != 1:
            image = np.clip(np.rint(image * self.scale), 0, 255).astype(np.uint8)
        # Gray as RGB: augmentations and networks take frames of three channels.
        return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))

    def _rendered(self, env: gymnasium.Env) -> np.ndarray:
        try:
            image: Any = env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{self.name} cannot render: {error}") from error
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
            what = (
                f"an array {image.dtype} {image.shape}"
                if isinstance(image, np.ndarray)
                else repr(type(image))
            )
            raise UserError(
                f"{self.name}.render() returned {what} instead of uint8 (height, width, 3); make it with "
                "render_mode='rgb_array'"
            )
        return np.ascontiguousarray(image)


def find_frame(env: gymnasium.Env, image_key: str, name: str) -> FrameReader:
    """Where the environment's image is; what cannot be used is refused with the reason."""
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        if image_key:
            if image_key not in space.spaces:
                raise UserError(
                    f"{name}'s observations have no {image_key!r}; choose one of {', '.join(space.spaces)} as image_key"
                )
            return _box_reader(space.spaces[image_key], image_key, name)
        images = [key for key, part in space.spaces.items() if _may_be_image(part)]
        if len(images) == 1:
            return _box_reader(space.spaces[images[0]], images[0], name)
        if images:
            raise UserError(
                f"{name}'s observations have several images ({', '.join(images)}); choose one with "
                "image_key (--image-key)"
            )
    elif image_key:
        raise UserError(
            f"{name}'s observations are {space}, no dict; leave out image_key (--image-key) {image_key}"
        )
    elif _may_be_image(space):
        return _box_reader(space, "", name)
    if env.render_mode != "rgb_array" and _has_nested_image(space):
        raise UserError(
            f"{name}'s observations hold an image inside nested spaces ({_short(space)}); flatten it to one Dict, so "
            "that image_key (--image-key) can name the image"
        )
    if env.render_mode != "rgb_array":
        raise UserError(
            f"{name}'s observations are no images ({_short(space)}); make it with render_mode='rgb_array', so that "
            "what it renders can be used instead"
        )
    return FrameReader("render", name)


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 (H, W, 3) -> (size, size, 3), bilinear with anti-aliasing; whatever H and W are, the whole image."""
    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def _may_be_image(space: spaces.Space) -> bool:
    """Three dimensions, or a byte matrix: what may be an image, also one that must be refused with a reason."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3
        or (len(space.shape) == 2 and space.dtype == np.uint8 and min(space.shape) >= 16)
    )


def _has_nested_image(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(_may_be_image(part) or _has_nested_image(part) for part in parts)
    return False


def _box_reader(space: spaces.Space, key: str, name: str) -> FrameReader:
    what = f"{name}'s observation{f' {key!r}' if key else ''}"
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        raise UserError(
            f"{what} is no image ({_short(space)}); it must be a Box of (H, W, 3) or (3, H, W) bytes"
        )
    scale = 1.0
    if space.dtype != np.uint8:
        low, high = float(space.low.min()), float(space.high.max())
        if low != 0.0 or high not in (1.0, 255.0):
            raise UserError(
                f"{what} holds {space.dtype} from {low:g} to {high:g}; images must be uint8, or lie between 0 and 1 "
                "or 0 and 255 by their space's bounds"
            )
        scale = 255.0 / high
    if len(space.shape) == 2:
        return FrameReader("hw", name, key, space.shape, space.dtype, scale)
    first, last = space.shape[0] in (1, 3), space.shape[2] in (1, 3)
    if first == last:
        raise UserError(
            f"{what} has the shape {space.shape}; it must be (H, W, channels) or (channels, H, W) with 3 channels (RGB) "
            "or 1 (gray). Frames are stacked by softaug: give single ones"
        )
    return FrameReader("chw" if first else "hwc", name, key, space.shape, space.dtype, scale)


def _short(space: spaces.Space) -> str:
    return f"Box {space.dtype} {space.shape}" if isinstance(space, spaces.Box) else type(space).__name__
