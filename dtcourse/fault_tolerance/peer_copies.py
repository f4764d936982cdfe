"""Each rank's neighbour keeps a copy of its state in memory: who takes a lost rank's place needs no file.

    copies = PeerCopies(state, every=10)         # state: rank_state.py
    for step in range((copies.recover() or 0) + 1, last + 1):
        ...
        copies.after(step)                       # every tenth step: a copy is taken, and sent while training goes on

    rank       0     1     2     3
    keeps of   0,3   1,0   2,1   3,2             rank 2 is lost: rank 3 has its state

All ranks go back to one step, so each keeps its own state of that step, too. While a copy is on its way the one before
it stays: one that is half sent counts for nobody. When a rank has sent and received all of a copy it asks the others,
and only when all of them have it is the one before let go. So one step is complete on all at each moment.

Memory: with states of S bytes on each rank, 2 S between copies on their way (its own and the neighbour's), at most 4 S
beside the run's.  Bytes: each rank sends S, a header and 24 bytes for a copy; all ranks agree by 8 bytes.  A lost rank
costs a message of S bytes, and another to the neighbour that it kept a copy for. Both ranks of a pair lost together
cost the state: then a checkpoint is needed, and StateLost says whose.

Sources: Wang et al., Gemini (SOSP 2023), keeps checkpoints in the memory of other machines; of its placements this is
the ring.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from dtcourse.collectives import p2p
from dtcourse.fault_tolerance import packed
from dtcourse.fault_tolerance.background import Stall
from dtcourse.fault_tolerance.holdings import plan
from dtcourse.fault_tolerance.kept import Copy, Kept, parts_of, room_for
from dtcourse.parameters.agreement import smallest
from dtcourse.parameters.replicas import Group

LENGTHS = 24  # bytes: the step, the header's length, the tensors' bytes
CPU = torch.device("cpu")


class HasState(Protocol):
    """What a rank keeps, all of it plain data: a RankState."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


class _UnderWay(NamedTuple):
    step: int
    mine: Copy
    theirs: Copy
    works: list[dist.Work]


class PeerCopies:
    """Copies of the ranks of a group, in each other's memory. Every rank calls each method, in the same order.

    state:    what this rank keeps
    every:    a copy after every so many steps
    last:     the run's last step, where it is known: `every` must not be more
    distance: rank r sends to r + distance: take the ranks of a node, and a node may be lost
    kept:     what this process has from before the group was formed anew; None: nothing, it is a lost rank's successor

    stalls: for how long each copy kept this rank from training: waiting for the one before, and taking it
    Raises ValueError for a group of one rank, and for a distance that leads back to the sender.
    """

    def __init__(
        self,
        state: HasState,
        every: int = 1,
        last: int | None = None,
        distance: int = 1,
        kept: Kept | None = None,
        group: Group = None,
    ) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        _check(every, last, distance, self.size)
        self.state, self.every, self.distance = state, every, distance
        self.stalls: list[Stall] = []
        # A group of its own: messages on their way do not stand in those of training.
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self._group: Any = dist.new_group(ranks)
        self._to = (self.rank + distance) % self.size
        self._of = (self.rank - distance) % self.size
        self.kept = Kept(self.rank, self.size, distance)
        self._before = kept
        self._under_way: _UnderWay | None = None

    def after(self, step: int) -> bool:
        """A step has been done. Where it is one of every `every`, begins to send its state; whether it is."""
        if step % self.every:
            return False
        began = time.monotonic()
        self.finish()
        free = time.monotonic()
        self._begin(step)
        self.stalls.append(Stall(step, free - began, time.monotonic() - free))
        return True

    def finish(self) -> None:
        """Waits for what is under way, on all ranks; then it is complete, and the copy before it goes."""
        if self._under_way is None:
            return
        step, mine, theirs, works = self._under_way
        for work in works:
            work.wait()
        self._under_way = None
        self.kept.own[step], self.kept.neighbours[step] = mine, theirs
        # Nobody lets go of the one before until all have this one.
        self.kept.let_go(below=smallest(step, self._group, CPU))

    def bytes(self) -> int:
        """That the copies take on this rank now, what is under way among them."""
        way = self._under_way
        return self.kept.bytes() + (way.mine.bytes + way.theirs.bytes if way else 0)

    def _begin(self, step: int) -> None:
        mine = Copy(*packed.pack(self.state.state_dict()))
        with p2p.operation("peer_copy"):
            lengths = torch.tensor([step, len(mine.header), len(mine.tensors)])
            expected = torch.empty_like(lengths)
            p2p.exchange(lengths, self._to, expected, self._of, self._group)
            theirs_step, *sizes = expected.tolist()
            if theirs_step != step:
                raise ValueError(
                    f"rank {self._of} sends its state after step {theirs_step}, and rank {self.rank} is after step "
                    f"{step}: call after(step) on all ranks after the same steps"
                )
            theirs = room_for(sizes)
            works = [
                *(p2p.irecv(t, self._of, self._group, tag=i) for i, t in parts_of(theirs)),
                *(p2p.isend(t, self._to, self._group, tag=i) for i, t in parts_of(mine)),
            ]
        self._under_way = _UnderWay(step, mine, theirs, works)

    def recover(self) -> int | None:
        """Has all ranks go on from the newest step that is complete, and returns it; None where nobody has any copy.

        Who has lost nothing takes its own state of that step; a successor gets its from the neighbour's copy. Then each
        state lies on two ranks again.
        Raises StateLost on all ranks where a state is on none, or is of another number of ranks.
        """
        before, self._before = self._before, None
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, before and before.holdings(), group=self._group)
        if not any(one and one.own for one in everyone):
            return None
        step, own, copies = plan(everyone, self.distance)
        with p2p.operation("peer_recovery"):
            for whose, src, dst in own:
                if self.rank in (src, dst):
                    moved = self._moved(before.state_of(whose, step) if before else None, src, dst)
                    if self.rank == dst:
                        self.kept.own[step] = moved
            for whose, src, dst in copies:
                if self.rank in (src, dst):
                    here = before.state_of(whose, step) if before and src == dst else None
                    moved = self._moved(here or self.kept.own[step], src, dst)
                    if self.rank == dst:
                        self.kept.neighbours[step] = moved
        self.state.load_state_dict(packed.unpack(*self.kept.own[step]))
        return step

    def _moved(self, copy: Copy | None, src: int, dst: int) -> Copy:
        """Sends it, or receives it, or does neither where both are this rank."""
        if self.rank == src:
            assert copy is not None, "the plan goes by what this rank has said that it has"
            if src != dst:
                p2p.send(torch.tensor([len(part) for part in copy]), dst, self._group)
                for i, part in parts_of(copy):
                    p2p.send(part, dst, self._group, tag=i)
            return copy
        lengths = torch.empty(2, dtype=torch.int64)
        p2p.recv(lengths, src, self._group)
        room = room_for(lengths.tolist())
        for i, part in parts_of(room):
            p2p.recv(part, src, self._group, tag=i)
        return room


def _check(every: int, last: int | None, distance: int, size: int) -> None:
    for name, value in (("every", every), ("distance", distance)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}")
    if last is not None and every > last:
        raise ValueError(
            f"every={every} is more than the {last} steps of the run: no copy would ever be taken. Take 1 to {last}"
        )
    if size == 1:
        raise ValueError(
            "a world of 1 rank has no neighbour that could keep a copy: write checkpoints"
        )
    if distance % size == 0:
        raise ValueError(
            f"distance={distance} among {size} ranks leads back to the sender: take 1 to {size - 1}"
        )
