"""The lab's settings: links hold all of them, wrong ones are refused; what changes an image once it is rendered."""

from __future__ import annotations

import colorsys
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softaug.errors import UserError
from softaug.lab.images import change_image, halve, hue_matrix, put_behind, rgb_of
from softaug.lab.settings import FIELDS, Settings, query_of, schema, surprise

OTHER = Settings(
    mode="distracting(scale=0.2,dynamic=True,parts=camera+color)", seed=7, floor="#10aaff", sky="#000000", body="#ffffff",
    background="upload", video=99, upload="0123456789abcdef", hide_floor=True, opacity=0.35, azimuth=-31.0,
    elevation=12.0, distance=1.25, roll=-170.0, light=0.4, light_angle=33.0, brightness=1.35, hue=-90.0, blur=1.7,
    noise=0.13, states="same", saliency=True, speed=2.5, paused=True,
)  # fmt: skip


def test_a_link_holds_every_setting() -> None:
    for name, entry in FIELDS.items():
        assert getattr(OTHER, name) != entry.default, f"the example must change {name}"
    assert Settings.from_query(OTHER.to_query()) == OTHER
    assert Settings().to_query() == ""
    address = f"http://127.0.0.1:8383/token/?{OTHER.to_query()}"
    assert Settings.from_query(query_of(address)) == OTHER
    assert query_of(OTHER.to_query()) == OTHER.to_query()


@given(
    st.dictionaries(st.sampled_from([e["name"] for e in schema() if e["kind"] == "range"]), st.floats(0, 1))
)
def test_sliders_come_back_from_links(shares: dict[str, float]) -> None:
    changes = {}
    for name, share in shares.items():
        facts = FIELDS[name].metadata
        steps = round(share * (facts["max"] - facts["min"]) / facts["step"])
        changes[name] = min(facts["max"], round(facts["min"] + steps * facts["step"], 6))
    settings = Settings().with_changes(changes)
    assert Settings.from_query(settings.to_query()) == settings


@pytest.mark.parametrize(
    "query",
    ["opacity=2", "opacity=nan", "opacity=x", "floor=red", "floor=%23ZZZZZZ", "background=file", "video=1.5", "seed=-1",
     "paused=yes", "upload=../../etc", "nonsense=1", "mode=", "mode=" + 300 * "x", "speed=1e999", "seed=" + 5000 * "1"],
)  # fmt: skip
def test_wrong_settings_are_refused(query: str) -> None:
    with pytest.raises(UserError, match=query.partition("=")[0]):
        Settings.from_query(query)


def test_values_of_the_wrong_type_are_refused() -> None:
    for changes in (
        {"seed": True},
        {"seed": 1.0},
        {"paused": 1},
        {"opacity": "half"},
        {"floor": 3},
        {"opacity": None},
    ):
        with pytest.raises(UserError):
            Settings().with_changes(changes)


def test_appearance_tells_what_changes_images() -> None:
    same = dataclasses.replace(OTHER, paused=False, speed=1.0, saliency=False, states="own")
    assert same.appearance() == OTHER.appearance()
    assert dataclasses.replace(OTHER, roll=0.0).appearance() != OTHER.appearance()


def test_surprises_are_valid_and_keep_to_the_controls() -> None:
    rng = np.random.default_rng(0)
    everything = tuple(FIELDS)
    drawn = [Settings().with_changes(surprise(rng, everything, ("train", "video_hard"))) for _ in range(50)]
    assert len({settings.to_query() for settings in drawn}) > 45
    assert {settings.mode for settings in drawn} == {"train", "video_hard"}
    for _ in range(20):
        assert set(surprise(rng, ("hue", "noise"), ("train",))) == {"hue", "noise"}


def test_no_change_returns_the_image_itself() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    assert change_image(frame, Settings(), np.random.default_rng(0)) is frame


def test_hue_turns_a_color_and_keeps_grey_and_luma() -> None:
    luma = np.array([0.299, 0.587, 0.114])
    for degrees in (-120, 45, 180):
        matrix = hue_matrix(degrees)
        np.testing.assert_allclose(matrix @ np.ones(3), np.ones(3), atol=1e-6)
        np.testing.assert_allclose(luma @ matrix, luma, atol=1e-6)
    np.testing.assert_allclose(hue_matrix(70) @ hue_matrix(-70), np.eye(3), atol=1e-9)
    turned = np.clip(hue_matrix(180) @ np.array([0.6, 0.4, 0.4]), 0, 1)
    assert abs(colorsys.rgb_to_hsv(*turned)[0] - 0.5) < 0.06  # red has become cyan


def test_brightness_blur_and_noise() -> None:
    rng = np.random.default_rng(1)
    frame = np.full((40, 40, 3), 100, np.uint8)
    assert (change_image(frame, Settings(brightness=1.5), rng) == 150).all()
    noisy = change_image(frame, Settings(noise=0.1), rng)
    assert abs(float(noisy.mean()) - 100) < 2
    assert abs(float(noisy.std()) - 25.5) < 2
    edge = np.zeros((40, 40, 3), np.uint8)
    edge[:, 20:] = 255
    blurred = change_image(edge, Settings(blur=5.0), rng)
    assert 0 < blurred[20, 18, 0] < blurred[20, 21, 0] < 255
    large = np.kron(edge, np.ones((2, 2, 1), np.uint8))
    assert abs(int(change_image(large, Settings(blur=5.0), rng)[40, 37, 0]) - int(blurred[20, 18, 0])) < 25


def test_a_background_shows_where_the_mask_is_with_its_opacity() -> None:
    frame, back = np.full((2, 2, 3), 10, np.uint8), np.full((2, 2, 3), 200, np.uint8)
    mask = np.array([[True, False], [False, True]])
    assert put_behind(frame, mask, back, 1.0)[..., 0].tolist() == [[200, 10], [10, 200]]
    assert put_behind(frame, mask, back, 0.25)[..., 0].tolist() == [[58, 10], [10, 58]]


def test_halve_is_the_mean_of_four_pixels() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
    means = frame.reshape(3, 2, 2, 2, 3).astype(float).mean((1, 3))
    assert np.abs(halve(frame) - means).max() <= 0.5


def test_colors() -> None:
    assert rgb_of("#ff0080").tolist() == [1.0, 0.0, 128 / 255]
