"""A broadcast down a chain in chunks, or down a binomial tree: measured on the emulated network."""

from __future__ import annotations

import math
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_broadcast",
    lesson="04",
    title="Choose the broadcast",
    takes=("choose_broadcast",),
    target="at most 1.01 times the best choice's time, measured on 8 emulated networks",
    forbidden=("dtcourse.simulator", "dtcourse.collectives"),
)

MOST = 64  # chunks
# ranks, bytes, latency, bandwidth, gap
Network = tuple[int, int, float, float, float]
LARGE: tuple[Network, ...] = (
    (4, 4_000_000, 20e-6, 10e9, 5e-6),
    (6, 1_000_000, 5e-6, 10e9, 1e-6),
    (3, 8_000_000, 100e-6, 1e9, 50e-6),
)
SMALL: tuple[Network, ...] = (
    (8, 4_000, 20e-6, 10e9, 5e-6),
    (6, 40_000, 100e-6, 10e9, 2e-6),
)
BETWEEN: tuple[Network, ...] = (
    (8, 200_000, 20e-6, 10e9, 5e-6),
    (8, 1_200_000, 20e-6, 10e9, 5e-6),
    (5, 300_000, 10e-6, 10e9, 10e-6),
)


def seconds(network: Network, route: str, chunks: int) -> float:
    """By the formula."""
    ranks, nbytes, latency, bandwidth, gap = network
    if route == "tree":
        return math.ceil(math.log2(ranks)) * (latency + gap + nbytes / bandwidth)
    return (ranks - 1) * latency + (ranks + chunks - 2) * (gap + nbytes / chunks / bandwidth)


def best(network: Network) -> tuple[str, int]:
    """The best choice."""
    return min(
        [("tree", 1), *(("chain", c) for c in range(1, MOST + 1))],
        key=lambda choice: seconds(network, *choice),
    )


def _broadcasts(_: Any, nbytes: int, choices: list[tuple[str, int]]) -> list[float]:
    """When this rank has the vector, by each choice; they begin a second of the virtual clock apart."""
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.collectives import p2p, tree

    rank, size, taken = dist.get_rank(), dist.get_world_size(), []
    for start, (route, chunks) in enumerate(choices, 1):
        x = torch.full((nbytes // 4,), float(rank))
        emulation.sleep(start - emulation.now())
        if route == "tree":
            tree.broadcast(x, 0)
        else:
            sending = []
            for chunk in x.tensor_split(chunks):
                if rank:
                    p2p.recv(chunk, rank - 1)
                if rank < size - 1:
                    sending.append(p2p.isend(chunk, rank + 1))
            for work in sending:
                work.wait()
        assert not x.any()
        taken.append(emulation.now() - start)
    return taken


def _require(answer: Answer, networks: tuple[Network, ...], hint: str) -> None:
    for network, got in zip(networks, call_each(answer, networks), strict=True):
        ranks, nbytes, latency, bandwidth, gap = network
        where = (
            f"{nbytes:,} bytes to {ranks} ranks, latency {latency:g} s, "
            f"{bandwidth:g} bytes per second, gap {gap:g} s"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2 and type(got[1]) is int
        require(right, f"{where}: a choice is (route, chunks), such as ('chain', 4); got {got!r}.")
        require(
            tuple(got) == ("tree", 1) or (got[0] == "chain" and 1 <= got[1] <= MOST),
            f"{where}: {tuple(got)!r} is not possible. It is ('tree', 1), or a 'chain' of 1 to {MOST} chunks.",
        )
        choices = list(dict.fromkeys((tuple(got), best(network))))  # one, where they are the same
        emulated = EmulatedNetwork(latency=latency, bandwidth=bandwidth, gap=gap)
        run = answer.run(
            _broadcasts,
            ranks,
            nbytes,
            choices,
            backend="ring",
            network=emulated,
            clock="virtual",
        )
        times = [max(of_all_ranks) for of_all_ranks in zip(*run, strict=True)]
        require_near_best(where, got, times[0] * 1e6, times[-1] * 1e6, "µs", hint)


@CHOOSE.check("large vectors", points=3)
def check_large(answer: Answer) -> None:
    """A chain, in the right number of chunks."""
    _require(
        answer,
        LARGE,
        "What does one chunk more cost, and what does it save? How many ranks fill the chain?",
    )


@CHOOSE.check("small vectors", points=2)
def check_small(answer: Answer) -> None:
    """A tree."""
    _require(
        answer, SMALL, "How many latencies wait for each other, down the chain and down the tree?"
    )


@CHOOSE.check("between the two", points=3)
def check_between(answer: Answer) -> None:
    """Where both count."""
    _require(answer, BETWEEN, "Have you compared the tree with the chain's best number of chunks?")
