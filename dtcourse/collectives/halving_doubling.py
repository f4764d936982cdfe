"""Halving and doubling: exchange with a partner that is p/2, p/4, ..., 1 away, then 1, 2, ..., p/2 away.

Picture for all_reduce on 4 ranks. Each has 4 blocks; the brackets show what it is still responsible for.

    start                  0:[a b c d]   1:[a b c d]   2:[a b c d]   3:[a b c d]
    halve, distance 2      0:[a b]       1:[a b]       2:[c d]       3:[c d]        each sends the other half away
    halve, distance 1      0:[a]         1:[b]         2:[c]         3:[d]          and adds the half that it gets
    double, distance 1     0:[a b]       1:[a b]       2:[c d]       3:[c d]        now it sends all that it has
    double, distance 2     0:[a b c d]   ...

Halving is a reduce-scatter, doubling an all-gather, both together Rabenseifner's all_reduce: the ring's volume,
2 (p - 1)/p n elements, in 2 log2 p messages rather than 2 (p - 1).

Where p is no power of two, let q be the largest below. The first 2 (p - q) ranks form pairs: the odd one hands its part
to the even one and sits out, and gets the result at the end. That costs n more at each end for those ranks.
Memory: n/2 of scratch.

Papers: Rabenseifner 2004, "Optimization of collective reduction operations"; Thakur, Rabenseifner and Gropp 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from dtcourse.collectives import forms, p2p, tree
from dtcourse.collectives.chunks import (
    NOTHING,
    TAG,
    Volume,
    add_up,
    blocks_of,
    even_bounds,
    one_message,
    scratch,
    sync_byte,
)
from dtcourse.collectives.reduce_ops import Reduction

# --- who takes part: the power of two, and the pairs -----------------------------------------------------------


class PowerOfTwoGroup:
    """The core of q ranks that halve and double (q a power of two), and the p - q that wait beside them.

    number:  this rank's number in the core, or None where it waits
    partner: the rank beside this one in its pair, or None
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.ranks = ranks
        self.size = 1 << (ranks.bit_length() - 1)
        self.pairs = ranks - self.size
        if rank < 2 * self.pairs:
            self.partner: int | None = rank ^ 1
            self.number = rank // 2 if rank % 2 == 0 else None
        else:
            self.partner, self.number = None, rank - self.pairs

    @property
    def place(self) -> int:
        """The number of a rank that is in the core."""
        assert self.number is not None
        return self.number

    def rank_of(self, number: int) -> int:
        """The group rank of a core member."""
        return 2 * number if number < self.pairs else number + self.pairs

    def bounds(self, bounds: Sequence[int]) -> list[int]:
        """Blocks of the core: a member of a pair looks after both blocks of its pair, which are neighbours."""
        return [bounds[self.rank_of(m)] for m in range(self.size)] + [bounds[self.ranks]]


# --- the two phases, on a power of two -------------------------------------------------------------------------


def _halve(
    x: torch.Tensor, bounds: Sequence[int], core: PowerOfTwoGroup, reduction: Reduction, group: Any
) -> None:
    """log2 q steps; in each, keep the half of the blocks with the own in it, and give the other half away."""
    me, first, last = core.place, 0, core.size
    while last - first > 1:
        middle = (first + last) // 2
        partner = me ^ (middle - first)
        lower, upper = (first, middle), (middle, last)
        keep, give = (lower, upper) if me < middle else (upper, lower)
        mine, away = (x[bounds[a] : bounds[b]] for a, b in (keep, give))
        theirs = scratch(len(mine), x)
        _exchange(away, theirs, core.rank_of(partner), group)
        # The lower rank's part comes first, on whichever rank it is added.
        pair = (mine, theirs) if me < partner else (theirs, mine)
        reduction.combine(*pair, out=mine)
        first, last = keep


def _double(x: torch.Tensor, bounds: Sequence[int], core: PowerOfTwoGroup, group: Any) -> None:
    """log2 q steps; in each, exchange all that one has for all that the partner has."""
    me, width = core.place, 1
    while width < core.size:
        partner = me ^ width
        mine, theirs = (m // width * width for m in (me, partner))  # where each one's blocks begin
        _exchange(
            x[bounds[mine] : bounds[mine + width]],
            x[bounds[theirs] : bounds[theirs + width]],
            core.rank_of(partner),
            group,
        )
        width *= 2


def _exchange(send: torch.Tensor, receive: torch.Tensor, partner: int, group: Any) -> None:
    with p2p.batch(group):
        work = [p2p.irecv(receive, partner, group, TAG)] if len(receive) else []
        work += [p2p.isend(send, partner, group, TAG)] if len(send) else []
    for w in work:
        w.wait()


def _fold_in(x: torch.Tensor, core: PowerOfTwoGroup, reduction: Reduction, group: Any) -> None:
    """The odd rank of a pair hands all of x to the even one, which adds it up."""
    if core.partner is None or not len(x):
        return
    if core.number is None:
        p2p.send(x, core.partner, group, TAG)
        return
    theirs = scratch(len(x), x)
    p2p.recv(theirs, core.partner, group, TAG)
    reduction.combine(x, theirs, out=x)


def _send_back(x: torch.Tensor, core: PowerOfTwoGroup, group: Any, to_odd: bool) -> None:
    """One rank of each pair sends x to the other: the even one to the odd one, or back."""
    if core.partner is None or not len(x):
        return
    if (core.number is not None) == to_odd:
        p2p.send(x, core.partner, group, TAG)
    else:
        p2p.recv(x, core.partner, group, TAG)


# --- the algorithms --------------------------------------------------------------------------------------------


def all_reduce_steps(x: torch.Tensor, reduction: Reduction, group: Any) -> None:
    """Rabenseifner: 1. fold the pairs, 2. halve, 3. double, 4. hand the result to the odd ranks."""
    core = PowerOfTwoGroup(p2p.rank(group), p2p.size(group))
    bounds = even_bounds(len(x), core.size)
    _fold_in(x, core, reduction, group)
    if core.number is not None:
        _halve(x, bounds, core, reduction, group)
        reduction.finish(blocks_of(x, bounds)[core.number])
        _double(x, bounds, core, group)
    _send_back(x, core, group, to_odd=True)


def doubling_all_reduce_steps(x: torch.Tensor, reduction: Reduction, group: Any) -> None:
    """Exchange the whole vector with a partner 1, 2, 4, ... away, and add: log2 p messages of n. For short vectors."""
    core = PowerOfTwoGroup(p2p.rank(group), p2p.size(group))
    _fold_in(x, core, reduction, group)
    width = 1
    while core.number is not None and width < core.size:
        partner = core.number ^ width
        theirs = scratch(len(x), x)
        _exchange(x, theirs, core.rank_of(partner), group)
        pair = (x, theirs) if core.number < partner else (theirs, x)
        reduction.combine(*pair, out=x)
        width *= 2
    if core.number is not None:
        reduction.finish(x)
    _send_back(x, core, group, to_odd=True)


def reduce_scatter_steps(
    vector: torch.Tensor, bounds: Sequence[int], reduction: Reduction, group: Any
) -> None:
    """1. Fold the pairs. 2. Halve. 3. Hand the odd rank's block to it."""
    rank = p2p.rank(group)
    core = PowerOfTwoGroup(rank, p2p.size(group))
    _fold_in(vector, core, reduction, group)
    if core.number is not None:
        _halve(vector, core.bounds(bounds), core, reduction, group)
    _send_back(
        blocks_of(vector, bounds)[rank | 1 if core.partner is not None else rank], core, group, True
    )


def all_gather_steps(vector: torch.Tensor, bounds: Sequence[int], group: Any) -> None:
    """1. The odd rank of a pair hands its block to the even one. 2. Double. 3. Hand all of it to the odd ranks."""
    rank = p2p.rank(group)
    core = PowerOfTwoGroup(rank, p2p.size(group))
    _send_back(
        blocks_of(vector, bounds)[rank | 1 if core.partner is not None else rank],
        core,
        group,
        False,
    )
    if core.number is not None:
        _double(vector, core.bounds(bounds), core, group)
    _send_back(vector, core, group, to_odd=True)


def broadcast_steps(x: torch.Tensor, root: int, group: Any) -> None:
    """Van de Geijn: 1. scatter the blocks down a binomial tree. 2. All-gather them."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    bounds = even_bounds(len(x), ranks)
    mine = torch.empty_like(blocks_of(x, bounds)[rank])
    tree.scatter_steps(x if rank == root else None, bounds, mine, root, group)
    blocks_of(x, bounds)[rank].copy_(mine)
    all_gather_steps(x, bounds, group)


def reduce_steps(x: torch.Tensor, root: int, reduction: Reduction, group: Any) -> None:
    """1. Reduce-scatter. 2. Gather the blocks up a binomial tree."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    bounds = even_bounds(len(x), ranks)
    work = x if rank == root else x.clone()  # only the root's x may change
    reduce_scatter_steps(work, bounds, reduction, group)
    mine = blocks_of(work, bounds)[rank].clone()
    tree.gather_steps(mine, x if rank == root else None, bounds, root, group)


def barrier_steps(group: Any) -> None:
    """Dissemination: in round k, tell the rank 2^k to the right, and hear from the one 2^k to the left.

    After ceil(log2 p) rounds each rank has heard, over others, from all.
    """
    rank, ranks = p2p.rank(group), p2p.size(group)
    here, distance = sync_byte(), 1
    while distance < ranks:
        heard = sync_byte()
        p2p.exchange(here, (rank + distance) % ranks, heard, (rank - distance) % ranks, group, TAG)
        distance *= 2


# --- what a rank sends (blocks of equal size) ------------------------------------------------------------------


def all_reduce_volume(elements: int, ranks: int, rank: int) -> Volume:
    """2 (p - 1)/p n in 2 log2 p messages; with pairs, n more from both ranks of each."""
    core = PowerOfTwoGroup(rank, ranks)
    sizes = _sizes(even_bounds(elements, core.size))
    if core.number is None:
        return one_message(elements)
    result = _halving_volume(sizes, core.number) + _doubling_volume(sizes, core.number)
    return result + (one_message(elements) if core.partner is not None else NOTHING)


def doubling_all_reduce_volume(elements: int, ranks: int, rank: int) -> Volume:
    """Sends n in each of log2 p messages; with pairs, n more."""
    core = PowerOfTwoGroup(rank, ranks)
    if core.number is None:
        return one_message(elements)
    steps = core.size.bit_length() - 1 + (core.partner is not None)
    return add_up([one_message(elements)] * steps)


def reduce_scatter_volume(block: int, ranks: int, rank: int) -> Volume:
    """(p - 1)/p n in log2 p messages. With pairs: n from the odd rank, and a block back to it."""
    core = PowerOfTwoGroup(rank, ranks)
    if core.number is None:
        return one_message(block * ranks)
    sizes = _sizes(core.bounds([block * r for r in range(ranks + 1)]))
    back = one_message(block) if core.partner is not None else NOTHING
    return _halving_volume(sizes, core.number) + back


def all_gather_volume(block: int, ranks: int, rank: int) -> Volume:
    """(p - 1)/p n in log2 p messages. With pairs: a block from the odd rank, and n back to it."""
    core = PowerOfTwoGroup(rank, ranks)
    if core.number is None:
        return one_message(block)
    sizes = _sizes(core.bounds([block * r for r in range(ranks + 1)]))
    back = one_message(block * ranks) if core.partner is not None else NOTHING
    return _doubling_volume(sizes, core.number) + back


def broadcast_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """A scatter of p blocks down the tree and an all-gather. elements: a multiple of p."""
    block = _block(elements, ranks)
    return tree.scatter_volume(block, ranks, rank, root) + all_gather_volume(block, ranks, rank)


def reduce_volume(elements: int, ranks: int, rank: int, root: int = 0) -> Volume:
    """A reduce-scatter and a gather of p blocks up the tree. elements: a multiple of p."""
    block = _block(elements, ranks)
    return reduce_scatter_volume(block, ranks, rank) + tree.gather_volume(block, ranks, rank, root)


def _block(elements: int, ranks: int) -> int:
    if elements % ranks:
        raise ValueError(
            f"the formula is for equal blocks: {elements} elements on {ranks} ranks have none"
        )
    return elements // ranks


def barrier_volume(ranks: int, rank: int) -> Volume:
    """ceil(log2 p) messages of one byte."""
    return add_up([one_message(1)] * (ranks - 1).bit_length())


def _halving_volume(sizes: Sequence[int], me: int) -> Volume:
    """What doubling receives, since it is the same steps backwards: each partner's blocks."""
    return _doubling_volume(sizes, me, partners=True)


def _doubling_volume(sizes: Sequence[int], me: int, partners: bool = False) -> Volume:
    result, width = NOTHING, 1
    while width < len(sizes):
        start = (me ^ width if partners else me) // width * width
        result = result + one_message(sum(sizes[start : start + width]))
        width *= 2
    return result


def _sizes(bounds: Sequence[int]) -> list[int]:
    return [b - a for a, b in pairwise(bounds)]


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_reduce = forms.all_reduce(all_reduce_steps)
doubling_all_reduce = forms.all_reduce(doubling_all_reduce_steps)
reduce_scatter = forms.reduce_scatter(reduce_scatter_steps)
reduce_scatter_single = forms.reduce_scatter_single(reduce_scatter_steps)
all_gather = forms.all_gather(all_gather_steps)
all_gather_single = forms.all_gather_single(all_gather_steps)
broadcast = forms.broadcast(broadcast_steps)
reduce = forms.reduce(reduce_steps)
barrier = forms.barrier(barrier_steps)
