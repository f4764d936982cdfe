"""The checks of lesson 14: activations by formula and by hooks, a scaler for several ranks, 16 bits with one rounding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.checks import Answer, Exercise, require
from dtcourse.profiling.memory import SavedTensors

# --- 1. activations by formula ----------------------------------------------------------------------------------

ACTIVATIONS = Exercise(
    "kept_bytes",
    lesson="14",
    title="Activations by formula",
    takes=("kept_bytes",),
    target="equal to what autograd saves, to the byte, for 12 shapes",
)


class GatedBlock(nn.Module):
    """The block of the exercise: grouped key-value heads, fused attention, a gated MLP, no biases."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.size, kv = width // heads, kv_heads * width // heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, kv, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, S, D) -> (B, S, D)"""
        a = self.norm_1(x)
        q, k, v = (
            layer(a).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        a = self.norm_2(x)
        return x + self.down(F.silu(self.gate(a)) * self.up(a))


def _formula(kept_bytes: Any, cases: list[tuple[int, ...]]) -> list[Any]:
    return [kept_bytes(*case) for case in cases]


def _shapes(count: int) -> list[tuple[int, ...]]:
    """(batch, sequence, width, heads, kv_heads, hidden), with fewer key-value heads than heads."""
    shapes: list[tuple[int, ...]] = []
    for _ in range(count):
        kv_heads, group = random.choice((2, 3)), random.choice((3, 4))  # no two hints coincide
        width = kv_heads * group * random.choice((8, 16))
        hidden = width + 8 * random.randrange(1, 20)
        batch, sequence = random.randrange(2, 5), random.randrange(9, 40)
        shapes.append((batch, sequence, width, kv_heads * group, kv_heads, hidden))
    return shapes


@ACTIVATIONS.check("the bytes of a gated block, as autograd saves them", points=4)
def check_kept_bytes(answer: Answer) -> None:
    """Measured here, on the real block, for every shape."""
    cases = _shapes(12)
    for case, got in zip(cases, answer.call(_formula, cases), strict=True):
        batch, sequence, width, heads, kv_heads, hidden = case
        x = torch.randn(batch, sequence, width, requires_grad=True)
        block = GatedBlock(width, heads, kv_heads, hidden)
        with SavedTensors(block) as saved:
            block(x)
        require(
            type(got) is int,
            f"kept_bytes should return a whole number of bytes; it returned {got!r}. Divide with //.",
        )
        tokens = batch * sequence
        off = (got - saved.bytes) / (4 * tokens)  # numbers a token
        kv = kv_heads * width // heads
        hints = {
            -hidden: "A product's backward needs both of its factors, and silu needs its input, which is neither.",
            -2
            * hidden: "A product's backward needs both of its factors, and the layer after it the product itself.",
            2 * width: "Query, key and value read the same tensor. How often is it there?",
            width: "Is a tensor that one operation puts out and the next one saves there twice?",
            -width: "Does every operation with a weight keep its input? And each norm?",
            -heads: "The fused kernel keeps one number for each query, and every head has its own queries.",
            2
            * (
                width - kv
            ): "Key and value heads are shared: how wide are keys and values as they are kept?",
            -4: "Each norm keeps its mean and its scale, for every token.",
        }
        hint = hints.get(
            off, "Go through forward line by line: what does each operation's backward need?"
        )  # type: ignore[call-overload]
        require(
            got == saved.bytes,
            f"B={batch}, S={sequence}, D={width}, {heads} heads, {kv_heads} for keys and values, F={hidden}: autograd keeps "
            f"{saved.bytes:,} bytes, and you say {got:,}, which is {abs(off):g} numbers a token too "
            f"{'many' if off > 0 else 'few'}. {hint}",
        )


# --- 2. saved tensors -------------------------------------------------------------------------------------------

SAVED = Exercise(
    "saved_bytes",
    lesson="14",
    title="Count what is saved",
    takes=("saved_bytes",),
    target="exact to 1 byte for 5 models, and the backward pass still right",
)

Case = tuple[Callable[[], torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def _case(name: str, seed: int) -> Case:
    """A forward function, what is there anyway, and the tensors whose gradients count."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 24, generator=generator, dtype=torch.double)
    a, b = (
        torch.randn(24, 24, generator=generator, dtype=torch.double).requires_grad_()
        for _ in range(2)
    )

    def shared() -> torch.Tensor:
        h = (x @ a).tanh()  # saved by tanh, and by both products
        return ((h @ b) * (h @ b.t())).sum()

    def views() -> torch.Tensor:
        h = (x @ a).sigmoid()
        return (h.view(8, 48).sin() * h.t().reshape(8, 48)).sum() + (h.t() @ h).sum()

    def slices() -> torch.Tensor:
        h = x @ a
        return (h[:, :3] * b[:1, :3]).sum() + h[0].tanh().sum()

    def tied() -> torch.Tensor:
        return ((x @ a).relu() @ a.t() @ b).square().mean()

    if name == "a convolution":
        image = torch.randn(2, 1, 8, 8, generator=generator, dtype=torch.double)
        kernel = torch.randn(4, 1, 3, 3, generator=generator, dtype=torch.double).requires_grad_()
        return lambda: F.conv2d(image, kernel).relu().square().sum(), [image, kernel], [kernel]
    forward = {"a shared input": shared, "views": views, "slices": slices, "tied weights": tied}
    return forward[name], [x, a, b], [a, b]


_CASES = ("a shared input", "views", "slices", "tied weights", "a convolution")


def _count(saved_bytes: Any, seed: int) -> list[tuple[Any, list[torch.Tensor | None]]]:
    results = []
    for name in _CASES:
        forward, known, wanted = _case(name, seed)
        losses: list[torch.Tensor] = []

        def remember(forward: Any = forward, losses: list = losses) -> torch.Tensor:
            losses.append(forward())
            return losses[-1]

        counted = saved_bytes(remember, known)
        losses[-1].backward() if losses else None
        results.append((counted, [t.grad if t.grad is None else t.grad.clone() for t in wanted]))
    return results


@SAVED.check("each storage once, and nothing that is there anyway", points=4)
def check_saved(answer: Answer) -> None:
    """Five models, against the course's own counter."""
    seed = random.randrange(10**6)
    for name, (got, _) in zip(_CASES, answer.call(_count, seed), strict=True):
        forward, known, _ = _case(name, seed)
        with SavedTensors(None, known) as saved:
            forward()
        with SavedTensors() as everything:
            forward()
        views = 0

        def add(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal views
            views += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(add, lambda tensor: tensor):
            forward()
        why = "Which storages do the saved tensors lie in, and how large are those?"
        if got == everything.bytes:
            why = "That includes what is in `known`: weights and batch were there before."
        elif got == views:
            why = "That is the sum over all saved tensors. Several of them can be views of one storage."
        elif isinstance(got, int) and got < saved.bytes:
            why = "A view keeps its whole storage alive, not only its own part of it."
        elif isinstance(got, int) and got > saved.bytes:
            why = "Is something counted twice, perhaps through two different views?"
        require(
            got == saved.bytes,
            f"{name}: autograd keeps {saved.bytes:,} bytes, and you count {got!r}. {why}",
        )


@SAVED.check("the backward pass still works", points=1)
def check_backward(answer: Answer) -> None:
    """Gradients after counting are the gradients without."""
    seed = random.randrange(10**6)
    for name, (_, gradients) in zip(_CASES, answer.call(_count, seed), strict=True):
        forward, _, wanted = _case(name, seed)
        forward().backward()
        for got, tensor in zip(gradients, wanted, strict=True):
            if tensor.grad is None:  # this model does not use it
                continue
            require(
                got is not None and torch.allclose(got, tensor.grad),
                f"{name}: after counting, the backward pass gives other gradients (or none). What `unpack` returns is what the "
                "backward pass computes with.",
            )


# --- 3. a scaler for several ranks ------------------------------------------------------------------------------

SCALER = Exercise(
    "scaler",
    lesson="14",
    title="A scaler for several ranks",
    takes=("Scaler",),
    target="PyTorch's rules over 40 steps at 1, 2 and 3 ranks, at most 64 bytes a rank and step",
)

_RATE = 2.0**-4
_LARGEST = torch.finfo(torch.float32).max


def _train(
    Scaler: Any, gradients: list[torch.Tensor], scale: float, interval: int
) -> tuple[list[float], list[bool], torch.Tensor]:
    import torch.distributed as dist

    w = nn.Parameter(torch.zeros(gradients[0].shape[1]))
    idle = nn.Parameter(torch.zeros(3))  # has no gradient
    optimizer = torch.optim.SGD([w, idle], lr=_RATE)
    scaler, scales, stepped = Scaler(scale, interval), [], []
    for gradient in gradients[dist.get_rank()]:
        optimizer.zero_grad()
        scales.append(float(scaler.get_scale()))
        scaler.scale((w * gradient).sum()).backward()
        stepped.append(bool(scaler.step(optimizer)))
        scaler.update()
    return scales, stepped, w.detach()


def _expected(
    gradients: list[torch.Tensor], scale: float, interval: int
) -> tuple[list[float], list[bool], list[torch.Tensor]]:
    weights = [torch.zeros(g.shape[1]) for g in gradients]
    scales, stepped, good = [], [], 0
    for i in range(len(gradients[0])):
        scales.append(scale)
        fine = all((g[i].double() * scale).abs().max() <= _LARGEST for g in gradients)
        stepped.append(fine)
        if fine:
            for w, g in zip(weights, gradients, strict=True):
                w -= _RATE * g[i]
        good = good + 1 if fine else 0
        if not fine:
            scale /= 2
        elif good == interval:
            scale, good = scale * 2, 0
    return scales, stepped, weights


def _gradients(ranks: int, steps: int = 40) -> list[torch.Tensor]:
    """Small whole numbers, so that sums are exact; now and then one rank has a number that only a small scale can bear."""
    gradients = [torch.randint(-8, 9, (steps, 40)).float() for _ in range(ranks)]
    for step in sorted(random.sample(range(2, steps - 2), 6)):
        gradients[random.randrange(ranks)][step, random.randrange(40)] = 2.0**112
    return gradients


def _played(answer: Answer, ranks: int, **options: Any) -> tuple[Any, Any, list[torch.Tensor]]:
    gradients, scale, interval = _gradients(ranks), 2.0**17, random.choice((3, 4))
    run = answer.run(_train, ranks, gradients, scale, interval, **options)
    return run, _expected(gradients, scale, interval), gradients


@SCALER.check("all ranks step, or none does", points=2)
def check_together(answer: Answer) -> None:
    """Decisions of the ranks, against each other and against the rule."""
    for ranks in (2, 3):
        run, (_, stepped, _), gradients = _played(answer, ranks)
        for step, right in enumerate(stepped):
            said = [run[rank][1][step] for rank in range(ranks)]
            require(
                len(set(said)) == 1,
                f"{ranks} ranks, step {step}: some ranks stepped and others did not ({said}), so the model's parts are no longer of "
                "one step. How does a rank learn of another's overflow?",
            )
            largest = max(g[step].abs().max().item() for g in gradients)
            require(
                said[0] == right,
                f"{ranks} ranks, step {step}: `step` returned {said[0]}, and a gradient "
                f"{'was' if largest > 100 and not right else 'was not'} infinite. When may it step?",
            )


@SCALER.check("the scale goes down at once and up with patience", points=2)
def check_scales(answer: Answer) -> None:
    """The scales of 40 steps, exactly."""
    for ranks in (1, 3):
        run, (scales, stepped, _), _ = _played(answer, ranks)
        for step, right in enumerate(scales):
            got = run[0][0][step]
            if got == right:
                continue
            before = "a skipped" if step and not stepped[step - 1] else "a good"
            require(
                False,
                f"step {step}, after {before} step: the scale should be {right:g}, and is {got:g}. Halve after an overflow; double "
                "after growth_interval good steps in a row: which event sets that count to zero?",
            )


@SCALER.check("weights as if nothing had been scaled, for a few bytes", points=2)
def check_weights(answer: Answer) -> None:
    """Exact weights; traffic of at most 64 bytes a rank and step."""
    ranks = 3
    run, (_, _, weights), gradients = _played(answer, ranks, backend="ring", record=True)
    for rank in range(ranks):
        require(
            torch.equal(run[rank][2], weights[rank]),
            f"rank {rank}'s weights are not those of the steps that were taken, with unscaled gradients "
            f"(largest difference {(run[rank][2] - weights[rank]).abs().max():.3g}). What does the optimizer see as gradient?",
        )
        budget = 64 * len(gradients[0])
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= budget,
            f"rank {rank} sent {sent:,} bytes in {len(gradients[0])} steps; {budget:,} are allowed. What do the others need to know: "
            "the gradients, or one thing about them?",
        )


# --- 4. an all-reduce in 16 bits --------------------------------------------------------------------------------

ALL_REDUCE = Exercise(
    "all_reduce_16",
    lesson="14",
    title="Sixteen bits, one rounding",
    takes=("all_reduce_16",),
    target="half a unit in the last place, for the bytes of a bfloat16 ring, at 2, 3 and 4 ranks",
)


def _reduce(all_reduce_16: Any, values: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    x = values[dist.get_rank()].clone()
    all_reduce_16(x)
    return x


@ALL_REDUCE.check("one rounding, the same on all ranks", points=3)
def check_one_rounding(answer: Answer) -> None:
    """At most half a unit in the last place from the exact sum."""
    for ranks in (2, 3, 4):
        n = random.randrange(200, 400)
        values = (torch.randn(ranks, n) + random.choice((-1, 1))).bfloat16()
        run = answer.run(_reduce, ranks, values)
        exact = values.double().sum(0)
        unit = torch.exp2(exact.abs().clamp_min(1e-30).log2().floor() - 7)
        for rank in range(ranks):
            got = run[rank]
            require(
                isinstance(got, torch.Tensor) and got.shape == (n,) and got.dtype == torch.bfloat16,
                f"with {ranks} ranks and {n} numbers, x should still be {n} bfloat16 numbers. Sum in place: x.copy_(...).",
            )
            off = ((got.double() - exact).abs() / unit).max().item()
            require(
                not torch.equal(got, values[rank]),
                f"with {ranks} ranks, rank {rank}'s x is as it was before: the sum has to be written into x.",
            )
            require(
                off <= 0.5 + 1e-3,
                f"with {ranks} ranks and {n} numbers, rank {rank} is up to {off:.3g} units in the last place from the exact sum; one "
                "rounding makes at most 0.5. Where else is something rounded to bfloat16 (or left out)?",
            )
            require(
                torch.equal(got, run[0]),
                f"with {ranks} ranks, rank {rank} and rank 0 hold different bits: after an all-reduce all are the same.",
            )


@ALL_REDUCE.check("no more bytes than a ring sends in bfloat16", points=2)
def check_bytes(answer: Answer) -> None:
    """2 (p - 1) ceil(n / p) numbers of 2 bytes a rank."""
    for ranks, n in ((2, 1001), (3, 2000 + random.randrange(3))):
        values = torch.randn(ranks, n).bfloat16()
        run = answer.run(_reduce, ranks, values, backend="ring", record=True)
        budget = 2 * (ranks - 1) * math.ceil(n / ranks) * 2
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= budget,
                f"with {ranks} ranks and {n} numbers, rank {rank} sends {sent:,} bytes; a bfloat16 ring sends {budget:,}. "
                + (
                    "Is it float32 that travels?"
                    if sent <= 2.1 * budget and sent > 1.6 * budget
                    else "Does each rank need everybody's whole vector, or only a part of it?"
                ),
            )
