"""SwiGLU's forward and the two halves of its backward, counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_close

SWIGLU = Exercise(
    "swiglu_in_halves",
    lesson="18b",
    title="SwiGLU in halves",
    takes=("swiglu_forward", "swiglu_backward_input", "swiglu_backward_weight"),
    target="equal to autograd to 1e-9; 6 N D H FLOPs in each part; at most "
    "N (D + 2 H), then N (2 D + 3 H) numbers kept",
    forbidden=("torch.autograd", "torch.func", "dtcourse.pipeline_parallel"),
)

PARTS = ("the forward", "backward-input", "backward-weight")


def _performed(forward: Any, backward_input: Any, backward_weight: Any, *given: Tensor) -> Any:
    """What the three return; the FLOPs of each; the bytes kept after the first two."""
    from torch.utils.flop_counter import FlopCounterMode

    from dtcourse.profiling.memory import storage_bytes, tensors_of

    x, w1, w3, w2, dy = given
    flops, kept = [], []
    with FlopCounterMode(display=False) as counter:
        y, first = forward(x, w1, w3, w2)
        flops.append(counter.get_total_flops())
        kept.append(storage_bytes(tensors_of(list(first))))
        dx, second = backward_input(dy, first, w1, w3, w2)
        flops.append(counter.get_total_flops() - sum(flops))
        kept.append(storage_bytes(tensors_of(list(second))))
        weights = list(backward_weight(second))
        flops.append(counter.get_total_flops() - sum(flops))
    return [y, dx, *weights], flops, kept


def _tensors(rows: int, width: int, hidden: int) -> list[Tensor]:
    shapes = (rows, width), (hidden, width), (hidden, width), (width, hidden), (rows, width)
    return [torch.randn(shape, dtype=torch.double) for shape in shapes]


def _compare(answer: Answer, wanted: tuple[str, ...], hint: str) -> None:
    """Some of what the three return, with autograd's, in double precision."""
    names = ("y", "dx", "the gradient of w1", "the gradient of w3", "the gradient of w2")
    for size in ((5, 4, 7), (3, 6, 4)):
        *given, dy = _tensors(*size)
        got, _, _ = answer.call(_performed, *given, dy)
        require(
            len(got) == 5, f"backward-weight returned {len(got) - 2} gradients, of three weights."
        )
        x, w1, w3, w2 = (one.clone().requires_grad_() for one in given)
        y = (torch.nn.functional.silu(x @ w1.T) * (x @ w3.T)) @ w2.T
        expected = [y.detach(), *torch.autograd.grad(y, (x, w1, w3, w2), dy)]
        for name, mine, right in zip(names, got, expected, strict=True):
            if name in wanted:
                require_close(mine, right, name, 1e-9, hint)


@SWIGLU.check("the output, and its gradient for x, are autograd's", points=2)
def check_input(answer: Answer) -> None:
    """What the stages before and after get."""
    _compare(
        answer,
        ("y", "dx"),
        "Write the chain rule out: x goes into both products, "
        "and silu(a) = a sigmoid(a) has two factors with a.",
    )


@SWIGLU.check("the weights' gradients are autograd's", points=2)
def check_weights(answer: Answer) -> None:
    """In the order w1, w3, w2."""
    _compare(
        answer,
        ("the gradient of w1", "the gradient of w3", "the gradient of w2"),
        "Write the chain rule out: which product has this weight in it, what came in there, and which gradient comes "
        "back there? silu(a) = a sigmoid(a) has two factors with a.",
    )


@SWIGLU.check("6 N D H FLOPs in each of the three", points=2)
def check_flops(answer: Answer) -> None:
    """Three products each."""
    rows, width, hidden = 5, 4, 7
    _, flops, _ = answer.call(_performed, *_tensors(rows, width, hidden))
    right = 6 * rows * width * hidden
    for name, count in zip(PARTS, flops, strict=True):
        require(
            count == right,
            f"{name} makes {count / (right / 3):g} products of {rows} x {width} x {hidden}, and each part has three. "
            "Is something computed in the wrong half, or twice?",
        )


@SWIGLU.check("no more kept than is needed", points=2, needs=("check_flops",))
def check_kept(answer: Answer) -> None:
    """Bytes of what each part hands to the next."""
    rows, width, hidden = 5, 4, 7
    _, _, kept = answer.call(_performed, *_tensors(rows, width, hidden))
    limits = (rows * (width + 2 * hidden), rows * (2 * width + 3 * hidden))
    for name, nbytes, limit in zip(PARTS, kept, limits, strict=False):
        require(
            nbytes <= 8 * limit,
            f"After {name} {nbytes // 8} numbers are kept, and {limit} are enough. What of it can be made again "
            "without a product, and what is there anyway?",
        )
