"""Any image that Pillow opens, as RGB."""

from __future__ import annotations

import numpy as np
from PIL import Image


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB. 16-bit gray (which Pillow calls I;16, or I) is scaled to 8 bits.

    Pillow's own conversion cuts everything above 255 off, so that such an image becomes white.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    return image.convert("RGB")
