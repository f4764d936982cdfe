"""The algorithms as backends of torch.distributed: PyTorch's own DDP and FSDP run on them, and know nothing of it.

    run = launch(train, 4, backend="ring")               # form_group does what follows, in each rank

    backend.register()
    dist.init_process_group("ring", ...)
    dist.all_reduce(x)                                   # ring.all_reduce(x), on send and receive alone
    DistributedDataParallel(model)                       # its buckets travel round the ring

A backend is a subclass of ProcessGroup that answers every call which moves data (torch_private.DATA_METHODS). Calls
are numbered and run in order by the group's worker (work.py), their messages go through the group's channel to an
inner gloo (or NCCL) group that sees nothing but send and recv, and a failure on one rank raises on all (guard.py).
"""

from __future__ import annotations

import importlib
import os
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.collectives import network as networks
from dtcourse.collectives import torch_private, traffic
from dtcourse.collectives.channel import Channel
from dtcourse.collectives.guard import Guard, Splits, unwatch
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.work import CollectiveWork, Worker

# For each backend, the modules that are asked for an algorithm, in this order.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "naive": ("naive",),
    "ring": ("ring", "tree", "pairwise", "naive"),
    "tree": ("tree", "ring", "pairwise", "naive"),
    "halving_doubling": ("halving_doubling", "tree", "ring", "pairwise", "naive"),
    "hierarchical": ("hierarchical", "tree", "ring", "pairwise", "naive"),
}


def choices() -> list[str]:
    """Names of our backends, for launch(backend=...) and dist.init_process_group."""
    return list(ALGORITHMS)


def algorithm(backend: str, collective: str) -> Callable[..., Any]:
    """The function that a backend runs for a collective: algorithm("ring", "all_reduce") is ring.all_reduce."""
    for name in ALGORITHMS[backend]:
        module = importlib.import_module(f"dtcourse.collectives.{name}")
        if hasattr(module, collective):
            return getattr(module, collective)
    raise NotImplementedError(f"no algorithm of the {backend} backend does {collective}")


def register() -> None:
    """Makes our backends known to torch.distributed under their names. Calling it again changes nothing."""
    from dtcourse.collectives.instrumented import InstrumentedGroup

    creators: dict[str, Callable[..., Any]] = {
        name: _creator(AlgorithmGroup, name) for name in ALGORITHMS
    }
    for name in ("gloo", "nccl"):
        creators[f"instrumented_{name}"] = _creator(InstrumentedGroup, name)
    for name, creator in creators.items():
        if not hasattr(dist.Backend, name.upper()):
            dist.Backend.register_backend(name, creator, extended_api=True, devices=["cpu", "cuda"])


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


def _creator(group: type[dist.ProcessGroup], name: str) -> Callable[..., Any]:
    def create(options: Any, _: Any) -> dist.ProcessGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        return group(
            name, options.store, options.group_rank, options.group_size, options.timeout, ranks
        )

    return create


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
        self.store = store
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
            # The number and the words go into the tag of every message: see channel.py.
            salt = zlib.crc32(f"{number} {what}".encode()) | 1
            begun = time.monotonic()
            sizes = splits() if splits is not None else None
            self.guard.begin(f"call {number} of the group's collectives", what, sizes)
            try:
                with traffic.labelled(Label(name, phase, salt)):
                    steps()
            except BaseException as error:
                raise self.guard.fail(error, name) from None
            finally:
                self.guard.end()
            nbytes = sum(t.numel() * t.element_size() for t in tensors)
            detail = {"phase": phase, "backend": self.backend}
            events.add(
                name,
                "communication",
                begun,
                time.monotonic(),
                bytes=nbytes,
                lane="collectives",
                detail=detail,
            )

        return self._worker.submit(CollectiveWork(name, tensors), collective, now, numbered=True)

    def _algorithm(self, collective: str) -> Callable[..., Any]:
        return algorithm(self.backend, collective)

    def _root(self, options: Any) -> str:
        return f"root {self.guard.name(options.rootRank)}"

    # --- one tensor, on every rank the same size ---

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, op = _single(tensors), _reduce_op(opts, more)
        run = self._algorithm("all_reduce")
        return self._run(
            "all_reduce",
            f"all_reduce of {_words(tensor)} ({_op_name(op)})",
            [tensor],
            lambda: run(tensor, op, group=self),
            opts,
        )

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> CollectiveWork:
        op = _reduce_op(opts, {})
        run = self._algorithm("all_reduce")
        return self._run(
            "all_reduce",
            f"all_reduce of {_words(*tensors)} ({_op_name(op)})",
            list(tensors),
            lambda: [run(t, op, group=self) for t in tensors],
            opts,
        )

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = _single(tensors), _with_root(opts, more, dist.BroadcastOptions)
        run = self._algorithm("broadcast")
        return self._run(
            "broadcast",
            f"broadcast of {_words(tensor)}, {self._root(opts)}",
            [tensor],
            lambda: run(tensor, group_src=opts.rootRank, group=self),
            opts,
        )

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = _single(tensors), _with_root(opts, more, dist.ReduceOptions)
        run = self._algorithm("reduce")
        return self._run(
            "reduce",
            f"reduce of {_words(tensor)} ({_op_name(opts.reduceOp)}), {self._root(opts)}",
            [tensor],
            lambda: run(tensor, op=opts.reduceOp, group_dst=opts.rootRank, group=self),
            opts,
        )

    # --- all-gather ---

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> CollectiveWork:
        outputs, tensor = _single_list(outputs), _single(inputs)
        run = self._algorithm("all_gather")
        return self._run(
            "all_gather",
            f"all_gather of {_words(tensor)}",
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
            f"all_gather of {_words(*inputs)}",
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
        input: torch.Tensor,
        opts: Any = None,  # noqa: A002
    ) -> CollectiveWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        run = self._algorithm("all_gather_single")
        return self._run(
            "all_gather",
            f"all_gather of {_words(*inputs)}",
            list(outputs),
            lambda: [run(o, i, group=self) for o, i in zip(outputs, inputs, strict=True)],
            opts,
        )

    # --- reduce-scatter ---

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, **more: Any
    ) -> CollectiveWork:
        output, parts, op = _single(outputs), _single_list(inputs), _reduce_op(opts, more)
        run = self._algorithm("reduce_scatter")
        return self._run(
            "reduce_scatter",
            f"reduce_scatter of {_words(*parts)} ({_op_name(op)})",
            [output],
            lambda: run(output, parts, op=op, group=self),
            opts,
        )

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        opts: Any = None,  # noqa: A002
    ) -> CollectiveWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        op = _reduce_op(opts, {})
        run = self._algorithm("reduce_scatter_single")
        return self._run(
            "reduce_scatter",
            f"reduce_scatter of {_words(*inputs)} ({_op_name(op)})",
            list(outputs),
            lambda: [run(o, i, op=op, group=self) for o, i in zip(outputs, inputs, strict=True)],
            opts,
        )

    # --- one root, many parts ---

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = _single(inputs), _with_root(opts, more, dist.GatherOptions)
        parts = _single_list(outputs) if self.rank() == opts.rootRank else None
        run = self._algorithm("gather")
        return self._run(
            "gather",
            f"gather of {_words(tensor)}, {self._root(opts)}",
            parts or [],
            lambda: run(tensor, parts, group_dst=opts.rootRank, group=self),
            opts,
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> CollectiveWork:
        tensor, opts = _single(outputs), _with_root(opts, more, dist.ScatterOptions)
        parts = _single_list(inputs) if self.rank() == opts.rootRank else None
        run = self._algorithm("scatter")
        return self._run(
            "scatter",
            f"scatter of {_words(tensor)}, {self._root(opts)}",
            [tensor],
            lambda: run(tensor, parts, group_src=opts.rootRank, group=self),
            opts,
        )

    # --- all-to-all ---

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> CollectiveWork:
        run = self._algorithm("all_to_all")
        return self._run(
            "all_to_all",
            f"all_to_all of {_dtypes(*inputs)}",  # sizes may differ from pair to pair
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
            _elements(input, input_split_sizes, self.size()),
            _elements(output, output_split_sizes, self.size()),
        )
        return self._run(
            "all_to_all",
            f"all_to_all of {_words(input) if even else _dtypes(input)}",
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

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("monitored_barrier is gloo's own; use dist.barrier")

    # --- messages: posted at once, not in the collectives' order ---

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self.channel.isend(_message(tensors, self.rank()), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self.channel.irecv(_message(tensors, self.rank()), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.channel.irecv(_message(tensors, self.rank()), None, tag)

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


# --- torch's arguments -----------------------------------------------------------------------------------------


def _single(tensors: Any) -> torch.Tensor:
    """torch passes lists, from a time when one process had several GPUs; they hold one tensor."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"one tensor a rank, got {len(tensors)}")
    return tensors[0]


def _single_list(lists: Any) -> list[torch.Tensor]:
    """The same, for lists of tensors."""
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise ValueError(f"one list of tensors a rank, got {len(lists)}")
    return list(lists[0])


def _message(tensors: Any, rank: int) -> torch.Tensor:
    tensor = _single(tensors)
    if not tensor.is_contiguous():
        raise ValueError(
            f"rank {rank}: a message must be contiguous, got shape {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}; call .contiguous() first"
        )
    return tensor


def _reduce_op(opts: Any, more: dict[str, Any]) -> Any:
    """The ReduceOp, wherever the caller put it; the sum where it said nothing."""
    if "op" in more:
        return more["op"]
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _with_root(opts: Any, more: dict[str, Any], kind: type) -> Any:
    """Options with a root: given as such, or as group.broadcast(tensor, root=1)."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    made.rootRank = opts if isinstance(opts, int) else more.get("root", 0)
    if "op" in more:
        made.reduceOp = more["op"]
    return made


def _elements(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank, where dim 0 is split into these sizes, or evenly."""
    if not sizes:
        return [tensor.numel() // ranks] * ranks
    row = tensor[:1].numel()
    return [size * row for size in sizes]


def _words(*tensors: torch.Tensor) -> str:
    """What must agree between the ranks: numbers of elements, and the dtype."""
    if not tensors:
        return "nothing"
    if len(tensors) > 4:
        sizes = f"{len(tensors)} tensors, {sum(t.numel() for t in tensors)}"
    else:
        sizes = " + ".join(str(t.numel()) for t in tensors)
    return f"{sizes} {_dtypes(*tensors)}"


def _dtypes(*tensors: torch.Tensor) -> str:
    return "/".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))


def _op_name(op: Any) -> str:
    return str(getattr(op, "op", op)).rpartition(".")[2].lower()
