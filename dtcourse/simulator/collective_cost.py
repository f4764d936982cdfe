"""The alpha-beta-gamma model, with LogGP's gap: how long each algorithm takes, before it runs.

    time = latencies * alpha  +  messages * gap  +  bytes * beta  +  reduced * gamma

along the critical path: messages that have to wait for each other; messages, and their bytes, that pass the busiest port
one after the other; bytes added up. alpha and gap are in seconds per message, beta in seconds per byte (1 / bandwidth),
gamma in seconds per byte reduced. The ports are full-duplex, one message at a time each way, as in
`emulation.network`; so messages that leave one rank at once share its port, and their latencies overlap. The gap is what a
port pays for each message however short: it makes the root of a naive collective pay for its p - 1 partners, and small
chunks dear.

n is the bytes of the whole vector (for all_gather and reduce_scatter: of the gathered one; for all_to_all: of one
rank's input), p the number of ranks. Source of the formulas: Thakur, Rabenseifner and Gropp (2005), Patarasuk and
Yuan (2009), Sanders, Speck and Traeff (2009); the gap: Alexandrov et al. (1995, LogGP); bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dtcourse.collectives import double_tree, ring


@dataclass(frozen=True)
class Link:
    """A link and a processor: alpha and gap (s per message), beta (s per byte), gamma (s per byte reduced)."""

    alpha: float
    beta: float
    gamma: float = 0.0
    gap: float = 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes a second; infinite where beta is 0."""
        return 1 / self.beta if self.beta else math.inf


@dataclass(frozen=True)
class Terms:
    """What the critical path of a collective is made of: the factors of alpha, beta, gamma and the gap.

    messages: those that pass the busiest port one after the other. None: as many as there are latencies, which is so
              where every message waits for the one before it.
    """

    latencies: float = 0.0
    bytes: float = 0.0
    reduced: float = 0.0
    messages: float | None = None

    @property
    def gaps(self) -> float:
        """The factor of the gap."""
        return self.latencies if self.messages is None else self.messages

    def __add__(self, other: Terms) -> Terms:
        alike = self.messages is None and other.messages is None
        return Terms(
            self.latencies + other.latencies,
            self.bytes + other.bytes,
            self.reduced + other.reduced,
            None if alike else self.gaps + other.gaps,
        )

    def seconds(self, link: Link) -> float:
        """The predicted time on that link."""
        return (
            self.latencies * link.alpha
            + self.gaps * link.gap
            + self.bytes * link.beta
            + self.reduced * link.gamma
        )


# --- each algorithm ---------------------------------------------------------------------------------------------


def naive(collective: str, n: float, p: int) -> Terms:
    """A root that talks to everyone: its port is the bottleneck, p - 1 vectors in and p - 1 out.

    all_to_all: everyone sends to rank 0 first, then to rank 1, ...: the p - 1 messages to each rank meet at its port,
    and the last one begins to come in p - 2 messages late: 2 p - 3 one after the other, where `pairwise` needs p - 1.
    """
    others, block = p - 1, n / p
    queue = 2 * p - 3
    return {
        "broadcast": Terms(1, others * n, 0, others),
        "reduce": Terms(1, others * n, others * n, others),
        "all_reduce": Terms(2, 2 * others * n, others * n, 2 * others),
        "scatter": Terms(1, others * block, 0, others),
        "gather": Terms(1, others * block, 0, others),
        "reduce_scatter": Terms(2, others * n + others * block, others * n, 2 * others),
        "all_gather": Terms(2, others * block + others * n, 0, 2 * others),
        "all_to_all": Terms(1, queue * block, 0, queue),
        "barrier": Terms(2, 0, 0, 2 * others),
    }[_known(collective)]


def ring_terms(collective: str, n: float, p: int) -> Terms:
    """P - 1 steps, in each of which every port sends one block of n / p; a chain where there is a root."""
    steps, block = p - 1, n / p
    return {
        "reduce_scatter": Terms(steps, steps * block, steps * block),
        "all_gather": Terms(steps, steps * block),
        "all_reduce": Terms(2 * steps, 2 * steps * block, steps * block),
        "broadcast": Terms(steps, steps * n),
        "reduce": Terms(steps, steps * n, steps * n),
    }[_known(collective)]


def tree(collective: str, n: float, p: int) -> Terms:
    """ceil(log2 p) rounds, each with the whole vector; with half of the rest each, where blocks are dealt out."""
    rounds, share = math.ceil(math.log2(p)), (p - 1) / p
    reduce, broadcast = Terms(rounds, rounds * n, rounds * n), Terms(rounds, rounds * n)
    spread = Terms(rounds, share * n)
    return {
        "broadcast": broadcast,
        "reduce": reduce,
        "all_reduce": reduce + broadcast,
        "scatter": spread,
        "gather": spread,
        "reduce_scatter": reduce + spread,
        "all_gather": spread + broadcast,
        "barrier": Terms(2 * rounds),
    }[_known(collective)]


def halving_doubling(collective: str, n: float, p: int) -> Terms:
    """log2 p exchanges with half, a quarter, ... of the vector; ranks beyond a power of two wait beside a partner."""
    rounds = int(math.log2(p))
    q = 1 << rounds
    share = (q - 1) / q
    aside = Terms(1, n, n) if p != q else Terms()
    back = Terms(1, n) if p != q else Terms()
    halve, double = Terms(rounds, share * n, share * n), Terms(rounds, share * n)
    return {
        "reduce_scatter": aside + halve + (Terms(1, n / p) if p != q else Terms()),
        "all_gather": (Terms(1, n / p) if p != q else Terms()) + double + back,
        "all_reduce": aside + halve + double + back,
    }[_known(collective)]


def double_binary_tree(
    collective: str, n: float, p: int, chunk: float = double_tree.CHUNK_BYTES
) -> Terms:
    """Two trees of half the vector each, filled chunk by chunk: every port busy, at the latency of a tree.

    The paper's schedule. On more than two ranks it is a lower bound on `collectives.double_tree`, which waits for chunks
    in the order of its loop. With one chunk per half and p a power of two, its all_reduce takes 2 log2 p latencies, and
    2 (2 log2 p - 1) halves pass a port in turn; each further chunk adds nearly as many latencies again.
    """
    depth = math.ceil(math.log2(p)) if p > 1 else 0
    fill = min(chunk, n / 2)
    filling = 2 * _chunks(n / 2, chunk) + depth - 1
    once = Terms(depth, n + (depth - 1) * fill, 0, filling)
    return {
        "broadcast": once,
        "reduce": once + Terms(0, 0, n),
        "all_reduce": once + once + Terms(0, -fill, n, -1),
    }[_known(collective)]


def pairwise(collective: str, n: float, p: int) -> Terms:
    """P - 1 exchanges of one block each."""
    return {"all_to_all": Terms(p - 1, (p - 1) / p * n)}[_known(collective)]


ALGORITHMS: dict[str, Callable[[str, float, int], Terms]] = {
    "naive": naive,
    "ring": ring_terms,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "double_tree": double_binary_tree,
    "pairwise": pairwise,
}


def terms(algorithm: str, collective: str, nbytes: float, ranks: int) -> Terms:
    """The critical path of a flat algorithm. ValueError where there is no such algorithm, or it has no such collective."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"there is no model of {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    if ranks < 1 or nbytes < 0:
        raise ValueError(f"ranks are 1 or more and bytes 0 or more; got {ranks} and {nbytes}")
    if ranks == 1:
        return Terms()
    try:
        return ALGORITHMS[algorithm](collective, nbytes, ranks)
    except KeyError:
        raise ValueError(f"{algorithm} has no {collective}") from None


def seconds(
    algorithm: str,
    collective: str,
    nbytes: float,
    ranks: int,
    link: Link,
    chunk_bytes: float | None = None,
) -> float:
    """Predicted time of one collective.

    A ring whose blocks are cut into chunks hides the latency of all chunks but the last of each step behind the
    others' transfer: a step takes max(block * beta + chunks * gap, alpha + chunk * beta + gap).
    """
    plain = terms(algorithm, collective, nbytes, ranks)
    chunk = ring.CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    if algorithm != "ring" or ranks == 1:
        return plain.seconds(link)
    reduced = plain.reduced * link.gamma
    if collective in ("broadcast", "reduce"):  # a pipeline of chunks down the chain
        piece = min(chunk, nbytes)
        filled = (ranks - 1) * (link.alpha + link.gap + piece * link.beta)
        others = (_chunks(nbytes, chunk) - 1) * link.gap + (nbytes - piece) * link.beta
        return filled + others + reduced
    block = nbytes / ranks
    piece = min(chunk, block)
    port = _chunks(block, chunk) * link.gap + block * link.beta
    step = max(port, link.alpha + link.gap + piece * link.beta)
    phase = (ranks - 2) * step + link.alpha + port
    return (2 if collective == "all_reduce" else 1) * phase + reduced


def _chunks(nbytes: float, chunk: float) -> int:
    """Messages that so many bytes travel as."""
    return max(1, math.ceil(nbytes / chunk))


def hierarchical_seconds(
    nbytes: float, nodes: int, node_size: int, inside: Link, between: Link, flat: str = "ring"
) -> float:
    """all_reduce on two levels: reduce-scatter inside, all-reduce of 1 / node_size between, all-gather inside."""
    return (
        seconds(flat, "reduce_scatter", nbytes, node_size, inside)
        + seconds(flat, "all_reduce", nbytes / node_size, nodes, between)
        + seconds(flat, "all_gather", nbytes, node_size, inside)
    )


def crossover(
    one: str,
    other: str,
    collective: str,
    ranks: int,
    link: Link,
    smallest: float = 1.0,
    largest: float = 1e12,
) -> float | None:
    """The size in bytes at which two algorithms take equally long; None where one is faster at every size."""

    def difference(nbytes: float) -> float:
        return terms(one, collective, nbytes, ranks).seconds(link) - terms(
            other, collective, nbytes, ranks
        ).seconds(link)

    low, high = smallest, largest
    if difference(low) * difference(high) > 0 or difference(low) == difference(high) == 0:
        return None
    for _ in range(200):
        middle = math.sqrt(low * high)
        if difference(low) * difference(middle) <= 0:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


# --- fitting, and bus bandwidth ---------------------------------------------------------------------------------


def fit(sizes: Sequence[float], times: Sequence[float], gamma: float = 0.0) -> Link:
    """Alpha and beta of a link from measured times of single messages: time = alpha + size * beta.

    Least squares on the relative error, so that small messages, which hold alpha, count as much as large ones; neither
    is negative. Raises ValueError for fewer than two different sizes.
    """
    if len(sizes) != len(times) or len(set(sizes)) < 2:
        raise ValueError(
            f"a fit needs two sizes or more, each with its time; got {len(set(sizes))} sizes, {len(times)} times"
        )
    weight = 1 / torch.tensor(times, dtype=torch.double)
    columns = torch.stack([weight, torch.tensor(sizes, dtype=torch.double) * weight], 1)
    alpha, beta = (
        torch.linalg.lstsq(columns, torch.ones(len(times), 1, dtype=torch.double))
        .solution.flatten()
        .tolist()
    )
    if alpha < 0 or beta < 0:  # one of them is lost in the noise: fit the other alone
        keep = 1 if alpha < 0 else 0
        column = columns[:, keep]
        alone = float(column.sum() / (column @ column))
        alpha, beta = (0.0, alone) if keep else (alone, 0.0)
    return Link(alpha, beta, gamma)


BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
}


def bus_bandwidth(collective: str, nbytes: float, time: float, ranks: int) -> float:
    """Bytes a second that each link must have carried, as nccl-tests defines it: comparable over numbers of ranks.

    nbytes as in this module. It is the hardware's bandwidth only for algorithms that send the least there is to send.
    """
    if collective not in BUS_FACTORS:
        raise ValueError(
            f"no bus bandwidth is defined for {collective}; only for {', '.join(BUS_FACTORS)}"
        )
    if not time > 0:
        raise ValueError(f"time is in seconds, above 0; got {time}")
    return nbytes / time * BUS_FACTORS[collective](ranks)


_COLLECTIVES = (
    "broadcast", "reduce", "all_reduce", "scatter", "gather", "reduce_scatter", "all_gather", "all_to_all", "barrier",
)  # fmt: skip


def _known(collective: str) -> str:
    if collective not in _COLLECTIVES:
        raise ValueError(
            f"there is no collective {collective!r}; there are {', '.join(_COLLECTIVES)}"
        )
    return collective
