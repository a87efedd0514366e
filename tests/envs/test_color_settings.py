"""The color distributions of DMControl-GB, and the official settings where they are present."""

import os
from pathlib import Path

import numpy as np
import pytest

from softaug.envs import make_env
from softaug.envs.color import (
    COLOR_KEYS,
    DEFAULT_COLORS,
    STD,
    color_settings,
    draw_color,
    procedural_colors,
)
from softaug.envs.modes import Mode
from softaug.errors import UserError

DATA = Path(os.environ.get("SOFTAUG_TEST_DATA", Path(__file__).parents[3] / "shared/data/dmcgb"))
OFFICIAL = DATA / "color_easy.pt"
EASY_FIRST = [0.6680267322734018, 0.5486277268884925, 0.16063135744075677]
HARD_LAST = [0.23613997454455748, 0.6776804807010894, 0.960570545781962]
needs_official = pytest.mark.skipif(not OFFICIAL.exists(), reason="official DMControl-GB files not present")


def clipped_normal_moments(mean, std):
    """Mean and standard deviation of clip(N(mean, std), 0, 1), by summing over a fine grid."""
    x = np.linspace(mean - 8 * std, mean + 8 * std, 200_001)
    weight = np.exp(-0.5 * ((x - mean) / std) ** 2)
    weight /= weight.sum()
    value = np.clip(x, 0, 1)
    average = (weight * value).sum()
    return average, np.sqrt((weight * (value - average) ** 2).sum())


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_draws_follow_the_clipped_normal(level):
    rng = np.random.default_rng(0)
    count = 4000
    draws = [draw_color(rng, STD[level]) for _ in range(count)]
    for key, default in DEFAULT_COLORS.items():
        values = np.array([draw[key] for draw in draws])
        assert values.min() >= 0 and values.max() <= 1
        for channel, mean in enumerate(default):
            expected_mean, expected_std = clipped_normal_moments(mean, STD[level])
            error = 4.5 * expected_std / np.sqrt(count)
            assert abs(values[:, channel].mean() - expected_mean) < error
            assert abs(values[:, channel].std() - expected_std) < error
        # Channels and parts are drawn independently.
        assert abs(np.corrcoef(values.T)[0, 1]) < 0.08
    grid = np.array([draw["grid_rgb1"] for draw in draws])
    np.testing.assert_array_equal([draw["grid_rgb2"] for draw in draws], np.clip(grid + 0.1, 0, 1))
    assert (grid == 0).any()


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_embedded_settings(level):
    settings = procedural_colors(level)
    assert len(settings) == 100
    again = procedural_colors(level)
    for setting, other in zip(settings, again, strict=True):
        assert tuple(setting) == COLOR_KEYS
        for key in COLOR_KEYS:
            np.testing.assert_array_equal(setting[key], other[key])
    assert len({setting["self_rgb"].tobytes() for setting in settings}) == 100
    spread = np.array([setting["self_rgb"] for setting in settings]).std()
    assert abs(np.sqrt(spread**2 - np.std([0.7, 0.5, 0.3]) ** 2) - STD[level]) < 0.25 * STD[level]


def test_embedded_settings_are_frozen():
    """Results are comparable between versions only while these stay the same."""
    np.testing.assert_allclose(procedural_colors("easy")[0]["self_rgb"], EASY_FIRST, atol=1e-12)
    np.testing.assert_allclose(procedural_colors("hard")[99]["skybox_rgb"], HARD_LAST, atol=1e-12)


def test_random_mode_never_shows_a_test_setting():
    env = make_env("cartpole_swingup", "color_random", image_size=16, render="aliased")
    test_settings = {
        setting["skybox_rgb"].tobytes() for level in ("easy", "hard") for setting in procedural_colors(level)
    }
    shown = [env.reset()[1]["color"]["skybox_rgb"].tobytes() for _ in range(6)]
    assert len(set(shown)) == 6 and not test_settings & set(shown)
    assert color_settings(Mode.parse("color_random")) == (None, "procedural")
    env.close()


def test_test_modes_draw_from_their_settings():
    mine = [{"self_rgb": [value, 0, 0]} for value in (0.1, 0.5, 0.9)]
    env = make_env("cartpole_swingup", "color_easy", colors=mine, image_size=16, render="aliased")
    infos = [env.reset()[1] for _ in range(20)]
    assert {info["color"]["self_rgb"][0] for info in infos} == {0.1, 0.5, 0.9}
    assert {info["media"] for info in infos} == {"list"}
    env.close()


def test_changing_the_info_changes_no_setting():
    mine = [{"self_rgb": [0.1, 0.2, 0.3]}]
    env = make_env("cartpole_swingup", "color_easy", colors=mine, image_size=16, render="aliased")
    env.reset()[1]["color"]["self_rgb"][:] = 1
    assert env.reset()[1]["color"]["self_rgb"].tolist() == [0.1, 0.2, 0.3]
    env.close()


@needs_official
def test_official_settings_have_the_same_form():
    """How the official file clips: grid_rgb1 at 0, then grid_rgb2 = grid_rgb1 + 0.1."""
    settings, kind = color_settings(Mode.parse("color_easy"), OFFICIAL)
    assert kind == "official" and len(settings) == 100
    grid = np.array([setting["grid_rgb1"] for setting in settings])
    np.testing.assert_array_equal([setting["grid_rgb2"] for setting in settings], np.clip(grid + 0.1, 0, 1))
    assert (grid == 0).any()
    for key, default in DEFAULT_COLORS.items():
        values = np.array([setting[key] for setting in settings])
        for channel, mean in enumerate(default):
            expected_mean, expected_std = clipped_normal_moments(mean, STD["easy"])
            assert abs(values[:, channel].mean() - expected_mean) < 4 * expected_std / 10
            assert abs(values[:, channel].std() - expected_std) < 0.3 * expected_std


@needs_official
def test_official_settings_in_the_environment():
    env = make_env("cartpole_swingup", "color_easy", colors=str(OFFICIAL), image_size=16, render="aliased")
    info = env.reset(seed=0)[1]
    assert info["media"] == "official" and set(info["color"]) == set(COLOR_KEYS)
    env.close()


@needs_official
def test_the_benchmarks_folder_gives_each_level_its_file():
    settings, kind = color_settings(Mode.parse("color_easy"), OFFICIAL.parent)
    assert kind == "official" and len(settings) == 100
    with pytest.raises(UserError, match="color_hard"):
        color_settings(Mode.parse("color_hard"), OFFICIAL.parent / "video_easy")
