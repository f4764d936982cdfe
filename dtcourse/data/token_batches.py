"""Dynamic batching: batches of about as many tokens, not of as many sequences.

A batch is padded to its longest sequence, so a long one among short ones is mostly padding. Sequences of like length
go together; a batch takes as many as fit `max_tokens` (longest times number). Every replica gets equally many batches,
dealt out in turn, so that no replica waits at the all-reduce for one with more; batches of one step have about the
same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


class TokenBatchSampler:
    """Lists of indices for DataLoader(batch_sampler=...).

    lengths: tokens of each sequence.  Raises ValueError where one alone is longer than max_tokens, and names it.
    Within groups of `pool` batches the lengths are sorted; the order of sequences into pools and of batches is
    drawn from (seed, epoch). The last few batches are repeated so that every replica has the same number.
    """

    def __init__(
        self, lengths: Sequence[int], max_tokens: int, num_replicas: int = 1, rank: int = 0, seed: int = 0,
        pool: int = 50,
    ) -> None:  # fmt: skip
        if not lengths:
            raise ValueError("there are no sequences to batch")
        longest = max(range(len(lengths)), key=lambda i: lengths[i])
        if lengths[longest] > max_tokens:
            raise ValueError(
                f"sequence {longest} has {lengths[longest]} tokens, more than a batch may hold ({max_tokens}): "
                "truncate it, or raise max_tokens"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is 0 to num_replicas - 1; got rank {rank} of {num_replicas}")
        self.lengths, self.max_tokens, self.seed, self.pool = list(lengths), max_tokens, seed, pool
        self.num_replicas, self.rank = num_replicas, rank
        self.epoch, self.consumed = 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has other batches, and starts at its beginning."""
        if epoch != self.epoch:
            self.consumed = 0
        self.epoch = epoch

    def batches(self) -> list[list[int]]:
        """All batches of this epoch, in order: the same on every replica, whatever their number."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
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

    def advance(self, batches: int = 1) -> None:
        """Every replica has used so many more."""
        self.consumed += batches * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """The position, valid for any number of replicas."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "seed": self.seed,
            "total": len(self.lengths),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on from there. ValueError where the state belongs to other data."""
        for name, mine in (("total", len(self.lengths)), ("seed", self.seed)):
            if state[name] != mine:
                raise ValueError(
                    f"the saved position has {name} {state[name]}, this sampler has {mine}"
                )
        self.epoch, self.consumed = state["epoch"], state["consumed"]
