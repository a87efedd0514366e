"""SODA with views that change colors as well as the background, for `distill.py` and `softaug train`.

SOFTAUG_PLUGINS=color_views PYTHONPATH=. python distill.py --task robot_push --method soda_conv_or_overlay
"""

from softaug.learning.augment import OneOf, RandomConv, RandomOverlay
from softaug.learning.views import register_view
from softaug.methods import METHODS, Method, register

SODA = {
    "auxiliary": "soda",
    "auxiliary_sees": "strong",
    "numbers": METHODS["soda_overlay"].numbers,
    "presets": METHODS["soda_overlay"].presets,
}

register_view(
    "conv_or_overlay",
    lambda config, images: OneOf([RandomConv(), RandomOverlay(images(), config.overlay_alpha)]),
    uses_images=True,
)
register(Method("soda_conv_overlay", "SODA (conv, then overlay)", strong="conv_overlay", **SODA))
register(Method("soda_conv_or_overlay", "SODA (conv or overlay)", strong="conv_or_overlay", **SODA))
