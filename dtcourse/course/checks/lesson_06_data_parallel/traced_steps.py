"""Steps of data parallelism with a mistake in them, run by ranks on the emulated clock, and their traces.

A step is a stack of layers with hooks and buckets. Its layers take seconds of the emulated clock, and their gradients
really travel over a ring: what is wrong in a trace has happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import own_ranks
from dtcourse.emulation import EmulatedNetwork

MS = 1e-3
# On every network here an all-reduce takes LATENCY ms and, for each BLOCK numbers, BYTES ms more.
LATENCY, BYTES = 3.0, 0.25
BLOCK = 12  # numbers that rings of 3 and of 4 ranks cut into equal parts
# (what, which layer or message, begin, end) of a rank, in ms from the step's start
Rows = list[tuple[str, int, float, float]]
Trace = tuple[list[list[int]], list[Rows], Tensor, Tensor]


@dataclass(frozen=True)
class Step:
    """One step, as it was drawn.

    kind, where: the diagnosis
    blocks: BLOCK numbers, so many times, are the gradient of a layer
    buckets: the layers of each, in the order of sending
    forward: layers in the order in which forward uses them
    seconds: each rank's, of a layer's forward; backward takes twice as long
    gradients: each rank's, a number for each layer
    pause: (rank, layer, seconds) for which the rank stands still before that layer's backward
    """

    kind: str
    where: int | None
    blocks: int
    buckets: list[list[int]]
    forward: list[int]
    seconds: list[list[float]]
    gradients: list[list[float]]
    pause: tuple[int, int, float]


def run(steps: list[Step], ranks: int) -> list[Trace]:
    """Runs them, one after the other, and returns for each: its buckets; rows of each rank, by their begin; the ranks'
    own gradients and those that their optimizers use, (ranks, layers), one number of each.
    """
    times = 2 * (ranks - 1)
    network = EmulatedNetwork(LATENCY * MS / times, times / ranks * 4 * BLOCK / (BYTES * MS))
    found = own_ranks.launched(
        _all, ranks, steps, record=True, backend="ring", network=network, clock="virtual", timeout=60.0
    )  # fmt: skip
    traces = []
    for at, step in enumerate(steps):
        rows: list[Rows] = []
        for rank in range(ranks):
            start, end, computed, *_ = found[rank][at]
            events = found.timeline.of(rank=rank, lane="collectives", name="all_reduce")
            sent = [e for e in events if start < e.start and e.end <= end]
            messages = [("all_reduce", i, e.start, e.end) for i, e in enumerate(sent)]
            both = sorted([*computed, *messages], key=lambda row: row[2])
            rows.append([(what, n, (a - start) / MS, (b - start) / MS) for what, n, a, b in both])
        own, used = (torch.stack([found[rank][at][i] for rank in range(ranks)]) for i in (3, 4))
        traces.append((step.buckets, rows, own, used))
    return traces


# Seconds of the clock from one step's start to the next one's: longer than a step can take, and so no rank has to hear
# from the others that they are through.
APART = 10.0


def _all(steps: list[Step]) -> list[Any]:
    return [_Traced(step).run((at + 1) * APART) for at, step in enumerate(steps)]


class _Traced:
    """On a rank: one step, with the mistake that was drawn."""

    def __init__(self, step: Step) -> None:
        import torch.distributed as dist

        self.step, self.rank, self.ranks = step, dist.get_rank(), dist.get_world_size()
        self.odd = self.rank == step.where  # where a rank is what is wrong
        self.number = {layer: i for i, bucket in enumerate(step.buckets) for layer in bucket}
        self.missing = [len(bucket) for bucket in step.buckets]
        self.sent: list[tuple[int, Tensor, Any]] = []
        self.rows: list[tuple[str, int, float, float]] = []
        numbers = step.blocks * BLOCK
        self.weights = [torch.zeros(numbers, requires_grad=True) for _ in step.forward]
        for layer, weight in enumerate(self.weights):
            weight.register_post_accumulate_grad_hook(lambda _, layer=layer: self.ready(layer))

    def order(self) -> list[int]:
        """Of sending: on one rank two buckets may have changed places."""
        order = list(range(len(self.missing)))
        if self.step.kind == "order" and self.odd:
            order[1], order[2] = 2, 1
        return order

    def ready(self, layer: int) -> None:
        """The hook: sends what is full, in order."""
        import torch.distributed as dist

        kind = self.step.kind
        self.missing[self.number[layer]] -= 1
        order = self.order()
        while len(self.sent) < len(order) and self.missing[order[len(self.sent)]] == 0:
            number = order[len(self.sent)]
            flat = torch.cat([self.gradient(one) for one in self.step.buckets[number]])
            if not (kind == "undivided" and self.odd):
                flat /= self.ranks
            self.sent.append((number, flat, dist.all_reduce(flat, async_op=True)))
            if kind == "waits" and self.odd:
                self.sent[-1][2].wait()

    def gradient(self, layer: int) -> Tensor:
        """Of this rank, or the mean."""
        found = self.weights[layer].grad
        assert found is not None
        return found

    def run(self, start: float) -> tuple[float, float, list[Any], Tensor, Tensor]:
        """Start and end on the clock, rows of what was computed, own gradients and those that the optimizer uses."""
        from dtcourse import emulation

        emulation.sleep(start - emulation.now())
        x = torch.ones(1, requires_grad=True)
        for layer in self.step.forward:
            x = _Layer.apply(x, self.weights[layer], layer, self)
        x.sum().backward()
        own = torch.stack([self.gradient(layer)[0] for layer in range(len(self.weights))]).clone()
        for number, flat, work in self.sent:
            work.wait()
            if self.step.kind == "twice" and self.odd:
                flat /= self.ranks
            bucket = self.step.buckets[number]
            for layer, part in zip(bucket, flat.chunk(len(bucket)), strict=True):
                self.gradient(layer).copy_(part)
        used = torch.stack([self.gradient(layer)[0] for layer in range(len(self.weights))])
        return start, emulation.now(), self.rows, own, used.clone()


class _Layer(torch.autograd.Function):
    """Takes its time on the clock. Its gradient is a number of this rank's own, in each place."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, layer: int, traced: _Traced) -> Tensor:
        context.layer, context.traced = layer, traced
        traced.rows.append(("forward", layer, *_computed(traced, layer, 1)))
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        from dtcourse import emulation

        layer, traced = context.layer, context.traced
        rank, before, seconds = traced.step.pause
        if (rank, before) == (traced.rank, layer):
            emulation.sleep(seconds)
        traced.rows.append(("backward", layer, *_computed(traced, layer, 2)))
        own = torch.full((traced.step.blocks * BLOCK,), traced.step.gradients[traced.rank][layer])
        return gradient, own, None, None


def _computed(traced: _Traced, layer: int, times: int) -> tuple[float, float]:
    """Begin and end of a layer's forward, or of its backward."""
    from dtcourse import emulation

    begun = emulation.now()
    emulation.sleep(times * traced.step.seconds[traced.rank][layer])
    return begun, emulation.now()
