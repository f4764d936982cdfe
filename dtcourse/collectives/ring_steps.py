"""The steps of the ring: in each, every rank sends one block to its right and receives one from its left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed import Work

from dtcourse.collectives import p2p
from dtcourse.collectives.chunks import scratch

AHEAD = 2  # chunks under way at a time, at most


class Steps:
    """p - 1 steps: in the first, block `first` leaves; in each other, the block that came in the step before.

    A step has as many turns as a block has chunks, at most; a turn sends one chunk and receives one, in a batch. Chunk
    i of step s travels in turn s * turns + i on every rank, so on NCCL the two ends of a message post it in the same
    batch, and no rank's receive keeps its own send waiting (wire/batch.py). Where messages need no batch, a receive is
    posted a turn early, the first one when a Steps is made.

    chunks:   chunks[b] are the chunks of block b, views of the vector
    in_place: receive straight into the vector; else into scratch
    sending:  what was sent, to be waited for
    """

    def __init__(
        self,
        chunks: Sequence[Sequence[torch.Tensor]],
        first: int,
        group: Any,
        tag: int,
        in_place: bool,
    ) -> None:
        self.chunks, self.first, self.group, self.tag = chunks, first, group, tag
        self.in_place = in_place
        self.sending: list[Work] = []
        self._coming: deque[tuple[int, Work, torch.Tensor, torch.Tensor]] = deque()
        self._slots: tuple[torch.Tensor, ...] = ()
        sizes = [len(chunk) for block in chunks for chunk in block]
        # Alone, or nothing to send: no turns.
        self._turns = max(map(len, chunks)) if len(chunks) > 1 else 0
        if not self._turns:
            return
        like = next(chunk for block in chunks for chunk in block)
        # A chunk is sent on `turns` turns after it has come, so no more than those are under way.
        self._ahead = min(self._turns, AHEAD)
        self._early = 0 if p2p.in_batches(like, group) else 1
        if not in_place:
            slots = self._ahead + self._early
            self._slots = scratch(slots * max(sizes), like).split(max(sizes))
        for turn in range(self._early):
            self._receive(turn)

    def run(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields each chunk's place in the vector and what has come for it.

        It is sent on after whoever takes it from here has worked on it.
        """
        if not self._turns:
            return
        for turn in range((len(self.chunks) - 1) * self._turns + self._ahead):
            if self._coming and self._coming[0][0] == turn - self._ahead:
                _, work, place, arrived = self._coming.popleft()
                work.wait()
                yield place, arrived
            with p2p.batch(self.group):
                self._receive(turn + self._early)
                self._send(turn)

    def _receive(self, turn: int) -> None:
        place = self._chunk(turn, later=1)
        if place is not None:
            into = place if self.in_place else self._slots[turn % len(self._slots)][: len(place)]
            left = (p2p.rank(self.group) - 1) % len(self.chunks)
            work = p2p.irecv(into, left, self.group, self.tag)
            self._coming.append((turn, work, place, into))

    def _send(self, turn: int) -> None:
        chunk = self._chunk(turn, later=0)
        if chunk is not None:
            right = (p2p.rank(self.group) + 1) % len(self.chunks)
            self.sending.append(p2p.isend(chunk, right, self.group, self.tag))

    def _chunk(self, turn: int, later: int) -> torch.Tensor | None:
        """The chunk that leaves in a turn, or the one that comes (later=1); None where its block has no more."""
        step, i = divmod(turn, self._turns)
        block = self.chunks[(self.first - step - later) % len(self.chunks)]
        return block[i] if step < len(self.chunks) - 1 and i < len(block) else None
