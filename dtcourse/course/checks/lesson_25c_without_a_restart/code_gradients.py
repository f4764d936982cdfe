"""A gradient that is whole whichever ranks are lost: each rank computes a few shards and sends one vector."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

from dtcourse.course.judging import Answer, CheckFailed, Each, Exercise, require

CODE = Exercise(
    "code_gradients",
    lesson="25c",
    title="Whichever ranks are lost",
    takes=("code_gradients", "whole_gradient"),
    target="the sum of all shards' gradients to 1e-9, for 5 pairs of ranks and losses and every set of lost ranks; "
    "spare + 1 shards per rank, and one vector of a gradient's size",
)

NEAR = 1e-9  # of the largest element of the sum
SAMPLES, INPUTS, OUTPUTS = 6, 5, 3
ELEMENTS = INPUTS * OUTPUTS + OUTPUTS
# (ranks, how many of them may be lost)
PAIRS = ((3, 1), (4, 1), (4, 2), (5, 2), (4, 3))


def gradient_function(seed: int) -> Callable[[int], Any]:
    """The gradient of a small model's summed loss on a shard, as one vector in double; of any process the same."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    weight = torch.randn(OUTPUTS, INPUTS, generator=draws, dtype=torch.double, requires_grad=True)
    bias = torch.randn(OUTPUTS, generator=draws, dtype=torch.double, requires_grad=True)

    def gradient_of(shard: int) -> Any:
        own = torch.Generator().manual_seed(1000 * (seed + 1) + shard)
        x = torch.randn(SAMPLES, INPUTS, generator=own, dtype=torch.double)
        loss = torch.tanh(torch.nn.functional.linear(x, weight, bias)).square().sum()
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, (weight, bias))])

    return gradient_of


def _asked(code: Callable[..., Any], whole: Callable[..., Any], spare: int) -> list[int]:
    """On a rank: the shards whose gradients it asks for. It is given others, which are no gradients."""
    import torch
    import torch.distributed as dist

    asked: list[int] = []

    def noted(shard: int) -> Any:
        asked.append(int(shard))
        return torch.randn(ELEMENTS, dtype=torch.double)

    code(noted, dist.get_rank(), dist.get_world_size(), spare)
    return asked


def _session(
    code: Callable[..., Any], whole: Callable[..., Any], spare: int, known: dict[int, Any]
) -> Any:
    """On a rank that has the gradients of the shards that it has asked for, and no others: what it would send."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()

    def gradient_of(shard: int) -> Any:
        if int(shard) not in known:
            raise CheckFailed(
                f"{size} ranks, of which {spare} may be lost: rank {rank} asks for the shards {sorted(known)}, and "
                f"when it is called again for {int(shard)}. What is a rank's work, whichever gradients it finds?"
            )
        return known[int(shard)].clone()

    return code(gradient_of, rank, size, spare)


def _decoded(
    code: Callable[..., Any], whole: Callable[..., Any], cases: list[Any], size: int, spare: int
) -> list[Any]:
    """In a process that has seen no gradient: what comes out of the vectors of those that are left."""
    return [whole(arrived, size, spare) for arrived in cases]


def _sent(answer: Answer, size: int, spare: int) -> tuple[list[Any], list[Any], Any]:
    """(by rank the shards asked for, by rank the vector, the sum of all gradients)."""
    import torch

    case = f"{size} ranks, of which {spare} may be lost"
    asked = list(answer.run(_asked, size, spare))
    for rank, shards in enumerate(asked):
        require(
            all(0 <= shard < size for shard in shards),
            f"{case}: rank {rank} asks for the shards {shards}, and there are 0 to {size - 1}.",
        )
    gradient_of = gradient_function(random.randrange(2**31))
    gradients = [gradient_of(shard) for shard in range(size)]
    known = Each([{shard: gradients[shard] for shard in shards} for shards in asked])
    vectors = list(answer.run(_session, size, spare, known))
    for rank, vector in enumerate(vectors):
        shape = list(vector.shape) if isinstance(vector, torch.Tensor) else type(vector).__name__
        require(
            shape == [ELEMENTS] and vector.dtype == torch.double,
            f"{case}: rank {rank} is to send one vector of a gradient's {ELEMENTS} elements in double, and returns "
            f"{shape}. What could be added up before it is sent?",
        )
    return asked, vectors, torch.stack(gradients).sum(0)


def _require(
    answer: Answer, size: int, spare: int, sets: list[tuple[int, ...]], hint: str
) -> list[Any]:
    """The sum, with each of these sets of ranks lost. Returns by rank the shards that it has asked for."""
    import torch

    asked, vectors, right = _sent(answer, size, spare)
    cases = [{r: v for r, v in enumerate(vectors) if r not in lost} for lost in sets]
    for lost, got in zip(sets, answer.call(_decoded, cases, size, spare), strict=True):
        gone = f"lost {', '.join(map(str, lost))}" if lost else "nobody lost"
        where = f"{size} ranks, of which {spare} may be lost, {gone}"
        require(
            isinstance(got, torch.Tensor) and got.shape == right.shape,
            f"{where}: `whole_gradient` is to return a vector of {ELEMENTS} elements; got "
            f"{list(got.shape) if isinstance(got, torch.Tensor) else got!r}.",
        )
        off = float((got - right).abs().max() / right.abs().max())
        require(
            off <= NEAR,
            f"{where}: the sum of all {size} shards' gradients is off by {off:.2g} of its largest element, and "
            f"{NEAR:g} is the target. {hint}",
        )
    return asked


@CODE.check("nobody is lost", points=2)
def check_all(answer: Answer) -> None:
    """The sum of all shards, from what all ranks send."""
    for size, spare in ((3, 1), (4, 2)):
        _require(
            answer,
            size,
            spare,
            [()],
            "What do the vectors of all ranks add up to? Do all ranks, and who adds up, know the same factors?",
        )


@CODE.check("any ranks are lost", points=5, needs=("check_all",))
def check_any(answer: Answer) -> None:
    """Every set of as many as may be lost, and of fewer."""
    for size, spare in PAIRS:
        sets = [lost for n in range(1, spare + 1) for lost in combinations(range(size), n)]
        _require(
            answer,
            size,
            spare,
            sets,
            "With which factors would the vectors that are left have to be added, is there a solution for each set of "
            "them, and do all ranks and each call find the same factors?",
        )


@CODE.check("few shards, each once", points=3, needs=("check_any",))
def check_few(answer: Answer) -> None:
    """Not all of them on all ranks."""
    for size, spare in ((4, 1), (5, 2), (3, 0)):
        hint = "From so few gradients each, do all vectors add up to the sum?"
        asked = _require(answer, size, spare, [tuple(range(spare))], hint)
        for rank, shards in enumerate(asked):
            require(
                len(shards) <= spare + 1,
                f"{size} ranks, of which {spare or 'none'} may be lost: rank {rank} computes {len(shards)} gradients, "
                f"of the shards {shards}; {spare + 1} are enough. On how many ranks does a shard have to be, so that "
                "one of them is left?",
            )
