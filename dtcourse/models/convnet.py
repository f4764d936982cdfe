"""A small convolutional net for small images; with batch normalisation, whose statistics ranks must agree on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dtcourse.models.seeding import seeded


class ConvNet(nn.Module):
    """3x3 convolutions, each followed by (batch norm,) ReLU and 2x2 max-pooling, then one linear layer.

    channels: output channels of each convolution. The image is halved once for each, so an 8x8 digit allows three.
    batch_norm: without it the model has no buffers and no statistics over the batch, so a rank's gradient depends
        on its own samples alone.
    x_BCHW (B, in_channels, image_size, image_size) -> logits (B, classes)
    """

    def __init__(
        self,
        channels: Sequence[int] = (16, 32),
        *,
        in_channels: int = 1,
        image_size: int = 8,
        classes: int = 10,
        batch_norm: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not channels or any(c < 1 for c in channels):
            raise ValueError(f"channels needs at least one positive number; got {tuple(channels)}")
        smallest = image_size // 2 ** len(channels)
        if smallest < 1:
            raise ValueError(
                f"{len(channels)} poolings shrink an image of {image_size}x{image_size} to nothing: "
                f"use at most {image_size.bit_length() - 1} convolutions"
            )
        layers: list[nn.Module] = []
        with seeded(seed):
            for c_in, c_out in zip((in_channels, *channels[:-1]), channels, strict=True):
                # A bias before batch norm would be subtracted again at once.
                layers.append(nn.Conv2d(c_in, c_out, 3, padding=1, bias=not batch_norm))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(c_out))
                layers += [nn.ReLU(), nn.MaxPool2d(2)]
            self.features = nn.Sequential(*layers)
            self.classifier = nn.Linear(channels[-1] * smallest**2, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x_BCHW).flatten(1))

    def loss(self, x_BCHW: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy against class numbers."""
        return nn.functional.cross_entropy(self(x_BCHW), target_B)
