"""The algorithms as backends of torch.distributed: PyTorch's own DDP and FSDP run on them, and know nothing of it.

    run = launch(train, 4, backend="ring")               # form_group does what follows, in each rank

    from dtcourse.collectives.backend import register as backend

    backend.register()
    dist.init_process_group("ring", ...)
    dist.all_reduce(x)                                   # ring.all_reduce(x), on send and receive alone
    DistributedDataParallel(model)                       # its buckets travel round the ring

What torch then holds is a process_group.AlgorithmGroup. table.py says which algorithm it runs.
dist.monitored_barrier, which torch keeps for gloo, is let through to it as well (torch_private).

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

from dtcourse import device, torch_private
from dtcourse.collectives import traffic
from dtcourse.collectives.backend.instrumented import InstrumentedGroup
from dtcourse.collectives.backend.process_group import AlgorithmGroup
from dtcourse.collectives.backend.table import choices
from dtcourse.emulation.cluster import EmulatedCluster

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
    torch_private.let_monitored_barrier_through(AlgorithmGroup, InstrumentedGroup)


def form_group(
    backend: str,
    *,
    rank: int = -1,
    world_size: int = -1,
    store: dist.Store | None = None,
    timeout: timedelta | None = None,
    emulated: EmulatedCluster | None = None,
    record: bool = False,
    device_id: torch.device | None = None,
) -> None:
    """Forms the default group: dist.init_process_group with one of our backends, or with torch's own.

    backend: one of choices(), or "gloo" or "nccl"; these are wrapped where record or emulated asks for it (their name
             is then "instrumented_gloo" for dist.get_backend), and so are the groups that new_group and
             init_device_mesh make of it
    rank, world_size, store: as in init_process_group; from the environment where they are left out
    emulated: an EmulatedCluster that this process is a rank of; its clock starts at the end
    record:  count traffic from here on; traffic.collect() brings it

    Raises ValueError for an unknown backend.
    """
    if backend not in (*choices(), "gloo", "nccl", "mpi"):
        known = ", ".join([*choices(), "gloo", "nccl", "mpi"])
        raise ValueError(f"there is no backend {backend!r}; known are {known}")
    if backend == "mpi" and (emulated is not None or record):
        raise ValueError(
            "devices=, network= and record= work with gloo, nccl and our own backends, not with mpi"
        )
    name = backend
    if backend in ("gloo", "nccl") and (record or emulated is not None):
        name = f"instrumented_{backend}"
    if name not in ("gloo", "nccl", "mpi"):
        register()
    more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if backend == "nccl" and name == "nccl" and device_id is not None:
        more["device_id"] = device_id
    dist.init_process_group(name, rank=rank, world_size=world_size, store=store, **more)
    if emulated is not None:
        dist.barrier()  # forming the group took time: on a real clock nobody starts before the others
        emulated.start(dist.get_rank())
    if record:
        traffic.start(dist.get_rank())


def _creator(group: Callable[..., dist.ProcessGroup], name: str) -> Callable[..., Any]:
    def create(options: Any, _: Any) -> dist.ProcessGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        return group(
            name, options.store, options.group_rank, options.group_size, options.timeout, ranks
        )

    return create
