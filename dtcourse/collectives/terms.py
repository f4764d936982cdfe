"""What each algorithm's time is made of: latencies, messages, bytes and sums along its critical path.

    time = latencies * alpha  +  messages * gap  +  bytes * beta  +  reduced * gamma

that is: messages that have to wait for each other; messages, and their bytes, that pass the busiest port one after the
other; bytes added up. alpha and gap are in seconds per message, beta in seconds per byte (1 / bandwidth), gamma in
seconds per byte reduced. The ports are full-duplex, one message at a time each way, as in `emulation.network`; so
messages that leave one rank at once share its port, and their latencies overlap. The gap is what a port pays for each
message however short: it makes the root of a naive collective pay for its p - 1 partners, and small chunks dear.

`..._terms(collective, n, p)`: n is the bytes of the whole vector (for all_gather and reduce_scatter: of the gathered
one; for all_to_all: of one rank's input), p the number of ranks, two or more. A collective that the algorithm has not
is a KeyError. `..._seconds` is for those that cut into chunks: how chunks hide latency is no sum of such terms.

Source of the formulas: Thakur, Rabenseifner and Gropp (2005), Patarasuk and Yuan (2009), Sanders, Speck and Traeff
(2009); the gap: Alexandrov et al. (1995, LogGP).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


# --- one root, a ring, a tree, halves ---------------------------------------------------------------------------------


def naive_terms(collective: str, n: float, p: int) -> Terms:
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
    }[collective]


def ring_terms(collective: str, n: float, p: int) -> Terms:
    """p - 1 steps, in each of which every port sends one block of n / p; a chain where there is a root."""
    steps, block = p - 1, n / p
    return {
        "reduce_scatter": Terms(steps, steps * block, steps * block),
        "all_gather": Terms(steps, steps * block),
        "all_reduce": Terms(2 * steps, 2 * steps * block, steps * block),
        "broadcast": Terms(steps, steps * n),
        "reduce": Terms(steps, steps * n, steps * n),
    }[collective]


def tree_terms(collective: str, n: float, p: int) -> Terms:
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
    }[collective]


def halving_doubling_terms(collective: str, n: float, p: int) -> Terms:
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
    }[collective]


def pairwise_terms(collective: str, n: float, p: int) -> Terms:
    """p - 1 exchanges of one block each."""
    return {"all_to_all": Terms(p - 1, (p - 1) / p * n)}[collective]


def double_tree_terms(
    collective: str, n: float, p: int, chunk: float = double_tree.CHUNK_BYTES
) -> Terms:
    """Two trees of half the vector each, as the ports bound it: a tree's latencies, and chunks that pass in turn.

    The port of an inner rank passes each half twice up and twice down. Besides, `filling` chunks pass while the first
    one climbs and comes down; in all_reduce up to four of these have others of the same round beside them.
    Exact for one chunk per half where p is a power of two; else 0.8 to 1.2 of the time, from four ranks on.
    """
    chunks, piece = _chunks(n / 2, chunk), min(chunk, n / 2)
    if collective == "all_reduce":
        hops, halves = 2 * double_tree.root_level(p), 4 if p > 2 else 2
        filling = 2 * hops - 6 - min(chunks - 1, 4) if p > 2 else 0
    else:  # the trees are of all ranks but the root, which is one hop above
        hops, halves = double_tree.root_level(p - 1) + 1, 2
        # the topmost of these has one child, and is a hop for nothing
        alone = p > 2 and 1 << (hops - 1) == p - 1
        filling = 2 * max(hops - 2, 0) + alone
    way = Terms(hops, halves * n / 2 + filling * piece, 0, halves * chunks + filling)
    return {
        "broadcast": way,
        "reduce": way + Terms(0, 0, n, 0),
        "all_reduce": way + Terms(0, 0, n, 0),
    }[collective]


# --- chunks that follow each other -------------------------------------------------------------------------------


def ring_seconds(
    collective: str, n: float, p: int, link: Link, chunk: float = ring.CHUNK_BYTES
) -> float:
    """A ring whose blocks are cut into chunks.

    It hides the latency of all chunks but the last of each step behind the others' transfer: a step takes
    max(block * beta + chunks * gap, alpha + chunk * beta + gap).
    """
    reduced = ring_terms(collective, n, p).reduced * link.gamma
    if collective in ("broadcast", "reduce"):  # a pipeline of chunks down the chain
        piece = min(chunk, n)
        filled = (p - 1) * (link.alpha + link.gap + piece * link.beta)
        others = (_chunks(n, chunk) - 1) * link.gap + (n - piece) * link.beta
        return filled + others + reduced
    block = n / p
    piece = min(chunk, block)
    port = _chunks(block, chunk) * link.gap + block * link.beta
    step = max(port, link.alpha + link.gap + piece * link.beta)
    phase = (p - 2) * step + link.alpha + port
    return (2 if collective == "all_reduce" else 1) * phase + reduced


def double_tree_seconds(
    collective: str, n: float, p: int, link: Link, chunk: float = double_tree.CHUNK_BYTES
) -> float:
    """The longer of two: what the ports take, and what the timetable of rounds does.

    A chunk sets out in each round, and one is on its way for as many rounds as it has hops, and one more. So where
    latency is long and chunks are short, a round takes that part of a chunk's whole way.
    """
    by_ports = double_tree_terms(collective, n, p, chunk).seconds(link)
    chunks, piece = _chunks(n / 2, chunk), min(chunk, n / 2)
    one = double_tree_terms(collective, 2 * piece, p, chunk)
    if one.latencies == 1:  # nobody passes anything on
        return by_ports
    way = Terms(one.latencies, one.bytes, 0, one.messages).seconds(link)
    hidden = min(chunks - 1, 4) if collective == "all_reduce" and p > 2 else 0
    by_rounds = (
        way + (chunks - 1) * way / (one.latencies + 1) - hidden * (link.gap + piece * link.beta)
    )
    return max(by_ports, by_rounds)


def _chunks(nbytes: float, chunk: float) -> int:
    """Messages that so many bytes travel as."""
    return max(1, math.ceil(nbytes / chunk))
