"""Dynamic batching: batches of about as many tokens, not of as many sequences.

A batch is padded to its longest sequence, so a long one among short ones is mostly padding. Sequences of like length
go together; a batch takes as many as fit `max_tokens` (longest times number). Every replica gets equally many batches,
dealt out in turn, so that no replica waits at the all-reduce for one with more; batches of one step have about the
same number of tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from dtcourse.data.position import Position


class TokenBatchSampler(Position, Sampler[list[int]]):
    """Lists of indices for DataLoader(batch_sampler=...) and ResumableLoader.

    lengths: tokens of each sequence.  Raises ValueError where one alone is longer than max_tokens, and names it.
    Within groups of `pool` batches the lengths are sorted; the order of sequences into pools and of batches is
    drawn from (seed, epoch). The last few batches are repeated so that every replica has the same number.
    """

    def __init__(
        self, lengths: Sequence[int], max_tokens: int, num_replicas: int = 1, rank: int = 0, seed: int = 0,
        pool: int = 50,
    ) -> None:  # fmt: skip
        self.lengths = [int(n) for n in lengths]
        if not self.lengths:
            raise ValueError("there are no sequences to batch")
        if pool < 1:
            raise ValueError(f"pool is at least 1 batch; got {pool}")
        for worst in (min, max):
            i = worst(range(len(self.lengths)), key=self.lengths.__getitem__)
            if self.lengths[i] < 1:
                raise ValueError(f"sequence {i} has {self.lengths[i]} tokens: leave it out")
            if self.lengths[i] > max_tokens:
                raise ValueError(
                    f"sequence {i} has {self.lengths[i]} tokens, more than a batch may hold ({max_tokens}): "
                    "truncate it, or raise max_tokens"
                )
        self.max_tokens, self.pool = max_tokens, pool
        digest = zlib.crc32(repr(self.lengths).encode())
        super().__init__(0, num_replicas, rank, seed, {
            "total": len(self.lengths), "max_tokens": max_tokens, "pool": pool, "lengths": digest,
        })  # fmt: skip
        self._made: tuple[int, list[list[int]]] = (-1, [])
        self.places = len(self.batches())

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.places = len(self.batches())  # another order packs otherwise

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.places = len(self.batches())

    def batches(self) -> list[list[int]]:
        """All batches of this epoch, in order: the same on every replica, whatever their number."""
        if self._made[0] != self.epoch:
            self._made = (self.epoch, self._make())
        return self._made[1]

    def _make(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        shuffled = torch.randperm(len(self.lengths), generator=generator).tolist()
        mean = sum(self.lengths) / len(self.lengths)
        pool = max(1, int(self.pool * self.max_tokens / mean))
        made: list[list[int]] = []
        for start in range(0, len(shuffled), pool):
            made += self._pack(
                sorted(shuffled[start : start + pool], key=lambda i: self.lengths[i])
            )
        return [made[i] for i in torch.randperm(len(made), generator=generator).tolist()]

    def _pack(self, by_length: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        batch: list[int] = []
        for index in by_length:
            if self.lengths[index] * (len(batch) + 1) > self.max_tokens:
                batches.append(batch)
                batch = []
            batch.append(index)  # sorted: the newest is the longest
        return [*batches, batch]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._left()[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return len(self._left()[self.rank :: self.num_replicas])

    def _left(self) -> list[list[int]]:
        batches = self.batches()
        left = batches[self.consumed :]
        extra = -len(left) % self.num_replicas
        return left + [batches[i % len(batches)] for i in range(extra)]
