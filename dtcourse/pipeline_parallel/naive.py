"""1F1B on one page: what a rank computes, sends and receives, in the order in which it does so.

Rank r of p holds stage r. Three parts, here for p = 3 and m = 4 micro-batches (F0: forward of micro-batch 0):

               warm-up        steady state                       cool-down
    rank 0     F0 F1          F2 B0   F3 B1                      B2 B3
    rank 1     F0             F1 B0   F2 B1   F3 B2              B3
    rank 2                    F0 B0   F1 B1   F2 B2   F3 B3

    warm-up        one forward for each rank behind this one: the first backward comes back just after them
    steady state   a forward, then the backward of the oldest micro-batch that has not gone back
    cool-down      the backwards that are left

In the steady state an activation on its way down meets a gradient on its way up. If both ranks waited in a send until
it is received, they would wait for ever; so each posts its send and its receive together (`meet`).

The engine (engine.py) performs this order, and any other, and sends while it computes. A step here has the same
gradients and events.

Source: Narayanan et al. 2021, 2104.04473, figure 4; Megatron-LM's `forward_backward_pipelining_without_interleaving`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.collectives import p2p
from dtcourse.events import span
from dtcourse.pipeline_parallel.actions import BACKWARD, FORWARD, Action


def one_f_one_b(
    stage: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    micro_batches: int,
    like: Tensor,
    group: Any = None,
) -> Tensor | None:
    """Forward and backward of one batch on this rank: adds the gradients of its mean loss to every `.grad`.

    loss:      (the last stage's output, a micro-batch's target) -> its mean loss
    x, target: the whole batch, on every rank; the first stage takes x, the loss takes the target
    like:      what a stage hands to the next one for a single sample: its shape, dtype and device

    Returns the batch's mean loss on the last rank, None elsewhere.
    """
    rank, last = p2p.rank(group), p2p.size(group) - 1
    before, after = (rank - 1 if rank > 0 else None), (rank + 1 if rank < last else None)
    xs, targets = x.tensor_split(micro_batches), target.tensor_split(micro_batches)
    under_way: dict[int, tuple[Tensor, Tensor]] = {}  # input and output, from forward to backward
    losses = []

    def room(i: int) -> Tensor:
        """Memory for what one stage hands to the next, or for its gradient."""
        return like.new_empty(len(xs[i]), *like.shape)

    def forward(i: int, came: Tensor | None) -> Tensor:
        into = xs[i] if came is None else came.requires_grad_()
        with span(f"{rank}F{i}", detail=Action(rank, FORWARD, i).detail):
            out = stage(into)
            if after is None:
                out = loss(out, targets[i]) * (len(xs[i]) / len(x))
                losses.append(out.detach())
        under_way[i] = into, out
        return out.detach()

    def backward(i: int, came: Tensor | None) -> Tensor | None:
        into, out = under_way.pop(i)
        with span(f"{rank}B{i}", detail=Action(rank, BACKWARD, i).detail):
            out.backward(came)
        return into.grad

    warm_up = min(micro_batches, last - rank)
    for i in range(warm_up):
        activation = meet(before, None, room(i), group)
        meet(after, forward(i, activation), None, group)

    if warm_up < micro_batches:
        activation = meet(before, None, room(warm_up), group)
    for i in range(warm_up, micro_batches):  # steady state
        gradient = meet(after, forward(i, activation), room(i - warm_up), group)
        coming = room(i + 1) if i + 1 < micro_batches else None
        activation = meet(before, backward(i - warm_up, gradient), coming, group)

    for i in range(micro_batches - warm_up, micro_batches):  # cool-down
        gradient = meet(after, None, room(i), group)
        meet(before, backward(i, gradient), None, group)

    return torch.stack(losses).sum() if losses else None


def meet(neighbour: int | None, give: Tensor | None, take: Tensor | None, group: Any) -> Any:
    """Sends `give` to a neighbour and receives `take` from it at the same time; either may be None, and so may the
    neighbour, at an end of the pipeline. Returns what has come.
    """
    if neighbour is None:
        return None
    with p2p.batch(group):
        works = [p2p.irecv(take, neighbour, group)] if take is not None else []
        works += [p2p.isend(give, neighbour, group)] if give is not None else []
    for work in works:
        work.wait()
    return take
