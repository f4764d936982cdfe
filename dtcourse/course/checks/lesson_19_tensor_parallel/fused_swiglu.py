"""SwiGLU whose two input matrices lie in one: which rows a rank takes, and a region with one all-reduce each way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtcourse.collectives import ring
from dtcourse.course.judging import Answer, Each, Exercise, require, require_close

FUSED = Exercise(
    "fused_swiglu",
    lesson="19",
    title="Gate and up in one matrix",
    takes=("cut_swiglu", "swiglu_region"),
    target="equal to one process to 1e-9; slices of 1/p; 2 all-reduces of N D numbers in a step",
    forbidden=(
        "dtcourse.tensor_parallel",
        "dtcourse.sequence_parallel",
        "dtcourse.collectives.autograd",
        "torch.distributed.tensor",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
    ),
)

N, D, HIDDEN = 5, 12, 24  # 1, 2, 3 and 4 ranks divide both widths


def _cut(cut_swiglu: Any, swiglu_region: Any, w_in: Tensor, w_out: Tensor, sizes: Any) -> list[Any]:
    """The slices of each rank, without any ranks, for each of some numbers of them."""
    return [[list(cut_swiglu(w_in, w_out, rank, size)) for rank in range(size)] for size in sizes]


def _places(answer: Answer, *sizes: int) -> list[list[tuple[Tensor, Tensor]]]:
    """By number of ranks and rank: the places of its numbers in both weights. What is cut are the places alone: the
    weights themselves an answer gets as the check has cut them, and no rank has more than its slices.
    """
    w_in = torch.arange(2.0 * HIDDEN * D, dtype=torch.double).view(2 * HIDDEN, D)
    w_out = torch.arange(1.0 * D * HIDDEN, dtype=torch.double).view(D, HIDDEN)
    cuts = answer.call(_cut, w_in, w_out, sizes)
    for size, ranks in zip(sizes, cuts, strict=True):
        for i, (name, whole, shape) in enumerate(
            (
                ("w_in", w_in, (2 * HIDDEN // size, D)),
                ("w_out", w_out, (D, HIDDEN // size)),
            )
        ):
            for rank, slices in enumerate(ranks):
                require(
                    tuple(slices[i].shape) == shape,
                    f"{size} ranks: rank {rank}'s slice of {name} has shape {tuple(slices[i].shape)}, and a p-th of "
                    f"{tuple(whole.shape)} is {shape}. Which of its dims is the hidden width?",
                )
            numbers = torch.cat([slices[i].flatten() for slices in ranks]).double().sort().values
            require(
                torch.equal(numbers, whole.flatten()),
                f"{size} ranks: some numbers of {name} are on no rank, "
                "or on several. Together the slices are the whole.",
            )
    return [[(one[0].long(), one[1].long()) for one in ranks] for ranks in cuts]


def _slices(places: list[tuple[Tensor, Tensor]], w_in: Tensor, w_out: Tensor) -> list[list[Tensor]]:
    """By rank: what is at its places."""
    return [[w_in.flatten()[one], w_out.flatten()[other]] for one, other in places]


def _step(cut_swiglu: Any, swiglu_region: Any, x: Tensor, slices: list[Tensor]) -> Any:
    """On a rank, with its slices of the weights: output; gradients of x and of both slices."""
    x = x.clone().requires_grad_()
    slices = [w.clone().requires_grad_() for w in slices]
    y = swiglu_region(x, *slices)
    kept = y.detach().clone()
    y.square().sum().backward()
    return [kept, x.grad, *(w.grad for w in slices)]


def _run(answer: Answer, size: int, given: tuple[Tensor, ...], **options: Any) -> tuple[Any, Any]:
    """What came of a step, and the places that each rank's slices have in the weights."""
    (places,) = _places(answer, size)
    x, *weights = given
    return answer.run(_step, size, x, Each(_slices(places, *weights)), **options), places


def _weights() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (N, D), (2 * HIDDEN, D), (D, HIDDEN)
    x, w_in, w_out = (torch.randn(shape, dtype=torch.double) for shape in shapes)
    return x, w_in, w_out


def _truth(x: Tensor, w_in: Tensor, w_out: Tensor) -> list[Tensor]:
    x, w_in, w_out = (t.clone().requires_grad_() for t in (x, w_in, w_out))
    gate, up = (x @ w_in.T).chunk(2, dim=-1)
    y = (F.silu(gate) * up) @ w_out.T
    y.square().sum().backward()
    grads = [t.grad for t in (x, w_in, w_out)]
    assert all(g is not None for g in grads)
    return [y.detach(), *grads]  # type: ignore[list-item]


@FUSED.check("each rank has a p-th of both matrices", points=2, needs=("check_output",))
def check_slices(answer: Answer) -> None:
    """Every number on exactly one rank."""
    _places(answer, 1, 2, 3, 4)


@FUSED.check("the output of one process, on every rank", points=3)
def check_output(answer: Answer) -> None:
    """In double precision."""
    for ranks in (2, 3):
        given = _weights()
        right = _truth(*given)[0]
        run, _ = _run(answer, ranks, given)
        for rank in range(ranks):
            require_close(
                run[rank][0],
                right,
                f"{ranks} ranks: the output on rank {rank}",
                1e-9,
                "A hidden number is silu(gate) times up, so a rank needs the rows of gate and the rows of up that "
                "belong together. And what is each rank's product with its slice of w_out: a part of the sum, or "
                "all of it?",
            )


@FUSED.check("the gradients of one process", points=3, needs=("check_output",))
def check_gradients(answer: Answer) -> None:
    """Of x on every rank, and of both slices."""
    for size in (2, 3):
        given = _weights()
        _, dx, *dw = _truth(*given)
        run, places = _run(answer, size, given)
        cut = _slices(places, *dw)
        for rank in range(size):
            got = run[rank]
            require(
                all(g is not None for g in got),
                f"{size} ranks: x or a slice has no gradient on rank {rank}. Where does autograd lose the way back?",
            )
            require_close(
                got[1],
                dx,
                f"{size} ranks: the gradient of x on rank {rank}",
                1e-9,
                "x goes into every rank's slice, so its gradient is a sum over ranks. And the loss, which all ranks "
                "compute alike, counts once: does your sum have a backward of its own?",
            )
            for name, mine, right in (
                ("w_in", got[2], cut[rank][0]),
                ("w_out", got[3], cut[rank][1]),
            ):
                require_close(
                    mine,
                    right,
                    f"{size} ranks: the gradient of rank {rank}'s slice of {name}",
                    1e-9,
                    "The loss, which all ranks compute alike, counts once: what does the backward of your sum hand on?",
                )


@FUSED.check("one all-reduce each way", points=2, needs=("check_gradients", "check_slices"))
def check_traffic(answer: Answer) -> None:
    """Of N D numbers, on the ring."""
    for size in (2, 3):
        run, _ = _run(answer, size, _weights(), backend="ring", record=True)
        for rank in range(size):
            exact = 2 * 8 * ring.all_reduce_volume(N * D, size, rank, 8).elements
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"{size} ranks: rank {rank} sends {sent:,} bytes in a step, and two all-reduces of x's size are "
                f"{exact:,}. "
                + (
                    "Gate and up have one input: how many gradients of x does a rank add up before it sends?"
                    if sent > exact
                    else "Which of the two sums is missing?"
                ),
            )
