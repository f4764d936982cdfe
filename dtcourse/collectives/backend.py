"""The algorithms as backends of torch.distributed: PyTorch's own DDP and FSDP run on them, and know nothing of it.

    run = launch(train, 4, backend="ring")               # form_group does what follows, in each rank

    backend.register()
    dist.init_process_group("ring", ...)
    dist.all_reduce(x)                                   # ring.all_reduce(x), on send and receive alone
    DistributedDataParallel(model)                       # its buckets travel round the ring

What torch then holds is a process_group.AlgorithmGroup. algorithms.py says which algorithm it runs.

One thing does not run on a group written in Python: DDP's two communication hooks that are built into its C++
(`_register_builtin_comm_hook`, a private method); torch refuses the group's Future there. The same hooks of
torch.distributed.algorithms.ddp_comm_hooks run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.collectives import network as networks
from dtcourse.collectives import traffic
from dtcourse.collectives.algorithms import choices
from dtcourse.collectives.instrumented import InstrumentedGroup
from dtcourse.collectives.process_group import AlgorithmGroup

__all__ = ["choices", "form_group", "register"]


def register() -> None:
    """Makes our backends known to torch.distributed under their names. Calling it again changes nothing."""
    creators: dict[str, Callable[..., Any]] = {
        name: _creator(AlgorithmGroup, name) for name in choices()
    }
    for name in ("gloo", "nccl"):
        creators[f"instrumented_{name}"] = _creator(InstrumentedGroup, name)
    for name, creator in creators.items():
        if not hasattr(dist.Backend, name.upper()):
            dist.Backend.register_backend(
                name, creator, extended_api=True, devices=sorted({"cpu", device.available()})
            )


def form_group(
    backend: str,
    *,
    rank: int = -1,
    world_size: int = -1,
    store: dist.Store | None = None,
    timeout: timedelta | None = None,
    network: networks.EmulatedNetwork | None = None,
    record: bool = False,
    device_id: torch.device | None = None,
) -> None:
    """Forms the default group: dist.init_process_group with one of our backends, or with torch's own.

    backend: one of choices(), or "gloo" or "nccl"; these are wrapped where record or network asks for it (their name
             is then "instrumented_gloo" for dist.get_backend), and so are the groups that new_group and
             init_device_mesh make of it
    rank, world_size, store: as in init_process_group; from the environment where they are left out
    network: an EmulatedNetwork that makes the links of this process slow
    record:  count traffic from here on; traffic.collect() brings it

    Raises ValueError for an unknown backend.
    """
    if backend not in (*choices(), "gloo", "nccl", "mpi"):
        known = ", ".join([*choices(), "gloo", "nccl", "mpi"])
        raise ValueError(f"there is no backend {backend!r}; known are {known}")
    if backend == "mpi" and (network is not None or record):
        raise ValueError(
            "network= and record= work with gloo, nccl and our own backends, not with mpi"
        )
    name = backend
    if backend in ("gloo", "nccl") and (record or network is not None):
        name = f"instrumented_{backend}"
    if name not in ("gloo", "nccl", "mpi"):
        register()
    more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if backend == "nccl" and name == "nccl" and device_id is not None:
        more["device_id"] = device_id
    dist.init_process_group(name, rank=rank, world_size=world_size, store=store, **more)
    networks.install(network, dist.get_rank())
    if record:
        traffic.start(dist.get_rank())


def _creator(group: Callable[..., dist.ProcessGroup], name: str) -> Callable[..., Any]:
    def create(options: Any, _: Any) -> dist.ProcessGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        return group(
            name, options.store, options.group_rank, options.group_size, options.timeout, ranks
        )

    return create
