"""Models whose step takes as long as a real one's and that have as many numbers, both scaled down: for studies of time.

A stand-in runs on an emulated cluster of the same scale: on a device and links of 1/scale of the real speed, with
1/scale of the model's numbers. So all ratios, of bytes to bandwidth and of computing to sending, are the real ones, and
the seconds are too. The device is an A100's 312 teraflops and 2 terabytes a second (shared/published/hw_specs.json), of
which a model reaches a share that is an assumption, not a measurement (WORKLOADS).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtcourse import emulation
from dtcourse.emulation import EmulatedDevice
from dtcourse.models import PUBLISHED, flops, transformer_parameters

LAYERS = 12


@dataclass(frozen=True)
class Workload:
    """What a model's step is on one rank. utilisation: the share of the device's FLOPs per second that it reaches."""

    parameters: int
    flops: float
    utilisation: float

    @property
    def seconds(self) -> float:
        """Of its step's computing on an A100."""
        return self.flops / (A100.flops * self.utilisation)


A100 = EmulatedDevice(flops=312e12, bandwidth=2e12)
TOKENS = 8 * 1024  # of each rank and step
GPT2 = PUBLISHED["GPT-2 small"]
# ResNet-50: 3.8e9 multiply-adds for an image forward (He et al. 1512.03385, table 1), 32 images
# per GPU (Goyal et al. 1706.02677).
WORKLOADS = {
    "ResNet-50": Workload(25_557_032, 3 * 2 * 3.8e9 * 32, 0.2),
    "GPT-2 small": Workload(
        transformer_parameters(GPT2), flops.per_token(GPT2, length=1024) * TOKENS, 0.4
    ),
}
LINKS = (1, 10, 25, 100)  # gigabits per second
LATENCY = 20e-6


class Layer(torch.autograd.Function):
    """The identity: takes a third of its seconds forward and two backward, and gives its weights as their gradient."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        emulation.sleep(seconds / 3)
        context.save_for_backward(weight)
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(  # type: ignore[override]
        context: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        emulation.sleep(2 * context.seconds / 3)
        return gradient, context.saved_tensors[0].clone(), None


class StandIn(nn.Module):
    """1/scale of the numbers of the workload's model, in square matrices, and the seconds of its step.

    layers: one is enough where nothing is sent while backward runs
    slower: the factor of those seconds on this rank; may be changed from step to step
    """

    def __init__(
        self, work: Workload, scale: int, layers: int = LAYERS, slower: float = 1.0
    ) -> None:
        super().__init__()
        side = round((work.parameters / scale / layers) ** 0.5)
        self.weights = nn.ParameterList(
            torch.randn(side, side, generator=torch.Generator().manual_seed(i))
            for i in range(layers)
        )
        self.seconds, self.slower = work.seconds / layers, slower

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = Layer.apply(x, weight, self.seconds * self.slower)
        return x
