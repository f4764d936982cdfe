# mypy: disable-error-code="override, assignment, call-arg"
# torch's stubs describe the C++ class; a Python subclass is constructed and called otherwise.
"""A process group of torch.distributed whose collectives are ours.

It answers every call that moves data (torch_private.DATA_METHODS): what is left out would run, silently, on the inner
group. Collectives are numbered and run in order by the group's worker (wire/work.py). Their messages go through the group's
channel to an inner gloo (or NCCL) group, which sees nothing but send and recv. A failure on one rank raises on all
(wire/guard.py).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, torch_private
from dtcourse.collectives import running, traffic
from dtcourse.collectives.backend import arguments, table
from dtcourse.collectives.backend.monitored_barrier import meet
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.wire.channel import Channel
from dtcourse.collectives.wire.guard import Guard, Splits, unwatch
from dtcourse.collectives.wire.work import CollectiveWork, Worker


class AlgorithmGroup(dist.ProcessGroup):
    """A process group whose collectives are ours.

    .channel  its messages (p2p uses it)
    .inner    the gloo group that carries them
    """

    def __init__(
        self,
        backend: str,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        global_ranks: list[int],
    ) -> None:
        super().__init__(rank, size)
        self.backend = backend
        self.store, self._timeout = store, timeout
        self._meetings = 0  # monitored barriers so far
        self.inner = torch_private.gloo_group(dist.PrefixStore("inner", store), rank, size, timeout)
        torch_private.attach(self, torch.device("cpu"), self.inner)
        gpu = None
        if _gpu_for_each_rank():
            gpu = torch_private.nccl_group(dist.PrefixStore("gpu", store), rank, size, timeout)
            torch_private.attach(self, device.current(), gpu)
        elif device.count():
            torch_private.attach(self, device.current(), self.inner)
        self._use(self.inner, gpu, global_ranks)

    def _use(self, host: Any, gpu: Any, global_ranks: list[int]) -> None:
        """Sends by these from here on."""
        watching = dist.PrefixStore("guard", torch_private.own_client(self.store))
        self.guard = Guard(host, watching, self.rank(), self.size(), global_ranks)
        self.channel = Channel(host, self.rank(), global_ranks, gpu, self.guard)
        self._worker = Worker(f"{self.backend}-{'-'.join(map(str, global_ranks[:8]))}")

    # --- how every collective runs ---

    def _run(
        self,
        name: str,
        what: str,
        tensors: list[torch.Tensor],
        steps: Callable[[], Any],
        options: Any = None,
        splits: Callable[[], Splits] | None = None,
    ) -> CollectiveWork:
        """Runs `steps` as the collective `name`.

        what:    all that the ranks must agree on, in words
        tensors: where the result will be
        splits:  elements to and from each rank, for an all-to-all
        """
        phase = traffic.current_phase()
        traffic.called(Label(name, phase))
        now = getattr(options, "asyncOp", True) is False

        def collective(number: int) -> None:
            if self.guard.failure is not None:
                raise self.guard.failure
            # The number and the words go into the tag of every message: see wire/channel.py.
            salt = zlib.crc32(f"{number} {what}".encode()) | 1
            sizes = splits() if splits is not None else None
            self.guard.begin(f"call {number} of the group's collectives", what, sizes)
            try:
                with (
                    running.inside(),
                    running.recorded(name, tensors, phase=phase, backend=self.backend),
                    traffic.labelled(Label(name, phase, salt)),
                ):
                    steps()
            except BaseException as error:
                raise self.guard.fail(error, name) from None
            finally:
                self.guard.end()

        return self._worker.submit(CollectiveWork(name, tensors), collective, now, numbered=True)

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
        tensor, opts = (
            arguments.single(tensors),
            arguments.with_root(opts, more, dist.BroadcastOptions),
        )
        run = self._algorithm("broadcast")
        return self._run(
            "broadcast",
            f"broadcast of {arguments.words(tensor)}, {self._root(opts)}",
            [tensor],
            lambda: run(tensor, group_src=opts.rootRank, group=self),
            opts,
        )

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = (
            arguments.single(tensors),
            arguments.with_root(opts, more, dist.ReduceOptions),
        )
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
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
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
        output, parts, op = (
            arguments.single(outputs),
            arguments.single_list(inputs),
            arguments.reduce_op(opts, more),
        )
        run = self._algorithm("reduce_scatter")
        return self._run(
            "reduce_scatter",
            f"reduce_scatter of {arguments.words(*parts)} ({arguments.op_name(op)})",
            [output],
            lambda: run(output, parts, op=op, group=self),
            opts,
        )

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
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
        tensor, opts = (
            arguments.single(outputs),
            arguments.with_root(opts, more, dist.ScatterOptions),
        )
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
        input: torch.Tensor,  # noqa: A002
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

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names the ranks that did not come within `timeout` (the group's, where none is given)."""
        patience = self._timeout if timeout is None else timeout
        self._meetings += 1
        place = f"monitored_barrier/{self._meetings}"
        # A connection of its own: the guard's may not be kept waiting, nor the caller's.
        store = dist.PrefixStore(place, torch_private.own_client(self.store))

        def steps() -> None:
            ranks = self.channel.global_ranks
            meet(store, self.rank(), ranks, patience, wait_all_ranks, lambda: self.guard.failure)

        self._run("monitored_barrier", "monitored_barrier", [], steps).wait()

    # --- messages: posted at once, not in the collectives' order ---

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self.channel.isend(arguments.message(tensors, self.rank()), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self.channel.irecv(arguments.message(tensors, self.rank()), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.channel.irecv(arguments.message(tensors, self.rank()), None, tag)

    # --- torch's older names for the same ---

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- the group itself ---

    def getBackendName(self) -> str:
        return self.backend

    def get_group_store(self) -> dist.Store:
        return self.store

    def shutdown(self) -> None:
        """Ends the worker after what is queued; destroy_process_group calls it."""
        unwatch(self.guard)
        self._worker.stop()

    def abort(self) -> None:
        """Closes all connections: whatever waits on them, on any rank, raises."""
        self.guard.fail(RuntimeError("the group was aborted"), "abort")


def _gpu_for_each_rank() -> bool:
    """Whether every rank of this machine has a GPU of its own, so that NCCL can be used."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    return (
        dist.is_nccl_available()
        and device.is_gpu(device.current())
        and 0 < ranks_here <= device.count()
    )
