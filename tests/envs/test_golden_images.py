"""Images equal the benchmark's as published, whatever MuJoCo is installed.

With MuJoCo 3.3 and 3.11 every pixel is equal; from 3.12 on the floor's edges fall up to half a texel apart.
"""

import numpy as np
import pytest
from golden import GOLDEN, MODES, differences, frames_of

from softaug.envs import PAPER_TASKS, make_env
from softaug.envs.appearance import floor_offsets
from softaug.envs.chroma import replace_green

# Largest mean absolute difference, and largest share of pixels that differ by more than 8, of 255.
LIMITS = {"train": (0.4, 0.02), "color": (1.2, 0.05), "green_easy": (0.4, 0.02), "green_hard": (0.4, 0.02)}


@pytest.mark.parametrize("appearance", MODES)
@pytest.mark.parametrize("task", PAPER_TASKS)
def test_images_as_published(task, appearance):
    mean_limit, share_limit = LIMITS[appearance]
    for mean, share in differences(task, appearance):
        assert mean <= mean_limit and share <= share_limit


@pytest.mark.parametrize("mode", ["video_easy", "video_hard"])
def test_video_lies_where_the_published_image_is_green(mode):
    """The key of our frame and of the golden one replace the same pixels, but for a few on edges."""
    env = make_env("walker_walk", mode).unwrapped
    for frame, golden in zip(
        frames_of(env, "walker_walk"), GOLDEN["walker_walk/" + mode.replace("video", "green")], strict=True
    ):
        replaced = []
        for image in (frame, golden):
            keyed = np.array(image)
            replace_green(keyed, np.zeros_like(image))
            replaced.append((keyed == 0).all(axis=2))
        assert replaced[1].any() and (replaced[0] != replaced[1]).mean() < 0.001
    env.close()


@pytest.mark.parametrize("render", ["exact", "fast"])
def test_the_floor_survives_a_color_and_comes_back(render):
    """Recoloring keeps the floor where it is: the default colors give the train image again."""
    train = make_env("walker_walk", "train", render=render).unwrapped
    colored = make_env(
        "walker_walk", "color_hard", colors=[{"self_rgb": [0.7, 0.5, 0.3]}], render=render
    ).unwrapped
    for plain, same in zip(frames_of(train, "walker_walk"), frames_of(colored, "walker_walk"), strict=True):
        np.testing.assert_array_equal(plain, same)
    train.close(), colored.close()


def test_offsets_are_half_a_plane_in_texels():
    """A plane of 2 x 0.8 half-units, a texture of 2 / texrepeat units and 300 x 300 texels."""
    env = make_env("walker_walk").unwrapped
    assert floor_offsets(env.physics.model) == {"grid": (120, 0)}
    env.close()
    env = make_env("finger_spin").unwrapped
    assert floor_offsets(env.physics.model) == {"grid": (30, 90)}
    env.close()
