"""The checks of lesson 04: the ring under PyTorch's DDP, an algorithm chosen by its cost, recursive doubling."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. the ring ------------------------------------------------------------------------------------------------

RING = Exercise(
    "ring_under_ddp",
    lesson="04",
    title="PyTorch's DDP on your own ring",
    takes=("ring_all_reduce", "ring_hook"),
    target="right at 1 to 5 ranks and any length; exactly 2 (p - 1)/p n bytes a rank; DDP's weights equal gloo's to 1e-10",
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
        raise_with = f"{elements} elements on {ranks} ranks: on rank {rank}, {len(wrong)} are not the sum ({where}). "
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
    "exactly 2 (p - 1)/p n bytes, to the right neighbour, by send and receive alone", points=3
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
                f"On {ranks} ranks, rank {rank} sends {sent:,} bytes of a vector of {elements * 8:,}; the ring sends "
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
                f"On {ranks} ranks, rank {rank} sends {sent - right:,} bytes to others than its right neighbour, rank "
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
        run = answer.run(_ddp, ranks, weights, batches)
        right = _train_alone(weights, batches)
        scaled = _train_alone(weights, batches, scale=ranks)
        for rank in range(ranks):
            off = max((a - b).abs().max().item() for a, b in zip(run[rank], right, strict=True))
            sums = max((a - b).abs().max().item() for a, b in zip(run[rank], scaled, strict=True))
            require(
                sums > 1e-9 or off < 1e-10,
                f"On {ranks} ranks DDP moves {ranks} times too far in each step. What does DDP expect of its hook: the "
                "sum of the gradients?",
            )
            require(
                off < 1e-10,
                f"After 5 steps on {ranks} ranks, rank {rank}'s weights are up to {off:.2g} from those of DDP without a hook. "
                "Does the future hold the mean of all ranks' gradients, the whole bucket?",
            )


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


# --- 2. the choice ------------------------------------------------------------------------------------------------

CHOOSE = Exercise(
    "choose_algorithm",
    lesson="04",
    title="Choose the algorithm by its cost",
    takes=("seconds", "choose", "crossover"),
    target="times to 1e-9, 200 choices right, crossovers to 1e-6",
)


def _usable(ranks: int) -> list[str]:
    return ["ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])


def _terms(name: str, ranks: int) -> tuple[float, float]:
    rounds = (ranks - 1).bit_length()
    return {
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "tree": (2 * rounds, 2 * rounds),
        "doubling": (rounds, rounds),
    }[name]


def _time(name: str, nbytes: float, ranks: int, alpha: float, beta: float) -> float:
    messages, vectors = _terms(name, ranks)
    return messages * alpha + vectors * nbytes * beta


def _from(ranks: int, alpha: float, beta: float) -> float:
    """The size from which on the ring is the fastest."""
    at = [0.0]
    for name in _usable(ranks):
        messages = _terms("ring", ranks)[0] - _terms(name, ranks)[0]
        if messages > 0:
            vectors = _terms(name, ranks)[1] - _terms("ring", ranks)[1]
            at.append(messages * alpha / (vectors * beta) if vectors else math.inf)
    return max(at)


def _network() -> tuple[float, float]:
    return 10 ** random.uniform(-6, -2), 10 ** random.uniform(-11, -7)


def _all_seconds(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[float]:
    return [float(seconds(*case)) for case in cases]


def _refused(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {seconds(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


def _choices(_s: Any, choose: Any, _x: Any, cases: list[Any]) -> list[str]:
    return [choose(*case) for case in cases]


def _crossovers(_s: Any, _c: Any, crossover: Any, cases: list[Any]) -> list[float]:
    return [float(crossover(*case)) for case in cases]


@CHOOSE.check("the predicted times", points=2)
def check_times(answer: Answer) -> None:
    """To 1e-9 of their size, and ValueErrors."""
    cases = [
        (name, random.randrange(1, 10**9), ranks, *_network())
        for ranks in (1, 2, 3, 6, 8, 100, 1024)
        for name in _usable(ranks)
    ]
    for case, got in zip(cases, answer.call(_all_seconds, cases), strict=True):
        name, nbytes, ranks = case[:3]
        right = _time(*case)
        require(
            math.isclose(got, right, rel_tol=1e-9, abs_tol=1e-15),
            f"{name}, {nbytes:,} bytes on {ranks} ranks, alpha {case[3]:.3g} s, beta {case[4]:.3g} s a byte: {right:.6g} s by the "
            f"table, and yours is {got:.6g} s. "
            + ("How many rounds has a tree of that many ranks?" if ranks & (ranks - 1) else "")
            + ("With one rank there is nothing to send." if ranks == 1 else ""),
        )
    bad = [("doubling", 8, 6, 1e-6, 1e-9), ("carrier pigeon", 8, 4, 1e-6, 1e-9)]
    for case, said in zip(bad, answer.call(_refused, bad), strict=True):
        require(
            said == "ValueError",
            f"seconds({case[0]!r}, ...) on {case[2]} ranks should raise a ValueError: yours {said}.",
        )


@CHOOSE.check("the fastest that can be used, in 200 calls", points=2)
def check_choice(answer: Answer) -> None:
    """Random sizes, ranks and networks."""
    cases = [
        (int(10 ** random.uniform(0, 10)), random.choice([2, 3, 4, 6, 8, 24, 64, 512]), *_network())
        for _ in range(194)
    ]
    cases += [(8, ranks, 1e-4, 1e-9) for ranks in (3, 6, 24)]  # where doubling would be fastest
    cases += [(10**9, ranks, 1e-6, 1e-9) for ranks in (4, 6, 64)]
    for case, got in zip(cases, answer.call(_choices, cases), strict=True):
        nbytes, ranks = case[:2]
        times = {name: _time(name, *case) for name in _usable(ranks)}
        require(
            got in times,
            f"On {ranks} ranks choose says {got!r}; what can be used there is {', '.join(times)}.",
        )
        require(
            times[got] <= min(times.values()) * (1 + 1e-9),
            f"{nbytes:,} bytes on {ranks} ranks, alpha {case[2]:.2g}, beta {case[3]:.2g}: choose says {got} ({times[got]:.3g} s); "
            f"the fastest takes {min(times.values()):.3g} s. Did you compare the times of this very call?",
        )


@CHOOSE.check("the size from which on the ring is the fastest", points=3)
def check_crossover(answer: Answer) -> None:
    """To 1e-6 of its size; 0 where the ring is never slower, infinity where it is never the fastest."""
    cases = [(ranks, *_network()) for ranks in (3, 4, 5, 6, 8, 64, 100, 1024, 2)]
    for case, got in zip(cases, answer.call(_crossovers, cases), strict=True):
        ranks, alpha, beta = case
        right = _from(*case)
        if ranks & (ranks - 1) == 0:
            hint = "Which of the others is the ring's last rival here?"
        else:
            hint = "Which of the others can be used on that many ranks?"
        if right in (0.0, math.inf):
            hint = "Compare the ring with each of the others, term by term: which is ahead at any size at all?"
        require(
            math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-9),
            f"On {ranks} ranks with alpha {alpha:.3g} s and beta {beta:.3g} s a byte the ring is the fastest from {right:,.4g} bytes "
            f"on, and you say {got:,.4g}. {hint}",
        )


# --- 3. recursive doubling ---------------------------------------------------------------------------------------

DOUBLING = Exercise(
    "recursive_doubling",
    lesson="04",
    title="Recursive doubling on any number of ranks",
    takes=("doubling_all_reduce",),
    target="right at 2, 3, 4, 5, 6 and 8 ranks; at most log2 q (+ 1) messages a rank; the same bits on all ranks",
)


def _doubling(doubling_all_reduce: Any, vectors: list[torch.Tensor]) -> torch.Tensor:
    import torch.distributed as dist

    mine = vectors[dist.get_rank()].clone()
    doubling_all_reduce(mine)
    return mine


def _doubled(answer: Answer, sizes: tuple[int, ...], elements: int) -> None:
    for ranks in sizes:
        vectors = [torch.randn(elements) for _ in range(ranks)]
        right = torch.stack(vectors).double().sum(0)
        run = answer.run(_doubling, ranks, vectors, timeout=8.0)
        for rank in range(ranks):
            off = (run[rank].double() - right).abs().max().item()
            require(
                off < 1e-4,
                f"With {ranks} ranks, rank {rank} does not have the sum (off by {off:.2g}). After round k, whose vectors should be in "
                "a rank's sum, and is any of them in it twice?",
            )
        for rank in range(1, ranks):
            require(
                torch.equal(run[rank], run[0]),
                f"With {ranks} ranks, ranks 0 and {rank} have the same sum, but not the same bits. They added the same numbers: in "
                "which order did each of them? After some steps of training their models would have drifted apart.",
            )


@DOUBLING.check("the sum, with the same bits, on a power of two", points=2)
def check_doubling_powers(answer: Answer) -> None:
    """At 2, 4 and 8 ranks."""
    _doubled(answer, (2, 4, 8), 1000)


@DOUBLING.check("the sum, with the same bits, on 3, 5 and 6 ranks", points=2)
def check_doubling_others(answer: Answer) -> None:
    """Ranks beyond the power of two."""
    _doubled(answer, (3, 5, 6), 1000)


@DOUBLING.check("log2 q messages a rank, by send and receive alone", points=3)
def check_doubling_messages(answer: Answer) -> None:
    """Counted; one more where the rank has a partner outside the power of two."""
    for ranks in (4, 8, 6):
        vectors = [torch.randn(50) for _ in range(ranks)]
        run = answer.run(_doubling, ranks, vectors, backend="ring", record=True)
        used = sorted({row.operation for row in run.traffic.rows} - {"send", "recv"})
        require(
            not used,
            f"It calls {', '.join(used)}. Build it from send and receive (and their non-blocking forms) alone.",
        )
        rounds = ranks.bit_length() - 1
        most = rounds + (ranks != 1 << rounds)
        for rank in range(ranks):
            sent = run.traffic.messages_sent(rank=rank)
            require(
                sent <= most,
                f"With {ranks} ranks, rank {rank} sends {sent} messages; {most} are enough. In each round the number of ranks whose "
                "vectors are in your sum doubles: how many rounds is that?",
            )
