"""An embedding on two stages, with one owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
)
from dtcourse.plural import plural

OWNER = Exercise(
    "one_owner",
    lesson="17",
    title="An embedding on two stages, with one owner",
    takes=("one_owner",),
    target="equal to one process to 1e-5 and bit for bit between "
    "copies; no states on the last rank; two tables per step",
    forbidden=(
        "dtcourse.pipeline_parallel",
        "dtcourse.sharding",
        "torch.distributed.pipelining",
        "torch.distributed.optim",
        "torch.distributed.fsdp",
    ),
)

VOCABULARY, WIDTH, SAMPLES, STEPS = 7, 3, 4, 3
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def _loss(y: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y @ table.T, target)


def _layer(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(weight.clone())


def _alone(weights: list[torch.Tensor], tables: list[torch.Tensor], batch: Any, kind: str) -> Any:
    """The truth: table and layers after the steps, in one process that has rank 0's table."""
    table, layers = _layer(tables[0]), [_layer(w) for w in weights]
    optimizer = OPTIMIZERS[kind]([table, *layers])
    for tokens, target in batch:
        optimizer.zero_grad()
        y = F.embedding(tokens, table)
        for layer in layers:
            y = torch.tanh(y @ layer)
        _loss(y, table, target).backward()
        optimizer.step()
    return table.detach(), [layer.detach() for layer in layers]


def _train(
    one_owner: Any, weight: torch.Tensor, own: torch.Tensor | None, batch: Any, kind: str
) -> Any:
    """On a rank: its layer, its copy of the table, and the elements of the optimizer's state for that."""
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layer = _layer(weight)
    table = None if own is None else _layer(own)
    before_step, after_step = one_owner(table)
    optimizer = OPTIMIZERS[kind]([layer] if table is None else [layer, table])
    for tokens, target in batch:
        optimizer.zero_grad()
        if rank == 0:
            assert table is not None, "rank 0 has one"
            x = F.embedding(tokens, table)
        else:
            x = torch.empty(SAMPLES, WIDTH)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = torch.tanh(x @ layer)
        if rank == last:
            assert table is not None, "the last rank has one"
            _loss(y, table, target).backward()
        else:
            dist.send(y.detach(), rank + 1)
            dy = torch.empty_like(y)
            dist.recv(dy, rank + 1)
            y.backward(dy)
        if rank > 0:
            assert x.grad is not None, "backward has just made it"
            dist.send(x.grad, rank - 1)
        before_step()
        optimizer.step()
        after_step()
    state = 0
    if table is not None:
        state = sum(
            t.numel() for t in optimizer.state.get(table, {}).values() if torch.is_tensor(t)
        )
    return layer.detach(), None if table is None else table.detach(), state


def _run(answer: Answer, ranks: int, kind: str, **options: Any) -> Any:
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(ranks)]
    tables = [torch.randn(VOCABULARY, WIDTH) for _ in range(ranks)]
    batch = [
        (torch.randint(VOCABULARY, (SAMPLES,)), torch.randint(VOCABULARY, (SAMPLES,)))
        for _ in range(STEPS)
    ]
    own = Each([table if rank in (0, ranks - 1) else None for rank, table in enumerate(tables)])
    run = answer.run(_train, ranks, Each(weights), own, batch, kind, **options)
    return run, _alone(weights, tables, batch, kind)


def _compare(answer: Answer, ranks: int, kind: str) -> None:
    run, (table, layers) = _run(answer, ranks, kind)
    where = f"On {plural(ranks, 'rank')}, after {STEPS} steps with {kind}"
    hint = (
        "Which values do both copies start with, whose gradients does the owner step with, and what do the last "
        "rank's copy and its gradient do in the meantime?"
    )
    for rank in sorted({0, ranks - 1}):
        require_close(run[rank][1], table, f"{where}: rank {rank}'s table", 1e-5, hint)
    for rank, layer in enumerate(layers):
        require_close(run[rank][0], layer, f"{where}: rank {rank}'s layer", 1e-5, hint)
    require(
        torch.equal(run[0][1], run[ranks - 1][1]),
        f"{where}: the two copies are close, but not equal bit for bit. Do both compute the new values, or does one "
        "send them?",
    )


@OWNER.check("SGD: equal to one process, and both copies equal", points=3)
def check_sgd(answer: Answer) -> None:
    """Copies start with other values."""
    for ranks in (2, 3, 4):
        _compare(answer, ranks, "SGD")


@OWNER.check("AdamW, and one rank alone", points=2, needs=("check_sgd",))
def check_adamw(answer: Answer) -> None:
    """On one rank both stages use one parameter."""
    for ranks in (1, 2, 3):
        _compare(answer, ranks, "AdamW")


@OWNER.check("the last rank's optimizer has no state for its copy", points=2, needs=("check_sgd",))
def check_states(answer: Answer) -> None:
    """Elements of momentum, or of both moments."""
    for ranks, kind in ((2, "AdamW"), (3, "SGD")):
        run, _ = _run(answer, ranks, kind)
        state = run[ranks - 1][2]
        require(
            state == 0,
            f"On {plural(ranks, 'rank')}, the last rank's {kind} has {state} numbers of state for its copy of the "
            "table. What does an optimizer do with a parameter that has no gradient?",
        )


@OWNER.check(
    "two tables per step, and inner ranks take no part",
    points=1,
    needs=("check_sgd", "check_states"),
)
def check_bytes(answer: Answer) -> None:
    """Counted message by message."""
    for ranks in (2, 4):
        run, _ = _run(answer, ranks, "SGD", backend="ring", record=True)
        activations = 2 * STEPS * SAMPLES * WIDTH * 4
        table = VOCABULARY * WIDTH * 4
        # Each border between ranks, forward and back, is the check's own.
        own = [activations // 2 * ((r > 0) + (r < ranks - 1)) for r in range(ranks)]
        sent = [run.traffic.bytes_sent(rank=r) - own[r] for r in range(ranks)]
        require(
            sum(sent) <= (2 * STEPS + 1) * table and not any(sent[1:-1]),
            f"In {STEPS} steps {plural(ranks, 'rank')} send {sent} bytes for a table of {table} bytes; "
            f"{(2 * STEPS + 1) * table} in "
            "all are enough, and none of them to or from inner ranks. Who needs the gradient, and who the new values?",
        )
        for rank in (0, ranks - 1):  # a gradient, or new values, in each step
            came = run.traffic.bytes_received(rank) - own[rank]
            where = f"Of what belongs to the table, rank {rank} of {ranks}"
            require_received(where, came, STEPS * table)
