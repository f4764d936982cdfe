"""Count what is saved."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dtcourse.course.judging import Answer, Exercise, number, require
from dtcourse.profiling.memory import SavedTensors

SAVED = Exercise(
    "saved_bytes",
    lesson="14",
    title="Count what is saved",
    takes=("saved_bytes",),
    target="exact to 1 byte for 5 models, and the backward pass still right",
    forbidden=("dtcourse.profiling",),
)

Case = tuple[Callable[[], torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def _case(name: str, seed: int) -> Case:
    """A forward function, what is there anyway, and the tensors whose gradients count."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 24, generator=generator, dtype=torch.double)
    a, b = (
        torch.randn(24, 24, generator=generator, dtype=torch.double).requires_grad_()
        for _ in range(2)
    )

    def shared() -> torch.Tensor:
        h = (x @ a).tanh()  # saved by tanh, and by both products
        return ((h @ b) * (h @ b.t())).sum()

    def views() -> torch.Tensor:
        h = (x @ a).sigmoid()
        return (h.view(8, 48).sin() * h.t().reshape(8, 48)).sum() + (h.t() @ h).sum()

    def slices() -> torch.Tensor:
        h = x @ a
        return (h[:, :3] * b[:1, :3]).sum() + h[0].tanh().sum()

    def tied() -> torch.Tensor:
        return ((x @ a).relu() @ a.t() @ b).square().mean()

    if name == "a convolution":
        image = torch.randn(2, 1, 8, 8, generator=generator, dtype=torch.double)
        kernel = torch.randn(4, 1, 3, 3, generator=generator, dtype=torch.double).requires_grad_()
        return lambda: F.conv2d(image, kernel).relu().square().sum(), [image, kernel], [kernel]
    forward = {"a shared input": shared, "views": views, "slices": slices, "tied weights": tied}
    return forward[name], [x, a, b], [a, b]


_CASES = ("a shared input", "views", "slices", "tied weights", "a convolution")


def _count(saved_bytes: Any, seed: int) -> list[tuple[Any, list[torch.Tensor | None]]]:
    results = []
    for name in _CASES:
        forward, known, wanted = _case(name, seed)
        losses: list[torch.Tensor] = []

        def remember(forward: Any = forward, losses: list = losses) -> torch.Tensor:
            losses.append(forward())
            return losses[-1]

        counted = saved_bytes(remember, known)
        losses[-1].backward() if losses else None
        results.append((counted, [t.grad if t.grad is None else t.grad.clone() for t in wanted]))
    return results


@SAVED.check("each storage once, and nothing that is there anyway", points=4)
def check_saved(answer: Answer) -> None:
    """Five models, against the course's own counter."""
    seed = random.randrange(10**6)
    for name, (got, _) in zip(_CASES, answer.call(_count, seed), strict=True):
        got = number(got)
        forward, known, _ = _case(name, seed)
        with SavedTensors(None, known) as saved:
            forward()
        with SavedTensors() as everything:
            forward()
        views = 0

        def add(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal views
            views += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(add, lambda tensor: tensor):
            forward()
        why = "Which storages do the saved tensors lie in, and how large are those?"
        if got == everything.bytes:
            why = "That includes what is in `known`: weights and batch were there before."
        elif got == views:
            why = "That is the sum over all saved tensors. Several of them can be views of one storage."
        elif isinstance(got, int) and got < saved.bytes:
            why = "A view keeps its whole storage alive, not only its own part of it."
        elif isinstance(got, int) and got > saved.bytes:
            why = "Is something counted twice, perhaps through two different views?"
        require(
            got == saved.bytes,
            f"{name}: autograd keeps {saved.bytes:,} bytes, and you count {got!r}. {why}",
        )


@SAVED.check("the backward pass still works", points=1, needs=("check_saved",))
def check_backward(answer: Answer) -> None:
    """Gradients after counting are the gradients without."""
    seed = random.randrange(10**6)
    for name, (_, gradients) in zip(_CASES, answer.call(_count, seed), strict=True):
        forward, _, wanted = _case(name, seed)
        forward().backward()
        for got, tensor in zip(gradients, wanted, strict=True):
            if tensor.grad is None:  # this model does not use it
                continue
            require(
                got is not None and torch.allclose(got, tensor.grad),
                f"{name}: after counting, the backward pass gives other gradients (or none). What `unpack` returns is what the "
                "backward pass computes with.",
            )
