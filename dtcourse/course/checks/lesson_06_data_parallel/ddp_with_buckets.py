"""DDP with buckets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close

Tensors = list[torch.Tensor]


DDP = Exercise(
    "ddp_with_buckets",
    lesson="06",
    title="DDP with buckets",
    takes=("attach",),
    target="gradients to 1e-6; one all-reduce per bucket, under way while backward still computes",
    forbidden=(
        "torch.nn.parallel",
        "dtcourse.data_parallel",
        "dtcourse.parameters",
    ),
)


class _Net(nn.Module):
    """Frozen and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 6)
        self.second.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return torch.tanh(self.third(torch.tanh(self.second(x)))) @ self.first.weight.T


class _Turns(nn.Module):
    """Odd ranks go the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 9)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        for layer in (self.a, self.b) if rank % 2 == 0 else (self.b, self.a):
            x = torch.tanh(layer(x))
        return self.out(x)


class _Leaves(nn.Module):
    """Only rank 0 uses layer b."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 9)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        x = torch.tanh(self.a(x))
        return self.out(torch.tanh(self.b(x)) if rank == 0 else x)


_NETS = {"net": _Net, "turns": _Turns, "leaves": _Leaves}


def _build(kind: str, weights: Tensors) -> nn.Module:
    net = _NETS[kind]().double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    return net


def _gradients(
    attach: Any, kind: str, weights: Tensors, own: list[Any], bucket_bytes: int
) -> list[Any]:
    import torch.distributed as dist

    rank = dist.get_rank()
    net = _build(kind, weights)
    finish = attach(net, bucket_bytes)
    seen = []
    for x, y in own:
        for p in net.parameters():
            p.grad = None
        nn.functional.mse_loss(net(x, rank), y).backward()
        finish()
        seen.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
    return seen


def _mean_gradients(kind: str, weights: Tensors, batches: list[Any]) -> list[Tensors]:
    """What every rank should hold after each step, and None for what is frozen."""
    nets = [_build(kind, weights) for _ in batches]
    means = []
    for step in range(len(batches[0])):
        for rank, net in enumerate(nets):
            net.zero_grad()
            x, y = batches[rank][step]
            nn.functional.mse_loss(net(x, rank), y).backward()
        columns = zip(*(net.parameters() for net in nets), strict=True)
        means.append(
            [
                torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in ps]).mean(0)
                for ps in columns
            ]
        )
    return means


def _inputs(kind: str, ranks: int, steps: int = 3) -> tuple[Tensors, list[Any]]:
    def double(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.double)

    weights = [double(*p.shape) / 2 for p in _NETS[kind]().parameters()]
    return weights, [[(double(4, 6), double(4, 9)) for _ in range(steps)] for _ in range(ranks)]


def _buckets(kind: str, bucket_bytes: int) -> int:
    """The number of buckets by the rule of the task."""
    sizes = [8 * p.numel() for p in _NETS[kind]().parameters() if p.requires_grad]
    count, filled = 0, 0
    for size in reversed(sizes):
        filled += size
        if filled >= bucket_bytes:
            count, filled = count + 1, 0
    return count + (filled > 0)


def _same(
    answer: Answer, kind: str, ranks: int, bucket_bytes: int, hint: str, **options: Any
) -> None:
    weights, batches = _inputs(kind, ranks)
    args = (kind, weights, Each(batches), bucket_bytes)
    run = answer.run(_gradients, ranks, *args, timeout=10.0, **options)
    right = _mean_gradients(kind, weights, batches)
    net = _NETS[kind]()
    for rank in range(ranks):
        for step, (got, means) in enumerate(zip(run[rank], right, strict=True)):
            for (name, p), mine, mean in zip(net.named_parameters(), got, means, strict=True):
                if not p.requires_grad:
                    continue
                where = f"With {ranks} ranks and buckets of {bucket_bytes} bytes, step {step}, rank {rank}, {name}: "
                require_close(mine, mean, where + "the gradient", hint=hint, split=True)


@DDP.check("the mean gradients, in every step", points=3)
def check_gradients(answer: Answer) -> None:
    """With tied and frozen parameters, several sizes of buckets, three steps."""
    hint = (
        "Is every parameter in a bucket once, is each part copied back to its own parameter, and is all state fresh "
        "in the next step?"
    )
    for ranks, bucket_bytes in ((2, 0), (2, 500), (3, 1 << 20)):
        _same(answer, "net", ranks, bucket_bytes, hint)


@DDP.check("one all-reduce per bucket, with exactly its bytes", points=2)
def check_messages(answer: Answer) -> None:
    """Counted, on a backend that sees every message."""
    for bucket_bytes in (0, 500, 1 << 20):
        weights, batches = _inputs("net", 2, steps=2)
        run = answer.run(
            _gradients, 2, "net", weights, Each(batches), bucket_bytes, backend="ring", record=True
        )
        buckets = _buckets("net", bucket_bytes)
        calls = run.traffic.calls(rank=0) / 2
        require(
            calls == buckets,
            f"With bucket_bytes={bucket_bytes} these parameters make {buckets} buckets, and you make {calls:g} "
            "collective calls a step. When is a bucket full? And does a frozen parameter need a place in one?",
        )
        trained = [p for p in _NETS["net"]().parameters() if p.requires_grad]
        # two steps, 2 (p - 1) times for all ranks
        least = 2 * 2 * sum(8 * p.numel() for p in trained)
        sent = run.traffic.bytes_sent()
        require(
            sent == least,
            f"Two steps send {sent:,} bytes in all; the gradients of what is trained need {least:,}. What else "
            "travels?",
        )


_LAYERS = 6
_PATIENCE = 10.0  # seconds for which rank 1 stays away where rank 0 stands still in a way that nobody foresaw


def _steps_of_backward(attach: Any) -> list[str]:
    """What rank 0 does in backward, by the order of its own program: "layer", "all_reduce", "wait".

    Rank 1 goes backward only when rank 0 has. So rank 0's messages stay under way for all of its backward, however
    fast or slow the machine is, and to wait for one there is to stand still.
    """
    import torch.distributed as dist

    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore("backward", dist.TCPStore(*place, is_master=False))
    steps: list[str] = []

    def come() -> None:
        store.set("rank 0 has gone backward, or waits", "")

    def wait() -> None:
        steps.append("wait")
        come()  # or nobody would ever go on

    net = nn.ModuleList(nn.Linear(4, 4) for _ in range(_LAYERS))
    finish = attach(net, 80)  # a layer a bucket
    x = torch.ones(1, 4)
    for layer in net:
        x = layer(x)
        x.register_hook(lambda gradient: steps.append("layer"))
    if dist.get_rank() == 0:
        with _watching_collectives(steps, wait):
            x.sum().backward()
        come()
    else:
        try:
            store.wait(["rank 0 has gone backward, or waits"], timedelta(seconds=_PATIENCE))
        except dist.DistStoreError:
            steps.append("wait")
        x.sum().backward()
        steps = [step for step in steps if step == "wait"]
    finish()
    return steps


@contextmanager
def _watching_collectives(steps: list[str], waits: Callable[[], None]) -> Iterator[None]:
    """Notes each collective that this rank calls, and says where it waits for one."""
    from dtcourse.collectives.wire.observers import Observer, observing

    class Steps(Observer):
        def called(self, name: str, blocking: bool) -> None:
            steps.append(name)
            if blocking:
                waits()

        def waits(self, name: str) -> None:
            waits()

    with observing(Steps()):
        yield


@DDP.check("buckets are under way while backward still computes", points=3)
def check_overlap(answer: Answer) -> None:
    """By the order of rank 0's own steps, while rank 1 has not yet begun its backward."""
    steps, stood_still = answer.run(_steps_of_backward, 2, record=True)
    require(
        "wait" not in steps and not stood_still,
        "On rank 0 backward stands still while the first all-reduce is under way: it waits in the hook. What does "
        "async_op=True return, and where should one wait for it?",
    )
    sends = [place for place, step in enumerate(steps) if step == "all_reduce"]
    sends += [len(steps)] * (_LAYERS - len(sends))  # those that leave in finish()
    for bucket, place in enumerate(sends, start=1):
        begun = steps[:place].count("layer")
        require(
            begun <= bucket + 1,
            f"Each layer is a bucket here, and rank 0 sends bucket {bucket} when the backward of {begun} of {_LAYERS} "
            "layers has begun. When do you learn that a gradient is ready, and what does a full bucket wait for?",
        )


@DDP.check("ranks that become ready in different orders", points=2)
def check_orders(answer: Answer) -> None:
    """Odd ranks call two layers of one shape the other way round."""
    hint = (
        "Odd ranks become ready in another order here: does every rank send its buckets in one and the same order, "
        "whatever is ready first?"
    )
    for ranks, bucket_bytes in ((2, 0), (3, 300)):
        _same(answer, "turns", ranks, bucket_bytes, hint)


@DDP.check("a parameter that some ranks do not use", points=2)
def check_unused(answer: Answer) -> None:
    """It counts as zero there; the mean is the same on all ranks."""
    hint = (
        "Only rank 0 uses layer b: does every rank send all buckets "
        "in every step, with a zero for what it does not have?"
    )
    for ranks, bucket_bytes in ((2, 0), (3, 300)):
        _same(answer, "leaves", ranks, bucket_bytes, hint, backend="ring")
