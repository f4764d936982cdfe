"""The alpha-beta-gamma model, with LogGP's gap: how long each algorithm takes, before it runs.

What a critical path is made of is beside the algorithms, in collectives/terms.py, one function each; which there are
says collectives/algorithms.py. Here it becomes seconds on a link, of one level or two; where two algorithms take
equally long; a link fitted to measured times; and bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from dtcourse.collectives.algorithms import ALGORITHMS
from dtcourse.collectives.terms import Link, Terms

__all__ = [
    "Link",
    "Terms",
    "bus_bandwidth",
    "crossover",
    "fit",
    "hierarchical_seconds",
    "seconds",
    "terms",
]

COLLECTIVES = (
    "broadcast", "reduce", "all_reduce", "scatter", "gather", "reduce_scatter", "all_gather", "all_to_all", "barrier",
)  # fmt: skip


def terms(algorithm: str, collective: str, nbytes: float, ranks: int) -> Terms:
    """The critical path of a flat algorithm. ValueError where there is no such algorithm,
    or it has no such collective.
    """
    flat = {name: each.terms for name, each in ALGORITHMS.items() if each.terms is not None}
    if algorithm not in flat:
        raise ValueError(f"there is no model of {algorithm!r}; there are {', '.join(flat)}")
    if collective not in COLLECTIVES:
        raise ValueError(
            f"there is no collective {collective!r}; there are {', '.join(COLLECTIVES)}"
        )
    if ranks < 1 or nbytes < 0:
        raise ValueError(f"ranks are 1 or more and bytes 0 or more; got {ranks} and {nbytes}")
    if ranks == 1:
        return Terms()
    try:
        return flat[algorithm](collective, nbytes, ranks)
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
    """Predicted time of one collective. chunk_bytes: of the algorithms that cut into chunks; None is their own."""
    plain = terms(algorithm, collective, nbytes, ranks)
    in_chunks = ALGORITHMS[algorithm].seconds
    if in_chunks is None or ranks == 1:
        return plain.seconds(link)
    chunk = {} if chunk_bytes is None else {"chunk": chunk_bytes}
    return in_chunks(collective, nbytes, ranks, link, **chunk)


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
