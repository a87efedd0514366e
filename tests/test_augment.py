"""Augmentations equal their naive versions, draw once per sample and never change their input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fakes import FakeImages
from tiny import assert_same_on, generator, global_generators, pixels

from softaug.benchmarks import plain_data
from softaug.config import make_config
from softaug.errors import UserError
from softaug.learning.augment import (
    Composed,
    MovingOverlay,
    OneOf,
    RandomConv,
    RandomCrop,
    RandomOverlay,
    RandomRotate,
    RandomShift,
    center_crop,
    draw_integers,
    window,
)
from softaug.learning.views import SADA_VIEWS, make_view


class NoiseImages(FakeImages):
    """Images of noise, so that a wrong pixel shows."""

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


EVERY = {
    "crop": RandomCrop(12),
    "shift": RandomShift(3),
    "conv": RandomConv(),
    "overlay": RandomOverlay(NoiseImages()),
    "rotate": RandomRotate(),
    "moving_overlay": MovingOverlay(NoiseImages()),
    "composed": Composed(RandomRotate(), RandomShift(3)),
    "one_of": OneOf([RandomConv(), RandomShift(3), RandomRotate()]),
}


def every_but(*names: str) -> pytest.MarkDecorator:
    chosen = {name: augment for name, augment in EVERY.items() if name not in names}
    return pytest.mark.parametrize("augment", chosen.values(), ids=chosen.keys())


every = every_but()
both_dtypes = pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])


@every
@both_dtypes
def test_input_unchanged_range_kept_layout_channels_last(augment, dtype, device):
    obs = pixels(5, 9, 16, 16, dtype=dtype, device=device)
    before = obs.clone()
    out = augment(obs, generator(device))
    assert out.device == obs.device
    assert torch.equal(obs, before)
    assert out.data_ptr() != obs.data_ptr()
    assert out.dtype in (dtype, torch.float32)
    assert out.shape[:2] == obs.shape[:2]
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert float(out.min()) >= 0 and float(out.max()) <= 255


@every
def test_output_is_not_a_view_of_its_input(augment, device):
    obs = pixels(3, 6, 16, 16, dtype=torch.float32, device=device)
    out = augment(obs, generator(device))
    before = out.clone()
    obs.zero_()
    assert torch.equal(out, before)


@every_but("rotate")
def test_every_sample_gets_its_own_draw(augment, device):
    one = pixels(1, 3, 16, 16, device=device)
    out = augment(one.expand(64, -1, -1, -1).contiguous(memory_format=torch.channels_last), generator(device))
    different = len(torch.unique(out.cpu().flatten(1), dim=0))
    assert different > 15  # 25 possible crops, 49 shifts; colors and kernels hardly ever repeat


@every_but("moving_overlay")
def test_every_frame_of_a_stack_gets_the_same_draw(augment, device):
    frame = pixels(8, 3, 16, 16, device=device)
    stacks = frame.repeat(1, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    out = augment(stacks, generator(device))
    torch.testing.assert_close(out[:, 0:3], out[:, 3:6], rtol=0, atol=1e-3)
    torch.testing.assert_close(out[:, 0:3], out[:, 6:9], rtol=0, atol=1e-3)


@every
def test_the_generators_state_fixes_everything(augment, device):
    obs, draws = pixels(6, 6, 16, 16, device=device), generator(device, 3)
    state = draws.get_state()
    first, second = augment(obs, draws), augment(obs, draws)
    draws.set_state(state)
    assert_same_on(device, augment(obs, draws), first, 1e-2)  # pixels in 0..255
    assert not torch.allclose(first.float(), second.float(), rtol=0, atol=1)


@every
def test_the_global_generators_are_left_alone(augment, device):
    torch_states, numpy_state = global_generators(device), np.random.get_state()[1].copy()  # noqa: NPY002
    augment(pixels(4, 3, 16, 16, device=device), generator(device))
    assert all(map(torch.equal, global_generators(device), torch_states))
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


@both_dtypes
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_window_equals_slicing(dtype, layout, device):
    obs = pixels(7, 6, 20, 18, dtype=dtype).contiguous(memory_format=layout)
    top, left = draw_integers(9, 7, generator(seed=1)), draw_integers(7, 7, generator(seed=2))
    naive = torch.stack([o[:, y : y + 12, x : x + 12] for o, y, x in zip(obs, top, left, strict=True)])
    out = window(obs.to(device), top.to(device), left.to(device), 12)
    assert torch.equal(out.cpu(), naive)


def test_crop_draws_every_window_and_shift_every_offset(device):
    """Every output is one of the naive windows; with many samples all of them occur."""
    image = pixels(1, 3, 8, 8)
    many = image.expand(2000, -1, -1, -1).contiguous(memory_format=torch.channels_last).to(device)

    def distinct(views: torch.Tensor) -> set[bytes]:
        return {view.contiguous().numpy().tobytes() for view in views.cpu()}

    crops = {(y, x): image[0, :, y : y + 5, x : x + 5] for y in range(4) for x in range(4)}
    assert distinct(RandomCrop(5)(many, generator(device))) == distinct(torch.stack(list(crops.values())))
    padded = F.pad(image.float(), (2, 2, 2, 2), mode="replicate").to(torch.uint8)[0]
    shifts = [padded[:, y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
    assert distinct(RandomShift(2)(many, generator(device))) == distinct(torch.stack(shifts))


def test_all_17_by_17_crop_offsets_are_drawn_uniformly(device):
    """100 -> 84 has 17 valid offsets each way (the first public code left one out); chi-square, fixed seed."""
    rows = torch.arange(100, dtype=torch.uint8)[:, None].expand(100, 100)
    columns = torch.arange(100, dtype=torch.uint8)[None].expand(100, 100)
    obs = torch.stack([rows, columns, columns])[None].to(device)
    counts = np.zeros((17, 17))
    draws, crop = generator(device), RandomCrop(84)
    for _ in range(12):
        out = crop(obs.expand(500, -1, -1, -1), draws)[:, :, 0, 0].cpu()
        np.add.at(counts, (out[:, 0].numpy(), out[:, 1].numpy()), 1)
    assert counts.sum() == 6000 and (counts > 0).all()
    expected = 6000 / 289
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 371  # the 99.95 % point of chi-square with 288 degrees of freedom


def test_shift_draws_nine_offsets_uniformly(device):
    """pad 4: -4 .. 4 each way."""
    columns = torch.arange(20, dtype=torch.uint8)[None].expand(20, 20)
    obs = torch.stack([columns.T, columns, columns])[None].expand(4000, -1, -1, -1).to(device)
    out = RandomShift()(obs, generator(device)).cpu()
    for channel in (0, 1):
        counts = np.bincount(out[:, channel, 10, 10].numpy(), minlength=20)
        assert (counts[6:15] > 0).all() and counts.sum() == counts[6:15].sum() == 4000
        assert ((counts[6:15] - 4000 / 9) ** 2 / (4000 / 9)).sum() < 28  # 99.95 % of chi-square(8)


def test_center_crop_takes_the_middle():
    obs = pixels(2, 3, 100, 100)
    assert torch.equal(center_crop(obs, 84), obs[:, :, 8:92, 8:92])
    assert torch.equal(center_crop(obs, 100), obs)


@both_dtypes
def test_conv_equals_a_loop_over_samples_and_frames(dtype, device):
    obs = pixels(4, 9, 10, 11, dtype=dtype)
    weights = torch.randn(4, 3, 3, 3, 3, generator=generator(seed=5))
    naive = torch.empty(4, 9, 10, 11)
    for sample in range(4):
        for frame in range(3):
            image = obs[sample, 3 * frame : 3 * frame + 3].float() / 255
            padded = F.pad(image[None], (1, 1, 1, 1), mode="replicate")
            naive[sample, 3 * frame : 3 * frame + 3] = (
                torch.sigmoid(F.conv2d(padded, weights[sample]))[0] * 255
            )
    out = RandomConv.convolve(obs.to(device), weights.to(device))
    torch.testing.assert_close(out.cpu(), naive, rtol=1e-4, atol=1e-3)


def test_conv_weights_are_standard_normal(device):
    """A gray image makes the output sigmoid(sum of 27 weights): normal with variance 27 before the sigmoid."""
    gray = torch.full((4000, 3, 3, 3), 255 / 10.0, device=device)
    out = RandomConv()(gray, generator(device))
    before_sigmoid = torch.logit(out[:, :, 1, 1].cpu().double() / 255)
    expected_std = 27**0.5 / 10
    assert abs(float(before_sigmoid.mean())) < 4 * expected_std / 12000**0.5
    assert float(before_sigmoid.std()) == pytest.approx(expected_std, rel=0.03)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_overlay_equals_the_papers_formula(alpha, device):
    """Eq. 4 with one image per sample, the same for every frame of its stack."""

    class Fixed(FakeImages):
        def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
            shape = (count, height, width, 3)
            return np.random.default_rng(9).integers(0, 256, shape, dtype=np.uint8)

    obs = pixels(3, 6, 7, 5)
    out = RandomOverlay(Fixed(), alpha)(obs.to(device), generator(device)).cpu()
    epsilon = torch.from_numpy(Fixed().sample(3, 7, 5, np.random.default_rng(0))).permute(0, 3, 1, 2)
    for frame in range(2):
        stack = obs[:, 3 * frame : 3 * frame + 3].double()
        naive = (1 - alpha) * stack + alpha * epsilon.double()
        torch.testing.assert_close(out[:, 3 * frame : 3 * frame + 3].double(), naive, rtol=1e-5, atol=1e-3)


@both_dtypes
@pytest.mark.parametrize("name", [name for name in EVERY if name != "crop"])
def test_a_view_equals_its_plain_version(name, dtype):
    """Loops over samples, frames and pixels (`benchmarks.plain_data`), with the same draws."""
    obs = pixels(9, 9, 14, 14, dtype=dtype)
    expected = plain_data.augmented(EVERY[name], obs.float(), generator(seed=4))
    torch.testing.assert_close(EVERY[name](obs, generator(seed=4)).float(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_quarter_turn_is_exact(quarters, device):
    obs = pixels(2, 3, 11, 11, device=device)
    turned = RandomRotate.rotate(obs, torch.tensor([quarters * torch.pi / 2], device=device))
    torch.testing.assert_close(turned, torch.rot90(obs, quarters, (2, 3)).float(), rtol=0, atol=2e-2)


def test_a_rotation_repeats_the_edge_and_is_never_black(device):
    """An image of one color stays so at every angle; so does a frame of another color stay around it."""
    grey = torch.full((1, 3, 20, 20), 90.0, device=device)
    for angle in torch.linspace(0, 3, 7, device=device):
        assert_same_on(device, RandomRotate.rotate(grey, angle[None]).round(), grey)
        framed = grey.clone()
        framed[:, :, 0] = framed[:, :, -1] = framed[:, :, :, 0] = framed[:, :, :, -1] = 200.0
        assert float(RandomRotate.rotate(framed, angle[None])[0, :, 0, 0].min()) > 120


def test_all_samples_of_a_call_turn_by_one_angle_and_angles_are_uniform(device):
    """As in SADA's code. A bright column's place on a wheel says the angle; chi-square over calls, fixed seed."""
    obs = torch.zeros(4, 3, 41, 41, device=device)
    obs[:, :, 20, 36:] = 255  # to the right of the centre: angle 0
    draws, counts = generator(device, 2), np.zeros(8)
    for _ in range(400):
        out = RandomRotate()(obs, draws).cpu()
        assert torch.equal(out[0], out[3])
        weight = out[0, 0]
        down, right = torch.meshgrid(torch.arange(41) - 20.0, torch.arange(41) - 20.0, indexing="ij")
        angle = np.arctan2(-float((weight * down).sum()), float((weight * right).sum()))
        counts[int((angle + np.pi) / (2 * np.pi) * 8) % 8] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 26  # 99.95 % of chi-square(7)


def test_rotations_can_differ_by_sample(device):
    obs = pixels(3, 3, 9, 9, device=device)
    angles = torch.tensor([0.0, torch.pi / 2, 1.0], device=device)
    together = RandomRotate.rotate(obs, angles)
    for i in range(3):
        alone = RandomRotate.rotate(obs[i : i + 1], angles[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-3)


def test_a_moving_overlay_moves_by_one_step_a_frame(device):
    """The oldest frame gets the image's centre; at 84 pixels the image has 120 and a step is at most 6."""

    class Ramps(FakeImages):
        def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
            assert height == width == 120
            rows, columns = np.mgrid[:height, :width]
            image = np.stack([rows, columns, rows], axis=-1).astype(np.uint8)
            return np.broadcast_to(image, (count, *image.shape)).copy()

    black = torch.zeros(3000, 9, 84, 84, dtype=torch.uint8, device=device)[:, :, :1, :1].expand(
        -1, -1, 84, 84
    )
    corner = torch.cat(
        [MovingOverlay(Ramps(), 1.0)(some, generator(device, i))[:, :, 0, 0].cpu() for i, some in enumerate(black.split(250))]
    )  # fmt: skip
    tops, lefts = corner[:, 0::3].round(), corner[:, 1::3].round()
    for offsets in (tops, lefts):
        step = offsets[:, 1] - offsets[:, 0]
        assert (offsets[:, 0] == 18).all()
        assert torch.equal(offsets[:, 2] - offsets[:, 1], step)
        counts = np.bincount((step + 6).int().numpy(), minlength=13)
        assert len(counts) == 13 and ((counts - 3000 / 13) ** 2 / (3000 / 13)).sum() < 35  # chi-square(12)


def test_a_moving_overlay_with_many_frames_stays_inside_its_image():
    obs = torch.zeros(5, 30, 8, 8)
    expected = plain_data.augmented(EVERY["moving_overlay"], obs, generator(seed=1))
    torch.testing.assert_close(
        EVERY["moving_overlay"](obs, generator(seed=1)), expected, rtol=1e-4, atol=1e-2
    )


def test_sada_draws_each_of_its_six_views_equally_often(device):
    config = make_config(method="drq", crop_size=84)
    view = make_view("sada", config, NoiseImages())
    assert isinstance(view, OneOf) and len(view.choices) == len(SADA_VIEWS) == 6
    counts = np.zeros(6)

    def counting(number: int):
        def count(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            counts[number] += len(obs)
            return obs + number

        return count

    out = OneOf([counting(i) for i in range(6)])(torch.zeros(3000, 3, 2, 2, device=device), generator(device))
    assert np.array_equal(np.bincount(out[:, 0, 0, 0].cpu().int(), minlength=6), counts)  # back in its place
    assert ((counts - 500) ** 2 / 500).sum() < 22.1  # 99.95 % of chi-square(5)


@pytest.mark.parametrize(("crop_size", "pad"), [(84, 16), (50, 10), (16, 3)])
def test_large_shifts_are_sixteen_pixels_of_84(crop_size, pad):
    view = make_view("large_shift", make_config(method="drq", crop_size=crop_size, preset="small"))
    assert isinstance(view, RandomShift) and view.pad == pad


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(UserError, match="16 x 40 pixels are too small for a crop of 20"):
        RandomCrop(20)(torch.zeros(2, 3, 16, 40), torch.Generator())
