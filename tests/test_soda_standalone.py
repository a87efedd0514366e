"""SodaTask next to anyone's learner: its own step, conventions of input, saving, and clear refusals."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from tiny import AFTER_UPDATES, assert_same_on, generator, pixels, same, snapshot
from torch import Tensor, nn

from softaug import SodaTask
from softaug.errors import UserError
from softaug.learning.augment import RandomConv, RandomCrop, RandomShift

SHAPE = (6, 12, 12)


def maps_encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(6, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 3, 3))


def vector_encoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6 * 12 * 12, 20), nn.BatchNorm1d(20), nn.ReLU())


def make_task(encoder: nn.Module | None = None, *, device: str = "cpu", **overrides: Any) -> SodaTask:
    torch.manual_seed(0)
    encoder = (maps_encoder() if encoder is None else encoder).to(device)
    settings: dict[str, Any] = {"obs_shape": SHAPE, "projection_dim": 5, "lr": 3e-3, "scale": 1 / 255}
    return SodaTask(encoder, augment=RandomConv(), **{**settings, **overrides})


def batch(seed: int = 0, size: int = 12) -> Tensor:
    return pixels(8, 6, size, size, seed=seed)


@pytest.mark.parametrize("encoder", [maps_encoder, vector_encoder])
def test_step_is_loss_adam_and_the_moving_average(encoder, device):
    torch.manual_seed(1)
    one, two = (make_task(encoder(), device=device) for _ in range(2))
    two.load_state_dict(one.state_dict())
    optimizer = torch.optim.Adam([p for p in two.parameters() if p.requires_grad], 3e-3)
    draws = generator(device)
    for i in range(4):
        returned = one.step(batch(i))
        loss = two.loss(batch(i).to(device), draws)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        two.update_target()
        assert_same_on(device, returned, loss.detach(), AFTER_UPDATES)
        assert not returned.requires_grad
    assert_same_on(device, snapshot(one), snapshot(two), 4 * AFTER_UPDATES)  # steps of 3e-3


@pytest.mark.parametrize("weak", [None, RandomShift(1), RandomCrop(12)])
def test_step_lowers_the_loss(weak, device):
    task = make_task(weak=weak, lr=1e-2, device=device)
    size = 14 if isinstance(weak, RandomCrop) else 12
    losses = [float(task.step(batch(0, size))) for _ in range(60)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_the_learners_own_gradients_survive_a_step(device):
    """RL may be in the middle of accumulating gradients; SODA's must not be added to them."""
    task = make_task(device=device)
    task.f_theta(batch().to(device).float() / 255).square().mean().backward()
    kept = [p.grad.clone() for p in task.f_theta.parameters()]
    task.step(batch())
    assert all(torch.equal(p.grad, g) for p, g in zip(task.f_theta.parameters(), kept, strict=True))
    fresh = make_task(device=device)
    fresh.step(batch())
    assert all(p.grad is None for p in fresh.parameters())


def test_uint8_and_float_pixels_mean_the_same(device):
    losses = [make_task(device=device).step(batch().to(dtype)) for dtype in (torch.uint8, torch.float32)]
    assert_same_on(device, *losses)


def test_scale_is_what_the_encoder_gets(device):
    seen: list[Tensor] = []
    task = make_task(scale=1 / 255, device=device)
    for encoder in (task.f_psi, task.f_theta):
        encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    task.loss(batch().to(device))
    clean, strong = (view.cpu() for view in seen)  # z* comes first
    torch.testing.assert_close(clean, batch().float() / 255)
    assert strong.dtype == torch.float32 and float(strong.min()) >= 0 and float(strong.max()) <= 1
    assert not torch.allclose(strong, clean, atol=1e-2)


def test_observations_are_left_alone(device):
    observations = batch().to(device)
    before = observations.clone()
    make_task(weak=RandomShift(2), device=device).step(observations)
    assert torch.equal(observations, before)


def test_training_goes_on_exactly_after_saving_and_loading(device):
    straight, interrupted = (make_task(vector_encoder(), device=device) for _ in range(2))
    interrupted.load_state_dict(straight.state_dict())
    for i in range(3):
        straight.step(batch(i))
        interrupted.step(batch(i))
    file = io.BytesIO()
    torch.save(interrupted.training_state(), file)
    file.seek(0)
    encoder = vector_encoder()
    resumed = make_task(encoder, seed=99, device=device)
    resumed.load_training_state(torch.load(file, weights_only=True))
    assert same(snapshot(interrupted), snapshot(resumed))
    for i in range(3, 6):
        assert_same_on(device, straight.step(batch(i)), resumed.step(batch(i)), AFTER_UPDATES)
    assert_same_on(device, snapshot(straight), snapshot(resumed), 4 * AFTER_UPDATES)  # steps of 3e-3
    assert same(snapshot(encoder), snapshot(resumed.f_theta))  # the encoder itself, not a copy of it


def test_the_seed_decides_the_draws(device):
    losses = [make_task(seed=seed, device=device).step(batch()) for seed in (1, 1, 2)]
    assert_same_on(device, losses[0], losses[1])
    assert not torch.allclose(losses[1], losses[2], rtol=1e-3)


def test_frozen_parts_of_the_encoder_stay(device):
    encoder = maps_encoder()
    encoder[0].requires_grad_(False)
    task = make_task(encoder, device=device)
    frozen, free = snapshot(encoder[0]), snapshot(encoder[2])
    task.step(batch())
    assert same(snapshot(encoder[0]), frozen) and not same(snapshot(encoder[2]), free)


def test_a_foreign_learner_with_soda_becomes_less_sensitive_to_color(device):
    """The whole point, in small: after SODA, features of a recolored image are nearer to the image's own."""
    encoder = maps_encoder()
    task, seen = make_task(encoder, lr=1e-2, device=device), batch(7).to(device)
    views = RandomConv()(seen, generator(device, 5))

    def prediction_error() -> float:
        with torch.no_grad():
            z_hat = task.h_theta(task.g_theta(encoder(views / 255).flatten(1)))
            z_star = task.g_psi(task.f_psi(seen.float() / 255).flatten(1))
        return 1 - float(nn.functional.cosine_similarity(z_hat, z_star).mean())

    before = prediction_error()
    for _ in range(80):
        task.step(batch(7))
    assert prediction_error() < 0.6 * before


@pytest.mark.parametrize("shape", [(6, 12, 12), (1, 6, 12, 12)])
def test_what_is_no_batch_is_refused(shape):
    with pytest.raises(UserError, match=r"\(B, C, H, W\)"):
        make_task().step(torch.zeros(shape, dtype=torch.uint8))


def test_pixels_from_0_to_1_are_refused():
    with pytest.raises(UserError, match=r"0\.\.255"):
        make_task().step(torch.rand(4, *SHAPE))


def test_encoders_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="but fails"):
        make_task(obs_shape=(9, 12, 12))

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.conv(x), x

    with pytest.raises(UserError, match="one tensor"):
        make_task(Pair())
    with pytest.raises(UserError, match="call it once on observations first"):
        make_task(nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU()))
    with pytest.raises(UserError, match="nothing to shape"):
        make_task(nn.Flatten())
    with pytest.raises(UserError, match="tau"):
        make_task(tau=2.0)
