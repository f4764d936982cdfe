"""Which samples each rank reads, on any number of ranks, and whether an epoch covers each once.

    order = data_order(lambda rank, size, epoch: sampler_of(rank, size, epoch), total=1000, world_size=4)
    print(order)
    # 4 ranks read 250, 250, 250 and 250 of 1,000 samples: each once.

    order = gathered_order(seen, total=1000)        # in the ranks themselves: what each has really read

What it finds: samples that several ranks read, or one rank twice (padding, a sampler that was not told its rank); that
nobody reads; ranks with more batches than others, which then wait in a collective; and an epoch in the last one's order
(no set_epoch).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.parameters.cuts import Group
from dtcourse.plural import plural

SHOWN = 5  # samples that a sentence names


@dataclass(frozen=True)
class DataOrder:
    """Who reads what.

    total: samples that there are;  of: by epoch and rank, the samples in the order in which they are read
    in_step: whether ranks wait for each other at each batch, as in training; an evaluation may add up at its end what
             each rank has found, and ranks may then read unequally many
    """

    total: int
    of: list[list[list[int]]]
    in_step: bool = True
    whole: bool = True
    padding: int = 0
    _faults: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        for epoch, by_rank in enumerate(self.of):
            where = f"in epoch {epoch}, " if len(self.of) > 1 else ""
            found = _faults_of(by_rank, self.total, self.whole, self.padding)
            self._faults.extend(where + fault for fault in found)
            if self.in_step:
                self._faults.extend(where + fault for fault in _unequal(by_rank))
        for epoch in range(1, len(self.of)):
            if self.of[epoch] == self.of[epoch - 1] and any(len(r) > 1 for r in self.of[epoch]):
                self._faults.append(
                    f"epoch {epoch} has the order of epoch {epoch - 1}: set_epoch was not called, or nothing shuffles"
                )

    @property
    def covers_once(self) -> bool:
        """Whether each epoch reads each sample once."""
        once = Counter(range(self.total))
        return all(Counter(s for mine in by_rank for s in mine) == once for by_rank in self.of)

    @property
    def faults(self) -> list[str]:
        """A sentence for each thing that is not as it should be; empty where an epoch covers each sample once."""
        return list(self._faults)

    def batches(self, batch_size: int, epoch: int = 0) -> list[list[int]]:
        """The samples of each step of all ranks together, sorted: where each takes `batch_size` of its own.

        Equal on two world sizes whose world_size * batch_size is equal, they train on the same batches.
        """
        steps = max((-(-len(mine) // batch_size) for mine in self.of[epoch]), default=0)
        return [
            sorted(
                s for mine in self.of[epoch] for s in mine[i * batch_size : (i + 1) * batch_size]
            )
            for i in range(steps)
        ]

    def __str__(self) -> str:
        counts = [str(len(mine)) for mine in self.of[0]]
        listed = f"{', '.join(counts[:-1])} and {counts[-1]}" if len(counts) > 1 else counts[0]
        verb = "reads" if len(counts) == 1 else "read"
        said = f"{plural(len(counts), 'rank')} {verb} {listed} of {plural(self.total, 'sample')}"
        return f"{said}: " + ("; ".join(self._faults) or "each once") + "."


def data_order(
    samples: Callable[[int, int, int], Iterable[Any]], total: int, world_size: int, epochs: int = 1
) -> DataOrder:
    """Asks for the samples of every rank, in this process.

    samples: (rank, world size, epoch) -> the indices that a training reads, or batches of them: what is done in the
             program itself, set_epoch included where that calls it
    total:   how many samples there are

    Raises ValueError for numbers that are none, and for an index that is no sample's.
    """
    if min(total, world_size, epochs) < 1:
        raise ValueError(
            f"total, world_size and epochs are 1 or more; got {total}, {world_size} and {epochs}"
        )
    read = [
        [_flat(samples(rank, world_size, epoch)) for rank in range(world_size)]
        for epoch in range(epochs)
    ]
    return _checked(total, read)


def gathered_order(seen: Iterable[Any], total: int, group: Group = None) -> DataOrder:
    """What the ranks have really read in an epoch, the same on all of them. A collective.

    seen: this rank's indices, in order, or batches of them: note what the loader gives
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, _flat(seen), group=group)
    return _checked(total, [everyone])


def _checked(total: int, read: list[list[list[int]]]) -> DataOrder:
    for by_rank in read:
        for rank, mine in enumerate(by_rank):
            wrong = next((s for s in mine if not 0 <= s < total), None)
            if wrong is not None:
                raise ValueError(
                    f"rank {rank} reads sample {wrong}, and there are 0 to {total - 1}"
                )
    return DataOrder(total, read)


def _flat(values: Any) -> list[int]:
    """Indices, from indices, batches of them, or tensors."""
    found: list[int] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found += value.flatten().tolist()
        elif isinstance(value, (list, tuple)):
            found += _flat(value)
        else:
            found.append(int(value))
    return found


def _faults_of(
    by_rank: Sequence[Sequence[int]], total: int, whole: bool, padding: int
) -> list[str]:
    readers: dict[int, list[int]] = {}
    for rank, mine in enumerate(by_rank):
        for sample in mine:
            readers.setdefault(sample, []).append(rank)
    found = []
    shared = [s for s, ranks in sorted(readers.items()) if len(set(ranks)) > 1]
    twice = [s for s, ranks in sorted(readers.items()) if len(ranks) > len(set(ranks))]
    missing = [s for s in range(total) if s not in readers]
    if sum(map(len, by_rank)) - len(readers) <= padding:
        shared, twice = [], []
    if shared:
        ranks = ranks_in_words(set(readers[shared[0]]))
        found.append(f"{_samples(shared)} read by several ranks, the first by {ranks}")
    if twice:
        one = next(r for r in readers[twice[0]] if readers[twice[0]].count(r) > 1)
        found.append(f"{_samples(twice)} read twice by one rank, the first by rank {one}")
    if missing and (whole or found):
        found.append(f"{_samples(missing)} read by nobody")
    return found


def _unequal(by_rank: Sequence[Sequence[int]]) -> list[str]:
    lengths = [len(mine) for mine in by_rank]
    if max(lengths) == min(lengths):
        return []
    most, least = lengths.index(max(lengths)), lengths.index(min(lengths))
    return [
        f"rank {most} reads {max(lengths)} and rank {least} {min(lengths)}: it would wait for the other in a "
        "collective, unless that joins (torch.distributed.algorithms.Join)"
    ]


def _samples(samples: Sequence[int]) -> str:
    named = ", ".join(map(str, samples[:SHOWN])) + (", ..." if len(samples) > SHOWN else "")
    verb = "is" if len(samples) == 1 else "are"
    return f"{plural(len(samples), 'sample')} ({named}) {verb}"
