"""The steps of the ring: in each, every rank sends one block to its right and receives one from its left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch.distributed import Work

from dtcourse.collectives.chunks import scratch
from dtcourse.collectives.wire.channel import Channel

AHEAD = 2  # chunks under way at a time, at most


class Steps:
    """p - 1 steps: in the first, block `first` leaves; in each other, the block that came in the step before.

    A step has as many turns as a block has chunks, at most; a turn sends one chunk and receives one. Chunk i of step s
    travels in turn s * turns + i on every rank. Where messages start in batches (NCCL), the two ends of a message so
    post it in the same batch, and no rank's receive keeps its own send waiting (wire/transport.py). Elsewhere a receive
    is posted a turn early, the first one when a Steps is made.

    chunks:   chunks[b] are the chunks of block b, views of the vector
    end:      this rank's end of the group: p2p.channel(group)
    in_place: receive straight into the vector; else into scratch
    sending:  what was sent, to be waited for
    """

    def __init__(
        self,
        chunks: Sequence[Sequence[torch.Tensor]],
        first: int,
        end: Channel,
        tag: int,
        in_place: bool,
    ) -> None:
        self.chunks, self.first, self.end, self.tag = chunks, first, end, tag
        self.left, self.right = (end.rank - 1) % len(chunks), (end.rank + 1) % len(chunks)
        self.in_place = in_place
        self.sending: list[Work] = []
        self._coming: deque[tuple[int, Work, torch.Tensor, torch.Tensor]] = deque()
        self._slots: tuple[torch.Tensor, ...] = ()
        # Alone, or nothing to send: no turns.
        self._turns = max(map(len, chunks)) if len(chunks) > 1 else 0
        if not self._turns:
            return
        every = list(chain.from_iterable(chunks))
        # A chunk is sent on `turns` turns after it has come, so no more than those are under way.
        self._ahead = min(self._turns, AHEAD)
        self._batched = end.transport.batching(every[0].device) is not None
        if not in_place:
            slots, longest = self._ahead + (not self._batched), max(map(len, every))
            self._slots = scratch(slots * longest, every[0]).split(longest)
        if not self._batched:
            self._receive(0)

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
            if self._batched:
                with self.end.batch():
                    self._receive(turn)
                    self._send(turn)
            else:
                self._receive(turn + 1)
                self._send(turn)

    def _receive(self, turn: int) -> None:
        place = self._chunk(turn, later=1)
        if place is not None:
            into = place if self.in_place else self._slots[turn % len(self._slots)][: len(place)]
            work = self.end.irecv(into, self.left, self.tag)
            self._coming.append((turn, work, place, into))

    def _send(self, turn: int) -> None:
        chunk = self._chunk(turn, later=0)
        if chunk is not None:
            self.sending.append(self.end.isend(chunk, self.right, self.tag))

    def _chunk(self, turn: int, later: int) -> torch.Tensor | None:
        """The chunk that leaves in a turn, or the one that comes (later=1); None where its block has no more."""
        step, i = divmod(turn, self._turns)
        block = self.chunks[(self.first - step - later) % len(self.chunks)]
        return block[i] if step < len(self.chunks) - 1 and i < len(block) else None
