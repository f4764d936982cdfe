"""Push-sum: the mean of all ranks on a directed graph, whose ranks send to different numbers of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

PUSH = Exercise(
    "push_sum",
    lesson="10",
    title="Push-sum",
    takes=("push_sum",),
    target="equal to one process to 1e-12 at 2, 3 and 5 ranks; "
    "a vector and a weight per message; a message's time per round",
    forbidden=("dtcourse.asynchronous",),
)

Peers = list[list[list[int]]]  # [round][rank]: whom it sends to
N = 30
GRAPHS = ("ring and a chord", "in turn")


def _push(push_sum: Any, mine: Tensor, graphs: list[Peers]) -> Any:
    """In a rank: its answer on each graph."""
    return [push_sum(mine.clone(), [[list(to) for to in one] for one in g]) for g in graphs]


def _seconds(push_sum: Any, mine: Tensor, graphs: list[Peers]) -> float:
    """On a network whose messages take one second each, and nothing else any time."""
    from dtcourse import emulation

    _push(push_sum, mine, graphs)
    return emulation.now()


def peers_of(name: str, ranks: int) -> Peers:
    """Six rounds. A ring with a chord, so that rank 0 sends to two; or other peers in each round,
    and some that rest.
    """
    ring = [[(rank + 1) % ranks] for rank in range(ranks)]
    if name == "ring and a chord":
        if ranks > 2:
            ring[0].append(ranks - 1)
        else:  # both to both, and then one to one
            return [ring, [[1], []]] * 3
        return [ring] * 6
    rests = [[(rank + 2) % ranks] if rank and ranks > 2 else [] for rank in range(ranks)]
    return [ring, rests, [[1], *[[0]] * (ranks - 1)]] * 2


def _vectors(ranks: int) -> list[Tensor]:
    return [torch.randn(N, dtype=torch.double) + rank for rank in range(ranks)]


def alone(vectors: list[Tensor], peers: Peers, weighted: bool = True) -> Tensor:
    """(p, n): one process. weighted: divided by the weight that has come along."""
    size = len(vectors)
    x, weight = torch.stack(vectors), torch.ones(size, 1, dtype=torch.double)
    for to in peers:
        shares = torch.zeros(size, size, dtype=torch.double)
        for rank, out in enumerate(to):
            shares[[rank, *out], rank] = 1 / (1 + len(out))
        x, weight = shares @ x, shares @ weight
    return x / weight if weighted else x


def heard(vectors: list[Tensor], peers: Peers) -> Tensor:
    """(p, n): what comes of the mean of what each rank hears, and its own."""
    x = torch.stack(vectors)
    for to in peers:
        hears = torch.eye(len(x), dtype=torch.double)
        for rank, out in enumerate(to):
            hears[out, rank] = 1.0
        x = hears / hears.sum(1, keepdim=True) @ x
    return x


def _runs(answer: Answer) -> Iterator[tuple[int, list[Tensor], list[Peers], Any]]:
    for ranks in (2, 3, 5):
        vectors, graphs = _vectors(ranks), [peers_of(name, ranks) for name in GRAPHS]
        run = answer.run(
            _push, ranks, Each(vectors), graphs, backend="ring", record=True, timeout=8.0
        )
        yield ranks, vectors, graphs, run


@PUSH.check("what one process computes", points=4)
def check_mean(answer: Answer) -> None:
    """On every rank, at 2, 3 and 5 ranks, on two graphs."""
    for ranks, vectors, graphs, run in _runs(answer):
        for i, (name, peers) in enumerate(zip(GRAPHS, graphs, strict=True)):
            right = alone(vectors, peers)
            others = (
                (
                    alone(vectors, peers, weighted=False),
                    "Those are sums of shares: of how many ranks' worth? The weight that comes along says it.",
                ),
                (
                    heard(vectors, peers),
                    "That is the mean of what a rank hears. Whose numbers count more often then, where one rank "
                    "sends to two?",
                ),
                (
                    torch.stack(vectors).mean(0).expand(ranks, N),
                    "That is the mean of all: six rounds along the peers' edges do not come so far.",
                ),
            )
            for rank in range(ranks):
                out = run[rank][i]
                hint = (
                    "Which share of its vector does a rank send to each peer, which one does it keep, and what does "
                    "each share weigh?"
                )
                if isinstance(out, Tensor) and out.shape == right[rank].shape:
                    for other, words in others:
                        if torch.allclose(out.double(), other[rank], atol=1e-9):
                            hint = words
                            break
                where = f"With {plural(ranks, 'rank')} ({name}), the estimate on rank {rank}"
                require_close(out, right[rank], where, 1e-12, hint)


@PUSH.check("to peers alone, a vector and a weight", points=3, needs=("check_mean",))
def check_bytes(answer: Answer) -> None:
    """Counted, between each two ranks."""
    for ranks, _, graphs, run in _runs(answer):
        used = sorted({row.operation for row in run.traffic.rows} - {"send", "recv"})
        require(
            not used,
            f"It calls {', '.join(used)}, in which ranks meet that are not each other's peers. Build it from send "
            "and receive alone.",
        )
        for rank in range(ranks):
            for other in range(ranks):
                number = sum(to[rank].count(other) for peers in graphs for to in peers)
                most, sent = 8 * (N + 1) * number, run.traffic.bytes_sent(rank, peer=other)
                require(
                    sent <= most,
                    f"With {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes to rank {other}; "
                    f"{plural(number, 'message')} of {N + 1} numbers are {most:,}. Who is a peer, and what does it "
                    "need of you in a round?",
                )
                # Weights need not travel: all know the peers.
                where = f"With {plural(ranks, 'rank')}, rank {other}"
                require_received(
                    where, run.traffic.bytes_received(other, peer=rank), 8 * N * number
                )


@PUSH.check("all of a round at once", points=3, needs=("check_mean",))
def check_rounds(answer: Answer) -> None:
    """On an emulated network where a message takes one second, and a port carries any number at once."""
    for ranks in (2, 3, 5):
        vectors, graphs = _vectors(ranks), [peers_of(name, ranks) for name in GRAPHS]
        network = EmulatedNetwork(latency=1.0)
        run = answer.run(
            _seconds, ranks, Each(vectors), graphs, network=network, clock="virtual", timeout=8.0
        )
        rounds, passed = sum(len(peers) for peers in graphs), round(max(run))
        require(
            passed <= rounds,
            f"With {plural(ranks, 'rank')}, {plural(rounds, 'round')} take {plural(passed, 'second')}, at one "
            "second per message. Which messages of a round need not wait for each other?",
        )
