"""ZeRO-2: gradients in buckets to their owners, while backward goes on."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.plural import plural

BUCKETS = Exercise(
    "buckets_to_owners",
    lesson="16",
    title="ZeRO-2: buckets to their owners",
    takes=("buckets_to_owners",),
    target="mean gradients on their owner to 1e-5, None elsewhere; as few buckets as fit; one under way, beside "
    "backward",
    forbidden=(
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "dtcourse.sharding",
        "dtcourse.parameters",
        "dtcourse.data_parallel",
    ),
)

WIDTHS = (6, 9, 7, 7, 8, 5, 4)
FROZEN = 3  # the second layer's bias
BUCKET_BYTES = 400
BACKWARDS = 2


def _model(weights: list[torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(WIDTHS):
        layers += [nn.Linear(a, b), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    list(model.parameters())[FROZEN].requires_grad_(False)
    return model


class _Noted:
    """A work that says when it is waited for."""

    def __init__(self, work: Any, log: list[Any], number: int) -> None:
        self._work, self._log, self._number = work, log, number

    def wait(self, *timeout: Any) -> Any:
        self._log.append(("wait", self._number, 0))
        return self._work.wait(*timeout)

    def is_completed(self) -> bool:
        return self._work.is_completed()


def _to_owners(
    buckets_to_owners: Any, weights: list[torch.Tensor], batch: Any, owners: list[int]
) -> tuple[list[Any], list[Any]]:
    """Gradients after the last backward, and what happened in it, in order: ("ready", i, bytes),
    ("send" or "wait", k, bytes).
    """
    import torch.distributed as dist

    model, log, numbers = _model(weights), [], count()
    trained = [p for p in model.parameters() if p.requires_grad]
    for i, p in enumerate(trained):  # before the answer's own
        p.register_post_accumulate_grad_hook(lambda p, i=i: log.append(("ready", i, p.grad.nbytes)))

    def send(tensor: torch.Tensor, rank: int) -> _Noted:
        number = next(numbers)
        log.append(("send", number, tensor.nbytes))
        return _Noted(dist.reduce(tensor, dst=rank, async_op=True), log, number)

    owner = dict(zip(trained, owners, strict=True))
    finish = buckets_to_owners(model, owner, BUCKET_BYTES, send)
    x, y = batch
    for _ in range(BACKWARDS):
        model.zero_grad()
        log.clear()
        first = next(numbers) + 1  # of this backward's messages
        nn.functional.mse_loss(model(x), y).backward()
        log.append(("end of backward", 0, 0))
        finish()
    return [None if p.grad is None else p.grad.clone() for p in trained], [
        (kind, k - first if kind in ("send", "wait") else k, nbytes) for kind, k, nbytes in log
    ]


def _run(answer: Answer, ranks: int) -> tuple[Any, list[torch.Tensor], list[int]]:
    weights = [torch.randn(s) / 2 for a, b in pairwise(WIDTHS) for s in ((b, a), (b,))]
    batch = torch.randn(12, WIDTHS[0]), torch.randn(12, WIDTHS[-1])
    alone = _model(weights)
    nn.functional.mse_loss(alone(batch[0]), batch[1]).backward()
    right = [p.grad for p in alone.parameters() if p.grad is not None]
    owners = [(i // 3 + 1) % ranks for i in range(len(right))]
    own = Each(list(zip(*(t.chunk(ranks) for t in batch), strict=True)))
    return answer.run(_to_owners, ranks, weights, own, owners), right, owners


def _buckets(log: list[Any], owners: list[int]) -> list[tuple[list[int], int]]:
    """What the rule makes of the gradients in their order: (those of a bucket, how many were ready when it closed)."""
    found: list[tuple[list[int], int]] = []
    filling: list[int] = []
    ready = [(i, nbytes) for kind, i, nbytes in log if kind == "ready"]
    sizes = dict(ready)
    for number, (i, nbytes) in enumerate(ready, 1):
        full = sum(sizes[j] for j in filling) + nbytes > BUCKET_BYTES
        if filling and (owners[i] != owners[filling[0]] or full):
            found.append((filling, number))
            filling = []
        filling.append(i)
    return [*found, (filling, len(ready) + 1)]


def _waited(where: str, log: list[Any]) -> None:
    sent, waited = ({k for kind, k, _ in log if kind == what} for what in ("send", "wait"))
    require(
        sent <= waited,
        f"{where}: {plural(len(sent - waited), 'message')} of {len(sent)} are never waited for. What is in a tensor "
        "that is still under way, and who says when it has arrived?",
    )


@BUCKETS.check("the mean gradient, on its owner", points=3, needs=("check_bucket_count",))
def check_bucket_gradients(answer: Answer) -> None:
    """Two backwards, a frozen parameter."""
    for ranks in (2, 3, 4):
        run, right, owners = _run(answer, ranks)
        for rank in range(ranks):
            _waited(f"On {plural(ranks, 'rank')}, rank {rank}", run[rank][1])
        for i, (expected, owner) in enumerate(zip(right, owners, strict=True)):
            got = run[owner][0][i]
            require(
                got is not None,
                f"On {plural(ranks, 'rank')}, rank {owner} owns trained parameter {i} and has no gradient of it "
                "after finish(). Where did it go?",
            )
            require_close(
                got,
                expected,
                f"On {plural(ranks, 'rank')}, the gradient of trained parameter {i} on its owner, rank {owner}, is "
                "not that of one process on the whole batch: it",
                1e-5,
                "Is it the sum or the mean, of all ranks, and does each parameter get its own piece of the bucket?",
                split=True,
            )


@BUCKETS.check(
    "None everywhere else", points=1, needs=("check_bucket_gradients", "check_bucket_count")
)
def check_bucket_freed(answer: Answer) -> None:
    """After finish()."""
    for ranks in (2, 3):
        run, _, owners = _run(answer, ranks)
        for rank in range(ranks):
            left = [i for i, g in enumerate(run[rank][0]) if g is not None and owners[i] != rank]
            require(
                not left,
                f"On {plural(ranks, 'rank')}, rank {rank} still has gradients of {len(left)} trained parameters "
                "that others own. Who needs them?",
            )


@BUCKETS.check("as many buckets as the rule makes", points=2, needs=("check_bucket_gradients",))
def check_bucket_count(answer: Answer) -> None:
    """Of one owner, in the order in which gradients come, at most bucket_bytes."""
    for ranks in (2, 3):
        run, _, owners = _run(answer, ranks)
        for rank in range(ranks):
            log = run[rank][1]
            sizes = {i: nbytes for kind, i, nbytes in log if kind == "ready"}
            right = [sum(sizes[i] for i in bucket) for bucket, _ in _buckets(log, owners)]
            sent = [nbytes for kind, _, nbytes in log if kind == "send"]
            require(
                sent == right,
                f"On {plural(ranks, 'rank')}, rank {rank} sends messages of {sent} bytes; with buckets of "
                f"{BUCKET_BYTES} bytes the rule makes {right}. When does a bucket close: at another owner, and when "
                "the next gradient does not fit?",
            )


@BUCKETS.check(
    "beside backward: sent when it closes, waited for before the next", points=3,
    needs=("check_bucket_gradients", "check_bucket_count"),
)  # fmt: skip
def check_bucket_overlap(answer: Answer) -> None:
    """From the order of what happened: no clock."""
    run, _, owners = _run(answer, 2)
    log = run[0][1]
    closes = [number for _, number in _buckets(log, owners)]
    ready, under_way = 0, None
    for kind, k, _ in log:
        if kind in ("ready", "end of backward"):
            ready += 1
        elif kind == "send":
            require(
                ready <= closes[k],
                f"Message {k} is sent when {ready} gradients are ready; its bucket closes with gradient "
                f"{closes[k]}. Does it leave in "
                "backward, as soon as it is closed?",
            )
            require(
                under_way is None,
                f"Message {k} is sent while message {under_way and under_way[0]} is under way. How many buckets "
                "hold memory at one moment then?",
            )
            under_way = (k, ready)
        elif kind == "wait" and under_way is not None and under_way[0] == k:
            in_finish = closes[k] > sum(what == "ready" for what, *_ in log)
            require(
                in_finish or ready > under_way[1],
                f"Message {k} is waited for at once, before backward has made another gradient. What could backward do "
                "meanwhile, and when is the message needed at the latest?",
            )
            under_way = None
