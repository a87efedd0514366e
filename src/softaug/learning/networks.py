"""Networks: convolutional encoder, projection, actor, critic, and the moving average of parameters.

Sizes of the paper: pixels (B, 9, 84, 84) -> features (B, 32, 21, 21) -> projection (B, 100) -> MLPs of
2 x 1024. No configuration object enters here; `agent.py` wires the parts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A batch of large feature maps leaves the cache; pieces of this many images keep the convolutions near the
# machine's arithmetic limit on a CPU (measured by `softaug bench update`).
CPU_PIECE = 64

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class ConvStack(nn.Module):
    """3x3 convolutions without padding, ReLU between them (none after the last).

    `pixels` marks the stack that sees raw pixels 0..255 and takes them as 0..1; a later stack starts with ReLU, unless
    `relu_first` is False.
    """

    def __init__(
        self,
        in_channels: int,
        filters: Sequence[int],
        strides: Sequence[int],
        *,
        pixels: bool,
        relu_first: bool = True,
    ):
        super().__init__()
        self.pixels, self.relu_first = pixels, relu_first
        channels = [in_channels, *filters]
        self.convs = nn.Sequential(
            *(nn.Conv2d(channels[i], channels[i + 1], 3, stride=stride) for i, stride in enumerate(strides))
        )

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            assert isinstance(conv, nn.Conv2d)
            if i == 0 and self.pixels:
                # Dividing the few weights by 255 instead of the many pixels saves a pass over the batch.
                x = F.conv2d(x.to(conv.weight.dtype), conv.weight / 255, conv.bias, conv.stride)
            elif i == 0 and not self.relu_first:
                x = conv(x)
            else:
                # In place where x is our own convolution's output, which nothing else needs.
                x = conv(F.relu(x, inplace=i > 0))
        return x


class FrameStack(nn.Module):
    """A trunk whose first layers see each frame alone; the next one sees how their features change.

    frames: k. `frame` makes f_i = ReLU(convolutions) of each frame i; `joint` sees the newest frame's features and the
    differences of successive ones, [f_k, f_k - f_{k-1}, ..., f_2 - f_1], so that motion need not be learned first.
    """

    def __init__(self, frames: int, frame: ConvStack, joint: ConvStack):
        super().__init__()
        self.frames, self.frame, self.joint = frames, frame, joint

    def forward(self, pixels: Tensor) -> Tensor:
        each = F.relu(self.frame(split_frames(pixels, self.frames)), inplace=True)
        return self.joint(differences(each, self.frames))


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


class Encoder(nn.Module):
    """f: pixels (B, 3k, H, W) in 0..255 -> feature maps (B, C', H', W').

    `head` is None but for PAD, whose two tasks share the `trunk` and own the last layers.
    """

    def __init__(self, trunk: ConvStack | FrameStack, head: ConvStack | None = None):
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.device.type != "cpu" or len(pixels) <= CPU_PIECE:
            return self.features(pixels)
        return torch.cat([self.features(piece) for piece in pixels.split(CPU_PIECE)])

    def features(self, pixels: Tensor) -> Tensor:
        """The same for one piece of the batch."""
        x = self.trunk(pixels)
        return x if self.head is None else self.head(x)


class Projection(nn.Module):
    """Feature maps -> (B, K): Linear, LayerNorm, tanh. Actor and critic have one each."""

    def __init__(self, feature_dim: int, projection_dim: int):
        super().__init__()
        self.linear = nn.Linear(feature_dim, projection_dim)
        self.norm = nn.LayerNorm(projection_dim)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(features.flatten(1))))


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
    """Two Q functions on one projection: (features, action) -> two values (B, 1)."""

    def __init__(self, feature_dim: int, projection_dim: int, hidden_dim: int, action_dim: int):
        super().__init__()
        self.projection = Projection(feature_dim, projection_dim)
        self.q1 = make_mlp(projection_dim + action_dim, hidden_dim, 1)
        self.q2 = make_mlp(projection_dim + action_dim, hidden_dim, 1)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.projection(features), action], dim=-1)
        return self.q1(x), self.q2(x)


def make_mlp(in_dim: int, hidden_dim: int, out_dim: int) -> nn.Sequential:
    """Linear, ReLU, Linear, ReLU, Linear."""
    return nn.Sequential(
        nn.Linear(in_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, out_dim)
    )  # fmt: skip


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
