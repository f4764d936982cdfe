"""NCCL's order of sends and receives, held on a CPU: a backend that hangs where NCCL would, and says so.

    run = nccl_order.launch(step, 4, "pair", 8)     # step(8) on four ranks, whose default group keeps the rule

NCCL has no tags. An operation is queued on a stream and starts when those before it there are done; a send is done when
its receive is. Which operations share a stream is the rule:

    "pair"       unbatched sends and receives of one pair of ranks, in both directions (torch's two-rank communicators);
                 what is batched (dist.batch_isend_irecv) starts together, on the group's own stream
    "group"      all of the group: torch's rule where init_process_group is given device_id ("eager initialization")
    "direction"  those of one pair in one direction: nothing but rendezvous sends, matched in the order of posting

The messages travel over gloo; collectives are gloo's own. Who meets whom is settled by counting: the n-th send from a
to b is for the n-th receive at b from a (batched ones count apart). A wait that can never end raises RuntimeError with
the circle in words, on each rank of it (nccl_deadlock.py); one that is merely not answered raises after PATIENCE
seconds.

Source: torch 2.13, ProcessGroupNCCL.cpp, pointToPoint and getKeySendRecv; NVIDIA/nccl issue 479.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse import torch_private
from dtcourse.launch import launch as launch_ranks
from tests.nccl_deadlock import Watch

RULES = ("pair", "group", "direction")
PATIENCE = (
    100.0  # seconds that a wait may take: generous, since what hangs is found in a second or two
)


def launch(function: Callable[..., Any], ranks: int, rule: str, *args: Any, **kwargs: Any) -> Any:
    """dtcourse.launch, with a default group that keeps a rule of RULES. timeout= is launch's; the rest goes to the
    function.
    """
    timeout = kwargs.pop("timeout", 240.0)
    return launch_ranks(
        _within, ranks, function, rule, *args, init=False, timeout=timeout, **kwargs
    )


def _within(function: Callable[..., Any], rule: str, *args: Any, **kwargs: Any) -> Any:
    register()
    dist.init_process_group(backend_of(rule))
    try:
        return function(*args, **kwargs)
    finally:
        dist.destroy_process_group()


def backend_of(rule: str) -> str:
    """A rule's name for torch.distributed, for dist.new_group(backend=...) too, once `register` has been called."""
    if rule not in RULES:
        raise ValueError(f"there is no rule {rule!r}; there are {', '.join(RULES)}")
    return f"nccl_order_{rule}"


def register() -> None:
    """Makes the rules known to torch.distributed as backends, and has its batches reach them."""
    for rule in RULES:
        name = backend_of(rule)
        if not hasattr(dist.Backend, name.upper()):
            creator = functools.partial(_create, rule)
            dist.Backend.register_backend(name, creator, extended_api=True, devices=["cpu"])
    if not hasattr(dist.batch_isend_irecv, "torchs"):
        c10d.batch_isend_irecv = dist.batch_isend_irecv = _batch


def _create(rule: str, options: Any, _: Any) -> dist.ProcessGroup:
    return InOrderGroup(
        rule, options.store, options.group_rank, options.group_size, options.timeout
    )


_torchs_batch = c10d.batch_isend_irecv


def _batch(operations: list[dist.P2POp]) -> list[dist.Work]:
    """torch batches for groups of its own alone; for others it posts one after the other."""
    group = operations[0].group or dist.group.WORLD
    if not isinstance(group, InOrderGroup):
        return _torchs_batch(operations)
    group._start_coalescing(operations[0].tensor.device)
    for one in operations:
        one.op(one.tensor, one.peer, one.group, one.tag)
    return [group._end_coalescing(operations[0].tensor.device)]


_batch.torchs = _torchs_batch  # type: ignore[attr-defined]


class Operation:
    """One send or receive. `key` is the same on both of its ranks: (batched or not, from, to, number)."""

    def __init__(
        self, kind: str, tensor: torch.Tensor, peer: int, key: tuple[str, int, int, int]
    ) -> None:
        self.kind, self.tensor, self.peer, self.key = kind, tensor, peer, key
        self.done = False

    def __str__(self) -> str:
        how, _, _, number = self.key
        words = f"send {number} to" if self.kind == "send" else f"receive {number} from"
        return f"{how}{words} rank {self.peer}"


class Posted(dist.Work):
    """What is posted at once: one operation, or a batch."""

    def __init__(self, group: InOrderGroup, operations: list[Operation]) -> None:
        super().__init__()
        self.group, self.operations = group, operations
        self.over = threading.Event()
        self.error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self.group.watch.waiting_for(self):
            patience = timeout.total_seconds() if timeout else PATIENCE
            if not self.over.wait(patience):
                raise RuntimeError(f"not over after {patience:g} s: {self.group.watch.in_words()}")
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        return self.over.is_set()


class InOrderGroup(dist.ProcessGroup):
    """A group of torch's whose sends and receives keep a rule. `inner` is the gloo group that carries them."""

    def __init__(
        self, rule: str, store: dist.Store, rank: int, size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, size)
        self.rule, self.store = rule, store
        inner = dist.PrefixStore("inner", store)
        self.inner = torch_private.gloo_group(inner, rank, size, timeout)
        torch_private.attach(self, torch.device("cpu"), self.inner)
        beside = dist.PrefixStore("watch", torch_private.own_client(store))
        self.watch = Watch(beside, rank, size)
        self._streams: dict[Any, Stream] = {}
        self._batch: list[Operation] | None = None

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Any:
        return self._post("send", tensors[0], dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Any:
        return self._post("recv", tensors[0], src)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        raise ValueError("NCCL cannot receive from any source: name the sending rank with src=")

    def _post(self, kind: str, tensor: torch.Tensor, peer: int) -> Any:
        way = (self.rank(), peer) if kind == "send" else (peer, self.rank())
        key = self.watch.numbered(("" if self._batch is None else "batched ", *way))
        operation = Operation(kind, tensor, peer, key)
        if self._batch is not None:
            self._batch.append(operation)
            return None
        pair = min(way), max(way)
        stream = {"pair": pair, "group": "all", "direction": way}[self.rule]
        return self._queue(stream, [operation])

    def _queue(self, stream: Any, operations: list[Operation]) -> Posted:
        if stream not in self._streams:
            self._streams[stream] = Stream(self)
        posted = Posted(self, operations)
        self._streams[stream].append(posted)
        return posted

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Posted:
        operations, self._batch = self._batch or [], None
        return self._queue("all", operations)

    def carry(self, one: Operation) -> None:
        """Meets an operation's other end, and is over when that is."""
        start = self.inner.send if one.kind == "send" else self.inner.recv
        tag = 2 * (2 * one.key[3] + bool(one.key[0]))
        own = [one.tensor.numel(), one.tensor.element_size()]
        note = torch.tensor(own)
        start([note], one.peer, tag).wait()
        if note.tolist() != own:
            raise RuntimeError(
                f"rank {self.rank()}: {one} takes {own[0]} elements of {own[1]} bytes, and what comes has {note[0]} of "
                f"{note[1]}. NCCL has no tags: the order of posting says what is for whom"
            )
        start([one.tensor], one.peer, tag + 1).wait()
        one.done = True

    # Called on gloo's backend itself: by way of torch's dispatcher a call has been seen to wait for ever for one of
    # gloo's threads, which waited for Python's lock.
    def allgather(self, *arguments: Any) -> Any:
        return self.inner.allgather(*arguments)

    def allreduce(self, *arguments: Any) -> Any:
        return self.inner.allreduce(*arguments)

    def broadcast(self, *arguments: Any) -> Any:
        return self.inner.broadcast(*arguments)

    def getBackendName(self) -> str:
        return backend_of(self.rule)

    def get_group_store(self) -> dist.Store:
        return self.store

    def shutdown(self) -> None:
        self.watch.leave()


class Stream:
    """Operations in the order of posting, each started when those before it are over, by a thread of its own."""

    def __init__(self, group: InOrderGroup) -> None:
        self.group, self.ready = group, threading.Semaphore(0)
        self.queue: deque[Posted] = deque()
        group.watch.add(self.queue)
        threading.Thread(target=self._run, daemon=True).start()

    def append(self, posted: Posted) -> None:
        with self.group.watch.changing():
            self.queue.append(posted)
        self.ready.release()

    def _run(self) -> None:
        while True:
            self.ready.acquire()
            head = self.queue[0]
            with ThreadPoolExecutor(
                len(head.operations)
            ) as pool:  # those of a batch do not wait for each other
                carried = [pool.submit(self.group.carry, one) for one in head.operations]
            head.error = head.error or next(
                filter(None, (one.exception() for one in carried)), None
            )
            with self.group.watch.changing():
                self.queue.popleft()
                head.over.set()
