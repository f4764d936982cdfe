"""The default group of a generation: formed anew, and left so that nobody goes on waiting for who has left.

A group cannot be repaired: one that has lost a rank ends, with all of its subgroups, and another one is formed. Who is
still in a collective of the old one waits for a rank that may well live, and is elsewhere by now. So each rank closes
its connections when it leaves; that wakes whoever waits at their other end, and he leaves in turn.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives.wire import guard
from dtcourse.launch import lost_peers

FORMING = timedelta(seconds=30)  # then it is tried again: one of them may have died meanwhile
TRAINING = timedelta(hours=24)  # who waits for a dead rank is woken by its death
_CLOSING_TAG = 0x7FFFFFF1  # as no message of a program has


class NotFormed(RuntimeError):
    """A group could not be formed: one of its ranks has died meanwhile, or was too slow."""


def form(store: Any, generation: int, rank: int, size: int) -> None:
    """The default group of this generation, on gloo. RANK and WORLD_SIZE say so, too."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    here = dist.PrefixStore(f"generation/{generation}", store)
    try:
        dist.init_process_group("gloo", store=here, rank=rank, world_size=size, timeout=FORMING)
        dist.barrier()  # nobody begins, and so fails and leaves, while another one still connects
        torch_private.set_timeout(dist.group.WORLD, TRAINING)
    except RuntimeError as error:
        raise NotFormed(
            f"generation {generation} of {size} ranks was not formed: {error}"
        ) from error


def leave() -> None:
    """Closes all connections of this rank and takes down its groups. Returns also where others hang."""
    for group in torch_private.groups_of_process():
        backend = torch_private.backend_of(group, torch.device("cpu"))
        if backend is not None and group.size() > 1:
            torch_private.close_connections(backend, group.rank(), group.size(), _CLOSING_TAG)
    if dist.is_initialized():
        dist.destroy_process_group()


def is_loss(error: BaseException) -> bool:
    """Whether a collective or a message failed since a rank has gone: not a mistake of the program's."""
    if isinstance(error, NotFormed | guard.PeerFailure):
        return True
    return lost_peers.is_of_a_connection(error)
