"""Images from a folder: crops are right, samples repeat, bad files are skipped and named."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from PIL import Image

from softaug.errors import UserError
from softaug.media import folder_images, image_source, registry
from softaug.media.folder_images import FileIndex, load_crop, scan


@pytest.fixture
def folder(tmp_path, make_image):
    root = tmp_path / "images"
    for number, name in enumerate(("a.jpg", "b.PNG", "deep/er/c.webp", "deep/d.jpeg")):
        make_image(root / name, blue=40 * number)
    (root / "notes.txt").write_text("not an image")
    return root


def test_every_image_below_the_folder_is_found_once_in_order(folder):
    assert list(scan(folder)) == ["a.jpg", "b.PNG", "deep/d.jpeg", "deep/er/c.webp"]
    source = image_source(folder)
    assert source.kind == "folder"
    assert source.describe() == {"kind": "folder", "path": str(folder), "images": 4}


def test_sample_is_a_pure_function_of_the_generator(folder):
    source = image_source(str(folder))
    first = source.sample(20, 32, 24, np.random.default_rng(3))
    source.sample(5, 16, 16, np.random.default_rng(4))
    assert first.shape == (20, 32, 24, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, source.sample(20, 32, 24, np.random.default_rng(3)))
    copied = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(first, copied.sample(20, 32, 24, np.random.default_rng(3)))
    assert not np.array_equal(first, source.sample(20, 32, 24, np.random.default_rng(5)))


def test_all_files_and_both_mirrorings_are_drawn(folder):
    images = image_source(folder).sample(200, 16, 16, np.random.default_rng(0)).astype(np.float64)
    blues = np.round(images[..., 2].mean(axis=(1, 2)) / 40).astype(int)
    assert set(blues) == {0, 1, 2, 3}
    rises = images[:, :, -1, 0].mean(axis=1) > images[:, :, 0, 0].mean(axis=1)
    assert 0.35 < rises.mean() < 0.65
    # Red is the position in x: the crops' extents follow 8 to 100% of the area.
    extent = np.abs(images[:, :, -1, 0] - images[:, :, 0, 0]).mean(axis=1) / 255
    assert extent.min() < 0.4 and extent.max() > 0.8


@pytest.mark.parametrize("name", ["x.png", "x.jpg"])
def test_crop_shows_the_right_part(tmp_path, make_image, name):
    """A quarter of the area from the lower right corner; the same for JPEG, which is decoded at reduced size."""
    path = make_image(tmp_path / name, width=800, height=800)
    corner = np.array([0.999, 0.999, 0.9, 0.25, 1.0])  # x, y, flip; a share of the area and an aspect ratio
    crop = load_crop(path, corner, 20, 20).astype(np.float64)
    expected = 127.5 + 127.5 * (np.arange(20) + 0.5) / 20
    np.testing.assert_allclose(crop[..., 0].mean(axis=0), expected, atol=3)
    np.testing.assert_allclose(crop[..., 1].mean(axis=1), expected, atol=3)
    mirrored = load_crop(path, np.array([0.999, 0.999, 0.1, 0.25, 1.0]), 20, 20)
    np.testing.assert_array_equal(mirrored[:, ::-1], crop)


def test_image_smaller_than_the_crop_is_enlarged(tmp_path, make_image):
    make_image(tmp_path / "small" / "tiny.png", width=5, height=3, blue=200)
    images = image_source(tmp_path / "small").sample(10, 84, 84, np.random.default_rng(0))
    assert images.shape == (10, 84, 84, 3) and (images[..., 2] == 200).all()


def test_grey_palette_and_transparent_images_become_rgb(tmp_path):
    (tmp_path / "modes").mkdir()
    for mode in ("L", "P", "RGBA", "1", "CMYK"):
        suffix = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (40, 40)).save(tmp_path / "modes" / f"{mode}.{suffix}")
    images = image_source(tmp_path / "modes").sample(30, 8, 8, np.random.default_rng(0))
    assert images.shape == (30, 8, 8, 3)


def test_bad_files_are_replaced_by_the_next_and_named_once(folder, make_image):
    whole = make_image(folder / "z.jpg", width=400, height=400).read_bytes()
    good = image_source(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good.sample(50, 16, 16, np.random.default_rng(0))
    (folder / "z.jpg").write_bytes(whole[: len(whole) // 3])  # truncated
    (folder / "a.jpg").write_text("a text file called .jpg")
    source = image_source(folder)
    with pytest.warns(UserWarning) as caught:
        first = source.sample(50, 16, 16, np.random.default_rng(0))
    assert len(caught) == 1
    assert "a.jpg" in str(caught[0].message) and "z.jpg" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # never again
        again = source.sample(50, 16, 16, np.random.default_rng(0))
    np.testing.assert_array_equal(first, again)
    # z is the last of five: after it comes a, which is bad as well, so b takes the place of both.
    assert set(np.round(first[..., 2].mean(axis=(1, 2)) / 40).astype(int)) == {1, 2, 3}


def test_only_bad_files(tmp_path):
    (tmp_path / "bad").mkdir()
    for number in range(3):
        (tmp_path / "bad" / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    with pytest.raises(UserError, match=r"bad is a readable image"):
        image_source(tmp_path / "bad").sample(2, 8, 8, np.random.default_rng(0))


def test_missing_and_empty_folder(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.*no such folder"):
        image_source(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        image_source(tmp_path / "empty")


def test_index_of_a_large_tree_is_cached_until_it_changes(tmp_path, make_image, monkeypatch):
    monkeypatch.setattr(folder_images, "INDEX_CACHE_FROM", 3)
    root = tmp_path / "large"
    for number in range(5):
        make_image(root / "class" / f"{number}é.png", width=4, height=4)
    index = FileIndex.of(root)
    names = [index[i] for i in range(len(index))]
    assert names == [f"class/{number}é.png" for number in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(folder_images, "scan", lambda folder: pytest.fail("scanned again"))
        cached = FileIndex.of(root)
        assert [cached[i] for i in range(len(cached))] == names
    (root / "class" / "0é.png").unlink()
    assert len(FileIndex.of(root)) == 4


def test_registered_images_are_the_default(folder, tmp_path, make_image):
    assert image_source().kind == "procedural"
    registry.register("mine", folder)
    assert image_source().kind == "procedural"  # a name of one's own is used when asked for
    assert image_source("mine").describe()["path"] == str(folder)
    make_image(tmp_path / "places" / "p.jpg")
    registry.register("places365", tmp_path / "places")
    assert image_source().describe()["path"] == str(tmp_path / "places")
    assert image_source("procedural").kind == "procedural"
    with pytest.raises(UserError, match="registered: mine, places365"):
        image_source("plaices365")
