"""Accumulate uneven micro-batches."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require

Tensors = list[torch.Tensor]


ACCUMULATE = Exercise(
    "accumulate_uneven",
    lesson="06b",
    title="Accumulate uneven micro-batches",
    takes=("accumulate",),
    target="the gradient of the whole batch to 1e-6; exactly one "
    "all-reduce of the gradients; one micro-batch at a time",
    forbidden=("dtcourse.data_parallel", "dtcourse.parameters"),
)


def _classifier(weights: Tensors) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    return net


def _accumulated(accumulate: Any, weights: Tensors, own: Any, total: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    net, seen = _classifier(weights), []
    net.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    model = DistributedDataParallel(net)
    accumulate(model, own, total)
    return [None if p.grad is None else p.grad for p in net.parameters()], seen


def _parts(ranks: int, as_many: bool) -> tuple[Tensors, list[Any], int]:
    """Weights, micro-batches by rank (as_many: the same number on each), and how many samples they have in all."""
    shapes = [(8, 5), (8,), (3, 8), (3,)]
    weights = [torch.randn(s, dtype=torch.double) / 2 for s in shapes]
    numbers = [3 if as_many or rank == 0 else random.choice([2, 4]) for rank in range(ranks)]
    counts = [[random.randint(1, 6) for _ in range(number)] for number in numbers]
    counts[0] = [1, 7, 3]  # uneven for sure
    parts = [
        [(torch.randn(n, 5, dtype=torch.double), torch.randint(3, (n,))) for n in own]
        for own in counts
    ]
    return weights, parts, sum(map(sum, counts))


@ACCUMULATE.check("one all-reduce of the gradients, at the end", points=3)
def check_accumulated_bytes(answer: Answer) -> None:
    """Counted, on a backend that sees every message."""
    for ranks in (2, 3):
        weights, parts, total = _parts(ranks, as_many=True)
        run = answer.run(
            _accumulated, ranks, weights, Each(parts), total, backend="ring", record=True
        )
        sent = run.traffic.bytes_sent(operation="all_reduce")
        least = 2 * (ranks - 1) * 8 * sum(w.numel() for w in weights)
        require(
            sent > 0,
            "No gradient was averaged. In which of the backwards may DDP do it?",
        )
        require(
            sent == least,
            f"On {ranks} ranks the all-reduces carry {sent:,} bytes in all, and one of the gradients {least:,}. DDP "
            "decides in *forward* whether the next backward averages: which forwards and which backwards stand "
            "inside no_sync()?",
        )


@ACCUMULATE.check("the gradient of the mean over all samples of all ranks", points=3)
def check_accumulated(answer: Answer) -> None:
    """Micro-batches of different sizes, and different numbers of them on the ranks."""
    for ranks, as_many in ((1, True), (2, True), (3, True), (3, False)):
        weights, parts, total = _parts(ranks, as_many)
        run = answer.run(_accumulated, ranks, weights, Each(parts), total)
        net = _classifier(weights)
        x, y = (torch.cat([p[i] for own in parts for p in own]) for i in (0, 1))
        loss = nn.functional.cross_entropy(net(x), y)
        rights = torch.autograd.grad(loss, list(net.parameters()))
        for rank in range(ranks):
            for got, right in zip(run[rank][0], rights, strict=True):
                require(got is not None, "No gradient was left behind. Was backward called?")
                off = float((got - right).abs().max() / right.abs().max())
                times = float((got * right).sum() / right.square().sum())
                if off > 1e-6 and abs(times - round(times, 3)) < 1e-6:
                    require(
                        False,
                        f"On {ranks} ranks the gradient is {times:.3g} times the right one. DDP divides by {ranks}; "
                        "what is left to you?",
                    )
                require(
                    off < 1e-6,
                    f"On {ranks} ranks, rank {rank}'s gradient is off by {off:.1e} of its size. Every *sample* of "
                    f"{total} should weigh the "
                    "same: what does a micro-batch of 1 weigh against one of "
                    "7? And have all ranks the same in the end?",
                )


@ACCUMULATE.check("one micro-batch at a time", points=1, needs=("check_accumulated",))
def check_accumulated_size(answer: Answer) -> None:
    """What goes through the model at once is no larger than a micro-batch: that was the point."""
    weights, parts, total = _parts(2, as_many=True)
    run = answer.run(_accumulated, 2, weights, Each(parts), total)
    for rank in range(2):
        sizes = [len(x) for x, _ in parts[rank]]
        require(
            sorted(run[rank][1]) == sorted(sizes),
            f"Rank {rank}'s micro-batches have {sizes} samples, and through the model went {run[rank][1]}. A batch "
            "that fits needs no accumulation: what if the whole of it does not fit?",
        )
