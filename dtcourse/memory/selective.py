"""Selective recompute: a checkpointed region that keeps what is dear to compute and cheap to hold.

    checkpoint(block, x, policy=MATMULS)           # keep the results of matrix products, recompute the rest

Recomputing everything costs a second forward. But operations differ: the softmax and dropout of attention cost few
operations and hold S x S numbers a head, matrix products cost many operations and hold little. So keep the products'
outputs and recompute the rest. Source: Korthikanti et al., arXiv 2205.05198, section 5; the shape of PyTorch's
create_selective_checkpoint_contexts.

During forward a dispatch mode sees every operation below autograd and keeps the outputs that the policy wants. During
the recompute another one hands them out in the same order in place of running the operation.
Memory: the kept outputs, in addition to the region's inputs. Compute: a forward less the kept operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from dtcourse.plural import plural
from dtcourse.torch_private import OpOverload, TorchDispatchMode, shared_versions, version_of

aten = torch.ops.aten

# What a policy may be: operations to keep, or PyTorch's policy function (context, operation, *args, **kwargs).
Policy = Collection[Any] | Callable[..., CheckpointPolicy | bool]

MATMULS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
    }
)

# The hooks of autograd detach a different number of times in forward and in the recompute.
IGNORED = frozenset({aten.detach.default})


class CheckpointError(RuntimeError):
    """The recompute did something else than forward did."""


class KeptOutputs:
    """What one checkpointed region keeps: outputs of operations, by operation and turn.

    policy: see Policy. ValueError for an overload packet (aten.mm in place of aten.mm.default) or anything else that
    is no operation.
    """

    def __init__(self, policy: Policy) -> None:
        self._wanted = policy if callable(policy) else _policy_of_list(policy)
        self._kept: dict[Any, list[_KeptOutput | None]] = defaultdict(list)

    def recording(self) -> TorchDispatchMode:
        """The mode for forward."""
        return RecordOutputs(self._wants, self._kept)

    def replaying(self) -> TorchDispatchMode:
        """The mode for one recompute."""
        return ReplayOutputs(self._kept)

    def _wants(self, operation: Any, output: Any, args: Any, kwargs: Any) -> bool:
        context = SelectiveCheckpointContext(is_recompute=False, op_output=output)
        answer = self._wanted(context, operation, *args, **kwargs)
        if answer in (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD):
            raise ValueError(
                f"the policy wants {operation} offloaded: keep or recompute it here, and see "
                "dtcourse.memory.offload_activations for host memory"
            )
        return answer in (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


class RecordOutputs(TorchDispatchMode):
    """Runs every operation, and keeps the outputs that are wanted."""

    def __init__(
        self, wants: Callable[..., bool], kept: dict[Any, list[_KeptOutput | None]]
    ) -> None:
        super().__init__()
        self._wants, self._kept = wants, kept

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = operation(*args, **kwargs)
        if operation not in IGNORED:
            keep = self._wants(operation, output, args, kwargs)
            self._kept[operation].append(_KeptOutput(output) if keep else None)
        return output


class ReplayOutputs(TorchDispatchMode):
    """Hands out what was kept, in the same order, and runs the other operations."""

    def __init__(self, kept: dict[Any, list[_KeptOutput | None]]) -> None:
        super().__init__()
        self._kept = kept
        self._turn: dict[Any, int] = defaultdict(int)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None) -> Any:
        if operation in IGNORED:
            return operation(*args, **(kwargs or {}))
        turn = self._turn[operation]
        self._turn[operation] += 1
        if turn >= len(self._kept[operation]):
            raise CheckpointError(
                f"the recompute calls {operation} for the {turn + 1}. time; forward called it "
                f"{plural(turn, 'time')}: the function must do the same both times"
            )
        kept = self._kept[operation][turn]
        return operation(*args, **(kwargs or {})) if kept is None else kept.output(operation)


class _KeptOutput:
    """One operation's output, and the version it had."""

    def __init__(self, output: Any) -> None:
        self._many = not isinstance(output, torch.Tensor)
        tensors = [_detached(t) for t in (output if self._many else (output,))]
        self._tensors = [(t, None if t is None else version_of(t)) for t in tensors]

    def output(self, operation: Any) -> Any:
        for tensor, version in self._tensors:
            if tensor is not None and version_of(tensor) != version:
                raise CheckpointError(
                    f"the output of {operation}, which the policy keeps, was changed in place afterwards: leave "
                    "the operation to the recompute, or change a copy"
                )
        # New tensors each time: autograd makes what it gets here part of the recompute's graph, which holds the region.
        tensors = tuple(None if t is None else t.detach() for t, _ in self._tensors)
        return tensors if self._many else tensors[0]


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same values without the graph, which would hold this region, which would hold the graph."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    # Below autograd a detached tensor counts its versions alone; with this guard it shares the count, so a later
    # change in place is seen. PyTorch's checkpoint does the same.
    with shared_versions():
        return tensor.detach()


def _policy_of_list(operations: Collection[Any]) -> Callable[..., bool]:
    for operation in operations:
        if not isinstance(operation, OpOverload):
            hint = (
                f": write {operation}.default" if "OpOverloadPacket" in str(type(operation)) else ""
            )
            raise ValueError(
                f"a policy lists operations such as torch.ops.aten.mm.default; got {operation!r}{hint}"
            )
    wanted = frozenset(operations)
    return lambda context, operation, *args, **kwargs: operation in wanted
