"""PipeDream-2BW: no flush, gradients added up over m micro-batches, and two versions of the weights."""

from __future__ import annotations

import gc
import random
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.pipeline_parallel.schedules import pipedream
from dtcourse.pipeline_parallel.validate import validate

TWO = Exercise(
    "two_versions",
    lesson="18",
    title="Two versions",
    takes=("TwoVersions",),
    target="outputs, gradients and weights of PipeDream-2BW to 1e-9, in 1F1B's order without a flush; at most three "
    "tensors of the weights' shape",
    forbidden=("dtcourse.pipeline_parallel",),
)

WIDTH, ROWS, LR = 13, 3, 0.1
Found = dict[tuple[int, str, int], Tensor]


def _performed(
    make: Any, weights: list[Tensor], xs: Tensor, targets: Tensor, actions: list[Any], m: int
) -> dict[str, Any]:
    """All stages in one process. What each action returns, the weights after each batch, and the most tensors of their
    shape that a stage has kept.
    """
    before = _count()
    stages = [make(weight.clone(), LR, m) for weight in weights]
    found: dict[Any, Tensor] = {}
    most, last = 0, len(weights) - 1
    for number, (stage, kind, i) in enumerate(actions):
        if kind == "F":
            x = found[stage - 1, "F", i].clone() if stage else xs[i].clone()
            made = stages[stage].forward(i, x)
        elif stage == last:
            made = stages[stage].backward(i, found[stage, "F", i] - targets[i])
        else:
            made = stages[stage].backward(i, found[stage + 1, "B", i].clone())
        found[stage, kind, i] = made.detach().clone()
        if kind == "B" and i % m == m - 1:
            # Flat, so that it is not counted among what stages keep.
            found[stage, "version", i] = stages[stage].weight.detach().flatten().clone()
        if number % (2 * m + 1) == 0:  # a look at all objects of a process takes its time
            most = max(most, _count() - before)
    return {"found": found, "most": most / len(weights)}


def _count() -> int:
    """The tensors of the weights' shape that live in this process."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    return len({one.data_ptr() for one in tensors if one.shape == (WIDTH, WIDTH)})


def reference(weights: list[Tensor], xs: Tensor, targets: Tensor, m: int) -> Found:
    """The paper's rule, batch by batch in one process: w(t + 1) = w(t) - lr grad(w(t - 1)), the first twice at w(0)."""
    history: list[list[Tensor]] = [list(weights)]
    found: Found = {}
    for batch in range(len(xs) // m):
        met = [w.clone().requires_grad_() for w in history[max(0, batch - 1)]]
        for i in range(batch * m, batch * m + m):
            inputs = [xs[i].clone().requires_grad_()]
            for stage, w in enumerate(met):
                inputs.append(torch.tanh(inputs[-1] @ w.T))
                inputs[-1].retain_grad()
                found[stage, "F", i] = inputs[-1].detach()
            (0.5 * (inputs[-1] - targets[i]).square().sum()).backward()
            for stage in range(len(met)):
                grad = inputs[stage].grad
                assert grad is not None
                found[stage, "B", i] = grad
        mean = [w.grad / m for w in met if w.grad is not None]
        history.append([w - LR * grad for w, grad in zip(history[-1], mean, strict=True)])
        for stage, w in enumerate(history[-1]):
            found[stage, "version", batch * m + m - 1] = w.flatten()
    return found


@cache
def _cases(draw: int) -> list[tuple[Any, ...]]:
    """Weights, inputs, targets, actions in an order that can be performed, m."""
    cases = []
    for p in random.sample(range(2, 5), 2):
        m, batches = p + random.randrange(3), random.randint(3, 4)
        weights = [torch.randn(WIDTH, WIDTH, dtype=torch.double) / WIDTH**0.5 for _ in range(p)]
        xs, targets = torch.randn(2, m * batches, ROWS, WIDTH, dtype=torch.double)
        actions = [tuple(one) for one in validate(pipedream(p, m * batches))]
        cases.append((weights, xs, targets, actions, m))
    return cases


def _all(answer: Answer) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    cases = _cases(random.randrange(1 << 30))
    return [(answer.call(_performed, *case), case) for case in cases]


@TWO.check("outputs, gradients and weights are PipeDream-2BW's", points=6)
def check_equal(answer: Answer) -> None:
    """Action by action, in the order of time."""
    for got, (weights, xs, targets, actions, m) in _all(answer):
        right = reference(weights, xs, targets, m)
        for stage, kind, i in actions:
            where = f"{len(weights)} stages, m = {m}: {'forward' if kind == 'F' else 'backward'} of micro-batch {i}"
            hint = (
                f"It belongs to batch {i // m}. Which version of the weights is to be its own, on every stage?"
                if kind == "F"
                else f"Its forward has met one version of stage {stage}'s weights. Does its backward take the same?"
            )
            require_close(
                got["found"][stage, kind, i],
                right[stage, kind, i],
                f"{where} in stage {stage}",
                1e-9,
                hint,
            )
            if (stage, "version", i) in right and kind == "B":
                require_close(
                    got["found"][stage, "version", i],
                    right[stage, "version", i],
                    f"{len(weights)} stages, m = {m}: stage {stage}'s weights after batch {i // m}",
                    1e-9,
                    "A new version is the latest one minus lr times the mean gradient of its m micro-batches. From "
                    "which version do you start, and what is in the sum?",
                )


@TWO.check("two versions, and one sum of gradients", points=4, needs=("check_equal",))
def check_versions(answer: Answer) -> None:
    """Counted while it runs."""
    for got, (weights, *_, m) in _all(answer):
        require(
            got["most"] <= 3,
            f"{len(weights)} stages, m = {m}: a stage keeps {got['most']:.3g} tensors of the weights' shape, and "
            "two versions and a sum of gradients are 3. From which backward on does nobody need the older version?",
        )
