"""A router with sigmoid scores and a bias, whose tokens go to few nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.plural import plural

ROUTER = Exercise(
    "node_limited_router",
    lesson="21",
    title="A node-limited router",
    takes=("route",),
    target="experts exact, weights and the gradient of the router's weights to 1e-9, on 3 routers",
    forbidden=("dtcourse.models",),
)

# Tokens, width, experts, nodes, nodes per token, choices.
SIZES = ((40, 5, 12, 3, 1, 2), (60, 6, 16, 4, 2, 4), (50, 4, 24, 4, 3, 5))


def routed(
    x: Tensor, weight: Tensor, bias: Tensor, nodes: int, most: int, k: int
) -> tuple[Tensor, Tensor]:
    """As the exercise describes it."""
    scores = (x @ weight.T).sigmoid()
    wanted = (scores + bias).detach()
    by_node = wanted.unflatten(1, (nodes, -1))
    best = by_node.topk(-(-k // most), -1).values.sum(-1).topk(most).indices
    allowed = torch.zeros(len(x), nodes, dtype=torch.bool).scatter(1, best, True)
    each = by_node.shape[-1]
    experts = wanted.masked_fill(~allowed.repeat_interleave(each, 1), -torch.inf).topk(k).indices
    weights = scores.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True)


def _drawn(size: tuple[int, ...]) -> list[Any]:
    tokens, width, num_experts, nodes, most, k = size
    x = torch.randn(tokens, width, dtype=torch.double)
    weight = torch.randn(num_experts, width, dtype=torch.double)
    bias = torch.randn(num_experts, dtype=torch.double) / 4
    return [x, weight, bias, nodes, most, k]


def _with_gradient(route: Any, cases: list[list[Any]]) -> list[Any]:
    """What an answer routes, and the gradient that its weights give the router's."""
    found = []
    for x, weight, *rest in cases:
        weight = weight.clone().requires_grad_()
        experts, weights = route(x, weight, *rest)
        if isinstance(weights, Tensor) and weights.requires_grad:
            # An own slope for each expert, so that the order of a token's choices makes no difference.
            slopes = torch.arange(len(weight), dtype=torch.double).sin()
            (weights * slopes[experts]).sum().backward()
        found.append((experts, weights.detach(), weight.grad))
    return found


def _judged(answer: Answer) -> Any:
    """(where, case, what was routed) of each size."""
    cases = [_drawn(size) for size in SIZES]
    said = answer.call(_with_gradient, cases)
    for (tokens, _, num_experts, nodes, most, k), case, got in zip(SIZES, cases, said, strict=True):
        where = (
            f"{tokens} tokens, {num_experts} experts on {plural(nodes, 'node')}, at most {plural(most, 'node')} and "
            f"{plural(k, 'expert')} for each token"
        )
        yield where, case, got


def _places(experts: Any, weights: Any, num_experts: int) -> Tensor:
    """A table of tokens and experts, whatever the order of a token's choices."""
    table = torch.zeros(len(experts), num_experts, dtype=torch.double)
    return table.scatter(1, experts, weights.double())


@ROUTER.check("the experts", points=3)
def check_experts(answer: Answer) -> None:
    """Those of few nodes, by score and bias."""
    for where, case, (experts, _, _) in _judged(answer):
        right, _ = routed(*case)
        require(
            isinstance(experts, Tensor) and experts.shape == right.shape,
            f"{where}: experts should be a tensor of shape {tuple(right.shape)}.",
        )
        x, weight, bias, nodes, most, k = case
        each = len(weight) // nodes
        many = max(len(set(row)) for row in (experts // each).tolist())
        require(
            many <= most,
            f"{where}: a token's experts lie on {plural(many, 'node')}. Which nodes may it go to, and what is left "
            "of the other nodes' scores when experts are chosen?",
        )
        same = (experts.sort().values == right.sort().values).all(1)
        unbiased, _ = routed(x, weight, torch.zeros_like(bias), nodes, most, k)
        hint = (
            "Of how many of its experts does a node's score consist, and are these its best ones?"
        )
        if (experts.sort().values == unbiased.sort().values).all():
            hint = "Does the bias count where nodes and experts are chosen?"
        require(
            bool(same.all()),
            f"{where}: {int((~same).sum())} tokens go to other experts. {hint}",
        )


@ROUTER.check("their weights", points=3, needs=("check_experts",))
def check_weights(answer: Answer) -> None:
    """Scores without the bias, over their sum."""
    for where, case, (experts, weights, _) in _judged(answer):
        right = _places(*routed(*case), len(case[1]))
        require(
            isinstance(weights, Tensor) and weights.shape == experts.shape,
            f"{where}: weights should have the shape of the experts, {tuple(experts.shape)}.",
        )
        require_close(
            _places(experts, weights, len(case[1])),
            right,
            f"{where}: the weights, by token and expert",
            1e-9,
            "Is the bias in them? Are they sigmoids, and what is a token's sum?",
        )


@ROUTER.check("their gradient", points=2, needs=("check_weights",))
def check_gradient(answer: Answer) -> None:
    """Through the weights, to the router."""
    for where, case, (_, _, grad) in _judged(answer):
        ((_, _, right),) = _with_gradient(routed, [case])
        require(
            isinstance(grad, Tensor),
            f"{where}: the router's weights get no gradient. What may be detached: the choice, or the weight?",
        )
        require_close(
            grad,
            right,
            f"{where}: the gradient of the router's weights",
            1e-9,
            "Through which factors of a token's weight does the gradient go?",
        )
