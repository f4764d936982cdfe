"""What each layer costs: counted for a processor that is not here, or measured on the one that is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from dtcourse import device as devices
from dtcourse import events
from dtcourse.emulation.clock import VirtualClock
from dtcourse.emulation.counting import CountOperations
from dtcourse.emulation.device import EmulatedDevice
from dtcourse.pipeline_parallel.simulate import Times
from dtcourse.pipeline_parallel.split_backward import DelayedWeightGradients


class LayerCost(NamedTuple):
    """Seconds (or FLOPs) of one micro-batch in one layer."""

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def total(self) -> float:
        """Forward and backward: what `balance` takes."""
        return sum(self)


def layer_costs(
    layers: Sequence[nn.Module],
    x: torch.Tensor,
    *,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    on: EmulatedDevice | None = None,
    repeats: int = 5,
) -> list[LayerCost]:
    """Passes one micro-batch through the layers, forward and backward in its two halves, and says what each one costs.

    x:    a micro-batch, as the first layer gets it: nobody wants its gradient, nor any before the first trained layer
    loss: what the last stage computes besides (output -> a number); counted with the last layer
    on:   count: seconds that this device needs, max(FLOPs / flops, bytes / bandwidth) per operation, whatever runs it
          here. `EmulatedDevice(flops=1)` counts FLOPs. Default: measure, on the clock of the events: the median of
          `repeats` passes after one to warm up. In a launch with devices= that is the emulated clock, and the same each
          time

    The model stays as it is: gradients, buffers and random numbers are a copy's, one layer's at a time.
    """
    clock: VirtualClock | None = None
    with ExitStack() as stack:
        if on is not None:
            clock = VirtualClock()
            stack.enter_context(CountOperations(on, clock, clock.main))
            repeats = 1
        now = events.now if clock is None else clock.now
        before = devices.random_state()
        costs = []
        wanted = False  # the gradient of a layer's input, by what is trained before it
        for i, layer in enumerate(layers):
            mine = copy.deepcopy(layer)
            end = loss if i == len(layers) - 1 else None
            passes = [_pass(mine, x, end, now, wanted) for _ in range(repeats + (clock is None))]
            x = passes[-1][1]
            wanted = wanted or any(p.requires_grad for p in layer.parameters())
            kept = [cost for cost, _ in passes[-repeats:]]
            costs.append(LayerCost(*(median(one[part] for one in kept) for part in range(3))))
        devices.set_random_state(before)
    return costs


def times_of(
    costs: Sequence[LayerCost],
    ranges: Sequence[range],
    speeds: Sequence[float] | None = None,
    **more: Any,
) -> Times:
    """What `simulate` takes, of stages of so many layers. speeds: of each stage's device, cost per second; default: 1.

    more: Times' other fields: transfer, optimizer, ...
    """
    speeds = [1.0] * len(ranges) if speeds is None else speeds
    forward, backward_input, backward_weight = (
        [
            sum(costs[i][part] for i in chosen) / speed
            for chosen, speed in zip(ranges, speeds, strict=True)
        ]
        for part in range(3)
    )
    return Times(forward, backward_input, backward_weight, **more)


def _pass(
    layer: nn.Module,
    x: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor] | None,
    now: Callable[[], float],
    wanted: bool,
) -> tuple[LayerCost, torch.Tensor]:
    """One pass, as batch.py does it: the cost, and what the next layer gets."""
    x = x.detach().requires_grad_(x.is_floating_point() and wanted)
    later = DelayedWeightGradients()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        with later:
            y = layer(x)
            return y, y if loss is None else loss(y)

    forward, (y, end) = _timed(now, run)
    if not end.requires_grad:
        return LayerCost(forward, 0.0, 0.0), y.detach()
    gradient = torch.ones_like(end)
    backward_input, _ = _timed(now, lambda: torch.autograd.backward(end, gradient))
    backward_weight, _ = _timed(now, later.compute)
    return LayerCost(forward, backward_input, backward_weight), y.detach()


def _timed(now: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any]:
    start = now()
    result = work()
    devices.synchronize()
    return now() - start, result
