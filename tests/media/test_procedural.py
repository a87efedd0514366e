"""Procedural images and videos: deterministic, natural in their statistics, smooth, and disjoint."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from softaug.errors import UserError
from softaug.media import image_source, procedural_images, procedural_videos, video_source
from softaug.media.comparability import PROCEDURAL_VIDEO_VERSIONS


@pytest.fixture(scope="module")
def source():
    return image_source("procedural")


def spectrum_slope(images: np.ndarray) -> float:
    """Slope of log power over log frequency, averaged over uint8 images (N, S, S, 3)."""
    side = images.shape[1]
    window = np.hanning(side)[:, None] * np.hanning(side)[None, :]
    gray = images.astype(np.float64).mean(-1)
    gray -= gray.mean(axis=(1, 2), keepdims=True)
    power = (np.abs(np.fft.fft2(gray * window)) ** 2).mean(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :])
    # Above the window's own width and below the corner of the grid.
    used = (frequency > 2.5 / side) & (frequency < 0.4)
    return float(np.polyfit(np.log(frequency[used]), np.log(power[used]), 1)[0])


def test_importing_media_is_light():
    code = "import sys, softaug.media; print([m for m in ('torch','mujoco','av','PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_sample_is_a_pure_function_of_the_generator(source):
    first = source.sample(12, 48, 40, np.random.default_rng(5))
    source.sample(7, 32, 32, np.random.default_rng(9))  # what happened in between must not matter
    again = source.sample(12, 48, 40, np.random.default_rng(5))
    elsewhere = image_source("procedural").sample(12, 48, 40, np.random.default_rng(5))
    copied = pickle.loads(pickle.dumps(source)).sample(12, 48, 40, np.random.default_rng(5))
    assert first.shape == (12, 48, 40, 3) and first.dtype == np.uint8
    for other in (again, elsewhere, copied):
        np.testing.assert_array_equal(first, other)


def test_other_generator_state_and_other_seed_give_other_images(source):
    rng = np.random.default_rng(5)
    first, second = source.sample(8, 32, 32, rng), source.sample(8, 32, 32, rng)
    other_bank = image_source("procedural", seed=1).sample(8, 32, 32, np.random.default_rng(5))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other_bank)


def test_images_are_varied(source):
    images = source.sample(256, 16, 16, np.random.default_rng(0)).astype(np.float64)
    means = images.mean(axis=(1, 2))
    assert (means.std(axis=0) > 25).all()  # colors, per channel, between images
    spread = means.max(axis=1) - means.min(axis=1)
    assert np.quantile(spread, 0.9) > 40 and np.quantile(spread, 0.1) < 30  # colorful ones and grayish ones
    assert images.min() < 15 and images.max() > 240
    flat = np.round(images).reshape(256, -1)
    assert len(np.unique(flat, axis=0)) == 256


def test_power_spectrum_falls_like_natural_images(source):
    # Natural scenes: power ~ 1/f^2, measured exponents mostly between 1.6 and 2.6 (van der Schaaf 1996).
    assert -2.6 < spectrum_slope(source.sample(256, 64, 64, np.random.default_rng(0))) < -1.6


def test_video_spectrum_falls_like_natural_images():
    videos = video_source("hard", "procedural")
    frames = np.stack([videos.open(i, 64, 64).frame(17 * i) for i in range(36)])
    assert -3.2 < spectrum_slope(frames) < -1.6


def test_training_images_and_test_videos_share_neither_seeds_nor_families():
    for families in procedural_videos.FAMILIES.values():
        assert not set(procedural_images.FAMILIES) & set(families)
    # Every generator is seeded by a list that begins with its module's own word, and the levels differ in the next.
    assert procedural_images.SEED_DOMAIN != procedural_videos.SEED_DOMAIN
    assert len(set(procedural_videos.LEVEL_SEEDS.values())) == 2
    easy, hard = (video_source(level, "procedural").open(0, 32, 32).frame(0) for level in ("easy", "hard"))
    assert not np.array_equal(easy, hard)


def test_bad_sizes_are_refused(source):
    with pytest.raises(UserError, match="sizes must be positive"):
        source.sample(1, 0, 10, np.random.default_rng(0))


@pytest.mark.parametrize(("level", "count"), [("easy", 10), ("hard", 100)])
def test_number_and_names_of_videos(level, count):
    videos = video_source(level)
    assert videos.kind == "procedural" and len(videos) == count
    names = [videos.name(i) for i in range(count)]
    assert len(set(names)) == count and videos.name(count) == names[0]
    assert videos.describe()["videos"] == count


def test_unknown_level_lists_the_valid_ones():
    with pytest.raises(UserError, match=r"medium.*easy, hard"):
        video_source("medium")


@pytest.mark.parametrize(
    ("level", "index"), [*(("easy", i) for i in range(6)), *(("hard", i) for i in range(12))]
)
def test_videos_move_smoothly_and_loop(level, index):
    video = video_source(level, "procedural").open(index, 60, 60)
    frames = [video.frame(t).astype(np.float64) for t in range(len(video))]
    steps = np.array([np.abs(frames[t] - frames[t - 1]).mean() for t in range(len(frames))])
    # Step 0 is the jump from the last frame to the first: no larger than the usual steps.
    assert steps[0] <= 1.2 * steps[1:].max()
    assert steps[1:].mean() > 0.1  # it does move
    far = np.mean([np.abs(frames[t] - frames[t - len(frames) // 2]).mean() for t in range(0, len(frames), 7)])
    assert steps[1:].mean() < 0.5 * far  # smoothly: neighbors are much more alike than distant frames


def test_easy_videos_are_dark_and_calm_and_hard_ones_are_not():
    """As the benchmark's: its easy videos have a brightness of 0.17 and move by 0.006 per frame, its hard ones 0.52 and 0.019
    (docs/data.md)."""
    brightness, motion = {}, {}
    for level, count in (("easy", 10), ("hard", 24)):
        videos = video_source(level, "procedural")
        frames = np.stack([[videos.open(i, 48, 48).frame(t) for t in range(20)] for i in range(count)])
        gray = frames.astype(np.float64).mean(axis=-1) / 255
        brightness[level] = gray.mean(axis=(1, 2, 3))
        motion[level] = np.abs(np.diff(gray, axis=1)).mean()
    assert 0.1 < brightness["easy"].mean() < 0.25 and brightness["easy"].max() < 0.4
    assert 0.35 < brightness["hard"].mean() < 0.65
    assert 0.003 < motion["easy"] < 0.6 * motion["hard"]


def test_a_video_is_named_by_what_it_shows():
    easy, hard = video_source("easy"), video_source("hard")
    assert easy.name(1) == "procedural/easy/001-galaxy" and hard.name(1) == "procedural/hard/001-cells"
    assert easy.describe()["families"] == ["stars", "galaxy", "dusk"] and easy.describe()["version"] == 2
    assert hard.describe()["version"] == 1


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("level", ["easy", "hard"])
def test_video_frames_depend_on_their_position_alone(level, index):
    video = video_source(level, "procedural").open(index, 40, 56)
    sequential = [video.frame(t) for t in range(10)]
    other = video_source(level, "procedural").open(index, 40, 56)
    assert sequential[0].shape == (40, 56, 3) and sequential[0].dtype == np.uint8
    for t in (7, 2, 9, 0):
        np.testing.assert_array_equal(other.frame(t), sequential[t])
        np.testing.assert_array_equal(other.frame(t + len(video)), sequential[t])
    sequential[3][:] = 0  # the caller owns its frame
    assert video.frame(3).any()


BRIGHTNESS = {
    ("easy", 2): [
        [13, 14, 13, 16, 16, 17, 20, 20, 21],
        [78, 80, 53, 84, 81, 61, 88, 83, 91],
        [33, 36, 34, 58, 57, 53, 84, 74, 77],
    ],
    ("hard", 1): [
        [200, 202, 204, 210, 203, 203, 206, 207, 205],
        [41, 68, 109, 103, 84, 115, 63, 47, 111],
        [110, 131, 157, 146, 213, 120, 204, 143, 109],
        [82, 74, 81, 157, 136, 158, 189, 200, 201],
        [92, 116, 128, 141, 150, 138, 119, 106, 110],
        [110, 133, 83, 115, 157, 82, 77, 120, 89],
    ],
}
"""Mean brightness of ninths of frame 100 of each family's first video, by level and version."""


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_other_videos_have_another_version(level):
    """Results on procedural videos are compared by version: whoever changes what is shown raises it, and adds a row above."""
    expected = BRIGHTNESS[level, PROCEDURAL_VIDEO_VERSIONS[level]]
    videos = video_source(level, "procedural")
    frames = np.stack([videos.open(i, 48, 48).frame(100) for i in range(len(expected))])
    ninths = frames.reshape(-1, 3, 16, 3, 16, 3).mean(axis=(2, 4, 5)).reshape(-1, 9)
    np.testing.assert_allclose(ninths, expected, atol=1)


def test_video_source_keeps_a_bounded_number_of_videos():
    videos = video_source("hard", "procedural")
    for index in range(40):
        videos.open(index, 16, 16)
    assert len(videos._built) == procedural_videos.CACHED_VIDEOS
    large = video_source("hard", "procedural")
    for index in range(6):
        large.open(index, 16, 16)
        large.open(index, 200, 200)
    assert sum(height * width for _, height, width in large._built) <= procedural_videos.CACHED_PIXELS
    assert (5, 16, 16) in large._built and (5, 200, 200) in large._built
    assert large.open(0, 1000, 1000) is large.open(0, 1000, 1000)  # the newest one, whatever its size
    copied = pickle.loads(pickle.dumps(videos))
    np.testing.assert_array_equal(copied.open(3, 16, 16).frame(1), videos.open(3, 16, 16).frame(1))
