"""Residual networks (He et al. 1512.03385): the model of image classification, and of most large-batch papers.

Each block adds its input to what it computes, so gradients reach early layers unchanged. Depths 18 and 34 are built
from basic blocks (two 3x3 convolutions), 50 and deeper from bottlenecks (1x1, 3x3, 1x1). As in Goyal et al. 1706.02677
and in torchvision, a bottleneck's stride is in its 3x3 convolution.
"""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.models.seeding import seeded

_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


class ResidualBlock(nn.Module):
    """relu(x + branch(x)); where the shape changes, x goes through a 1x1 convolution first.

    x_BCHW -> (B, c_out, H / stride, W / stride)
    """

    def __init__(self, c_in: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        c_out = 4 * width if bottleneck else width
        if bottleneck:
            layers = [
                *_conv(c_in, width, 1),
                nn.ReLU(inplace=True),
                *_conv(width, width, 3, stride),
                nn.ReLU(inplace=True),
                *_conv(width, c_out, 1),
            ]
        else:
            layers = [
                *_conv(c_in, width, 3, stride),
                nn.ReLU(inplace=True),
                *_conv(width, width, 3),
            ]
        self.branch = nn.Sequential(*layers)
        same = stride == 1 and c_in == c_out
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(c_in, c_out, 1, stride))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x_BCHW) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """x_BCHW -> logits (B, classes), for images of any size.

    depth: 18, 34, 50, 101 or 152 layers
    width: channels of the first stage, 64 in the paper; less makes a model for two CPU cores
    small_images: a 3x3 first convolution and no pooling (the usual form for 32x32 pixels), instead of 7x7 with
        stride 2 and max-pooling
    zero_init: each block's last norm starts at 0, so that a block starts as the identity (Goyal et al., section 5.1)
    """

    def __init__(
        self,
        depth: int = 18,
        *,
        classes: int = 1000,
        in_channels: int = 3,
        width: int = 64,
        small_images: bool = False,
        zero_init: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"depth is one of {', '.join(map(str, _BLOCKS))}; got {depth}")
        if width < 1 or classes < 1:
            raise ValueError(
                f"width and classes are at least 1; got width={width}, classes={classes}"
            )
        bottleneck = depth >= 50
        with seeded(seed):
            if small_images:
                self.stem = nn.Sequential(*_conv(in_channels, width, 3), nn.ReLU(inplace=True))
            else:
                self.stem = nn.Sequential(
                    *_conv(in_channels, width, 7, 2),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(3, stride=2, padding=1),
                )
            stages, c_in = [], width
            for i, n in enumerate(_BLOCKS[depth]):
                blocks = []
                for j in range(n):
                    stride = 2 if i > 0 and j == 0 else 1
                    blocks.append(ResidualBlock(c_in, width * 2**i, stride, bottleneck=bottleneck))
                    c_in = width * 2**i * (4 if bottleneck else 1)
                stages.append(nn.Sequential(*blocks))
            self.stages = nn.Sequential(*stages)
            self.classifier = nn.Linear(c_in, classes)
            self._initialise(zero_init)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.stages(self.stem(x_BCHW)).mean((-2, -1)))

    def loss(self, x_BCHW: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy against class numbers."""
        return nn.functional.cross_entropy(self(x_BCHW), target_B)

    def _initialise(self, zero_init: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. 1502.01852
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, ResidualBlock) and zero_init:
                nn.init.zeros_(module.branch[-1].get_parameter("weight"))


def _conv(c_in: int, c_out: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return (
        nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(c_out),
    )
