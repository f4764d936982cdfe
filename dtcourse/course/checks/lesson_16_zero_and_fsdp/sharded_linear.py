"""ZeRO-3: whole only while it computes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.plural import plural

ZERO_3 = Exercise(
    "sharded_linear",
    lesson="16",
    title="ZeRO-3: whole only while it computes",
    takes=("ShardedLinear",),
    target="equal to one process to 1e-5 with padding; 3 (p - 1) parts sent by each rank; no whole weight between",
    forbidden=(
        "torch.distributed.fsdp",
        "dtcourse.sharding",
        "dtcourse.collectives.autograd",
    ),
)


def _zero_3(
    layer: Any, weights: list[torch.Tensor], batch: Any, patience: float
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, int]:
    """Output, gradients of shards and input, and how many whole weights are alive between forward and backward.

    patience: seconds to wait for those to go: one of gloo's threads holds a collective's tensors until it has a moment
    """
    import time

    import torch.distributed as dist

    from dtcourse.profiling.memory_tracker import MemoryTracker

    rank, size = dist.get_rank(), dist.get_world_size()
    shards = []
    for weight in weights:
        flat = weight.flatten()
        part = -(-len(flat) // size)
        flat = nn.functional.pad(flat, (0, part * size - len(flat)))
        shards.append(flat[rank * part : (rank + 1) * part].clone().requires_grad_())
    x, y = (t.chunk(size)[rank].clone() for t in batch)
    x.requires_grad_()
    with MemoryTracker(inputs=[x, y, *shards]) as tracker:
        hidden = x
        for shard, weight in zip(shards, weights, strict=True):
            hidden = torch.tanh(layer.apply(hidden, shard, weight.shape))
        whole, until = min(w.nbytes for w in weights), time.monotonic() + patience
        while True:
            large = sum(a.died is None and a.bytes >= whole for a in tracker.history.allocations)
            if not large or time.monotonic() >= until:
                break
            time.sleep(0.01)
    output = hidden.detach().clone()
    (hidden - y).square().mean().backward()
    gradients: list[Any] = [s.grad for s in shards]
    return output, gradients, x.grad, large


def _layers(
    answer: Answer, ranks: int, sizes: list[int], patience: float = 0.0, **more: Any
) -> tuple[Any, ...]:
    weights = [(torch.randn(b, a) / a**0.5).requires_grad_() for a, b in pairwise(sizes)]
    batch = torch.randn(12, sizes[0]), torch.randn(12, sizes[-1])
    x = batch[0].clone().requires_grad_()
    hidden = x
    for weight in weights:
        hidden = torch.tanh(hidden @ weight.T)
    (hidden - batch[1]).square().mean().backward()
    run = answer.run(_zero_3, ranks, [w.detach() for w in weights], batch, patience, **more)
    return run, weights, hidden.detach(), x.grad


@ZERO_3.check("the output, and the input's gradient", points=3)
def check_zero_3_output(answer: Answer) -> None:
    """Three layers, with and without padding."""
    for ranks, sizes in ((2, [6, 8, 6, 4]), (3, [5, 7, 4, 5]), (4, [3, 5, 7, 3])):
        run, _, output, grad_x = _layers(answer, ranks, sizes)
        for rank in range(ranks):
            for what, got, whole, scale in (
                ("the output", run[rank][0], output, 1),
                # Each rank's loss is a mean over a p-th of the batch, so its gradient is p times as large.
                ("the gradient of x", run[rank][2], grad_x, ranks),
            ):
                right = scale * whole.chunk(ranks)[rank]
                require_close(
                    got,
                    right,
                    f"Three layers of {sizes} on {plural(ranks, 'rank')}: {what} on rank {rank} is not that of one process: it",
                    1e-5,
                    "Is the weight whole, in rank order, without its padding, in forward and in backward?",
                )


@ZERO_3.check("the gradient of the shard: this rank's part of the mean", points=3)
def check_zero_3_gradient(answer: Answer) -> None:
    """The padding's is zero."""
    for ranks, sizes in ((2, [6, 8, 6, 4]), (3, [5, 7, 4, 5]), (4, [3, 5, 7, 3])):
        run, weights, _, _ = _layers(answer, ranks, sizes)
        for i, weight in enumerate(weights):
            parts = [run[rank][1][i] for rank in range(ranks)]
            require(
                all(p is not None for p in parts),
                f"The shard of layer {i} has no gradient. What does backward return for it?",
            )
            flat, right = torch.cat(parts), weight.grad.flatten()
            got, padding = flat[: len(right)], flat[len(right) :]
            scale = float((got @ right) / right.square().sum())
            require(
                bool((got - right).abs().max() <= 1e-5 * (1e-2 + right.abs().max())),
                f"{plural(ranks, 'rank')}, layer {i}: the gradients of the shards, laid end to end, are not the weight's gradient (about "
                f"{scale:.2f} times that). Which part does each rank keep, and is it the sum over the ranks or their mean?",
            )
            require(
                not padding.any(),
                f"{plural(ranks, 'rank')}, layer {i}: the last {len(padding)} elements are padding, and their gradient should be zero. What "
                "was in that memory before?",
            )


@ZERO_3.check(
    "between forward and backward no whole weight is alive",
    points=2,
    needs=("check_zero_3_output",),
)
def check_zero_3_memory(answer: Answer) -> None:
    """Weights much larger than the activations."""
    run, _, _, _ = _layers(answer, 2, [40, 48, 40], patience=5.0)
    for rank in range(2):
        require(
            run[rank][3] == 0,
            f"After forward, {run[rank][3]} tensors as large as a whole weight are still alive on rank {rank}. What does "
            "save_for_backward keep, and what could be gathered again?",
        )


@ZERO_3.check("3 (p - 1) parts from each rank", points=2, needs=("check_zero_3_output",))
def check_zero_3_traffic(answer: Answer) -> None:
    """Gathered twice, reduce-scattered once."""
    for ranks, sizes in ((2, [6, 8, 6]), (3, [5, 7, 4])):
        run, weights, _, _ = _layers(answer, ranks, sizes, backend="ring", record=True)
        exact = sum(3 * (ranks - 1) * 4 * -(-w.numel() // ranks) for w in weights)
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"On {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes in forward and backward; three passes round the ring are "
                f"{exact:,}. "
                + (
                    "Which collective leaves each rank with its part of a sum, and nothing else?"
                    if sent > exact
                    else "Was the weight gathered again for backward, or kept?"
                ),
            )
