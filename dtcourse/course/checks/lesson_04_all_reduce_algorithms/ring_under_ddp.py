"""PyTorch's DDP on your own ring."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.plural import plural

RING = Exercise(
    "ring_under_ddp",
    lesson="04",
    title="PyTorch's DDP on your own ring",
    takes=("ring_all_reduce", "ring_hook"),
    target="right at 1 to 5 ranks and any length; exactly 2 (p - 1)/p n bytes a rank; DDP's weights equal gloo's to 1e-10",
    forbidden=(
        *ALGORITHMS,
        "torch.distributed.algorithms.ddp_comm_hooks",
    ),
)


def _ring(ring_all_reduce: Any, _: Any, vectors: list[torch.Tensor]) -> torch.Tensor:
    import torch.distributed as dist

    mine = vectors[dist.get_rank()].clone()
    ring_all_reduce(mine)
    return mine


def _ddp(
    _: Any, ring_hook: Any, weights: list[torch.Tensor], batches: list[Any]
) -> list[torch.Tensor]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, ring_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches[dist.get_rank()]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def _sums(answer: Answer, ranks: int, elements: int) -> None:
    vectors = [torch.randn(elements, dtype=torch.double) for _ in range(ranks)]
    right = torch.stack(vectors).sum(0)
    run = answer.run(_ring, ranks, vectors, timeout=8.0)
    for rank in range(ranks):
        wrong = ((run[rank] - right).abs() > 1e-9).nonzero().flatten().tolist()
        if not wrong:
            continue
        where = f"elements {wrong[0]} to {wrong[-1]}" if len(wrong) > 1 else f"element {wrong[0]}"
        raise_with = f"{elements} elements on {plural(ranks, 'rank')}: on rank {rank}, {len(wrong)} are not the sum ({where}). "
        if elements % ranks:
            hint = f"{ranks} does not divide {elements}: are all blocks of one length, and is the rest in one of them?"
        else:
            hint = "Draw it for three ranks: in step s, which block leaves a rank, and which one comes in?"
        require(False, raise_with + hint)


@RING.check("the sum, on every rank, where p divides the length", points=2)
def check_ring_sum(answer: Answer) -> None:
    """Also at numbers of ranks that are no power of two, and at one."""
    for ranks in (4, 2, 3, 5, 1):
        _sums(answer, ranks, 6 * ranks)


@RING.check("any length: not divided by p, and shorter than p", points=2)
def check_ring_lengths(answer: Answer) -> None:
    """Blocks of unequal and of no length."""
    for ranks, elements in ((3, 16), (4, 1003), (4, 3), (5, 1)):
        _sums(answer, ranks, elements)


@RING.check("large vectors do not block", points=1)
def check_ring_large(answer: Answer) -> None:
    """A message that does not fit into any buffer on the way."""
    _sums(answer, 3, 300_000)


@RING.check(
    "exactly 2 (p - 1)/p n bytes, to the right neighbour, by send and receive alone",
    points=3,
    needs=("check_ring_sum",),
)
def check_ring_volume(answer: Answer) -> None:
    """Counted message by message, on a backend that sees every one."""
    for ranks in (3, 4):
        elements = 240 * ranks
        vectors = [torch.randn(elements, dtype=torch.double) for _ in range(ranks)]
        run = answer.run(_ring, ranks, vectors, backend="ring", record=True)
        used = sorted({row.operation for row in run.traffic.rows} - {"send", "recv"})
        require(
            not used,
            f"It calls {', '.join(used)}. Build it from send and receive (and their non-blocking forms) alone.",
        )
        exact = 2 * (ranks - 1) * 240 * 8
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"On {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes of a vector of {elements * 8:,}; the ring sends "
                f"2 (p - 1) blocks, {exact:,} bytes, on every rank. "
                + (
                    "Does one rank do the work of all, or does more than one block go in a step?"
                    if sent > exact
                    else "Who sends what this rank does not?"
                ),
            )
            right = run.traffic.bytes_sent(rank=rank, peer=(rank + 1) % ranks)
            require(
                right == sent,
                f"On {plural(ranks, 'rank')}, rank {rank} sends {sent - right:,} bytes to others than its right neighbour, rank "
                f"{(rank + 1) % ranks}. On a ring all traffic goes one way round.",
            )


@RING.check("PyTorch's DDP trains on it, with gloo's weights", points=3)
def check_ring_ddp(answer: Answer) -> None:
    """Five steps of SGD with momentum, against the judge's own, on all ranks' data in one process."""
    for ranks in (2, 3):
        shapes = [(7, 6), (7,), (3, 7), (3,)]
        weights = [torch.randn(s, dtype=torch.double) / 2 for s in shapes]
        batches = [
            [
                (torch.randn(4, 6, dtype=torch.double), torch.randn(4, 3, dtype=torch.double))
                for _ in range(5)
            ]
            for _ in range(ranks)
        ]
        run = answer.run(_ddp, ranks, weights, batches, record=True)
        # DDP itself gathers its parameters' shapes once and broadcasts their values, when it is made.
        used = [name for name in run.traffic.operations if name not in _OF_DDP]
        used += ["all_gather"] * (run.traffic.calls(rank=0, operation="all_gather") > 1)
        require(
            not used,
            f"Under DDP it calls {', '.join(used)}. The hook is to send the bucket round your own ring: whose messages should "
            "DDP's gradients travel in?",
        )
        right = _train_alone(weights, batches)
        scaled = _train_alone(weights, batches, scale=ranks)
        for rank in range(ranks):
            off = max((a - b).abs().max().item() for a, b in zip(run[rank], right, strict=True))
            sums = max((a - b).abs().max().item() for a, b in zip(run[rank], scaled, strict=True))
            require(
                sums > 1e-9 or off < 1e-10,
                f"On {plural(ranks, 'rank')} DDP moves {ranks} times too far in each step. What does DDP expect of its hook: the "
                "sum of the gradients?",
            )
            require(
                off < 1e-10,
                f"After 5 steps on {plural(ranks, 'rank')}, rank {rank}'s weights are up to {off:.2g} from those of DDP without a hook. "
                "Does the future hold the mean of all ranks' gradients, the whole bucket?",
            )


_OF_DDP = ("send", "recv", "all_gather", "broadcast")


def _train_alone(
    weights: list[torch.Tensor], batches: list[Any], scale: float = 1.0
) -> list[torch.Tensor]:
    """What DDP does, in one process: the mean over the ranks of each one's gradient (times `scale`)."""
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(len(batches[0])):
        optimizer.zero_grad()
        losses = [nn.functional.mse_loss(net(x), y) for x, y in (own[step] for own in batches)]
        (scale * torch.stack(losses).mean()).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]
