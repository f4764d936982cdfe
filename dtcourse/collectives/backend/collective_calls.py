# ruff: noqa: A002 -- `input` is torch's name for it
# mypy: disable-error-code="override, assignment, call-arg"
# torch's stubs describe the C++ class; a Python subclass is constructed and called otherwise.
"""The methods that torch calls on a process group, each as one of our collectives.

Every one that moves data is here or in process_group.py (torch_private.DATA_METHODS): what is left out would run,
silently, on the inner group. Each makes torch's arguments plain, and says in words what the ranks must agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.collectives.backend import arguments, table
from dtcourse.collectives.wire.guard import Guard
from dtcourse.collectives.wire.work import CollectiveWork


class CollectiveCalls(dist.ProcessGroup):
    """Collectives as torch calls them. What runs them is process_group.py's."""

    backend: str
    guard: Guard
    _run: Callable[..., CollectiveWork]  # process_group.py

    def _algorithm(self, collective: str) -> Callable[..., Any]:
        return table.algorithm(self.backend, collective)

    def _root(self, options: Any) -> str:
        if not 0 <= options.rootRank < self.size():
            raise ValueError(
                f"root rank {options.rootRank}: the group has ranks 0 to {self.size() - 1}"
            )
        return f"root {self.guard.name(options.rootRank)}"

    # --- one tensor, on every rank the same size ---

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, op = arguments.single(tensors), arguments.reduce_op(opts, more)
        run = self._algorithm("all_reduce")
        return self._run(
            "all_reduce",
            f"all_reduce of {arguments.words(tensor)} ({arguments.op_name(op)})",
            [tensor],
            lambda: run(tensor, op, group=self),
            opts,
        )

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> CollectiveWork:
        op = arguments.reduce_op(opts, {})
        run = self._algorithm("all_reduce")
        return self._run(
            "all_reduce",
            f"all_reduce of {arguments.words(*tensors)} ({arguments.op_name(op)})",
            list(tensors),
            lambda: [run(t, op, group=self) for t in tensors],
            opts,
        )

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor = arguments.single(tensors)
        opts = arguments.with_root(opts, more, dist.BroadcastOptions)
        run = self._algorithm("broadcast")
        return self._run(
            "broadcast",
            f"broadcast of {arguments.words(tensor)}, {self._root(opts)}",
            [tensor],
            lambda: run(tensor, group_src=opts.rootRank, group=self),
            opts,
        )

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor = arguments.single(tensors)
        opts = arguments.with_root(opts, more, dist.ReduceOptions)
        run = self._algorithm("reduce")
        return self._run(
            "reduce",
            f"reduce of {arguments.words(tensor)} ({arguments.op_name(opts.reduceOp)}), {self._root(opts)}",
            [tensor],
            lambda: run(tensor, op=opts.reduceOp, group_dst=opts.rootRank, group=self),
            opts,
        )

    # --- all-gather ---

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> CollectiveWork:
        outputs, tensor = arguments.single_list(outputs), arguments.single(inputs)
        run = self._algorithm("all_gather")
        return self._run(
            "all_gather",
            f"all_gather of {arguments.words(tensor)}",
            outputs,
            lambda: run(outputs, tensor, group=self),
            opts,
        )

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        """output_lists[rank][i] receives that rank's inputs[i]."""
        run = self._algorithm("all_gather")
        return self._run(
            "all_gather",
            f"all_gather of {arguments.words(*inputs)}",
            [t for outputs in output_lists for t in outputs],
            lambda: [
                run([outputs[i] for outputs in output_lists], t, group=self)
                for i, t in enumerate(inputs)
            ],
            opts,
        )

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        run = self._algorithm("all_gather_single")
        return self._run(
            "all_gather",
            f"all_gather of {arguments.words(*inputs)}",
            list(outputs),
            lambda: [run(o, i, group=self) for o, i in zip(outputs, inputs, strict=True)],
            opts,
        )

    # --- reduce-scatter ---

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, **more: Any
    ) -> CollectiveWork:
        output, parts = arguments.single(outputs), arguments.single_list(inputs)
        op = arguments.reduce_op(opts, more)
        run = self._algorithm("reduce_scatter")
        return self._run(
            "reduce_scatter",
            f"reduce_scatter of {arguments.words(*parts)} ({arguments.op_name(op)})",
            [output],
            lambda: run(output, parts, op=op, group=self),
            opts,
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        op = arguments.reduce_op(opts, {})
        run = self._algorithm("reduce_scatter_single")
        return self._run(
            "reduce_scatter",
            f"reduce_scatter of {arguments.words(*inputs)} ({arguments.op_name(op)})",
            list(outputs),
            lambda: [run(o, i, op=op, group=self) for o, i in zip(outputs, inputs, strict=True)],
            opts,
        )

    # --- one root, many parts ---

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = arguments.single(inputs), arguments.with_root(opts, more, dist.GatherOptions)
        parts = arguments.single_list(outputs) if self.rank() == opts.rootRank else None
        run = self._algorithm("gather")
        return self._run(
            "gather",
            f"gather of {arguments.words(tensor)}, {self._root(opts)}",
            parts or [],
            lambda: run(tensor, parts, group_dst=opts.rootRank, group=self),
            opts,
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor = arguments.single(outputs)
        opts = arguments.with_root(opts, more, dist.ScatterOptions)
        parts = arguments.single_list(inputs) if self.rank() == opts.rootRank else None
        run = self._algorithm("scatter")
        return self._run(
            "scatter",
            f"scatter of {arguments.words(tensor)}, {self._root(opts)}",
            [tensor],
            lambda: run(tensor, parts, group_src=opts.rootRank, group=self),
            opts,
        )

    # --- all-to-all ---

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> CollectiveWork:
        run = self._algorithm("all_to_all")
        return self._run(
            "all_to_all",
            f"all_to_all of {arguments.dtypes(*inputs)}",  # sizes may differ from pair to pair
            list(outputs),
            lambda: run(outputs, inputs, group=self),
            opts,
            lambda: ([t.numel() for t in inputs], [t.numel() for t in outputs]),
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        **_: Any,
    ) -> CollectiveWork:
        run = self._algorithm("all_to_all_single")
        even = not output_split_sizes and not input_split_sizes
        sizes = (
            arguments.elements(input, input_split_sizes, self.size()),
            arguments.elements(output, output_split_sizes, self.size()),
        )
        return self._run(
            "all_to_all",
            f"all_to_all of {arguments.words(input) if even else arguments.dtypes(input)}",
            [output],
            lambda: run(
                output,
                input,
                list(output_split_sizes) or None,
                list(input_split_sizes) or None,
                group=self,
            ),
            opts,
            lambda: sizes,
        )

    # --- no data ---

    def barrier(self, opts: Any = None, **_: Any) -> CollectiveWork:
        run = self._algorithm("barrier")
        return self._run("barrier", "barrier", [], lambda: run(group=self), opts)

    # --- torch's older names for the same ---

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
