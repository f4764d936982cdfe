"""Who talks to whom: mixing matrices of graphs, whether they bring ranks together, and how fast.

    x_i <- sum_j W[i, j] x_j                 rank i hears from j where W[i, j] > 0

Rows that sum to 1 keep what all agree on, columns that sum to 1 keep the mean of all: W is doubly stochastic. It
mixes if the graph is connected. Then a round shrinks the distance from the mean by at least the factor

    || W - J ||_2 = 1 - gap,   J = 1/p everywhere           (for a symmetric W its second largest |eigenvalue|)

                 degree    gap at p = 16    gap for large p
    ring         2         0.051            ~ 4 pi^2 / (3 p^2)
    torus        4         0.4 (4 x 4)      ~ 4 pi^2 / (5 p), where it is square
    exponential  log2 p    0.4              2 / (1 + log2 p), p even
    complete     p - 1     1                1

A list of matrices is used in turn, one a step: then one peer in a step is enough (one_peer_exponential).
Sources: Xiao and Boyd 2004 for Metropolis-Hastings weights; Ying et al. (NeurIPS 2021, arXiv 2110.13363) for
exponential graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

Mixing = torch.Tensor | Sequence[torch.Tensor]

TOLERANCE = 1e-9  # of a row's or column's sum


# --- graphs ------------------------------------------------------------------------------------------------------


def metropolis_hastings(size: int, edges: Iterable[tuple[int, int]]) -> torch.Tensor:
    """Weights for an undirected graph of `size` ranks.

    W[i, j] = 1 / (1 + the larger degree of i and j) for neighbours, and what is left for a rank itself. Each rank
    needs to know its neighbours' degrees alone, and W is doubly stochastic whatever the graph.
    Raises ValueError for an edge to a rank that is not there, or to itself.
    """
    neighbours: list[set[int]] = [set() for _ in range(_ranks(size))]
    for i, j in edges:
        if not (0 <= i < size and 0 <= j < size) or i == j:
            raise ValueError(f"an edge joins two different ranks of 0 to {size - 1}; got {(i, j)}")
        neighbours[i].add(j)
        neighbours[j].add(i)
    weights = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in neighbours[i]:
            weights[i, j] = 1 / (1 + max(len(neighbours[i]), len(neighbours[j])))
        weights[i, i] = 1 - weights[i].sum()
    return weights


def ring(size: int) -> torch.Tensor:
    """Each rank with its two neighbours: 1/3 for each of the three."""
    return metropolis_hastings(size, [(i, (i + 1) % size) for i in range(size) if size > 1])


def torus(rows: int, columns: int) -> torch.Tensor:
    """Ranks in rows x columns, numbered along the rows, each with its four neighbours; rows and columns are rings."""
    _ranks(rows), _ranks(columns)
    edges = []
    for i in range(rows):
        for j in range(columns):
            right, below = (i, (j + 1) % columns), ((i + 1) % rows, j)
            edges += [(i * columns + j, a * columns + b) for a, b in (right, below)]
    return metropolis_hastings(rows * columns, [(a, b) for a, b in edges if a != b])


def complete(size: int) -> torch.Tensor:
    """Everyone with everyone: the mean in one step."""
    return torch.full((_ranks(size), size), 1 / size, dtype=torch.float64)


def exponential(size: int) -> torch.Tensor:
    """Each rank hears from those 1, 2, 4, 8, ... before it: log2(p) of them, all of the same weight."""
    hops = _hops(size)
    eye = torch.eye(size, dtype=torch.float64)
    return (eye + sum((_before(size, hop) for hop in hops), 0 * eye)) / (1 + len(hops))


def one_peer_exponential(size: int) -> list[torch.Tensor]:
    """Each rank takes the mean with the rank before it, in the next step with that 2 before it, 4, 8, ..., and again.

    One message in a step; for p a power of 2, log2(p) steps bring exactly the mean of all.
    """
    eye = torch.eye(size, dtype=torch.float64)
    return [(eye + _before(size, hop)) / 2 for hop in _hops(size)] or [eye]


def _hops(size: int) -> list[int]:
    return [2**k for k in range(math.ceil(math.log2(_ranks(size))))]


def _before(size: int, hop: int) -> torch.Tensor:
    """W with W[i, i - hop] = 1."""
    return torch.eye(size, dtype=torch.float64).roll(-hop, dims=1)


def _ranks(size: int) -> int:
    if size < 1:
        raise ValueError(f"a graph has at least one rank; got {size}")
    return size


# --- what a matrix says ------------------------------------------------------------------------------------------


def rounds(mixing: Mixing) -> list[torch.Tensor]:
    """The matrices that are used in turn, one after the other."""
    return [mixing] if isinstance(mixing, torch.Tensor) else list(mixing)


def neighbours(weights: torch.Tensor, rank: int) -> tuple[list[int], list[int]]:
    """The ranks that `rank` hears from, and those that hear from it.

    In the order of how far round they are: where all have such neighbours, no two of them send to one rank at the
    same time.
    """
    size = len(weights)
    before = [(rank - n) % size for n in range(1, size)]
    after = [(rank + n) % size for n in range(1, size)]
    row, column = weights[rank], weights[:, rank]
    return [j for j in before if row[j] != 0], [k for k in after if column[k] != 0]


def spectral_gap(mixing: Mixing) -> float:
    """1 - the factor by which a step shrinks the distance from the mean; of several matrices, on average over them."""
    matrices = rounds(mixing)
    norm = float(torch.linalg.matrix_norm(_cycle(matrices), 2))
    return 1.0 if norm < 1e-12 else 1.0 - norm ** (1 / len(matrices))


def check_mixing(mixing: Mixing, size: int) -> None:
    """Raises ValueError unless the matrices are (size, size), doubly stochastic, and bring all ranks together."""
    matrices = rounds(mixing)
    if not matrices:
        raise ValueError("there is no mixing matrix: pass one, or a list to use in turn")
    for weights in matrices:
        _check_doubly_stochastic(weights, size)
    reached = _reached(sum(w != 0 for w in matrices) != 0)  # type: ignore[arg-type]
    if len(reached) < size:
        unreachable = [rank for rank in range(size) if rank not in reached]
        raise ValueError(
            f"the graph is not connected: nothing from rank 0 ever comes to {_listed(unreachable)}. It reaches "
            f"{_listed(sorted(reached))}; join the two parts by an edge"
        )
    if float(torch.linalg.eigvals(_cycle(matrices)).abs().max()) > 1 - 1e-9:
        raise ValueError(
            "the ranks' values travel round and never mix: give each rank a weight of its own (W[i, i] > 0)"
        )


def _check_doubly_stochastic(weights: torch.Tensor, size: int) -> None:
    if tuple(weights.shape) != (size, size):
        raise ValueError(
            f"a mixing matrix for {size} ranks is {size} x {size}; got {' x '.join(map(str, weights.shape))}"
        )
    if not (weights >= 0).all():
        i, j = (int(n) for n in (~(weights >= 0)).nonzero()[0])
        raise ValueError(f"weights are 0 or more; W[{i}, {j}] is {float(weights[i, j])}")
    for what, dim in (("row", 1), ("column", 0)):
        sums = weights.double().sum(dim)
        off = (sums - 1).abs()
        if off.max() > TOLERANCE:
            worst = int(off.argmax())
            kept = "a value that all share" if dim else "the mean of all ranks"
            raise ValueError(
                f"the mixing matrix is not doubly stochastic: {what} {worst} sums to {float(sums[worst]):.6g}, not "
                f"to 1, so {kept} would not stay as it is (metropolis_hastings makes weights for any graph, in float64)"
            )


def _reached(edges: torch.Tensor) -> set[int]:
    """The ranks that rank 0's values come to; edges[i, j]: i hears from j."""
    reached, pending = {0}, [0]
    while pending:
        rank = pending.pop()
        hearing = {int(i) for i in edges[:, rank].nonzero()} - reached
        reached |= hearing
        pending += hearing
    return reached


def _cycle(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """What all matrices one after the other do to what is not the mean."""
    size = len(matrices[0])
    product = torch.eye(size, dtype=torch.float64)
    for weights in matrices:
        product = weights.double() @ product
    return product - 1 / size


def _listed(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
