"""The one place where views are built by name: for the agent, the report, the gallery and the benchmarks.

`register_view` adds one from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable

from softaug import methods
from softaug.config import Config
from softaug.errors import unknown
from softaug.learning.augment import (
    Augment,
    Composed,
    Images,
    MovingOverlay,
    OneOf,
    RandomConv,
    RandomCrop,
    RandomOverlay,
    RandomRotate,
    RandomShift,
)

ViewBuilder = Callable[[Config, Callable[[], Images]], Augment]
"""From the run's config and a function that opens its overlay images (to be called only if the view needs them)."""

SADA_VIEWS = ("conv", "overlay", "conv_overlay", "rotate", "large_shift", "rotate_shift")


def _large_shift(config: Config, images: Callable[[], Images]) -> RandomShift:
    """By up to 16 pixels at 84, in proportion at other sizes."""
    return RandomShift(max(1, round(16 * config.crop_size / 84)))


def _conv_overlay(config: Config, images: Callable[[], Images]) -> Composed:
    return Composed(RandomConv(), RandomOverlay(images(), config.overlay_alpha))


def _rotate_shift(config: Config, images: Callable[[], Images]) -> Composed:
    return Composed(RandomRotate(), _large_shift(config, images))


def _sada(config: Config, images: Callable[[], Images]) -> OneOf:
    source = images()  # opened once for all that need it
    return OneOf([_BUILDERS[name](config, lambda: source) for name in SADA_VIEWS])


_BUILDERS: dict[str, ViewBuilder] = {
    "crop": lambda config, images: RandomCrop(config.crop_size),
    "shift": lambda config, images: RandomShift(),
    "conv": lambda config, images: RandomConv(),
    "overlay": lambda config, images: RandomOverlay(images(), config.overlay_alpha),
    "conv_overlay": _conv_overlay,
    "rotate": lambda config, images: RandomRotate(),
    "large_shift": _large_shift,
    "rotate_shift": _rotate_shift,
    "sada": _sada,
    "moving_overlay": lambda config, images: MovingOverlay(images(), config.overlay_alpha),
}


def register_view(
    name: str, build: ViewBuilder, *, crops: bool = False, uses_images: bool = False
) -> ViewBuilder:
    """Add a view that rows may name as `weak` or `strong`; a name registered before gets the new one.

    crops: it turns images of image_size into crop_size. uses_images: it mixes in foreign images.
    """
    methods.refuse_taken("view", name, methods.BUILT_IN_VIEWS)
    methods.VIEWS[name] = methods.View(crops=crops, uses_images=uses_images)
    _BUILDERS[name] = build
    return build


def make_view(name: str, config: Config, images: Images | None = None) -> Augment:
    """The view called `name`. images: for views that need them; by default those that config.images names."""

    def source() -> Images:
        from softaug.media import image_source

        return images if images is not None else image_source(config.images or None)

    if name not in _BUILDERS:
        raise unknown("view", name, _BUILDERS)
    return _BUILDERS[name](config, source)
