# mypy: disable-error-code="call-arg"
# torch's stubs describe the C++ class; a Python subclass is constructed otherwise.
"""A group of any size of which one rank alone is there: calls are noted and counted, and nothing is sent.

    with virtual.group(rank=5, ranks=1024, answers=Answers()) as calls:     # the default group, and all made of it
        dist.all_reduce(x)                                                  # x stays as it is
    calls[0].operation, calls[0].bytes, calls[0].ranks                      # "all_reduce", ...

Counted is what instrumented.py counts of gloo's: the algorithmic volume of collectives, messages one by one (p2p's
channel is the real one; only what carries it is nobody). So a traced rank's rows of traffic are a real one's.

A tensor without values (torch_private.without_values) is left as it is. Of one that has values, numbers by which a rank
decides, the result is written as if every rank had passed what this one passes: a sum is this rank's times their
number, a largest is this rank's. What is not so is asked through collectives/decisions.py, whose `answers` a group has.

torch's own fake group (torch.testing._internal.distributed.fake_pg) has neither answers nor channel, and leaves results
as memory happens to be. Calls of torch's C++ that go past Python (DDP's Reducer, functional collectives) find no
backend here, and raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives import mesh_axes, traffic
from dtcourse.collectives.backend.torch_calls import METHODS, bytes_of, tensors_in
from dtcourse.collectives.decisions import Answers
from dtcourse.collectives.reduce_ops import name_of
from dtcourse.collectives.traffic import Label
from dtcourse.collectives.wire.channel import Channel

NAME = "virtual"


class Call(NamedTuple):
    """A collective that one rank has called.

    bytes: of the call, as traffic.algorithmic_bytes defines a collective's size;  ranks: of the default group, in order
    axis:  of the mesh that the group belongs to; empty where it is no mesh's;  phase: of the step
    """

    operation: str
    bytes: int
    ranks: tuple[int, ...]
    axis: str
    phase: str


class Run(NamedTuple):
    """What the groups of one virtual run have in common.

    early: whether an asynchronous call is over as soon as it is posted; else when it is waited for. On a real rank
           that is chance, and memory that is freed when a call is over is freed between the two
    """

    answers: Answers
    calls: list[Call]
    early: bool


_run: Run | None = None  # the one of this process, which has one default group


@contextmanager
def group(
    rank: int, ranks: int, answers: Answers | None = None, early: bool = False
) -> Iterator[list[Call]]:
    """Makes this process rank `rank` of `ranks`: the default group inside. Yields the collectives that it calls.

    Raises ValueError where the process has a default group already, and for a rank that there is not.
    """
    global _run
    if dist.is_initialized():
        raise ValueError(
            "this process is a rank already: a virtual run makes its own default group"
        )
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} of {ranks}: 0 to {ranks - 1}")
    _register()
    hook = sys.excepthook  # init_process_group sets one that names the rank
    _run = Run(answers or Answers(), [], early)
    try:
        dist.init_process_group(NAME, rank=rank, world_size=ranks, store=dist.HashStore())
        yield _run.calls
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _run, sys.excepthook = None, hook


def _register() -> None:
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> dist.ProcessGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if _run is None:
        raise ValueError("a virtual group is made within collectives.backend.virtual.group(...)")
    return VirtualGroup(options.group_rank, options.group_size, ranks, options.store, _run)


class VirtualGroup(torch_private.GroupWithoutBackend):
    """One rank's end of a group whose others are not there.

    .channel  its messages (p2p uses it)
    .answers  what is said to those who ask through collectives/decisions.py
    """

    def __init__(
        self, rank: int, size: int, global_ranks: Sequence[int], store: dist.Store, run: Run
    ) -> None:
        super().__init__(rank, size)
        self.answers, self.store, self._run = run.answers, store, run
        self.global_ranks = tuple(global_ranks)
        self.channel = Channel(Nobody(run.early), rank, self.global_ranks, group=self)

    def noted(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        """A collective is called: it is counted, and its result is written where it has values."""
        name, phase = METHODS[method], traffic.current_phase()
        nbytes, axis = bytes_of(name, args, self.size()), mesh_axes.axis_of(self)
        label = Label(name, phase)
        traffic.called(label)
        traffic.algorithmic(label, traffic.algorithmic_bytes(name, nbytes, self.size()), axis)
        self._run.calls.append(Call(name, nbytes, self.global_ranks, axis, phase))
        results = tensors_in(args[:1])
        if any(not torch_private.is_fake(type(tensor)) for tensor in results):
            options = args[-1] if args else kwargs.get("opts")
            with torch.no_grad():
                self._answer(name, args, options)
        return Done(results, self._run.early)

    def _answer(self, name: str, args: tuple[Any, ...], options: Any) -> None:
        """Writes what a collective of numbers would, had every rank passed what this one passes."""
        results, size = tensors_in(args[:1]), self.size()
        if name in ("all_reduce", "reduce"):
            for tensor in results:
                _reduce(tensor, name_of(options.reduceOp), size)
        elif name == "all_gather":
            given = tensors_in(args[1])
            if len(results) == len(given) == 1:
                results[0].view(size, -1).copy_(given[0].reshape(1, -1).expand(size, -1))
            else:
                for i, tensor in enumerate(results):
                    tensor.copy_(given[i // size])
        elif name == "all_to_all" and len(results) == 1 and not any(args[2:4]):
            (whole,) = tensors_in(args[1])
            results[0].view(size, -1).copy_(whole.reshape(size, -1)[self.rank()].expand(size, -1))
        elif name not in ("broadcast", "barrier"):
            raise ValueError(
                f"{name} of numbers that this rank reads, and nobody is there to send them: ask for them through "
                "collectives/decisions.py"
            )

    # --- messages ---

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self.channel.start("send", tensors[0], dst, tag, wire=tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self.channel.start("recv", tensors[0], src, tag, wire=tag)

    # --- the group itself ---

    def getBackendName(self) -> str:
        return NAME

    def get_group_store(self) -> dist.Store:
        return self.store

    def shutdown(self) -> None:
        """Nothing runs."""


def _reduce(tensor: torch.Tensor, op: str, size: int) -> None:
    """In place, over `size` copies of it."""
    if op == "SUM":
        tensor.mul_(size)
    elif op not in ("MAX", "MIN", "AVG", "BAND", "BOR"):
        raise ValueError(f"a virtual group reduces numbers by SUM, AVG, MAX or MIN; got {op}")


class Nobody:
    """What carries a channel's messages where they go nowhere. One that comes into whole numbers is zeros: no rank
    decides by it, since headers come by collectives/decisions.py, and a position or a token 0 there always is.
    """

    def __init__(self, early: bool) -> None:
        self.early = early

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Done:
        return Done(tensors, self.early)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Done:
        for tensor in tensors:
            if not torch_private.is_fake(type(tensor)):
                tensor.zero_()
        return Done(tensors, self.early)


class Done(dist.Work):
    """The handle of a call. `tensors` are where its result is."""

    def __init__(self, tensors: list[torch.Tensor], early: bool) -> None:
        super().__init__()
        self._tensors, self._over = tensors, early

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._over = True
        return True

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._over = True

    def result(self) -> list[torch.Tensor]:
        return self._tensors


def _method(method: str) -> Callable[..., Any]:
    def noted(self: VirtualGroup, *args: Any, **kwargs: Any) -> Any:
        return self.noted(method, args, kwargs)

    noted.__name__ = noted.__qualname__ = method
    return noted


for _name in METHODS:
    setattr(VirtualGroup, _name, _method(_name))
