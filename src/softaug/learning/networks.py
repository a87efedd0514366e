"""Networks: convolutional encoder, projection, actor, critic, and the moving average of parameters.

Sizes of the paper: pixels (B, 9, 84, 84) -> features (B, 32, 21, 21) -> projection (B, 100) -> MLPs of
2 x 1024. No configuration object enters here; `agent.py` wires the parts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A batch of large feature maps leaves the cache; pieces of this many images keep the convolutions near the
# machine's arithmetic limit on a CPU (measured by `softaug bench update`).
CPU_PIECE = 64

ModuleType = TypeVar("ModuleType", bound=nn.Module)
Relu = Callable[[Tensor], Tensor]
"""What stands in for ReLU where something else is to happen in its backward pass (`saliency.py`)."""


class ConvStack(nn.Module):
    """3x3 convolutions without padding, ReLU between them (none after the last).

    `pixels` marks the stack that sees raw pixels 0..255 and takes them as 0..1, less `pixel_offset`; a later stack starts
    with ReLU, unless `relu_first` is False. With `frame_differences` c > 0 it sees the newest frame and c times the
    differences of successive ones, [x_k, c (x_k - x_{k-1}), ..., c (x_2 - x_1)], so that motion need not be learned first.
    """

    def __init__(
        self,
        in_channels: int,
        filters: Sequence[int],
        strides: Sequence[int],
        *,
        pixels: bool,
        pixel_offset: float = 0.0,
        frame_differences: float = 0.0,
        relu_first: bool = True,
    ):
        super().__init__()
        self.pixels, self.pixel_offset, self.relu_first = pixels, pixel_offset, relu_first
        self.frame_differences = frame_differences
        channels = [in_channels, *filters]
        self.convs = nn.Sequential(
            *(nn.Conv2d(channels[i], channels[i + 1], 3, stride=stride) for i, stride in enumerate(strides))
        )

    def forward(self, x: Tensor, relu: Relu | None = None) -> Tensor:
        for i, conv in enumerate(self.convs):
            assert isinstance(conv, nn.Conv2d)
            if i == 0 and self.pixels:
                # Changing the few weights instead of the many pixels saves passes over the batch.
                weight, bias = conv.weight, conv.bias
                if self.frame_differences:
                    weight = weights_of_frames(weight, self.frame_differences)
                if bias is not None and self.pixel_offset:
                    bias = bias - self.pixel_offset * weight.sum((1, 2, 3))
                x = F.conv2d(x.to(weight.dtype), weight / 255, bias, conv.stride)
            elif i == 0 and not self.relu_first:
                x = conv(x)
            elif relu is not None:
                x = conv(relu(x))
            else:
                # In place where x is our own convolution's output, which nothing else needs.
                x = conv(F.relu(x, inplace=i > 0))
        return x


def weights_of_frames(weight: Tensor, scale: float) -> Tensor:
    """Weights (C, 3k, 3, 3) of [x_k, c (x_k - x_{k-1}), ..., c (x_2 - x_1)] -> those of [x_1, ..., x_k] that give the same,
    with c the `scale`."""
    newest, *changes = weight.unflatten(1, (-1, 3)).unbind(1)
    ends = [
        *(scale * change for change in changes),
        torch.zeros_like(newest),
    ]  # each frame is the end of one change ...
    begins = [
        -newest,
        *ends[:-1],
    ]  # ... and the beginning of the next; the newest frame also stands for itself
    of_frames = [end - begin for end, begin in zip(ends, begins, strict=True)]
    return torch.cat(of_frames[::-1], dim=1).contiguous(memory_format=torch.channels_last)


class PerFrameTrunk(nn.Module):
    """A trunk whose first layers see each frame alone; the next one sees how their features change.

    frames: k. `frame` makes f_i = ReLU(convolutions) of each frame i; `joint` sees the newest frame's features and the
    differences of successive ones, [f_k, f_k - f_{k-1}, ..., f_2 - f_1], so that motion need not be learned first. With
    `join="features"` it sees [f_1, ..., f_k] (SimGRL).
    """

    def __init__(self, frames: int, frame: ConvStack, joint: ConvStack, join: str = "differences"):
        super().__init__()
        self.frames, self.frame, self.joint, self.join = frames, frame, joint, join

    def forward(self, pixels: Tensor, relu: Relu | None = None) -> Tensor:
        each = self.frame(split_frames(pixels, self.frames), relu)
        each = F.relu(each, inplace=True) if relu is None else relu(each)
        if self.join == "features":
            return self.joint(torch.cat(each.unflatten(0, (-1, self.frames)).unbind(1), dim=1), relu)
        return self.joint(differences(each, self.frames), relu)


def split_frames(stacks: Tensor, frames: int) -> Tensor:
    """(B, 3k, H, W) -> (B k, 3, H, W), the k frames of a stack next to each other; in channels_last memory."""
    pixels = stacks.permute(0, 2, 3, 1).unflatten(3, (frames, 3))
    return pixels.permute(0, 3, 1, 2, 4).contiguous().flatten(0, 1).permute(0, 3, 1, 2)


def differences(features: Tensor, frames: int) -> Tensor:
    """(B k, C, H, W) -> (B, k C, H, W): the newest frame's features, then each frame's minus those of the one before,
    newest first."""
    each = features.unflatten(0, (-1, frames))
    changes = [each[:, i] - each[:, i - 1] for i in range(frames - 1, 0, -1)]
    return torch.cat([each[:, -1], *changes], dim=1)


class Masker(nn.Module):
    """Each frame times a soft mask of its own, one number in 0..1 per pixel (MaDi): pixels (B, 3k, H, W) -> the same."""

    def __init__(self, frames: int, filters: int = 32):
        super().__init__()
        self.frames = frames
        channels = (3, filters, filters, 1)
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, padding=1) for i in range(len(channels) - 1)
        )

    def forward(self, pixels: Tensor, relu: Relu | None = None) -> Tensor:
        pixels = pixels.to(torch.float32)
        x = split_frames(pixels, self.frames) / 255
        for i, conv in enumerate(self.convs):
            x = conv(x if i == 0 else (relu or F.relu)(x))
        mask = torch.sigmoid(x).unflatten(0, (-1, self.frames))  # (B, k, 1, H, W)
        return pixels * mask.expand(-1, -1, 3, -1, -1).flatten(1, 2)


class Encoder(nn.Module):
    """f: pixels (B, 3k, H, W) in 0..255 -> feature maps (B, C', H', W').

    `head` is None but for PAD, whose two tasks share the `trunk` and own the last layers. `final_relu` puts a ReLU after
    the last convolution too. `masker` comes before everything else (MaDi).
    """

    def __init__(
        self,
        trunk: ConvStack | PerFrameTrunk,
        head: ConvStack | None = None,
        *,
        final_relu: bool = False,
        masker: Masker | None = None,
    ):
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.final_relu = final_relu
        self.masker = masker

    def forward(self, pixels: Tensor, masked: bool = False) -> Tensor:
        """masked: they have been through `mask` already."""
        if pixels.device.type != "cpu" or len(pixels) <= CPU_PIECE:
            return self.features(pixels, masked=masked)
        return torch.cat([self.features(piece, masked=masked) for piece in pixels.split(CPU_PIECE)])

    def mask(self, pixels: Tensor) -> Tensor:
        """What the masker leaves of the pixels; all of them without one."""
        if self.masker is None:
            return pixels
        if pixels.device.type != "cpu" or len(pixels) <= CPU_PIECE:
            return self.masker(pixels)
        return torch.cat([self.masker(piece) for piece in pixels.split(CPU_PIECE)])

    def features(self, pixels: Tensor, relu: Relu | None = None, *, masked: bool = False) -> Tensor:
        """The same as `forward` for one piece of the batch."""
        if self.masker is not None and not masked:
            pixels = self.masker(pixels, relu)
        x = self.trunk(pixels, relu)
        if self.head is not None:
            x = self.head(x, relu)
        return (relu or F.relu)(x) if self.final_relu else x


class Projection(nn.Module):
    """Feature maps -> (B, K): Linear, LayerNorm, tanh. Actor and critic have one each."""

    def __init__(self, feature_dim: int, projection_dim: int):
        super().__init__()
        self.linear = nn.Linear(feature_dim, projection_dim)
        self.norm = nn.LayerNorm(projection_dim)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(features.flatten(1))))


class ProjectedEncoder(nn.Module):
    """An encoder followed by several projections of its features, side by side: pixels -> (B, K of all of them)."""

    def __init__(self, encoder: nn.Module, *projections: nn.Module):
        super().__init__()
        self.encoder = encoder
        self.projections = nn.ModuleList(projections)

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.encoder(pixels)
        return torch.cat([projection(features) for projection in self.projections], dim=1)


class Actor(nn.Module):
    """pi: features -> mean and log-std of a Gaussian whose samples are squashed by tanh."""

    LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0

    def __init__(self, feature_dim: int, projection_dim: int, hidden_dim: int, action_dim: int):
        super().__init__()
        self.projection = Projection(feature_dim, projection_dim)
        self.mlp = make_mlp(projection_dim, hidden_dim, 2 * action_dim)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (before tanh) and log-std, each (B, A)."""
        mean, log_std = self.mlp(self.projection(features)).chunk(2, dim=-1)
        low, high = self.LOG_STD_MIN, self.LOG_STD_MAX
        return mean, low + 0.5 * (high - low) * (torch.tanh(log_std) + 1)

    def sample(self, features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A reparametrised action (B, A) in (-1, 1) and its log-probability (B, 1)."""
        mean, log_std = self(features)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        before_tanh = mean + noise * log_std.exp()
        log_prob = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1, keepdim=True)
        # log(1 - tanh(u)^2) in a form that does not underflow.
        log_prob = log_prob - (2 * (math.log(2) - before_tanh - F.softplus(-2 * before_tanh))).sum(
            -1, keepdim=True
        )
        return torch.tanh(before_tanh), log_prob


class Critic(nn.Module):
    """Two Q functions on one projection: (features, action) -> two values (B, 1). `norm`: LayerNorm in their hidden layers."""

    def __init__(
        self, feature_dim: int, projection_dim: int, hidden_dim: int, action_dim: int, *, norm: bool = False
    ):
        super().__init__()
        self.projection = Projection(feature_dim, projection_dim)
        self.q1 = make_mlp(projection_dim + action_dim, hidden_dim, 1, norm=norm)
        self.q2 = make_mlp(projection_dim + action_dim, hidden_dim, 1, norm=norm)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.projection(features), action], dim=-1)
        return self.q1(x), self.q2(x)


def make_mlp(in_dim: int, hidden_dim: int, out_dim: int, *, norm: bool = False) -> nn.Sequential:
    """Linear, ReLU, Linear, ReLU, Linear. `norm`: LayerNorm before each ReLU."""
    layers: list[nn.Module] = []
    for size in (in_dim, hidden_dim):
        layers += [nn.Linear(size, hidden_dim), *([nn.LayerNorm(hidden_dim)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden_dim, out_dim))


def initialise(module: nn.Module, conv_init: str = "delta_orthogonal") -> None:
    """Orthogonal linear layers, zero biases, and convolutions by `conv_init` (in place).

    `delta_orthogonal`, the paper's: an orthogonal centre tap, zeros around it. `orthogonal`: all taps together.
    """
    gain = nn.init.calculate_gain("relu")
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and conv_init == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain)
        elif isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
            centre = layer.kernel_size[0] // 2
            nn.init.orthogonal_(layer.weight.data[:, :, centre, centre], gain)
        elif isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def channels_last(module: ModuleType) -> ModuleType:
    """Keep convolution weights in channels_last memory (in place): the fastest order on CPUs and tensor cores."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """psi <- (1 - tau) psi + tau theta, for parameters and floating-point buffers; integer buffers are copied."""
    ours, theirs = _tensors(target), _tensors(online)
    floating = [i for i, tensor in enumerate(ours) if tensor.is_floating_point()]
    torch._foreach_lerp_([ours[i] for i in floating], [theirs[i] for i in floating], tau)
    for mine, other in zip(ours, theirs, strict=True):
        if not mine.is_floating_point():
            mine.copy_(other)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def feature_shape(encoder: nn.Module, obs_shape: Sequence[int]) -> tuple[int, ...]:
    """What the encoder makes of one observation of `obs_shape` (without the batch dimension)."""
    device = next(encoder.parameters()).device
    # A copy: trying it out must not move the BatchNorm statistics or the mode of someone's encoder.
    trial = copy.deepcopy(encoder).eval()
    with torch.no_grad():
        return tuple(trial(torch.zeros(1, *obs_shape, device=device)).shape[1:])
