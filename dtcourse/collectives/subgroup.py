"""A group inside a group: some ranks, renumbered from 0, over the messages of the group that they belong to.

`dist.new_group` forms new connections and has to be called by every rank. An algorithm of two levels needs less: the
same send and receive with other numbers, and each message counted, delayed and recorded as the whole group's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from dtcourse.collectives import p2p
from dtcourse.collectives.flight import recorder
from dtcourse.collectives.wire.arrivals import Pending
from dtcourse.collectives.wire.guard import Guard
from dtcourse.collectives.wire.transport import Batch, Transport, check_message


class Subgroup:
    """The ranks `ranks` of `parent` (group ranks of it), as a group of its own for the algorithms and for p2p.

    Each rank makes only the subgroup that it is in. Nothing is sent to make one.
    """

    def __init__(self, parent: Any, ranks: Sequence[int]) -> None:
        self._above = p2p.channel(parent)
        self.parent, self.ranks = parent, tuple(ranks)
        me, size = self._above.rank, self._above.size
        if me not in self.ranks or not all(0 <= r < size for r in self.ranks):
            raise ValueError(f"rank {me} of {size} cannot form a subgroup of ranks {self.ranks}")
        self._rank = self.ranks.index(me)

    @property
    def channel(self) -> Subgroup:
        """What p2p asks a group for: the end that sends and receives, here the group itself."""
        return self

    @property
    def rank(self) -> int:
        """This process's rank in the subgroup."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the subgroup."""
        return len(self.ranks)

    @property
    def guard(self) -> Guard | None:
        """Who watches over its messages: the guard of the group that they travel in, if that has one."""
        return self._above.guard

    @property
    def origin(self) -> tuple[ProcessGroup, tuple[int, ...]]:
        """The group of torch.distributed that it is part of, and its ranks there."""
        parent: Any = dist.group.WORLD if self.parent is None else self.parent
        if isinstance(parent, Subgroup):
            group, ranks = parent.origin
            return group, tuple(ranks[r] for r in self.ranks)
        return parent, self.ranks

    @property
    def transport(self) -> Transport:
        """What carries the messages of torch's group that it is part of: a batch of its own is a batch there."""
        return self._above.transport

    def batch(self) -> Batch:
        """What this thread posts inside starts together when the block ends."""
        return self._above.batch()

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Pending:
        """Starts sending to rank `dst` of the subgroup."""
        return self._start("isend", tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Pending:
        """Starts receiving from rank `src` of the subgroup."""
        return self._start("irecv", tensor, src, tag)

    def _start(self, name: str, tensor: torch.Tensor, peer: int, tag: int) -> Pending:
        check_message(tensor, self._rank)
        start = partial(getattr(self._above, name), tensor, self.ranks[peer], tag)
        # A record names the subgroup, and its own ranks.
        return recorder.message(name, self, tensor, peer, tag, start)
