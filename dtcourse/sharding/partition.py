"""Who owns which parameter: whole parameters dealt out by size, the same on every rank without a message.

Optimizer states and gradients come in parameter-sized pieces, so ZeRO-1 and ZeRO-2 can deal out whole parameters; an
update that looks at a whole matrix (LAMB, Muon) then works unchanged. Largest first, each to the rank that has least so
far: the fullest rank holds at most 4/3 - 1/(3p) times what the best possible deal would give it (Graham 1969), but never
less than the largest parameter. Cutting through parameters, as ZeRO-3 does (flat_parameter.py), is even to the last
element, and costs that simplicity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None


def assign(sizes: Sequence[int], ranks: int, loads: Sequence[int] | None = None) -> list[int]:
    """The owner of each size: largest first (earlier ones first where equal), to the least loaded (lowest) rank.

    loads: what each rank has already, in the unit of `sizes`; default nothing

    The rule of torch.distributed.optim.ZeroRedundancyOptimizer, so the two deal out alike.
    """
    if ranks < 1:
        raise ValueError(f"parameters are dealt out to at least 1 rank; got {ranks}")
    load = list(loads) if loads is not None else [0] * ranks
    if len(load) != ranks:
        raise ValueError(f"{len(load)} loads for {ranks} ranks")
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner = min(range(ranks), key=lambda r: load[r])
        owners[index] = owner
        load[owner] += sizes[index]
    return owners


@dataclass(frozen=True)
class Bucket:
    """Tensors of one owner, one dtype and one device that travel in one message."""

    owner: int
    tensors: tuple[torch.Tensor, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return sum(t.numel() for t in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of its message."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def empty(self) -> torch.Tensor:
        """Room for all of it: a flat tensor, shape (elements,)."""
        return torch.empty(
            self.elements, dtype=self.tensors[0].dtype, device=self.tensors[0].device
        )

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat tensor, each in its own tensor's shape."""
        parts = flat.split([t.numel() for t in self.tensors])
        return [part.view(t.shape) for part, t in zip(parts, self.tensors, strict=True)]


def in_buckets(
    tensors: Iterable[torch.Tensor], owner: Callable[[torch.Tensor], int], bucket_bytes: int
) -> list[Bucket]:
    """Neighbours travel together: buckets of at most `bucket_bytes` (or one larger tensor), in the order of `tensors`.

    A window slides over the tensors and closes once it holds `bucket_bytes`; what is in it is sorted by owner, dtype
    and device. So a window is at most a message an owner, and no bucket waits for a tensor far down the order.
    """
    buckets: list[Bucket] = []
    window: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
    held = 0

    def close() -> None:
        buckets.extend(Bucket(key[0], tuple(members)) for key, members in window.items())
        window.clear()

    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if held and held + nbytes > bucket_bytes:
            close()
            held = 0
        window.setdefault((owner(tensor), tensor.dtype, tensor.device), []).append(tensor)
        held += nbytes
    close()
    return buckets


def by_turns(buckets: Iterable[Bucket], ranks: int) -> Iterator[Bucket]:
    """The buckets in another order: one of each owner, then the next of each, so that no owner sends alone."""
    of_owner: list[list[Bucket]] = [[] for _ in range(ranks)]
    for bucket in buckets:
        of_owner[bucket.owner].append(bucket)
    for turn in zip_longest(*of_owner):
        yield from (bucket for bucket in turn if bucket is not None)


def check_same_parameters(
    groups: Sequence[Sequence[torch.Tensor]], process_group: Group = None
) -> None:
    """Raises ValueError, naming ranks and shapes, unless every rank passed the same parameters in the same order."""
    mine = [
        [(tuple(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad) for p in group]
        for group in groups
    ]
    everyone: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(everyone, mine, group=process_group)
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        if [len(g) for g in theirs] != [len(g) for g in first]:
            raise ValueError(
                f"the ranks optimize different parameters: rank 0 has groups of {[len(g) for g in first]} parameters, "
                f"rank {rank} of {[len(g) for g in theirs]}. Build the same model on every rank."
            )
        for number, (a, b) in enumerate(zip(first, theirs, strict=True)):
            for place, (ours, other) in enumerate(zip(a, b, strict=True)):
                if ours != other:
                    raise ValueError(
                        f"the ranks optimize different parameters: parameter {place} of group {number} is "
                        f"{_words(ours)} on rank 0, {_words(other)} on rank {rank}. Build the same model on every rank."
                    )


def _words(parameter: tuple[tuple[int, ...], str, bool]) -> str:
    shape, dtype, trains = parameter
    return f"{list(shape)} {dtype}{'' if trains else ' (frozen)'}"
