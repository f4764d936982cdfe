"""The algorithms, in one table: where each is, when to use it, what it costs, and what it is a backend of.

`backend/table.py` reads it for launch(..., backend="ring"), simulator/collective_cost.py for predictions, and
benchmarks/collectives.py for what to time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from dtcourse.collectives import terms
from dtcourse.collectives.terms import Terms


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: a module of this package, with its steps and torch.distributed's calls made of them.

    name:    the module's, and the backend's
    use:     when it is the one to take
    terms:   (collective, bytes, ranks): its critical path; None for two levels, which have two links
             (simulator.collective_cost.hierarchical_seconds)
    seconds: (collective, bytes, ranks, link, chunk=...): the time of an algorithm that cuts into chunks; None: that of
             `terms`
    others:  as a backend, the algorithms that are asked for a collective that it has not, in this order; None where it
             is no backend, for it has one collective alone
    """

    name: str
    use: str
    terms: Callable[[str, float, int], Terms] | None
    others: tuple[str, ...] | None
    seconds: Callable[..., float] | None = None

    @property
    def module(self) -> ModuleType:
        """What holds its calls, `all_reduce`, and its steps, `all_reduce_steps`."""
        return importlib.import_module(f"dtcourse.collectives.{self.name}")


# What is left to others of a backend whose own algorithm is about all_reduce and what it is made of.
_ELSE = ("tree", "ring", "pairwise", "naive")

ALGORITHMS: dict[str, Algorithm] = {
    each.name: each
    for each in (
        Algorithm(
            "naive", "few ranks, few bytes: two latencies, whatever p is", terms.naive_terms, ()
        ),
        Algorithm(
            "ring",
            "many bytes, any p: no algorithm sends less",
            terms.ring_terms,
            ("tree", "pairwise", "naive"),
            terms.ring_seconds,
        ),
        Algorithm("tree", "few bytes, many ranks", terms.tree_terms, ("ring", "pairwise", "naive")),
        Algorithm(
            "double_tree",
            "many bytes and many ranks: latencies as in a tree",
            terms.double_tree_terms,
            _ELSE,
            terms.double_tree_seconds,
        ),
        Algorithm(
            "halving_doubling",
            "p a power of two, any rank near any other",
            terms.halving_doubling_terms,
            _ELSE,
        ),
        Algorithm("hierarchical", "nodes with fast links inside", None, _ELSE),
        Algorithm("pairwise", "all-to-all", terms.pairwise_terms, None),
    )
}
