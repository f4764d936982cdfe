"""What a rank finds around it: the environment variables of torchrun, and the notebook's own."""

from __future__ import annotations

import linecache
import os
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from dtcourse.launch import options

_inherited: ContextVar[Collection[str] | None] = ContextVar("dtcourse_inherited", default=None)


@contextmanager
def inheriting(names: Collection[str]) -> Iterator[None]:
    """Ranks that are launched on this machine in this block have of this process's variables these alone."""
    token = _inherited.set(names)
    try:
        yield
    finally:
        _inherited.reset(token)


def inherited() -> dict[str, str]:
    """What of this process's variables the ranks of a launch have: all, but for `inheriting`."""
    names = _inherited.get()
    return {name: one for name, one in os.environ.items() if names is None or name in names}


def environments(
    layout: options.Layout, address: str, port: int, base: dict[str, str]
) -> list[dict[str, str]]:
    """The environment of each rank of this machine: torchrun's names, so that what runs here runs there.

    Raises ValueError for an interface that is not there.
    """
    check_interfaces(base)
    for_ranks = []
    for index in range(layout.world_size):
        # All GPUs of the machine, whatever node the layout pretends to.
        own = of_rank(layout, index, index, address, port)
        environment = {**base, **own}
        for name in INTERFACES[:2]:
            environment.setdefault(name, LOOPBACK)
        for_ranks.append(environment)
    return for_ranks


LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
# Which network interface gloo, torch.distributed.rpc and NCCL use.
INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def check_interfaces(environment: Mapping[str, str]) -> None:
    """Raises ValueError where gloo or rpc is told to use a network interface that this machine does not have.

    gloo itself says "Unable to find address for: ib0", and not who has asked for ib0. NCCL takes beginnings of names,
    and goes on without.
    """
    named = {name: environment[name] for name in INTERFACES[:2] if environment.get(name)}
    there = {name for _, name in socket.if_nameindex()} if named else set()
    for variable, value in named.items():
        for name in value.split(","):
            if name not in there:
                raise ValueError(
                    f"{variable}={value} names a network interface that this machine does not have (it has "
                    f"{', '.join(sorted(there))}): take the variable out of the notebook's environment, or give "
                    f'launch(..., env={{"{variable}": "{LOOPBACK}"}}), which ranks of one machine have in common'
                )


def of_rank(
    layout: options.Layout, index: int, place: int, address: str, port: int
) -> dict[str, str]:
    """What rank `index` is told in torchrun's names. It is the `place`-th rank of its machine."""
    from dtcourse import device

    node = layout.node_of(index)
    beside = layout.ranks_of(node)
    own = {
        "RANK": index,
        "WORLD_SIZE": layout.world_size,
        "LOCAL_RANK": index - beside.start,
        "LOCAL_WORLD_SIZE": len(beside),
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": layout.nodes,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        # Somebody listens there already (rendezvous.py): every rank is a client, rank 0 too.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DTCOURSE_DEVICE": device.for_rank(place, layout.kind),
        "OMP_NUM_THREADS": layout.threads,
    }
    return {name: str(value) for name, value in own.items()}


def typed_sources() -> dict[str, list[str]]:
    """Code that was typed, not read from a file, so that a rank's traceback can show its lines."""
    typed = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and not name.startswith("<frozen"):
            typed[name] = entry[2]
    return typed
