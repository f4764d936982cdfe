"""PyTorch's DDP on a ring that goes both ways round."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received
from dtcourse.course.judging.forbidden import ALGORITHMS
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

RING = Exercise(
    "two_way_ring",
    lesson="04b",
    title="A ring both ways round, under PyTorch's DDP",
    takes=("two_way_all_reduce", "ring_hook"),
    target="right at 1 to 5 ranks and any length; exactly (p - 1)/p n bytes to each neighbour, in 2 (p - 1) rounds; "
    "DDP's weights to 1e-10",
    forbidden=(
        *ALGORITHMS,
        "torch.distributed.algorithms.ddp_comm_hooks",
    ),
)


def _ring(two_way_all_reduce: Any, _: Any, mine: torch.Tensor) -> torch.Tensor:
    two_way_all_reduce(mine)
    return mine


def _seconds(two_way_all_reduce: Any, hook: Any, mine: torch.Tensor) -> float:
    """On a network whose messages take one second each, and nothing else any time: rounds on the critical path."""
    from dtcourse import emulation

    _ring(two_way_all_reduce, hook, mine)
    return emulation.now()


def _ddp_alone(
    _: Any, _hook: Any, weights: list[torch.Tensor], batches: list[Any]
) -> list[torch.Tensor]:
    """The same training with a hook that sends nothing: what is counted is DDP's own, in this version of torch."""

    def finished(tensor: torch.Tensor) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(tensor)
        return future

    # DDP refuses a hook with other annotations than its own.
    return _ddp(None, lambda _, bucket: finished(bucket.buffer()), weights, batches)


def _ddp(
    _: Any, ring_hook: Any, weights: list[torch.Tensor], batches: list[Any]
) -> list[torch.Tensor]:
    from torch.nn.parallel import DistributedDataParallel

    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, ring_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def _sums(answer: Answer, ranks: int, elements: int) -> None:
    vectors = [torch.randn(elements, dtype=torch.double) for _ in range(ranks)]
    right = torch.stack(vectors).sum(0)
    run = answer.run(_ring, ranks, Each(vectors), timeout=8.0)
    for rank in range(ranks):
        wrong = ((run[rank] - right).abs() > 1e-9).nonzero().flatten().tolist()
        if not wrong:
            continue
        where = f"elements {wrong[0]} to {wrong[-1]}" if len(wrong) > 1 else f"element {wrong[0]}"
        raise_with = (
            f"{elements} elements on {plural(ranks, 'rank')}: on rank {rank}, {len(wrong)} are not the sum "
            f"({where}). "
        )
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
    for ranks, elements in ((3, 16), (4, 1003), (4, 3), (5, 1), (2, 7)):
        _sums(answer, ranks, elements)


@RING.check("large vectors do not block", points=1)
def check_ring_large(answer: Answer) -> None:
    """A message that does not fit into any buffer on the way."""
    _sums(answer, 3, 300_000)


@RING.check(
    "exactly (p - 1)/p n bytes to each neighbour, by send and receive alone",
    points=3,
    needs=("check_ring_sum",),
)
def check_ring_volume(answer: Answer) -> None:
    """Counted message by message, on a backend that sees every one."""
    for ranks in (3, 4):
        elements = 240 * ranks
        vectors = [torch.randn(elements, dtype=torch.double) for _ in range(ranks)]
        run = answer.run(_ring, ranks, Each(vectors), backend="ring", record=True)
        used = sorted({row.operation for row in run.traffic.rows} - {"send", "recv"})
        require(
            not used,
            f"It calls {', '.join(used)}. Build it from send and receive (and their non-blocking forms) alone.",
        )
        exact = (ranks - 1) * 240 * 8
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            to = {peer: run.traffic.bytes_sent(rank=rank, peer=peer) for peer in range(ranks)}
            right, left = to[(rank + 1) % ranks], to[(rank - 1) % ranks]
            where = f"On {plural(ranks, 'rank')}, rank {rank}"
            require(
                sent == right + left,
                f"{where} sends {sent - right - left:,} bytes to others than its two neighbours.",
            )
            require(
                sent <= 2 * exact,
                f"{where} sends {sent:,} bytes of a vector of {elements * 8:,}; two rings send {2 * exact:,} "
                "together. Does one rank do the work of all, or does more than one block go each way in a step?",
            )
            require(
                right == left == exact,
                f"{where} sends {right:,} bytes to the right and {left:,} to the left, of a vector of "
                f"{elements * 8:,}; {exact:,} "
                "go each way. Which half of the vector travels which way round?",
            )
            require_received(where, run.traffic.bytes_received(rank), 2 * exact)


@RING.check("both ways at the same time: 2 (p - 1) rounds", points=2, needs=("check_ring_volume",))
def check_ring_rounds(answer: Answer) -> None:
    """On the virtual clock: the same on every machine, and nobody sleeps."""
    for ranks in (3, 5):
        vectors = [torch.randn(20 * ranks) for _ in range(ranks)]
        network = EmulatedNetwork(latency=1.0)
        run = answer.run(_seconds, ranks, Each(vectors), network=network, clock="virtual")
        passed = round(max(run))
        require(
            passed <= 2 * (ranks - 1),
            f"With {plural(ranks, 'rank')} the last one has the sum after {passed} messages, one after the other; "
            f"{2 * (ranks - 1)} are enough. Does the second half wait for the first?",
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
        run = answer.run(_ddp, ranks, weights, Each(batches), record=True)
        own = answer.run(_ddp_alone, ranks, weights, Each(batches), record=True).traffic
        used = [
            name
            for name in run.traffic.operations
            if name not in ("send", "recv")
            and run.traffic.calls(rank=0, operation=name) > own.calls(rank=0, operation=name)
        ]
        require(
            not used,
            f"Under DDP it calls {', '.join(used)}. The hook is to send the bucket round your own ring: whose "
            "messages should DDP's gradients travel in?",
        )
        least = len(batches[0]) * sum(w.nbytes for w in weights)  # each step, the sum of all
        for rank in range(ranks):
            where = f"Under DDP on {plural(ranks, 'rank')}, rank {rank}"
            require_received(where, run.traffic.bytes_received(rank, "recv"), least)
        right = _train_alone(weights, batches)
        scaled = _train_alone(weights, batches, scale=ranks)
        for rank in range(ranks):
            off = max((a - b).abs().max().item() for a, b in zip(run[rank], right, strict=True))
            sums = max((a - b).abs().max().item() for a, b in zip(run[rank], scaled, strict=True))
            require(
                sums > 1e-9 or off < 1e-10,
                f"On {plural(ranks, 'rank')} DDP moves {ranks} times too far in each step. What does DDP expect of "
                "its hook: the sum of the gradients?",
            )
            require(
                off < 1e-10,
                f"After 5 steps on {plural(ranks, 'rank')}, rank {rank}'s weights are up to {off:.2g} from those of "
                "DDP without a hook. Does the future hold the mean of all ranks' gradients, the whole bucket?",
            )


def _train_alone(
    weights: list[torch.Tensor], batches: list[Any], scale: float = 1.0
) -> list[torch.Tensor]:
    """What DDP does, in one process: the mean over the ranks of each one's gradient (times `scale`)."""
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    parameters = list(net.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    for step in range(len(batches[0])):
        losses = [nn.functional.mse_loss(net(x), y) for x, y in (own[step] for own in batches)]
        gradients = torch.autograd.grad(scale * torch.stack(losses).mean(), parameters)
        with (
            torch.no_grad()
        ):  # SGD as the ranks have it, without an optimizer, which takes a second to import
            for p, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                p.sub_(0.05 * velocity.mul_(0.9).add_(gradient))
    return [p.detach() for p in parameters]
