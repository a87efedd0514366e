"""Video files: frames, resizing, looping, cache, and one clear sentence for each broken file."""

from __future__ import annotations

import os

import numpy as np
import pytest

from softaug.errors import UserError
from softaug.media import official, registry, video_files, video_source
from softaug.media.video_files import cached_frames, decode, resize_bilinear


def test_resize_equals_the_benchmarks_interpolation():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for shape in ((96, 96), (240, 352), (37, 51)):
        image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        tensor = torch.from_numpy(image).permute(2, 0, 1)[None].double()
        expected = torch.nn.functional.interpolate(
            tensor, size=(84, 100), mode="bilinear", align_corners=False
        )
        expected = expected[0].permute(1, 2, 0).numpy()
        difference = resize_bilinear(image, 84, 100) - expected
        # Fractions are cut off, as the benchmark's conversion to bytes does.
        assert difference.max() < 1e-6 and difference.min() > -1 - 1e-6


def test_frames_are_right_in_any_order_and_loop(tmp_path, make_video):
    path = make_video(tmp_path / "a.mp4", frames=20)
    video = video_source("easy", [path]).open(0, 50, 40)
    assert len(video) == 20
    expected = [resize_bilinear(frame, 50, 40) for frame in decode(path)]
    for position in (13, 0, 19, 5, 6, 20 + 5, -1):
        frame = video.frame(position)
        assert frame.shape == (50, 40, 3) and frame.dtype == np.uint8
        np.testing.assert_array_equal(frame, expected[position % 20])
    # The colors are those written, up to compression.
    assert [abs(int(video.frame(t)[-5, -5].mean()) - (10 + 5 * t)) <= 4 for t in range(20)] == [True] * 20
    frame[:] = 0  # the caller owns its frame
    assert video.frame(0).any()


def test_second_open_does_not_decode(tmp_path, make_video, monkeypatch):
    source = video_source("easy", [make_video(tmp_path / "a.mp4")])
    first = source.open(0, 32, 32).frame(3)
    monkeypatch.setattr(video_files, "decode", lambda path: pytest.fail("decoded again"))
    np.testing.assert_array_equal(source.open(0, 32, 32).frame(3), first)


def test_changed_file_is_decoded_anew(tmp_path, make_video):
    path = make_video(tmp_path / "a.mp4", frames=20)
    assert len(video_source("easy", [path]).open(0, 32, 32)) == 20
    make_video(path, frames=12)
    assert len(video_source("easy", [path]).open(0, 32, 32)) == 12


def test_cache_is_bounded_and_drops_the_least_recently_used(tmp_path, make_video, monkeypatch):
    size = 20 * 32 * 32 * 3
    monkeypatch.setattr(video_files, "CACHE_BYTES", int(2.5 * size))
    paths = [make_video(tmp_path / f"{n}.mp4") for n in range(3)]
    files = [video_files._cache_file(path, 32, 32) for path in paths]
    for age, n in enumerate((0, 1)):
        cached_frames(paths[n], 32, 32)
        os.utime(files[n], (1000 + age, 1000 + age))
    cached_frames(paths[0], 32, 32)  # used again: now video 1 is the oldest
    cached_frames(paths[2], 32, 32)
    assert [file.exists() for file in files] == [True, False, True]
    assert not list(files[0].parent.glob(".decoding*"))


def test_long_video_loops_over_its_first_frames(tmp_path, make_video, monkeypatch):
    monkeypatch.setattr(video_files, "MAX_FRAMES", 8)
    assert len(video_source("easy", [make_video(tmp_path / "a.mp4", frames=20)]).open(0, 32, 32)) == 8


def test_without_a_cache_folder_frames_stay_in_memory(tmp_path, make_video, monkeypatch):
    path = make_video(tmp_path / "a.mp4")
    expected = video_source("easy", [path]).open(0, 32, 32).frame(4)
    blocked = tmp_path / "file"
    blocked.write_text("no folder can be made below a file")
    monkeypatch.setenv("SOFTAUG_HOME", str(blocked))
    with pytest.warns(UserWarning, match=r"a\.mp4 is kept in memory"):
        video = video_source("easy", [path]).open(0, 32, 32)
    np.testing.assert_array_equal(video.frame(4), expected)


def test_folder_is_taken_in_natural_order(tmp_path, make_video):
    for number in (10, 2, 1):
        make_video(tmp_path / "set" / f"clip{number}.mp4", frames=3)
    source = video_source("hard", tmp_path / "set")
    assert source.kind == "folder"
    assert source.describe()["names"] == ["clip1.mp4", "clip2.mp4", "clip10.mp4"]
    assert source.name(4) == str(tmp_path / "set" / "clip2.mp4")  # modulo the number of videos


def test_folders_of_frames_are_videos(tmp_path, make_image):
    for name in ("bear", "camel"):
        for number in range(4):
            make_image(tmp_path / "480p" / name / f"{number:05d}.jpg", blue=60 * number)
    source = video_source("hard", tmp_path / "480p")
    assert [source.name(i).split("/")[-1] for i in range(2)] == ["bear", "camel"]
    video = source.open(1, 20, 20)
    assert len(video) == 4
    assert [round(float(video.frame(t)[..., 2].mean()) / 60) for t in range(4)] == [0, 1, 2, 3]


def test_registered_official_files_are_used_in_numeric_order(tmp_path, make_video):
    for number in (11, 3, 0):
        make_video(tmp_path / "gb" / "video_hard" / f"video{number}.mp4", frames=2)
    (tmp_path / "gb" / "video_hard" / "other.mp4").write_text("not one of the benchmark's")
    registry.register("dmcgb", tmp_path / "gb")
    hard = video_source("hard")
    assert hard.kind == "official"
    assert hard.describe()["names"] == ["video0.mp4", "video3.mp4", "video11.mp4"]
    assert video_source("easy").kind == "procedural"  # none of these is there
    assert video_source("hard", "procedural").kind == "procedural"


def test_benchmark_repository_layout_is_found(tmp_path, make_video):
    make_video(tmp_path / "benchmark-main" / "src" / "env" / "data" / "video_easy" / "video0.mp4", frames=2)
    registry.register("dmcgb", tmp_path)
    assert video_source("easy").kind == "official"
    assert "video_easy/video1.mp4" in official.missing_files(official.registered_root())


def test_missing_folder_and_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.*no such folder"):
        video_source("easy", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"there is no video .*gone\.mp4"):
        video_source("easy", [tmp_path / "gone.mp4"])
    with pytest.raises(UserError, match="empty"):
        video_source("easy", [])


def test_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty holds no videos"):
        video_source("easy", tmp_path / "empty")


def test_text_file_called_mp4(tmp_path):
    path = tmp_path / "notes.mp4"
    path.write_text("this is not a video\n" * 50)
    with pytest.raises(UserError, match=r"notes\.mp4 cannot be read: it is damaged or no video"):
        video_source("easy", [path]).open(0, 32, 32)


@pytest.mark.parametrize("faststart", [False, True])
def test_truncated_mp4(tmp_path, make_video, faststart):
    """Cut where the index is at the end (nothing can be read) or at the front (the rest is missing)."""
    path = make_video(tmp_path / "whole.mp4", frames=40, faststart=faststart)
    content = path.read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cut\.mp4 (cannot be read|is truncated)"):
        video_source("easy", [cut]).open(0, 32, 32)
    assert not list((registry.cache_directory() / "frames").glob("*"))  # nothing half-decoded stays


def test_official_videos_decode(official_data):
    registry.register("dmcgb", official_data)
    source = video_source("hard")
    assert source.kind == "official" and source.name(0).endswith("video_hard/video0.mp4")
    video = source.open(0, 100, 100)
    frames = np.stack([video.frame(t) for t in range(10)])
    assert len(video) == 500 and frames.shape == (10, 100, 100, 3)
    assert frames.std() > 10
