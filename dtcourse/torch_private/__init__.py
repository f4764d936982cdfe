"""Names of PyTorch that are not public and that the course needs, in one place, and names that have changed.

    groups.py       what a process group has to answer
    meshes.py       what the groups of a mesh say of themselves
    checkpoints.py  how a checkpoint lays out nests
    collectives.py  collectives by their newest names; a Future that can fail; Works; connections; groups of no backend
    tensors.py      what a tensor is
    shapes.py       tensors that are shapes alone beside whole numbers that are real
    operations.py   what an operation is
    optimizers.py   what a GradScaler and an optimizer say to each other
    modules.py      what a module holds
    loaders.py      what a DataLoader's iterators are
    backward.py     where in a forward or a backward we are
    process.py      what is set for a whole process
    stores.py       who hosts the store at an address
    watching.py     what all groups do, seen from outside
    pipelines.py    the orders of torch.distributed.pipelining's schedules

PyTorch may move them in any release. tests/test_torch_private.py then says which one, and what here stands on it;
tests/repository/test_private_names.py finds those that are used anywhere else.
"""

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_leaves

from dtcourse.torch_private.backward import (
    after_backward,
    backward_pass,
    comm_hooks_of,
    forward_of_torchs_wrapper,
    gradient_hooks,
    in_backward,
    saves_through_hooks,
)
from dtcourse.torch_private.checkpoints import nests_again
from dtcourse.torch_private.collectives import (
    GroupWithoutBackend,
    all_gather_single,
    close_connections,
    collective,
    future_of,
    reduce_scatter_single,
    work_of,
)
from dtcourse.torch_private.groups import (
    CREATOR_FIELDS,
    DATA_METHODS,
    OTHER_METHODS,
    attach,
    backend_of,
    batching,
    default_store,
    device_of_messages,
    devices_of,
    factor_of,
    gloo_group,
    gpu_backend_of,
    joining,
    joins_first,
    let_monitored_barrier_through,
    nccl_group,
    own_client,
    torch_group,
)
from dtcourse.torch_private.loaders import (
    LoaderIterator,
    stop_workers,
)
from dtcourse.torch_private.meshes import (
    axis_of_mesh,
)
from dtcourse.torch_private.modules import (
    BATCH_NORM,
    AsksBeforeConversion,
    is_persistent,
    own_buffers,
    own_modules,
    own_parameters,
)
from dtcourse.torch_private.operations import (
    ADDMM_ACTIVATION,
    DEVICE_OF,
    FLASH_ATTENTION_ON_CPU,
    FLASH_ATTENTION_ON_CPU_BACKWARD,
    FOREACH_NORMS,
    FUSED_ATTENTION_BACKWARD,
    count_grouped_mm,
    packet_of,
    schema_of,
)
from dtcourse.torch_private.optimizers import (
    let_scaler_step,
    said_by_scaler,
    scaler_steps,
    step_under_scaler,
)
from dtcourse.torch_private.pipelines import (
    pipeline_order,
)
from dtcourse.torch_private.process import (
    flight_dump,
    groups_of_process,
    set_timeout,
    settings_of_process,
)
from dtcourse.torch_private.shapes import (
    needs_values,
    without_values,
)
from dtcourse.torch_private.stores import host_own_stores, wait_for
from dtcourse.torch_private.tensors import (
    address_of,
    as_plain_tensors,
    assert_later,
    base_of,
    check_finite_and_multiply_,
    dtensor_like,
    fake_tensors,
    hooks_on_gradient,
    is_fake,
    is_plain,
    make_subclass,
    set_local,
    shared_versions,
    sparse_parts,
    strided_shard,
    version_of,
)
from dtcourse.torch_private.watching import FROM_CPP, Watcher, watch_groups

__all__ = [
    "ADDMM_ACTIVATION",
    "BATCH_NORM",
    "CREATOR_FIELDS",
    "DATA_METHODS",
    "DEVICE_OF",
    "FLASH_ATTENTION_ON_CPU",
    "FLASH_ATTENTION_ON_CPU_BACKWARD",
    "FOREACH_NORMS",
    "FROM_CPP",
    "FUSED_ATTENTION_BACKWARD",
    "OTHER_METHODS",
    "AsksBeforeConversion",
    "GroupWithoutBackend",
    "LoaderIterator",
    "OpOverload",
    "TorchDispatchMode",
    "Watcher",
    "address_of",
    "after_backward",
    "all_gather_single",
    "as_plain_tensors",
    "assert_later",
    "attach",
    "axis_of_mesh",
    "backend_of",
    "backward_pass",
    "base_of",
    "batching",
    "check_finite_and_multiply_",
    "close_connections",
    "collective",
    "comm_hooks_of",
    "count_grouped_mm",
    "default_store",
    "device_of_messages",
    "devices_of",
    "dtensor_like",
    "factor_of",
    "fake_tensors",
    "flight_dump",
    "forward_of_torchs_wrapper",
    "future_of",
    "gloo_group",
    "gpu_backend_of",
    "gradient_hooks",
    "groups_of_process",
    "hooks_on_gradient",
    "host_own_stores",
    "in_backward",
    "is_fake",
    "is_persistent",
    "is_plain",
    "joining",
    "joins_first",
    "let_monitored_barrier_through",
    "let_scaler_step",
    "make_subclass",
    "nccl_group",
    "needs_values",
    "nests_again",
    "own_buffers",
    "own_client",
    "own_modules",
    "own_parameters",
    "packet_of",
    "pipeline_order",
    "reduce_scatter_single",
    "said_by_scaler",
    "saves_through_hooks",
    "scaler_steps",
    "schema_of",
    "set_local",
    "set_timeout",
    "settings_of_process",
    "shared_versions",
    "sparse_parts",
    "step_under_scaler",
    "stop_workers",
    "strided_shard",
    "torch_group",
    "tree_leaves",
    "version_of",
    "wait_for",
    "watch_groups",
    "without_modes",
    "without_values",
    "work_of",
]
