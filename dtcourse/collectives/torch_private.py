"""Every name of PyTorch that is not public and that the collectives need, in one place.

PyTorch may move them in any release. tests/collectives/test_torch_private.py then says which one, and what here
stands on it; no other file of this package has to be touched.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse import device

# --- what a process group has to answer ------------------------------------------------------------------------

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
    Python subclass can intercept end there. All calls in use today can be intercepted: tests/collectives/test_backend.py proves it.
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
    for kind in group._device_types:
        backend = backend_of(group, kind)
        if isinstance(backend, c10d.ProcessGroupNCCL):
            return backend
    return None


def own_client(store: dist.Store) -> dist.Store:
    """The same store by a connection of its own, so that one thread's long wait holds up no other's."""
    return store.clone()  # type: ignore[attr-defined]


def factor_of(op: Any) -> float | None:
    """The factor of an op of torch's _make_nccl_premul_sum; None where it has none. `op.factor` came with 2.13."""
    if not isinstance(op, dist.ReduceOp):
        return None
    state = op.__getstate__()
    return state[1] if isinstance(state, tuple) and len(state) > 1 else None


# --- where we are ----------------------------------------------------------------------------------------------


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass (so also in hooks, and in what a checkpoint recomputes)."""
    return torch._C._current_graph_task_id() != -1


# --- a failed collective ---------------------------------------------------------------------------------------


def future_of(value: list[torch.Tensor]) -> tuple[torch.futures.Future, Any]:
    """A Future for torch's C++ (DDP waits on it, and takes the reduced bucket from it) and its trigger.

    `trigger(error)` completes it: with `value` where error is None, else as a failure. A failure has to be raised by
    a function that `then` calls: an exception that is set with `set_exception` reads as success in C++.
    """
    ready: torch.futures.Future = torch.futures.Future()
    errors: list[BaseException | None] = []

    def outcome(_: torch.futures.Future) -> list[torch.Tensor]:
        if errors[0] is not None:
            raise errors[0]
        return value

    def trigger(error: BaseException | None) -> None:
        errors.append(error)
        ready.set_result(None)

    return ready.then(outcome), trigger
