"""Who owns which parameter: whole parameters dealt out by size, the same on every rank without a message.

Optimizer states and gradients come in parameter-sized pieces, so ZeRO-1 and ZeRO-2 can deal out whole parameters; an
update that looks at a whole matrix (LAMB, Muon) then works unchanged. Largest first, each to the rank that has least so
far: the fullest rank holds at most 4/3 - 1/(3p) times what the best possible deal would give it (Graham 1969), but
never less than the largest parameter. Cutting through parameters, as ZeRO-3 does (flat_parameter.py), is even to the
last element, and costs that simplicity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

import torch

from dtcourse.parameters.buckets import Bucket


def assign_owners(
    sizes: Sequence[int], ranks: int, loads: Sequence[int] | None = None
) -> list[int]:
    """The owner of each size: largest first (earlier ones first where equal), to the least loaded (lowest) rank.

    loads: what each rank has already, in the unit of `sizes`; default nothing

    The rule of torch.distributed.optim.ZeroRedundancyOptimizer, so the two deal out alike where nothing is frozen.
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


def in_buckets(
    tensors: Iterable[torch.Tensor], owner: Callable[[torch.Tensor], int], bucket_bytes: int
) -> list[Bucket]:
    """Neighbours travel together: buckets of at most `bucket_bytes` (or one larger tensor), in the order of `tensors`.

    A window slides over the tensors and closes once it holds `bucket_bytes`; what is in it is sorted by owner, dtype
    and device. So a window is at most a message an owner, and no bucket waits for a tensor far down the order. Owners
    follow each other in rank order: what goes to rank r passes it last, and the way to r + 1 begins where it is free.
    """
    closed: list[tuple[int, list[torch.Tensor]]] = []
    window: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
    held = 0

    def close() -> None:
        by_owner = sorted(window.items(), key=lambda item: item[0][0])
        closed.extend((key[0], members) for key, members in by_owner)
        window.clear()

    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if held and held + nbytes > bucket_bytes:
            close()
            held = 0
        window.setdefault((owner(tensor), tensor.dtype, tensor.device), []).append(tensor)
        held += nbytes
    close()
    last = len(closed) - 1
    return [Bucket(i, members, i == last, owner) for i, (owner, members) in enumerate(closed)]


def by_turns(buckets: Iterable[Bucket], ranks: int) -> Iterator[Bucket]:
    """The buckets in another order: one of each owner, then the next of each, so that no owner sends alone."""
    of_owner: list[list[Bucket]] = [[] for _ in range(ranks)]
    for bucket in buckets:
        of_owner[bucket.owner].append(bucket)
    for turn in zip_longest(*of_owner):
        yield from (bucket for bucket in turn if bucket is not None)
