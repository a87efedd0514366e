"""Packed images: the crops of decoding, a build that survives kills, and no stale or damaged byte in a sample."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from softaug.cli import main
from softaug.errors import UserError
from softaug.media import image_source, packed_images, registry
from softaug.media.crops import crop_boxes, draw_crops
from softaug.media.folder_images import FileIndex, FolderImages
from softaug.media.packed_images import build, open_pack, pack_path, spread_indices


def write_images(root, count, *, width=64, height=64, suffix="png"):
    """Smooth random images, so that resampling differs little between libraries."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        smooth = coarse.resize((width, height), Image.Resampling.BICUBIC)
        smooth.save(root / f"{number:04}.{suffix}")
    return root


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "images", 12)


def both(folder, count=200, size=24):
    """The same draws from the files and from the pack."""
    decoded = FolderImages(folder, packed=False).sample(count, size, size, np.random.default_rng(7))
    source = FolderImages(folder)
    assert "packed" in source.describe()
    return decoded.astype(int), source.sample(count, size, size, np.random.default_rng(7)).astype(int)


def assert_same_samples(decoded, packed):
    """Equal but for rounding; at the edge Pillow's filter also sees the pixels around the crop."""
    difference = np.abs(decoded - packed)
    assert difference[:, 1:-1, 1:-1].max() <= 2 and difference.max() <= 12


def test_a_pack_at_the_files_own_size_gives_the_samples_of_decoding(folder):
    build(folder, 100, 64)
    decoded, packed = both(folder)
    assert_same_samples(decoded, packed)


@pytest.mark.parametrize(("width", "height"), [(200, 90), (90, 200), (150, 150), (500, 60)])
def test_images_of_any_shape_keep_region_distortion_and_mirroring(tmp_path, width, height):
    folder = write_images(tmp_path / "images", 6, width=width, height=height)
    build(folder, 6, 128)
    decoded, packed = both(folder)
    assert (
        np.abs(decoded - packed).mean() < 1.5
    )  # of 255; an image moved by one pixel of 24 differs by about 6


@pytest.mark.parametrize(("width", "height", "size"), [(256, 256, 256), (640, 480, 256), (300, 1000, 128)])
def test_boxes_are_those_of_the_originals_to_half_a_stored_pixel(tmp_path, width, height, size):
    folder = write_images(tmp_path / "images", 1, width=width, height=height)
    build(folder, 1, size)
    pack = open_pack(folder, FileIndex.of(folder))
    draws = draw_crops(2000, np.random.default_rng(0))
    original, flips = crop_boxes(draws, width, height)
    boxes, packed_flips = pack.boxes(np.zeros(2000, np.int64), draws)
    corners = np.concatenate([original[:, :2], original[:, :2] + original[:, 2:]], axis=1)
    exact = corners * size / np.array([width, height] * 2)
    assert np.abs(boxes - exact).max() <= 0.5 + 1e-9
    np.testing.assert_array_equal(flips, packed_flips)
    shares = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / size**2
    assert shares.mean() == pytest.approx(
        (original[:, 2] * original[:, 3]).mean() / (width * height), abs=2e-3
    )


def test_fewer_images_than_files_are_spread_over_the_folder(folder):
    assert spread_indices(12, 4).tolist() == [0, 3, 6, 9]
    build(folder, 4, 64)
    source = image_source(folder)
    assert source.describe()["packed"] == {"images": 4, "size": 64}
    assert source.describe()["images"] == 12


def test_a_sample_is_a_function_of_the_generator_and_survives_pickling(folder):
    build(folder, 12, 64)
    source = FolderImages(folder)
    first = source.sample(70, 20, 30, np.random.default_rng(3))
    assert first.shape == (70, 20, 30, 3) and first.dtype == np.uint8
    for other in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(first, other.sample(70, 20, 30, np.random.default_rng(3)))
    decoding = pickle.loads(pickle.dumps(FolderImages(folder, packed=False)))
    assert "packed" not in decoding.describe()


def test_a_file_that_cannot_be_decoded_is_replaced_by_the_next(folder):
    (folder / "0003.png").write_bytes(b"not an image")
    with pytest.warns(UserWarning, match=r"1 files of .* no readable images \(0003.png"):
        build(folder, 12, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoding names the bad file
        decoded, packed = both(folder)
    assert_same_samples(decoded, packed)


def change_a_file(folder):
    os.utime(folder / "0005.png", ns=(1, 1))


def add_a_file(folder):
    (folder / "new.png").write_bytes((folder / "0001.png").read_bytes())


def remove_a_file(folder):
    (folder / "0005.png").unlink()


@pytest.mark.parametrize("change", [change_a_file, add_a_file, remove_a_file])
def test_a_stale_pack_is_not_used_and_a_sentence_says_so(folder, change):
    build(folder, 12, 64)
    change(folder)
    with pytest.warns(UserWarning, match=r"made from other files.*data pack"):
        source = FolderImages(folder)
    assert "packed" not in source.describe()
    build(folder, 12, 64)
    assert "packed" in FolderImages(folder).describe()


def test_any_damaged_byte_is_found(folder, capsys):
    path = build(folder, 12, 16)
    whole = path.read_bytes()
    places = [20, 60, packed_images.PAGE + 3, packed_images.PAGE + 9, len(whole) - 1, len(whole) - 9000]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises((UserError, UserWarning), match="data pack"):
                FolderImages(folder)
    for length in (0, 10, packed_images.PAGE, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"damaged.*data pack"):
            FolderImages(folder)
    registry.register("mine", folder)
    assert main(["data", "check", "mine"]) == 1
    assert "damaged" in capsys.readouterr().out
    assert main(["data", "pack", "mine", "--size", "16"]) == 0
    assert path.read_bytes() == whole
    assert main(["data", "check", "mine"]) == 0


BUILD = """
import sys, time
from pathlib import Path
from softaug.media import packed_images
load = packed_images.load_whole
def slowly(path, size):
    time.sleep(0.02)
    return load(path, size)
packed_images.load_whole = slowly
packed_images.build(Path(sys.argv[1]), 60, 32, lambda done, total: print(done, flush=True))
"""


def test_a_killed_build_continues_and_ends_like_one_never_killed(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "images", 60)
    expected = build(folder, 60, 32).read_bytes()
    path = pack_path(folder)
    path.unlink()
    child = subprocess.Popen([sys.executable, "-c", BUILD, str(folder)], stdout=subprocess.PIPE, text=True)
    while int(child.stdout.readline()) < 20:
        pass
    with pytest.raises(UserError, match="another process is packing"):
        build(folder, 60, 32)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not path.exists() and path.with_suffix(".part").exists()
    assert "packed" not in FolderImages(folder).describe()
    # One of the finished images did not reach the disk: it is packed again.
    part = path.with_suffix(".part")
    content = bytearray(part.read_bytes())
    content[2 * packed_images.PAGE] ^= 255
    part.write_bytes(content)
    loaded, load = [], packed_images.load_whole
    monkeypatch.setattr(
        packed_images, "load_whole", lambda path, size: loaded.append(path) or load(path, size)
    )
    seen = []
    build(folder, 60, 32, lambda done, total: seen.append((done, total)))
    assert 0 < len(loaded) <= 41 and folder / "0000.png" in loaded
    assert seen[0] == (60 - len(loaded), 60) and seen[-1] == (60, 60)
    assert path.read_bytes() == expected and not part.exists()


def test_another_size_begins_again_and_the_old_pack_serves_until_then(folder):
    build(folder, 12, 16)
    build(folder, 12, 24)
    assert FolderImages(folder).describe()["packed"]["size"] == 24


def test_a_size_that_cannot_fit_leaves_an_unfinished_build_alone(folder):
    part = pack_path(folder).with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"hours of work")
    with pytest.raises(UserError, match="GB left"):
        build(folder, 12, 10_000_000)
    assert part.read_bytes() == b"hours of work"


def test_a_full_disk_and_wrong_numbers_are_one_sentence(folder, capsys):
    assert main(["data", "pack", str(folder), "--count", "12", "--size", "10000000"]) == 2
    error = capsys.readouterr().err
    assert "GB left" in error and "Traceback" not in error
    assert main(["data", "pack", str(folder), "--count", "0"]) == 2
    assert main(["data", "pack", "nothing-of-that-name"]) == 2


def test_the_command_packs_a_registered_name(folder, capsys):
    registry.register("mine", folder)
    assert main(["data", "pack", "mine", "--count", "5", "--size", "32"]) == 0
    assert str(pack_path(folder)) in capsys.readouterr().out
    assert image_source("mine").describe()["packed"] == {"images": 5, "size": 32}
