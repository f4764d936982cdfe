"""ZeRO-2: gradients that go home."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.plural import plural

ZERO_2 = Exercise(
    "gradients_go_home",
    lesson="16",
    title="ZeRO-2: gradients that go home",
    takes=("gradients_go_home",),
    target="mean gradients on their owner to 1e-5, None elsewhere; (p - 1) N elements sent; own and one other at a time",
    forbidden=(
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "dtcourse.sharding",
        "dtcourse.parameters",
        "dtcourse.data_parallel",
    ),
)

LAYERS = [(6, 9), (9, 7), (7, 7), (7, 4)]
FROZEN = 3  # the second layer's bias


def _model(weights: list[torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in LAYERS:
        layers += [nn.Linear(a, b), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    list(model.parameters())[FROZEN].requires_grad_(False)
    return model


def _zero_2(
    gradients_go_home: Any, weights: list[torch.Tensor], batch: Any, owners: list[int], steps: int
) -> tuple[list[Any], int]:
    """Gradients of the last backward, and the most bytes of gradients at any moment of it."""
    import torch.distributed as dist

    model = _model(weights)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients_go_home(model, dict(zip(trained, owners, strict=True)))
    most = 0

    def look(_: Any) -> None:
        nonlocal most
        most = max(most, sum(p.grad.nbytes for p in trained if p.grad is not None))

    for p in trained:
        p.register_post_accumulate_grad_hook(look)  # runs after the answer's own
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in batch)
    for _ in range(steps):
        model.zero_grad()
        most = 0
        nn.functional.mse_loss(model(x), y).backward()
    return [None if p.grad is None else p.grad.clone() for p in trained], most


def _go_home(answer: Answer, ranks: int, **more: Any) -> tuple[Any, list[torch.Tensor], list[int]]:
    weights = [torch.randn(s) / 2 for a, b in LAYERS for s in ((b, a), (b,))]
    batch = torch.randn(12, 6), torch.randn(12, 4)
    alone = _model(weights)
    nn.functional.mse_loss(alone(batch[0]), batch[1]).backward()
    right = [p.grad for p in alone.parameters() if p.grad is not None]
    owners = [i % ranks for i in range(len(right))]
    random.shuffle(owners)
    return answer.run(_zero_2, ranks, weights, batch, owners, 2, **more), right, owners


@ZERO_2.check("the mean gradient, on its owner", points=3, needs=("check_zero_2_traffic",))
def check_zero_2_gradients(answer: Answer) -> None:
    """Two backwards, a frozen parameter, owners at random."""
    for ranks in (2, 3, 4):
        run, right, owners = _go_home(answer, ranks)
        for i, (expected, owner) in enumerate(zip(right, owners, strict=True)):
            got = run[owner][0][i]
            require(
                got is not None,
                f"On {plural(ranks, 'rank')}, rank {owner} owns trained parameter {i} and has no gradient of it after backward. "
                "Where did it go?",
            )
            require_close(
                got,
                expected,
                f"On {plural(ranks, 'rank')}, the gradient of trained parameter {i} on its owner, rank {owner}, is not that of one process "
                "on the whole batch: it",
                1e-5,
                "Is it the sum or the mean, and of all ranks?",
            )


@ZERO_2.check(
    "None everywhere else", points=1, needs=("check_zero_2_gradients", "check_zero_2_traffic")
)
def check_zero_2_freed(answer: Answer) -> None:
    """After backward."""
    for ranks in (2, 3):
        run, _, owners = _go_home(answer, ranks)
        for rank in range(ranks):
            left = [i for i, g in enumerate(run[rank][0]) if g is not None and owners[i] != rank]
            require(
                not left,
                f"On {plural(ranks, 'rank')}, rank {rank} still has gradients of {len(left)} trained parameters that others own. Who needs "
                "them?",
            )


@ZERO_2.check(
    "freed on the way: the own ones, and one other",
    points=2,
    needs=("check_zero_2_gradients", "check_zero_2_traffic"),
)
def check_zero_2_peak(answer: Answer) -> None:
    """Looked at each time a gradient has become ready."""
    for ranks in (2, 4):
        run, right, owners = _go_home(answer, ranks)
        for rank in range(ranks):
            own = sum(g.nbytes for g, o in zip(right, owners, strict=True) if o == rank)
            most = own + max(g.nbytes for g in right)
            require(
                run[rank][1] <= most,
                f"On {plural(ranks, 'rank')}, rank {rank} holds {run[rank][1]} bytes of gradients at one moment of backward; its own are {own} "
                f"and the largest single one {most - own}. When are the others' freed: as they are sent, or at the end?",
            )


@ZERO_2.check(
    "half of DDP's traffic: (p - 1) N elements", points=2, needs=("check_zero_2_gradients",)
)
def check_zero_2_traffic(answer: Answer) -> None:
    """Counted message by message."""
    for ranks in (2, 3):
        run, right, _ = _go_home(answer, ranks, backend="ring", record=True)
        sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks))
        n = sum(g.numel() for g in right)
        least = 2 * 4 * (ranks - 1) * n
        require(
            sent <= least,
            f"In 2 backwards {plural(ranks, 'rank')} send {sent:,} bytes for gradients of {n} elements; {least:,} are enough. All-reduce "
            "brings the mean to everybody: which collective brings it to one rank?",
        )
