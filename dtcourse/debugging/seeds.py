"""Random numbers that ranks share, and those that each has alone: two seeds from one, which never meet.

    seeds = rank_seeds(7)                     # rank and world size from torch.distributed
    torch.manual_seed(seeds.shared)           # the model's start: the same on all ranks
    model = build()
    torch.manual_seed(seeds.own)              # dropout, augmentation, masks: another on each rank

The usual `seed + rank` meets itself: seed 0's rank 1 draws what seed 1's rank 0 draws, so two runs that are meant to be
independent share all streams but one (`meeting` finds it). A hash of (seed, rank) does so too, if seldom: a CPU's
generator takes 32 bits of a seed, and of 10,000 ranks two have the same 32 bits once in 86 runs. Here the low 32 bits
are a permutation of the ranks, keyed by the seed: two ranks of one run never meet.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.parameters.checksum import checksum
from dtcourse.parameters.cuts import Group
from dtcourse.parameters.seeds import seed_of
from dtcourse.torch_private import device_of_messages

_ROUNDS = 4  # of a Feistel network: Luby and Rackoff (1988)


@dataclass(frozen=True)
class RankSeeds:
    """Two seeds of 63 bits. shared: the same on all ranks;  own: this rank's alone."""

    shared: int
    own: int

    def generators(self) -> tuple[torch.Generator, torch.Generator]:
        """A generator that draws the same on all ranks, and this rank's own; on the CPU."""
        return torch.Generator().manual_seed(self.shared), torch.Generator().manual_seed(self.own)

    def use(self, shared: bool = False) -> None:
        """Seeds torch (all devices), random and numpy, where it is loaded, with this rank's own seed, or the shared."""
        seed = self.shared if shared else self.own
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)


def rank_seeds(seed: int, rank: int | None = None, name: str = "") -> RankSeeds:
    """The shared seed and a rank's own of a run.

    rank: by default this process's in the default group, 0 where there is none. Where several ranks are to draw the
          same (tensor parallelism's, of one sample's dropout), pass the number that they have in common
    name: for a second pair of a run: "data", "dropout"

    Raises ValueError for a rank below 0 or above 2^32 - 2.
    """
    if rank is None:
        rank = dist.get_rank() if dist.is_initialized() else 0
    if not 0 <= rank < 2**32 - 1:
        raise ValueError(f"rank is 0 or more, and below 2^32 - 1; got {rank}")
    return RankSeeds(_stream(seed, name, 0), _stream(seed, name, rank + 1))


def _stream(seed: int, name: str, number: int) -> int:
    """The seed of one stream: in the low 32 bits no two numbers meet."""
    high = seed_of(seed, (name, "high", number)) >> 33
    return high << 32 | _permuted(seed, name, number)


def _permuted(seed: int, name: str, number: int) -> int:
    left, right = number >> 16, number & 0xFFFF
    for turn in range(_ROUNDS):
        left, right = right, left ^ seed_of(seed, (name, turn, right)) & 0xFFFF
    return left << 16 | right


def meeting(
    seed_of_rank: Callable[[int, int], int], seeds: Iterable[int] = range(8), world_size: int = 8
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Which (seed, rank) have one stream on a CPU, in pairs: of `lambda seed, rank: seed + rank` nearly all."""
    first: dict[int, tuple[int, int]] = {}
    pairs = []
    for seed in seeds:
        for rank in range(world_size):
            stream = seed_of_rank(seed, rank) % 2**32
            if stream in first:
                pairs.append((first[stream], (seed, rank)))
            first.setdefault(stream, (seed, rank))
    return pairs


def shared_streams(group: Group = None) -> list[list[int]]:
    """Which ranks would draw the same from torch's generator now, such as [[0, 1], [2, 3]]; each alone is left out.

    A collective, of 8 bytes a rank (16 with a GPU). Before the model is built all are to be together, before dropout
    none. The sentence for it: `streams_in_words`.
    """
    here = device_of_messages(group)
    states = [s for s in device.random_state() if s is not None]
    mine = torch.stack([checksum(state).to(here) for state in states])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    together: dict[tuple[int, ...], list[int]] = {}
    for rank, theirs in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        together.setdefault(tuple(theirs.tolist()), []).append(rank)
    return [ranks for ranks in together.values() if len(ranks) > 1]


def streams_in_words(shared: list[list[int]]) -> str:
    """Such as "ranks 0 and 1 draw the same random numbers"."""
    if not shared:
        return "each rank draws random numbers of its own"
    return "; ".join(f"{ranks_in_words(ranks)} draw the same random numbers" for ranks in shared)
