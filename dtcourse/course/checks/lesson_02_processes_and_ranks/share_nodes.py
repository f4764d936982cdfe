"""Which rank on which node, so that few bytes leave a node."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

PLACE = Exercise(
    "share_nodes",
    lesson="02",
    title="Place the ranks",
    takes=("share_nodes",),
    target="at most 1.01 times the fewest bytes that can leave nodes, for 8 jobs of 4 to 12 ranks",
)

Bytes = tuple[tuple[int, ...], ...]
Job = tuple[Bytes, int]  # what each rank sends to each other one, and ranks per node


def _job(world_size: int, per_node: int, sent: dict[tuple[int, int], int]) -> Job:
    rows = [[sent.get((a, b), 0) for b in range(world_size)] for a in range(world_size)]
    return tuple(map(tuple, rows)), per_node


def _ring(order: list[int], per_node: int, nbytes: int = 1000) -> Job:
    """Each rank sends to the next one of `order`."""
    pairs = zip(order, order[1:] + order[:1], strict=True)
    return _job(len(order), per_node, dict.fromkeys(pairs, nbytes))


def _grid(rows: int, columns: int, per_node: int, beside: int, below: int) -> Job:
    """Ranks row by row; those of a row send `beside` bytes to each other, those of a column `below`."""
    sent = {}
    for a in range(rows * columns):
        for b in range(rows * columns):
            if a != b and a // columns == b // columns:
                sent[a, b] = beside
            elif a != b and a % columns == b % columns:
                sent[a, b] = below
    return _job(rows * columns, per_node, sent)


def _by_chance(world_size: int, per_node: int, seed: int) -> Job:
    """Half of the pairs talk, and more in one direction than in the other."""
    chance = random.Random(seed)
    pairs = [(a, b) for a in range(world_size) for b in range(world_size) if a != b]
    return _job(
        world_size, per_node, {p: chance.randrange(1, 100) for p in pairs if chance.random() < 0.5}
    )


RINGS = (_ring([0, 4, 1, 5, 2, 6, 3, 7], 2), _ring([0, 2, 4, 6, 1, 3, 5, 7], 4))
GRIDS = (_grid(2, 4, 2, 1, 8), _grid(4, 3, 4, 2, 5), _grid(2, 4, 4, 9, 1))
UNEVEN = (
    # The heaviest pair stays together at the price of two that are nearly as heavy.
    _job(4, 2, {(0, 1): 10, (0, 2): 9, (1, 3): 9}),
    _by_chance(8, 4, 3),
    _by_chance(9, 3, 5),
)


def leaving(sent: Bytes, nodes: Any) -> int:
    """Bytes that go from one node to another, where rank r is on node nodes[r]."""
    return sum(
        nbytes for a, row in enumerate(sent) for b, nbytes in enumerate(row) if nodes[a] != nodes[b]
    )


@cache
def least(job: Job) -> int:
    """The fewest bytes that can leave nodes."""
    sent, per_node = job

    @cache
    def inside(left: tuple[int, ...]) -> int:
        """The most bytes that can stay inside nodes of the ranks that are left."""
        if not left:
            return 0
        found = []
        for mates in combinations(left[1:], per_node - 1):
            node = (left[0], *mates)
            rest = tuple(rank for rank in left if rank not in node)
            found.append(sum(sent[a][b] for a in node for b in node) + inside(rest))
        return max(found)

    return sum(map(sum, sent)) - inside(tuple(range(len(sent))))


def _require(answer: Answer, jobs: tuple[Job, ...], hint: str) -> None:
    for job, got in zip(jobs, call_each(answer, jobs), strict=True):
        sent, per_node = job
        count = len(sent) // per_node
        where = f"{len(sent)} ranks on {count} nodes of {per_node}"
        nodes = list(got) if isinstance(got, (list, tuple)) else got
        right = isinstance(nodes, list) and len(nodes) == len(sent)
        right = right and all(type(node) is int and 0 <= node < count for node in nodes)
        require(
            right,
            f"{where}: a placement is a list with the node of each rank, {len(sent)} numbers from 0 to {count - 1}; "
            f"got {got!r}.",
        )
        held = [nodes.count(node) for node in range(count)]
        require(
            held == [per_node] * count,
            f"{where}: your nodes hold {held} ranks, and each has room for {per_node}.",
        )
        require_near_best(where, nodes, leaving(sent, nodes), least(job), "bytes between nodes", hint)  # fmt: skip


@PLACE.check("rings, in another order than the ranks'", points=2)
def check_rings(answer: Answer) -> None:
    """Neighbours in the ring are not neighbours by number."""
    _require(answer, RINGS, "Who sends to whom? Ranks with neighbouring numbers need not.")


@PLACE.check("grids, whose rows or columns are heavy", points=3)
def check_grids(answer: Answer) -> None:
    """As tensor parallelism along one axis and data parallelism along the other."""
    _require(answer, GRIDS, "Does a row send more, or a column? A node may also hold parts of two.")


@PLACE.check("uneven traffic", points=3)
def check_uneven(answer: Answer) -> None:
    """One direction counts as the other; the heaviest pair need not stay together."""
    _require(
        answer, UNEVEN, "Do you count both directions? And what does "
            "keeping the heaviest pair together cost the others?"
    )  # fmt: skip
