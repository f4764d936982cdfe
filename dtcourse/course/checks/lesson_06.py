"""The checks of lesson 06: DDP with buckets, accumulation of uneven micro-batches, SyncBatchNorm both ways."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from torch import nn

from dtcourse.collectives.network import EmulatedNetwork
from dtcourse.course.checks import Answer, Exercise, require

Tensors = list[torch.Tensor]

# --- 1. DDP with buckets -----------------------------------------------------------------------------------------

DDP = Exercise(
    "ddp_with_buckets",
    lesson="06",
    title="DDP with buckets",
    takes=("attach",),
    target="gradients to 1e-6; one all-reduce a bucket; the first one under way while backward still computes",
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
    attach: Any, kind: str, weights: Tensors, batches: list[Any], bucket_bytes: int
) -> list[Any]:
    import torch.distributed as dist

    rank = dist.get_rank()
    net = _build(kind, weights)
    finish = attach(net, bucket_bytes)
    seen = []
    for x, y in batches[rank]:
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
    args = (kind, weights, batches, bucket_bytes)
    run = answer.run(_gradients, ranks, *args, timeout=10.0, **options)
    right = _mean_gradients(kind, weights, batches)
    net = _NETS[kind]()
    for rank in range(ranks):
        for step, (got, means) in enumerate(zip(run[rank], right, strict=True)):
            for (name, p), mine, mean in zip(net.named_parameters(), got, means, strict=True):
                if not p.requires_grad:
                    continue
                where = f"With {ranks} ranks and buckets of {bucket_bytes} bytes, step {step}, rank {rank}, {name}: "
                require(mine is not None, where + f"there is no gradient. {hint}")
                off = float((mine - mean).abs().max() / mean.abs().max().clamp_min(1e-12))
                times = float((mine * mean).sum() / mean.square().sum().clamp_min(1e-30))
                if off > 1e-6 and abs(times - ranks) < 1e-6:
                    require(False, where + f"{ranks} times too large. Who divides, and by what?")
                require(off < 1e-6, where + f"off by {off:.1e} of its size. {hint}")


@DDP.check("the mean gradients, in every step", points=3)
def check_gradients(answer: Answer) -> None:
    """With tied and frozen parameters, several sizes of buckets, three steps."""
    hint = "Is every parameter in a bucket once, is each part copied back to its own parameter, and is all state fresh in the next step?"
    for ranks, bucket_bytes in ((2, 0), (2, 500), (3, 1 << 20)):
        _same(answer, "net", ranks, bucket_bytes, hint)


@DDP.check("one all-reduce a bucket, with exactly its bytes", points=2)
def check_messages(answer: Answer) -> None:
    """Counted, on a backend that sees every message."""
    for bucket_bytes in (0, 500, 1 << 20):
        weights, batches = _inputs("net", 2, steps=2)
        run = answer.run(
            _gradients, 2, "net", weights, batches, bucket_bytes, backend="ring", record=True
        )
        buckets = _buckets("net", bucket_bytes)
        calls = run.traffic.calls(rank=0) / 2
        require(
            calls == buckets,
            f"With bucket_bytes={bucket_bytes} these parameters make {buckets} buckets, and you make {calls:g} collective calls a "
            "step. When is a bucket full? And does a frozen parameter need a place in one?",
        )
        trained = [p for p in _NETS["net"]().parameters() if p.requires_grad]
        least = (
            2 * 2 * sum(8 * p.numel() for p in trained)
        )  # two steps, 2 (p - 1) times for all ranks
        sent = run.traffic.bytes_sent()
        require(
            sent == least,
            f"Two steps send {sent:,} bytes in all; the gradients of what is trained need {least:,}. What else travels?",
        )


_LAYERS, _SECONDS = 6, 0.02


class _Waits(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        from dtcourse import events

        with events.span("layer", "compute"):
            time.sleep(_SECONDS)
        return gradient


class _Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(_LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = _Waits.apply(layer(x))
        return x


def _one_slow_step(attach: Any) -> None:
    net = _Slow()
    finish = attach(net, 80)  # a layer a bucket
    net(torch.ones(1, 4)).sum().backward()
    finish()


@DDP.check("the first bucket is under way while backward still computes", points=3)
def check_overlap(answer: Answer) -> None:
    """By the order of events, on a network on which an all-reduce takes as long as several layers."""
    slow = EmulatedNetwork(latency=2.5 * _SECONDS)
    run = answer.run(_one_slow_step, 2, network=slow, record=True)
    for rank in range(2):
        events = list(run.timeline.of(rank=rank))
        layers = [e for e in events if e.name == "layer"]
        sent = [e for e in events if e.kind == "communication" and "all_reduce" in e.name]
        require(sent, "No all-reduce was seen at all. Which collective carries a bucket?")
        first = min(sent, key=lambda e: e.start)
        require(
            first.start < layers[-1].start,
            f"Rank {rank} sends its first bucket after the backward of the last of {_LAYERS} layers has begun. When do you learn that a "
            "gradient is ready?",
        )
        meanwhile = [e for e in layers if first.start <= e.start < first.end]
        require(
            meanwhile,
            f"On rank {rank} backward stands still while the first all-reduce is under way: it waits in the hook. What does "
            "async_op=True return, and where should one wait for it?",
        )


@DDP.check("ranks that become ready in different orders", points=2)
def check_orders(answer: Answer) -> None:
    """Odd ranks call two layers of one shape the other way round."""
    hint = (
        "Odd ranks become ready in another order here: does every rank send its buckets in one and the same order, whatever is ready "
        "first?"
    )
    for ranks, bucket_bytes in ((2, 0), (3, 300)):
        _same(answer, "turns", ranks, bucket_bytes, hint)


@DDP.check("a parameter that some ranks do not use", points=2)
def check_unused(answer: Answer) -> None:
    """It counts as zero there; the mean is the same on all ranks."""
    hint = "Only rank 0 uses layer b: does every rank send all buckets in every step, with a zero for what it does not have?"
    for ranks, bucket_bytes in ((2, 0), (3, 300)):
        _same(answer, "leaves", ranks, bucket_bytes, hint, backend="ring")


# --- 2. accumulation ----------------------------------------------------------------------------------------------

ACCUMULATE = Exercise(
    "accumulate_uneven",
    lesson="06",
    title="Accumulate uneven micro-batches",
    takes=("accumulate",),
    target="the gradient of the whole batch to 1e-6; exactly one all-reduce of the gradients; one micro-batch at a time",
)


def _classifier(weights: Tensors) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)
    return net


def _accumulated(accumulate: Any, weights: Tensors, parts: list[Any], total: int) -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    net, seen = _classifier(weights), []
    net.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    model = DistributedDataParallel(net)
    accumulate(model, parts[dist.get_rank()], total)
    return [None if p.grad is None else p.grad for p in net.parameters()], seen


def _parts(ranks: int, as_many: bool) -> tuple[Tensors, list[Any], int]:
    """Weights, micro-batches by rank (as_many: the same number on each), and how many samples they have in all."""
    shapes = [(8, 5), (8,), (3, 8), (3,)]
    weights = [torch.randn(s, dtype=torch.double) / 2 for s in shapes]
    numbers = [3 if as_many or rank == 0 else random.choice([2, 4]) for rank in range(ranks)]
    counts = [[random.randint(1, 6) for _ in range(number)] for number in numbers]
    counts[0] = [1, 7, 3]  # uneven for sure
    parts = [
        [(torch.randn(n, 5, dtype=torch.double), torch.randint(3, (n,))) for n in own]
        for own in counts
    ]
    return weights, parts, sum(map(sum, counts))


@ACCUMULATE.check("one all-reduce of the gradients, at the end", points=3)
def check_accumulated_bytes(answer: Answer) -> None:
    """Counted, on a backend that sees every message."""
    for ranks in (2, 3):
        weights, parts, total = _parts(ranks, as_many=True)
        run = answer.run(_accumulated, ranks, weights, parts, total, backend="ring", record=True)
        sent = run.traffic.bytes_sent(operation="all_reduce")
        least = 2 * (ranks - 1) * 8 * sum(w.numel() for w in weights)
        require(
            sent > 0,
            "No gradient was averaged. In which of the backwards may DDP do it?",
        )
        require(
            sent == least,
            f"On {ranks} ranks the all-reduces carry {sent:,} bytes in all, and one of the gradients {least:,}. DDP decides in *forward* "
            "whether the next backward averages: which forwards and which backwards stand inside no_sync()?",
        )


@ACCUMULATE.check("the gradient of the mean over all samples of all ranks", points=3)
def check_accumulated(answer: Answer) -> None:
    """Micro-batches of different sizes, and different numbers of them on the ranks."""
    for ranks, as_many in ((1, True), (2, True), (3, True), (3, False)):
        weights, parts, total = _parts(ranks, as_many)
        run = answer.run(_accumulated, ranks, weights, parts, total)
        net = _classifier(weights)
        x, y = (torch.cat([p[i] for own in parts for p in own]) for i in (0, 1))
        loss = nn.functional.cross_entropy(net(x), y)
        rights = torch.autograd.grad(loss, list(net.parameters()))
        for rank in range(ranks):
            for got, right in zip(run[rank][0], rights, strict=True):
                require(got is not None, "No gradient was left behind. Was backward called?")
                off = float((got - right).abs().max() / right.abs().max())
                times = float((got * right).sum() / right.square().sum())
                if off > 1e-6 and abs(times - round(times, 3)) < 1e-6:
                    require(
                        False,
                        f"On {ranks} ranks the gradient is {times:.3g} times the right one. DDP divides by {ranks}; what is left to you?",
                    )
                require(
                    off < 1e-6,
                    f"On {ranks} ranks, rank {rank}'s gradient is off by {off:.1e} of its size. Every *sample* of {total} should weigh the "
                    "same: what does a micro-batch of 1 weigh against one of 7? And have all ranks the same in the end?",
                )


@ACCUMULATE.check("one micro-batch at a time", points=1)
def check_accumulated_size(answer: Answer) -> None:
    """What goes through the model at once is no larger than a micro-batch: that was the point."""
    weights, parts, total = _parts(2, as_many=True)
    run = answer.run(_accumulated, 2, weights, parts, total)
    for rank in range(2):
        sizes = [len(x) for x, _ in parts[rank]]
        require(
            sorted(run[rank][1]) == sorted(sizes),
            f"Rank {rank}'s micro-batches have {sizes} samples, and through the model went {run[rank][1]}. A batch that fits needs no "
            "accumulation: what if the whole of it does not fit?",
        )


# --- 3. SyncBatchNorm ---------------------------------------------------------------------------------------------

SYNC = Exercise(
    "sync_batch_norm",
    lesson="06",
    title="SyncBatchNorm, forward and backward",
    takes=("sync_batch_norm",),
    target="output and gradients to 1e-6 of one process; one all-reduce forward, one backward, of 2 C + 1 and 2 C numbers",
)


def _normalised(
    sync_batch_norm: Any, parts: list[Any], weight: torch.Tensor, bias: torch.Tensor
) -> Any:
    import torch.distributed as dist

    x, factors = parts[dist.get_rank()]
    x, weight, bias = (t.clone().requires_grad_() for t in (x, weight, bias))
    y = sync_batch_norm(x, weight, bias, 1e-5)
    (y * factors).sum().backward()
    return y, x.grad, weight.grad, bias.grad


def _batch(counts: list[int], shape: tuple[int, ...], offset: float) -> tuple[Any, Any, Any]:
    def double(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=torch.double)

    parts = [(double(n, *shape) * 2 + offset, double(n, *shape)) for n in counts]
    return parts, double(shape[0]) + 2, double(shape[0])


_CASES = [
    ([4, 4], (3,), 0.0),
    ([2, 5], (4, 3), 1.0),
    ([1, 6, 2], (2, 3, 2), -2.0),
    ([5], (3,), 0.0),
]


def _compare(answer: Answer, which: list[int], hints: list[str]) -> None:
    names = {0: "the output", 1: "the gradient of x", 2: "weight's gradient", 3: "bias's gradient"}
    for counts, shape, offset in _CASES:
        parts, weight, bias = _batch(counts, shape, offset)
        run = answer.run(_normalised, len(counts), parts, weight, bias)
        x, factors = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        x, weight, bias = (t.clone().requires_grad_() for t in (x, weight, bias))
        y = nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)
        (y * factors).sum().backward()
        right: list[Any] = [y.detach(), x.grad, weight.grad, bias.grad]
        for i, hint in zip(which, hints, strict=True):
            require(all(r[i] is not None for r in run), f"Nothing came back for {names[i]}. {hint}")
            mine = torch.cat([r[i] for r in run]) if i < 2 else sum(r[i] for r in run)
            require(
                mine.shape == right[i].shape,
                f"{names[i]} has shape {tuple(mine.shape)} in all; {tuple(right[i].shape)} is due.",
            )
            off = float((mine - right[i]).abs().max() / right[i].abs().max().clamp_min(1e-6))
            require(
                off < 1e-6,
                f"Parts of {counts} samples, x of shape (samples, {', '.join(map(str, shape))}): {names[i]} is off by {off:.1e} of its "
                f"size. {hint}",
            )


@SYNC.check("the output, for parts of unequal size", points=2)
def check_output(answer: Answer) -> None:
    """Against nn.functional.batch_norm on the whole batch, on 1, 2 and 3 ranks."""
    _compare(
        answer,
        [0],
        [
            "Do mean and variance count every sample once, also where ranks hold different numbers of them? And is the variance that of "
            "the whole batch, not the mean of the ranks' variances?"
        ],
    )


@SYNC.check("the gradient of x", points=3)
def check_input_gradient(answer: Answer) -> None:
    """Through mean and variance, in which every sample of every rank has its part."""
    _compare(
        answer,
        [1],
        [
            "Every sample moved the mean and the variance of all: which two sums over the whole batch belong into its gradient? Are they "
            "sums over all ranks?"
        ],
    )


@SYNC.check("the gradients of weight and bias stay local", points=1)
def check_parameter_gradients(answer: Answer) -> None:
    """Their sum over the ranks is the whole batch's: data parallelism averages them later."""
    hint = "Each rank should leave its own samples' share: DDP brings the ranks' together. Is it summed over ranks already?"
    _compare(answer, [2, 3], [hint, hint])


@SYNC.check("one all-reduce each way", points=2)
def check_sync_messages(answer: Answer) -> None:
    """2 C + 1 numbers forward, 2 C backward, of 8 bytes."""
    for counts, shape, offset in _CASES[:3]:
        parts, weight, bias = _batch(counts, shape, offset)
        ranks = len(counts)
        run = answer.run(_normalised, ranks, parts, weight, bias, backend="ring", record=True)
        calls = run.traffic.calls(rank=0)
        require(
            calls == 2,
            f"{calls} collective calls, where one forward and one backward are enough. What can travel in one tensor?",
        )
        most = 2 * (ranks - 1) * 8 * (4 * shape[0] + 1)
        sent = run.traffic.bytes_sent()
        require(
            sent <= most,
            f"{sent:,} bytes are sent by {ranks} ranks; 2 C + 1 numbers forward and 2 C backward need {most:,}. Which sums are enough?",
        )
