"""The default group of a generation: formed anew, and left so that nobody goes on waiting for who has left.

A group cannot be repaired: one that has lost a rank ends, with all of its subgroups, and another one is formed. Who is
still in a collective of the old one waits for a rank that may well live, and is elsewhere by now. So each rank closes
its connections when it leaves; that wakes whoever waits at their other end, and he leaves in turn.

While a group is formed there is no connection yet: gloo waits in the store for the addresses of all ranks, for 30
minutes in dist.new_group. One that has died meanwhile never writes its own, and neither does one that lives and has
left, since its collective had failed. So the store of a generation is one that asks, while it waits, whether somebody
is missing, and waits no longer then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives.wire import guard
from dtcourse.launch import lost_peers

FORMING = timedelta(seconds=30)  # then it is tried again: one of them may have died meanwhile
TRAINING = timedelta(hours=24)  # who waits for a dead rank is woken by its death
# seconds between two looks for a key, and between two questions who is missing
_LOOK, _ASK = 0.005, 0.5
_CLOSING_TAG = 0x7FFFFFF1  # as no message of a program has

_living: Any = None  # the store of the group that there is: torch keeps what is in C++ alone


class NotFormed(RuntimeError):
    """A group could not be formed: one of its ranks has died meanwhile, or was too slow."""


class LivingStore(dist.Store):
    """A store in which nobody waits for the key of a rank that has died, or has left.

    missing: who of this generation, in words, or None: asked twice a second of waiting
    """

    def __init__(self, store: Any, missing: Callable[[], str | None]) -> None:
        super().__init__()
        self._store, self._missing = store, missing
        self.set_timeout(FORMING)

    def set(self, key: str, value: Any) -> None:
        """Writes it."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Its value, as soon as there is one."""
        self.wait([key])
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return bool(self._store.check(keys))

    def add(self, key: str, value: int) -> int:
        """A counter that everybody counts with."""
        return int(self._store.add(key, value))

    def clone(self) -> LivingStore:
        """Itself: torch keeps what is in C++ alone, and this is in Python."""
        return self

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Raises NotFormed where a rank is missing, or time is over."""
        began = asked = time.monotonic()
        limit = (timeout or FORMING).total_seconds()
        while not self._store.check(keys):
            now = time.monotonic()
            if now - asked > _ASK:
                asked = now
                if said := self._missing():
                    raise NotFormed(f"{said}, and no connection to it can be made")
            if now - began > limit:
                raise NotFormed(f"no connection was made within {limit:g} s: no {keys}")
            time.sleep(_LOOK)


def form(
    store: Any, generation: int, rank: int, size: int, missing: Callable[[], str | None]
) -> None:
    """The default group of this generation, on gloo. RANK and WORLD_SIZE say so, too.

    missing: who of this generation has died or left, in words
    """
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    global _living
    _living = LivingStore(store, missing)
    here = dist.PrefixStore(f"generation/{generation}", _living)
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
