"""What a process group has to answer, and how one is made beside torch's registry."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Joinable

from dtcourse import device

# Methods of dist.ProcessGroup that move data. A subclass that leaves one out does not fail: the call runs, silently,
# on the inner group. The test compares this list with what the installed torch has.
DATA_METHODS = frozenset(
    {
        "_allgather_base",
        "_reduce_scatter_base",
        "all_gather_single",
        "all_gather_single_coalesced",
        "all_to_all_single",
        "allgather",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
        "allreduce",
        "allreduce_coalesced",
        "alltoall",
        "alltoall_base",
        "barrier",
        "broadcast",
        "gather",
        "monitored_barrier",
        "recv",
        "recv_anysource",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced",
        "scatter",
        "send",
    }
)

# Methods that move none: names, options, hooks, life and death of the group.
OTHER_METHODS = frozenset(
    {
        "BackendType",
        "CUSTOM",
        "GLOO",
        "MPI",
        "NCCL",
        "UCC",
        "UNDEFINED",
        "XCCL",
        "_backend_id",
        "_device_types",
        "_enable_collectives_timing",
        "_end_coalescing",
        "_get_backend",
        "_get_backend_name",
        "_get_sequence_number_for_group",
        "_has_hooks",
        "_id",
        "_pybind11_conduit_v1_",
        "_register_backend",
        "_register_on_completion_hook",
        "_set_default_backend",
        "_set_group_desc",
        "_set_group_name",
        "_set_sequence_number_for_group",
        "_start_coalescing",
        "_wait_for_pending_works",
        "abort",
        "bound_device_id",
        "boxed",
        "get_group_store",
        "group_desc",
        "group_name",
        "merge_remote_group",
        "name",
        "rank",
        "set_timeout",
        "shutdown",
        "size",
        "split_group",
        "unbox",
        "use_pg_for_symm_mem_rendezvous",
    }
)

# The fields of the argument with which torch calls a backend's creator (register_backend(..., extended_api=True)).
CREATOR_FIELDS = (
    "store",
    "group_rank",
    "group_size",
    "timeout",
    "group_id",
    "global_ranks_in_group",
)


def gloo_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo backend that no registry of torch knows."""
    inner = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    inner._set_sequence_number_for_group()
    return inner


def nccl_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """An NCCL backend that no registry of torch knows. unverified: written without a GPU at hand."""
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return c10d.ProcessGroupNCCL(store, rank, size, options)


def torch_group(name: str, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """One of torch's own groups ("gloo" or "nccl"), as init_process_group would form it, but in no registry."""
    group = dist.ProcessGroup(store, rank, size)
    if name == "gloo":
        kind, backend = dist.ProcessGroup.BackendType.GLOO, gloo_group(store, rank, size, timeout)
        devices = {"cpu", device.available()}
    else:
        kind, backend = dist.ProcessGroup.BackendType.NCCL, nccl_group(store, rank, size, timeout)
        devices = {device.available()}
    group._set_default_backend(kind)
    for name in devices:
        group._register_backend(torch.device(name), kind, backend)
    return group


def attach(
    group: dist.ProcessGroup, kind: torch.device, inner: Any, backend: str = "custom"
) -> None:
    """Gives a Python ProcessGroup its inner backend for one kind of device.

    backend: "gloo" or "nccl" for a group that goes by that name: before 2.13, DDP asks for its backend by its type

    torch asks for it (`group._get_backend(device)`), for options and for names, and calls of torch's C++ that no
    Python subclass can intercept end there. All calls in use today can be intercepted:
    tests/collectives/test_backend.py proves it.
    """
    group._register_backend(kind, getattr(dist.ProcessGroup.BackendType, backend.upper()), inner)


def backend_of(group: dist.ProcessGroup, kind: torch.device) -> Any:
    """The backend that carries a group's tensors of that device, or None where it has none."""
    try:
        return group._get_backend(kind)
    except RuntimeError:
        return None


def gpu_backend_of(group: dist.ProcessGroup) -> Any:
    """The NCCL backend of one of torch's groups, or None where it has none. unverified with a GPU."""
    if not c10d.is_nccl_available():
        return None
    for kind in devices_of(group):
        backend = backend_of(group, kind)
        if isinstance(backend, c10d.ProcessGroupNCCL):
            return backend
    return None


def devices_of(group: dist.ProcessGroup) -> list[torch.device]:
    """The kinds of devices whose tensors a group carries."""
    return list(group._device_types)


def device_of_messages(group: dist.ProcessGroup | None) -> torch.device:
    """Where a tensor has to be for this group to carry it: the CPU if it can be there, else this rank's GPU."""
    kinds = devices_of(dist.group.WORLD if group is None else group)  # type: ignore[arg-type]
    cpu = torch.device("cpu")
    return cpu if cpu in kinds or not kinds else torch.device(kinds[0].type)


def batching(carrier: Any, where: torch.device) -> tuple[Any, Any] | None:
    """How a batch of messages is started and ended on a group or a backend; None where each starts by itself."""
    if isinstance(carrier, dist.ProcessGroup):
        ours = type(carrier)._start_coalescing is not dist.ProcessGroup._start_coalescing
        if not ours and not getattr(backend_of(carrier, where), "supports_coalescing", False):
            return None
        start, end = carrier._start_coalescing, carrier._end_coalescing
        return functools.partial(start, where), functools.partial(end, where)
    if not getattr(carrier, "supports_coalescing", False):
        return None
    return carrier._start_coalescing, carrier._end_coalescing


def joining(wrapper: Joinable) -> bool:
    """Whether we are inside torch's Join with this wrapper (or optimizer)."""
    return wrapper._join_config.enable


def joins_first(wrapper: Joinable) -> bool:
    """Whether it is the first in the list that Join was given."""
    return wrapper._join_config.is_first_joinable


def own_client(store: dist.Store) -> dist.Store:
    """The same store by a connection of its own, so that one thread's long wait holds up no other's."""
    return store.clone()  # type: ignore[attr-defined]


def default_store() -> Any:
    """The store in which the ranks of the default group have met, without the group's own prefix."""
    store = c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def factor_of(op: Any) -> float | None:
    """The factor of an op of torch's _make_nccl_premul_sum; None where it has none. `op.factor` came with 2.13."""
    if not isinstance(op, dist.ReduceOp):
        return None
    state = op.__getstate__()
    return state[1] if isinstance(state, tuple) and len(state) > 1 else None


def let_monitored_barrier_through(*kinds: type[dist.ProcessGroup]) -> None:
    """Makes dist.monitored_barrier call the method of groups of these kinds; torch takes only those named "gloo".

    It is put in front of torch's own function, which goes on serving all other groups. A second call changes nothing.
    """
    torchs = c10d.monitored_barrier
    if hasattr(torchs, "kinds"):
        return

    @functools.wraps(torchs)
    def monitored_barrier(
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | float | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        here = dist.group.WORLD if group is None else group
        if not isinstance(here, kinds):
            return torchs(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return cast(Any, here).monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.kinds = kinds  # type: ignore[attr-defined]
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
