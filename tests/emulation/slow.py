"""A model whose forward and backward take known times on the emulated clock."""

from __future__ import annotations

import torch
from torch import nn

from dtcourse import emulation, events


class Slow(torch.autograd.Function):
    """The identity, whose two directions take so many seconds; backward is an event, where events are recorded."""

    @staticmethod
    def forward(context, x, forward, backward):
        context.seconds = backward
        emulation.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        with events.span("layer", "compute"):
            emulation.sleep(context.seconds)
        return gradient, None, None


class SlowLinear(nn.Linear):
    """A linear layer, each of whose directions takes so many seconds."""

    def __init__(self, *sizes, forward=0.0, backward=0.0, **options):
        super().__init__(*sizes, **options)
        self.seconds = forward, backward

    def forward(self, x):
        return Slow.apply(super().forward(x), *self.seconds)


def slow_layers(count, width, backward):
    """So many square layers without biases, the same on every rank; all of backward takes so many seconds."""
    torch.manual_seed(0)
    one = backward / count
    return nn.Sequential(
        *(SlowLinear(width, width, backward=one, bias=False) for _ in range(count))
    )
