"""Names of PyTorch that are not public and that the course needs, in one place, and names that have changed.

PyTorch may move them in any release. tests/test_torch_private.py then says which one, and what here stands on it;
tests/repository/test_private_names.py finds those that are used anywhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._ops import OpOverload
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Joinable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtcourse import device

__all__ = [
    "OpOverload",
    "TorchDispatchMode",
    "tree_leaves",
]  # as they are, and what is defined below

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
    for kind in devices_of(group):
        backend = backend_of(group, kind)
        if isinstance(backend, c10d.ProcessGroupNCCL):
            return backend
    return None


def devices_of(group: dist.ProcessGroup) -> list[torch.device]:
    """The kinds of devices whose tensors a group carries."""
    return list(group._device_types)


def joining(wrapper: Joinable) -> bool:
    """Whether we are inside torch's Join with this wrapper (or optimizer)."""
    return wrapper._join_config.enable


def joins_first(wrapper: Joinable) -> bool:
    """Whether it is the first in the list that Join was given."""
    return wrapper._join_config.is_first_joinable


def own_client(store: dist.Store) -> dist.Store:
    """The same store by a connection of its own, so that one thread's long wait holds up no other's."""
    return store.clone()  # type: ignore[attr-defined]


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


# --- collectives by their newest names -------------------------------------------------------------------------

# torch 2.13 has new names and warns of the older ones, which older versions have. The arguments are the same: one
# tensor of p parts in rank order, and one part.
_OLDER = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def collective(module: Any, name: str) -> Callable[..., Any] | None:
    """The collective `name` of a module that has torch.distributed's names, new or old; None where it has neither."""
    return getattr(module, name, None) or getattr(module, _OLDER.get(name, name), None)


# Every torch has one of the two names.
all_gather_single: Any = collective(dist, "all_gather_single")
reduce_scatter_single: Any = collective(dist, "reduce_scatter_single")


# --- what a tensor is ------------------------------------------------------------------------------------------

# What a class of tensors has that leaves dispatching alone.
_PLAIN = (torch._C._disabled_torch_dispatch_impl, torch.Tensor.__torch_dispatch__)


def is_plain(kind: type) -> bool:
    """Whether tensors of this class are nothing but tensors: no DTensor, no fake one, which handle operations themselves."""
    return getattr(kind, "__torch_dispatch__", None) in _PLAIN


def is_fake(kind: type) -> bool:
    """Whether this is the class of the tensors by which PyTorch works out shapes."""
    return kind.__name__ == "FakeTensor"


def fake_tensors() -> Any:
    """A context in which tensors have shapes and no data. Its import takes a while, so it waits until it is needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of; None where it is none."""
    return tensor._base


def version_of(tensor: torch.Tensor) -> int:
    """How often it has been changed in place, itself or through a view."""
    return tensor._version


def make_subclass(kind: type, tensor: torch.Tensor) -> Any:
    """A tensor of class `kind` that shares the memory of `tensor`."""
    return torch.Tensor._make_subclass(kind, tensor)


def dtensor_like(dtensor: Any, local: torch.Tensor) -> Any:
    """A DTensor laid out as `dtensor` is, of another local part; DTensor.from_local would work its layout out anew."""
    return type(dtensor)(local, dtensor._spec, requires_grad=False)


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The indices and values of a sparse tensor, coalesced or not; none of another layout."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else ()


# Inside, tensors of subclasses are treated as plain ones: their __torch_function__ is not called.
as_plain_tensors: Any = torch._C.DisableTorchFunctionSubclass


def shared_versions() -> Any:
    """A context in which detach() gives a tensor that counts changes together with its original, as above autograd."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False)


def check_finite_and_multiply_(
    tensors: list[torch.Tensor], factor: float, device: torch.device
) -> torch.Tensor:
    """Multiplies tensors of one dtype in place. float32, on `device`: 1.0 where a number of them was not finite, else 0.0."""
    found, by = torch.zeros((), device=device), torch.full((), factor, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, by)
    return found


# --- what an operation is --------------------------------------------------------------------------------------

FOREACH_NORMS = (torch._foreach_norm, torch._amp_foreach_non_finite_check_and_unscale_)
ADDMM_ACTIVATION = torch.ops.aten._addmm_activation
FLASH_ATTENTION_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_ATTENTION_ON_CPU_BACKWARD = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
)


def count_grouped_mm() -> None:
    """Has torch's FlopCounterMode count F.grouped_mm, which its own table leaves out and takes for nothing."""
    from torch.utils.flop_counter import (
        flop_registry,
        register_flop_formula,
    )  # not each rank wants it

    operation = torch.ops.aten._grouped_mm
    if operation not in flop_registry:

        @register_flop_formula(operation)  # type: ignore[untyped-decorator]
        def flops(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
            """Each row of a, or each column where all are summed, times each column of b."""
            return 2 * a.numel() * b[-1]


def packet_of(operation: Any) -> Any:
    """aten.add of aten.add.Tensor, say."""
    return operation._overloadpacket


def schema_of(operation: Any) -> Any:
    """Names and types of what it takes and gives, and what of that it changes."""
    return operation._schema


# --- what a module holds ---------------------------------------------------------------------------------------

BATCH_NORM = nn.modules.batchnorm._BatchNorm  # of which all kinds of it are


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Its own ones by attribute, without those of its children; what is written here is set."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Its own ones by attribute, without those of its children; what is written here is set."""
    return module._buffers


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Its children by attribute; what is written here is set."""
    return module._modules


def is_persistent(module: nn.Module, buffer: str) -> bool:
    """Whether state_dict() has the module's own buffer of that name."""
    return buffer not in module._non_persistent_buffers_set


def stop_workers(batches: Any) -> None:
    """Ends the worker processes of a DataLoader's iterator; AttributeError where it has none."""
    batches._shutdown_workers()


class AsksBeforeConversion:
    """Put before nn.Module among a class's bases: `before_conversion` hears of .to(), .half() and the like, and may refuse."""

    def before_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
        """fn: what each parameter and buffer would be replaced by;  recurse: those of the children too."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        self.before_conversion(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[misc]


# --- where we are ----------------------------------------------------------------------------------------------


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass (so also in hooks, and in what a checkpoint recomputes)."""
    return backward_pass() != -1


def backward_pass() -> int:
    """The number of the backward pass that the calling thread is inside of; a reentrant checkpoint runs one of its own."""
    return torch._C._current_graph_task_id()


def after_backward(callback: Callable[[], Any]) -> None:
    """Calls back when the whole backward pass that the calling thread is inside of is done."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]


def saves_through_hooks() -> bool:
    """Whether what a forward saves goes through torch.autograd.graph.saved_tensors_hooks, as in a checkpoint."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # type: ignore[attr-defined]


def gradient_hooks(parameter: torch.Tensor) -> list[Callable[..., Any]]:
    """What register_post_accumulate_grad_hook has set on a parameter."""
    return list((parameter._post_accumulate_grad_hooks or {}).values())  # type: ignore[attr-defined]


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


# --- schedules of pipelines ------------------------------------------------------------------------------------


def pipeline_order(
    name: str, ranks: int, micro_batches: int, chunks: int = 1
) -> list[list[tuple[int, str, int]]]:
    """By rank, the (stage, kind, micro-batch) of a schedule of torch.distributed.pipelining, without bubbles or messages.

    name: the class's ("ScheduleGPipe"); kinds are F, B, I, W. OVERLAP_F_B is given as its two parts.
    """
    from torch.distributed.pipelining import schedules

    # Not constructed: that takes stages, which take a process group.
    order: Any = object.__new__(getattr(schedules, name))
    vars(order).update(
        _num_stages=ranks * chunks,
        num_stages=ranks * chunks,
        _n_microbatches=micro_batches,
        _stages=[None] * chunks,
        n_local_stages=chunks,
        pp_group_size=ranks,
        number_of_rounds=max(1, micro_batches // ranks),
        microbatches_per_round=micro_batches // max(1, micro_batches // ranks),
    )
    if isinstance(order, schedules.PipelineScheduleSingle):
        listed: Any = order._get_pipeline_order()
    else:
        listed = {}
        for rank in range(ranks):
            order.rank = rank
            listed[rank] = order._calculate_single_rank_operations(rank)
    found: list[list[tuple[int, str, int]]] = []
    for rank in range(ranks):
        actions: list[Any] = [
            part for one in listed[rank] if one for part in one.sub_actions or (one,)
        ]
        found.append(
            [
                (one.stage_index, one.computation_type.value, one.microbatch_index)
                for one in actions
                if one.computation_type.value in "FBIW"
            ]
        )
    return found
