"""The checks of lesson 16: bytes of each stage, an optimizer shared out, gradients that go home, a sharded layer."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. the formula ---------------------------------------------------------------------------------------------

BYTES = Exercise(
    "bytes_on_ranks",
    lesson="16",
    title="Bytes on each rank",
    takes=("bytes_on_ranks",),
    target="0 bytes off on every rank, at stages 0 to 3, for uneven sizes and any precision",
)

Case = tuple[list[int], int, int, int, int, int]


def _bytes(bytes_on_ranks: Any, cases: list[Case]) -> list[Any]:
    return [
        list(bytes_on_ranks(sizes, ranks, stage, weights=w, gradients=g, optimizer=o))
        for sizes, ranks, stage, w, g, o in cases
    ]


def _right_bytes(sizes: list[int], ranks: int, stage: int, w: int, g: int, o: int) -> list[int]:
    own = _shares(sizes, ranks)
    if stage == 3:
        own = [-(-sum(sizes) // ranks)] * ranks
    n = sum(sizes)
    return [
        w * (mine if stage == 3 else n)
        + g * (mine if stage >= 2 else n)
        + o * (mine if stage >= 1 else n)
        for mine in own
    ]


def _shares(sizes: list[int], ranks: int) -> list[int]:
    own = [0] * ranks
    for size in sorted(sizes, reverse=True):
        own[own.index(min(own))] += size
    return own


def _compare_bytes(answer: Answer, cases: list[Case], hint: str) -> None:
    for case, got in zip(cases, answer.call(_bytes, cases), strict=True):
        sizes, ranks, stage, *each = case
        right = _right_bytes(*case)
        require(
            got == right,
            f"Parameters of {sizes} elements on {ranks} ranks, stage {stage}, {each} bytes an element (weight, gradient, "
            f"optimizer): you say {got}, and it is {right}. {hint}",
        )


@BYTES.check("equal sizes that divide evenly: the paper's formula", points=2)
def check_even(answer: Answer) -> None:
    """All stages, mixed precision and float32."""
    cases = [
        ([12 * k] * ranks, ranks, stage, *each)
        for stage in (0, 1, 2, 3)
        for ranks, k in ((4, random.randint(1, 9)), (2, random.randint(1, 9)))
        for each in ((2, 2, 12), (4, 4, 8))
    ]
    _compare_bytes(answer, cases, "Which of the three does this stage shard, and which are whole?")


@BYTES.check("whole parameters of uneven sizes, dealt out", points=2)
def check_dealt_out(answer: Answer) -> None:
    """The order of dealing matters."""
    cases: list[Case] = [([3, 9, 4, 8, 5, 7], 2, 1, 2, 2, 12), ([1, 6], 4, 2, 4, 4, 8)]
    for stage in (1, 2):
        for _ in range(4):
            sizes = [random.randint(1, 40) for _ in range(random.randint(2, 9))]
            cases.append((sizes, random.randint(2, 5), stage, 2, 2, 12))
    _compare_bytes(
        answer,
        cases,
        "In what order are the parameters dealt out, and who gets the next one? A rank's bytes are those of its own ones.",
    )


@BYTES.check("flats that the number of ranks does not divide: padding", points=2)
def check_padding(answer: Answer) -> None:
    """A part of the padding lies on a rank."""
    cases: list[Case] = [([7], 2, 3, 2, 2, 12), ([5, 6], 4, 3, 4, 4, 8), ([2], 4, 3, 2, 2, 12)]
    cases += [([random.randint(1, 99), 100], 3, 3, 2, 2, 12) for _ in range(3)]
    _compare_bytes(
        answer,
        cases,
        "All parts are of one size, or no single all-gather could fetch them. What is it?",
    )


# --- 2. ZeRO-1 ----------------------------------------------------------------------------------------------------

ZERO_1 = Exercise(
    "zero_1",
    lesson="16",
    title="ZeRO-1: an optimizer that is shared out",
    takes=("zero_1",),
    target="one process's parameters to 1e-6; Adam states of 8 bytes an owned element; (p - 1) N elements sent a step",
)

SHAPES = [(7, 6), (7,), (5, 7), (5,), (3, 5)]
N = sum(torch.Size(s).numel() for s in SHAPES)


def _zero_1(
    zero_1: Any, start: list[torch.Tensor], gradients: list[list[torch.Tensor]], owners: list[int],
    kind: str, options: dict[str, float],
) -> tuple[list[torch.Tensor], int]:  # fmt: skip
    """Parameters after some steps, and bytes of the optimizer's states of more than one number."""
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = zero_1(
        dict(zip(parameters, owners, strict=True)), getattr(torch.optim, kind), **options
    )
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    values = [v for state in optimizer.state.values() for v in state.values()]
    held = sum(v.nbytes for v in values if isinstance(v, torch.Tensor) and v.numel() > 1)
    return [p.detach() for p in parameters], held


def _owners(ranks: int) -> list[int]:
    """Each rank owns something where there is enough, in no particular order."""
    owners = [i % ranks for i in range(len(SHAPES))]
    random.shuffle(owners)
    return owners


def _train(
    answer: Answer, ranks: int, kind: str, options: dict[str, float], owners: list[int], **more: Any
) -> tuple[Any, list[torch.Tensor]]:
    start = [torch.randn(s) for s in SHAPES]
    gradients = [[torch.randn(s) for s in SHAPES] for _ in range(3)]
    run = answer.run(_zero_1, ranks, start, gradients, owners, kind, options, **more)
    parameters = [nn.Parameter(p.clone()) for p in start]
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    for step in gradients:
        for p, g in zip(parameters, step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return run, [p.detach() for p in parameters]


@ZERO_1.check("every rank has one process's parameters", points=3)
def check_zero_1_parameters(answer: Answer) -> None:
    """Two optimizers, 1 to 4 ranks, owners at random."""
    for ranks, kind, options in (
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (3, "AdamW", {"lr": 0.01}),
        (4, "SGD", {"lr": 0.1}),
        (1, "AdamW", {"lr": 0.01}),
    ):
        owners = _owners(ranks)
        run, right = _train(answer, ranks, kind, options, owners)
        for rank in range(ranks):
            for i, (got, expected) in enumerate(zip(run[rank][0], right, strict=True)):
                require(
                    got.shape == expected.shape
                    and bool((got - expected).abs().max() <= 1e-6 * (1 + expected.abs().max())),
                    f"{kind} on {ranks} ranks: after 3 steps parameter {i}, which rank {owners[i]} owns, is not what one process "
                    f"has, on rank {rank}. Who updates it, and from whom does rank {rank} get the new value?",
                )


@ZERO_1.check("states of the owned elements only, also where there are none", points=3)
def check_zero_1_states(answer: Answer) -> None:
    """Adam keeps two float32 numbers for each element."""
    for ranks, owners in ((2, _owners(2)), (3, [0, 2, 2, 0, 2])):
        run, _ = _train(answer, ranks, "Adam", {"lr": 0.01}, owners)
        for rank in range(ranks):
            own = sum(
                torch.Size(s).numel() for s, o in zip(SHAPES, owners, strict=True) if o == rank
            )
            require(
                run[rank][1] == 8 * own,
                f"Rank {rank} of {ranks} owns {own} of {N} elements, which is {8 * own} bytes of Adam states, and its optimizer "
                f"holds {run[rank][1]}. Which parameters does the optimizer know of?",
            )


@ZERO_1.check("(p - 1) N elements a step, all ranks together", points=2)
def check_zero_1_traffic(answer: Answer) -> None:
    """Counted message by message."""
    for ranks in (2, 3):
        run, _ = _train(
            answer, ranks, "SGD", {"lr": 0.1}, _owners(ranks), backend="ring", record=True
        )
        sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks))
        least = 3 * 4 * (ranks - 1) * N
        require(
            sent <= least,
            f"In 3 steps {ranks} ranks send {sent:,} bytes; {least:,} are enough. Each new value has to reach {ranks - 1} ranks, "
            "once. Does something travel that the receiver has, or does not need?",
        )


# --- 3. ZeRO-2 ----------------------------------------------------------------------------------------------------

ZERO_2 = Exercise(
    "gradients_go_home",
    lesson="16",
    title="ZeRO-2: gradients that go home",
    takes=("gradients_go_home",),
    target="mean gradients on their owner to 1e-5, None elsewhere; (p - 1) N elements sent; own and one other at a time",
)

LAYERS = [(6, 9), (9, 7), (7, 7), (7, 4)]
FROZEN = 3  # the second layer's bias


def _model(weights: list[torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in LAYERS:
        layers += [nn.Linear(a, b), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    list(model.parameters())[FROZEN].requires_grad_(False)
    return model


def _zero_2(
    gradients_go_home: Any, weights: list[torch.Tensor], batch: Any, owners: list[int], steps: int
) -> tuple[list[Any], int]:
    """Gradients of the last backward, and the most bytes of gradients at any moment of it."""
    import torch.distributed as dist

    model = _model(weights)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients_go_home(model, dict(zip(trained, owners, strict=True)))
    most = 0

    def look(_: Any) -> None:
        nonlocal most
        most = max(most, sum(p.grad.nbytes for p in trained if p.grad is not None))

    for p in trained:
        p.register_post_accumulate_grad_hook(look)  # runs after the answer's own
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in batch)
    for _ in range(steps):
        model.zero_grad()
        most = 0
        nn.functional.mse_loss(model(x), y).backward()
    return [None if p.grad is None else p.grad.clone() for p in trained], most


def _go_home(answer: Answer, ranks: int, **more: Any) -> tuple[Any, list[torch.Tensor], list[int]]:
    weights = [torch.randn(s) / 2 for a, b in LAYERS for s in ((b, a), (b,))]
    batch = torch.randn(12, 6), torch.randn(12, 4)
    alone = _model(weights)
    nn.functional.mse_loss(alone(batch[0]), batch[1]).backward()
    right = [p.grad for p in alone.parameters() if p.grad is not None]
    owners = [i % ranks for i in range(len(right))]
    random.shuffle(owners)
    return answer.run(_zero_2, ranks, weights, batch, owners, 2, **more), right, owners


@ZERO_2.check("the mean gradient, on its owner", points=3)
def check_zero_2_gradients(answer: Answer) -> None:
    """Two backwards, a frozen parameter, owners at random."""
    for ranks in (2, 3, 4):
        run, right, owners = _go_home(answer, ranks)
        for i, (expected, owner) in enumerate(zip(right, owners, strict=True)):
            got = run[owner][0][i]
            require(
                got is not None,
                f"On {ranks} ranks, rank {owner} owns trained parameter {i} and has no gradient of it after backward. "
                "Where did it go?",
            )
            scale = float((got * expected).sum() / expected.square().sum())
            require(
                bool((got - expected).abs().max() <= 1e-5 * (1e-3 + expected.abs().max())),
                f"On {ranks} ranks, the gradient of trained parameter {i} on its owner, rank {owner}, is not that of one process "
                f"on the whole batch (about {scale:.2f} times that). Is it the sum or the mean, and of all ranks?",
            )


@ZERO_2.check("None everywhere else", points=1)
def check_zero_2_freed(answer: Answer) -> None:
    """After backward."""
    for ranks in (2, 3):
        run, _, owners = _go_home(answer, ranks)
        for rank in range(ranks):
            left = [i for i, g in enumerate(run[rank][0]) if g is not None and owners[i] != rank]
            require(
                not left,
                f"On {ranks} ranks, rank {rank} still has gradients of {len(left)} trained parameters that others own. Who needs "
                "them?",
            )


@ZERO_2.check("freed on the way: the own ones, and one other", points=2)
def check_zero_2_peak(answer: Answer) -> None:
    """Looked at each time a gradient has become ready."""
    for ranks in (2, 4):
        run, right, owners = _go_home(answer, ranks)
        for rank in range(ranks):
            own = sum(g.nbytes for g, o in zip(right, owners, strict=True) if o == rank)
            most = own + max(g.nbytes for g in right)
            require(
                run[rank][1] <= most,
                f"On {ranks} ranks, rank {rank} holds {run[rank][1]} bytes of gradients at one moment of backward; its own are {own} "
                f"and the largest single one {most - own}. When are the others' freed: as they are sent, or at the end?",
            )


@ZERO_2.check("half of DDP's traffic: (p - 1) N elements", points=2)
def check_zero_2_traffic(answer: Answer) -> None:
    """Counted message by message."""
    for ranks in (2, 3):
        run, right, _ = _go_home(answer, ranks, backend="ring", record=True)
        sent = sum(run.traffic.bytes_sent(rank=rank) for rank in range(ranks))
        n = sum(g.numel() for g in right)
        least = 2 * 4 * (ranks - 1) * n
        require(
            sent <= least,
            f"In 2 backwards {ranks} ranks send {sent:,} bytes for gradients of {n} elements; {least:,} are enough. All-reduce "
            "brings the mean to everybody: which collective brings it to one rank?",
        )


# --- 4. ZeRO-3 ----------------------------------------------------------------------------------------------------

ZERO_3 = Exercise(
    "sharded_linear",
    lesson="16",
    title="ZeRO-3: whole only while it computes",
    takes=("ShardedLinear",),
    target="equal to one process to 1e-5 with padding; 3 (p - 1) parts sent by each rank; no whole weight between",
)


def _zero_3(
    layer: Any, weights: list[torch.Tensor], batch: Any
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, int]:
    """Output, gradients of shards and input, and how many whole weights are alive between forward and backward."""
    import torch.distributed as dist

    from dtcourse.profiling.memory_tracker import MemoryTracker

    rank, size = dist.get_rank(), dist.get_world_size()
    shards = []
    for weight in weights:
        flat = weight.flatten()
        part = -(-len(flat) // size)
        flat = nn.functional.pad(flat, (0, part * size - len(flat)))
        shards.append(flat[rank * part : (rank + 1) * part].clone().requires_grad_())
    x, y = (t.chunk(size)[rank].clone() for t in batch)
    x.requires_grad_()
    with MemoryTracker(inputs=[x, y, *shards]) as tracker:
        hidden = x
        for shard, weight in zip(shards, weights, strict=True):
            hidden = torch.tanh(layer.apply(hidden, shard, weight.shape))
        alive = [a.bytes for a in tracker.history.allocations if a.died is None]
    large = sum(nbytes >= min(w.nbytes for w in weights) for nbytes in alive)
    output = hidden.detach().clone()
    (hidden - y).square().mean().backward()
    gradients: list[Any] = [s.grad for s in shards]
    return output, gradients, x.grad, large


def _layers(answer: Answer, ranks: int, sizes: list[int], **more: Any) -> tuple[Any, ...]:
    weights = [(torch.randn(b, a) / a**0.5).requires_grad_() for a, b in pairwise(sizes)]
    batch = torch.randn(12, sizes[0]), torch.randn(12, sizes[-1])
    x = batch[0].clone().requires_grad_()
    hidden = x
    for weight in weights:
        hidden = torch.tanh(hidden @ weight.T)
    (hidden - batch[1]).square().mean().backward()
    run = answer.run(_zero_3, ranks, [w.detach() for w in weights], batch, **more)
    return run, weights, hidden.detach(), x.grad


@ZERO_3.check("the output, and the input's gradient", points=3)
def check_zero_3_output(answer: Answer) -> None:
    """Three layers, with and without padding."""
    for ranks, sizes in ((2, [6, 8, 6, 4]), (3, [5, 7, 4, 5]), (4, [3, 5, 7, 3])):
        run, _, output, grad_x = _layers(answer, ranks, sizes)
        for rank in range(ranks):
            for what, got, whole, scale in (
                ("the output", run[rank][0], output, 1),
                # Each rank's loss is a mean over a p-th of the batch, so its gradient is p times as large.
                ("the gradient of x", run[rank][2], grad_x, ranks),
            ):
                right = scale * whole.chunk(ranks)[rank]
                require(
                    got is not None
                    and got.shape == right.shape
                    and bool((got - right).abs().max() <= 1e-5 * (1e-2 + right.abs().max())),
                    f"Three layers of {sizes} on {ranks} ranks: {what} on rank {rank} is not that of one process. Is the weight "
                    "whole, in rank order, without its padding, in forward and in backward?",
                )


@ZERO_3.check("the gradient of the shard: this rank's part of the mean", points=3)
def check_zero_3_gradient(answer: Answer) -> None:
    """The padding's is zero."""
    for ranks, sizes in ((2, [6, 8, 6, 4]), (3, [5, 7, 4, 5]), (4, [3, 5, 7, 3])):
        run, weights, _, _ = _layers(answer, ranks, sizes)
        for i, weight in enumerate(weights):
            parts = [run[rank][1][i] for rank in range(ranks)]
            require(
                all(p is not None for p in parts),
                f"The shard of layer {i} has no gradient. What does backward return for it?",
            )
            flat, right = torch.cat(parts), weight.grad.flatten()
            got, padding = flat[: len(right)], flat[len(right) :]
            scale = float((got @ right) / right.square().sum())
            require(
                bool((got - right).abs().max() <= 1e-5 * (1e-2 + right.abs().max())),
                f"{ranks} ranks, layer {i}: the gradients of the shards, laid end to end, are not the weight's gradient (about "
                f"{scale:.2f} times that). Which part does each rank keep, and is it the sum over the ranks or their mean?",
            )
            require(
                not padding.any(),
                f"{ranks} ranks, layer {i}: the last {len(padding)} elements are padding, and their gradient should be zero. What "
                "was in that memory before?",
            )


@ZERO_3.check("between forward and backward no whole weight is alive", points=2)
def check_zero_3_memory(answer: Answer) -> None:
    """Weights much larger than the activations."""
    run, _, _, _ = _layers(answer, 2, [40, 48, 40])
    for rank in range(2):
        require(
            run[rank][3] == 0,
            f"After forward, {run[rank][3]} tensors as large as a whole weight are still alive on rank {rank}. What does "
            "save_for_backward keep, and what could be gathered again?",
        )


@ZERO_3.check("3 (p - 1) parts from each rank", points=2)
def check_zero_3_traffic(answer: Answer) -> None:
    """Gathered twice, reduce-scattered once."""
    for ranks, sizes in ((2, [6, 8, 6]), (3, [5, 7, 4])):
        run, weights, _, _ = _layers(answer, ranks, sizes, backend="ring", record=True)
        exact = sum(3 * (ranks - 1) * 4 * -(-w.numel() // ranks) for w in weights)
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"On {ranks} ranks, rank {rank} sends {sent:,} bytes in forward and backward; three passes round the ring are "
                f"{exact:,}. "
                + (
                    "Which collective leaves each rank with its part of a sum, and nothing else?"
                    if sent > exact
                    else "Was the weight gathered again for backward, or kept?"
                ),
            )
