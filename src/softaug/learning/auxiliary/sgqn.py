"""SGQN's auxiliary task: which pixels matter to the critic? (Bertoin et al., 2022, "Look where you look!")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softaug.learning.augment import Augment
from softaug.learning.auxiliary import BatchViews, Needs
from softaug.learning.networks import Encoder, Projection


class MaskDecoder(nn.Module):
    """(projection, action) -> logits of a mask (B, 3k, h, w): Linear, then three convolutions with upsampling between."""

    def __init__(
        self, projection_dim: int, action_dim: int, feature_shape: Sequence[int], view_shape: Sequence[int]
    ):
        super().__init__()
        self.feature_shape, self.view_size = tuple(feature_shape), tuple(view_shape[1:])
        channels, height, width = self.feature_shape
        self.linear = nn.Linear(projection_dim + action_dim, channels * height * width)
        # The paper's 128 and 64 for its 32 filters.
        self.conv1 = nn.Conv2d(channels, 4 * channels, 3, padding=1)
        self.conv2 = nn.Conv2d(4 * channels, 2 * channels, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * channels, view_shape[0], 3, padding=1)

    def forward(self, projection: Tensor, action: Tensor) -> Tensor:
        x = self.linear(torch.cat([projection, action], dim=1)).view(-1, *self.feature_shape)
        x = F.interpolate(self.conv1(F.relu(x)), scale_factor=2.0)
        # Twice as large again for the paper's 84 pixels; whatever the view's size is for others.
        x = F.interpolate(self.conv2(F.relu(x)), size=self.view_size)
        return self.conv3(F.relu(x))


class MaskTask(nn.Module):
    """Predict, from a strong view, the saliency mask of the weak one.

    mask_of: (view, action) -> bool mask of the view, by the critic as it is now.
    The encoder and the critic's projection are trained with the decoder.
    """

    needs: Needs = "rl_batch"

    def __init__(
        self,
        encoder: Encoder,
        projection: Projection,
        decoder: MaskDecoder,
        mask_of: Callable[[Tensor, Tensor], Tensor],
        augment: Augment,
    ):
        super().__init__()
        self.encoder, self.projection, self.decoder = encoder, projection, decoder
        self.mask_of, self.augment = mask_of, augment

    def prepare(self, batch: BatchViews, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The strong view. (The mask depends on the critic, which RL moves.)"""
        return self.augment(batch.view, generator), batch.view, batch.action

    def loss_of(self, prepared: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        strong_view, view, action = prepared
        mask = self.mask_of(view, action)
        logits = self.decoder(self.projection(self.encoder(strong_view)), action)
        return F.binary_cross_entropy_with_logits(logits, mask.to(logits.dtype))

    def update_target(self) -> None:
        """Nothing to average."""
