"""The benchmark's color files: read without executing what is pickled in them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from softaug.errors import UserError
from softaug.media import official, registry


def settings(count: int = 100) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{key: rng.random(3) for key in official.COLOR_KEYS} for _ in range(count)]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_old_and_new_files_are_read(tmp_path, zipped, module):
    path = tmp_path / "color_easy.pt"
    torch.save(settings(), path, _use_new_zipfile_serialization=zipped)
    if not zipped:  # the pickle stands uncompressed in the file: spell the module as old or new NumPy does
        content = path.read_bytes()
        written = b"numpy._core.multiarray" if b"numpy._core" in content else b"numpy.core.multiarray"
        path.write_bytes(content.replace(written, module))
    loaded = official.load_colors(path)
    assert len(loaded) == 100
    for setting, expected in zip(loaded, settings(), strict=True):
        assert setting.keys() == expected.keys()
        for key in expected:
            np.testing.assert_array_equal(setting[key], expected[key])


class Dangerous:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [False, True])
def test_malicious_pickle_is_refused_and_not_executed(tmp_path, zipped):
    path, trace = tmp_path / "evil.pt", tmp_path / "executed"
    torch.save([{"grid_rgb1": Dangerous(trace)}], path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=r"evil\.pt is not a DMControl-GB color file, or not a safe one"):
        official.load_colors(path)
    assert not trace.exists()


def test_files_that_hold_something_else_are_refused(tmp_path):
    def refused(content: object, message: str) -> None:
        path = tmp_path / "odd.pt"
        torch.save(content, path)
        with pytest.raises(UserError, match=message):
            official.load_colors(path)

    refused({"a": 1}, "no list of color settings")
    refused([], "no list of color settings")
    refused([1], "setting 0 .* must be a dict")
    refused([{"floor": np.zeros(3)}], "unknown key 'floor'; the keys are grid_rgb1")
    refused([{"grid_rgb1": np.zeros(4)}], "must be three numbers between 0 and 1")
    refused([{"grid_rgb1": np.array([0.1, np.nan, 0.2])}], "must be three numbers between 0 and 1")
    (tmp_path / "text.pt").write_text("colors?")
    with pytest.raises(UserError, match=r"text\.pt is not a DMControl-GB color file"):
        official.load_colors(tmp_path / "text.pt")
    with pytest.raises(UserError, match=r"there is no color file .*none\.pt"):
        official.load_colors(tmp_path / "none.pt")


def test_registered_colors(tmp_path):
    assert official.registered_colors("easy") is None
    (tmp_path / "gb").mkdir()
    torch.save(settings(), tmp_path / "gb" / "color_easy.pt")
    registry.register("dmcgb", tmp_path / "gb")
    assert official.registered_colors("easy") == tmp_path / "gb" / "color_easy.pt"
    assert official.registered_colors("hard") is None


def test_registered_folder_that_vanished_is_an_error(tmp_path):
    (tmp_path / "gb" / "video_easy").mkdir(parents=True)
    registry.register("dmcgb", tmp_path / "gb")
    (tmp_path / "gb" / "video_easy").rmdir()
    with pytest.raises(UserError, match="holds no DMControl-GB files any more"):
        official.registered_colors("easy")


def test_the_official_file(official_data):
    path = official_data / "color_easy.pt"
    if not path.is_file():
        pytest.skip("color_easy.pt is not here")
    loaded = official.load_colors(path)
    assert len(loaded) == 100 and set(loaded[0]) == set(official.COLOR_KEYS)
    for setting in loaded:  # the second grid color is the first plus 0.1
        np.testing.assert_allclose(
            setting["grid_rgb2"], np.clip(setting["grid_rgb1"] + 0.1, 0, 1), atol=1e-12
        )
    deviation = np.stack([setting["self_rgb"] for setting in loaded]) - (0.7, 0.5, 0.3)
    assert 0.07 < deviation.std() < 0.13  # N(0, 0.1)
