"""The checks of lesson 15: a checkpoint with its random state, attention in tiles, the best cuts of an unequal chain."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.checks import Answer, CheckFailed, Exercise, require

# --- 1. checkpoint ------------------------------------------------------------------------------------------------

CHECKPOINT = Exercise(
    "checkpoint_with_random_state",
    lesson="15",
    title="Checkpoint that keeps the random state",
    takes=("my_checkpoint",),
    target="gradients to 1e-12 with dropout inside; keeps its inputs, its output and 16 KiB; two runs of the function",
)


def _checkpointed(
    my_checkpoint: Any, weights: list[Tensor], inputs: list[Tensor], needs: list[bool]
) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    first, second = (w.clone().requires_grad_() for w in weights)
    x, scale = (i.clone().requires_grad_(need) for i, need in zip(inputs, needs, strict=True))
    runs = 0

    def function(x: Tensor, scale: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        hidden = torch.nn.functional.dropout(torch.tanh(x @ first), 0.4)
        return torch.nn.functional.dropout(hidden * scale, 0.4) @ second

    torch.manual_seed(7)
    with MemoryTracker(inputs=[first, second, x, scale]) as tracker:
        out = my_checkpoint(function, x, scale)
        between = torch.rand(3)
        out.square().sum().backward()
    after = torch.rand(3)
    gradients = [None if t.grad is None else t.grad for t in (first, second, x, scale)]
    return out.detach(), gradients, between, after, runs, tracker.activation_bytes


def _chain(rows: int = 24, width: int = 6, hidden: int = 40) -> tuple[list[Tensor], list[Tensor]]:
    double = torch.double
    weights = [torch.randn(width, hidden, dtype=double), torch.randn(hidden, 5, dtype=double)]
    return weights, [torch.randn(rows, width, dtype=double), torch.rand(hidden, dtype=double) + 0.5]


def _without(weights: list[Tensor], inputs: list[Tensor], needs: list[bool]) -> Any:
    """What comes out without checkpointing; the judge's own random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        return _checkpointed(lambda function, *inputs: function(*inputs), weights, inputs, needs)


NAMES = ("the first weight", "the second weight", "the first input", "the second input")


def _compare(answer: Answer, needs: list[bool]) -> Any:
    weights, inputs = _chain()
    got = answer.call(_checkpointed, weights, inputs, needs)
    right = _without(weights, inputs, needs)
    require(
        got[0].shape == right[0].shape and (got[0] - right[0]).abs().max() < 1e-12,
        "What it returns is not what function(*inputs) returns. The forward pass is the function's own.",
    )
    for name, mine, theirs in zip(NAMES, got[1], right[1], strict=True):
        if theirs is None:
            require(mine is None, f"{name} needs no gradient, and got one.")
            continue
        require(
            mine is not None,
            f"{name} has no gradient. "
            + (
                "The weights are not among the inputs; where do their gradients come from in your backward?"
                if "weight" in name
                else "Does your backward return one for each input?"
            ),
        )
        require(
            mine.shape == theirs.shape and (mine - theirs).abs().max() < 1e-12,
            f"The gradient of {name} is off by {(mine - theirs).abs().max():.2g}: it belongs to another dropout mask than the "
            "output does, or to another function. Which random numbers does the second run draw?",
        )
    return got, right


@CHECKPOINT.check("the gradients of weights and inputs, with dropout inside", points=3)
def check_gradients(answer: Answer) -> None:
    """Two inputs that need gradients, two weights that are no inputs."""
    _compare(answer, [True, True])


@CHECKPOINT.check("inputs that need no gradient", points=2)
def check_first_block(answer: Answer) -> None:
    """A batch needs none; the weights do all the same."""
    try:
        _compare(answer, [False, True])
        _compare(answer, [False, False])
    except CheckFailed as failed:
        raise CheckFailed(
            f"{failed} (This is the first block of a network: its batch needs no gradient, its weights do. autograd calls the "
            "backward only of an operation one of whose inputs requires a gradient: what could you give it?)"
        ) from None


@CHECKPOINT.check(
    "the random numbers of the rest of the program are the same as without it", points=2
)
def check_stream(answer: Answer) -> None:
    """After forward and after backward."""
    got, right = _compare(answer, [True, True])
    require(
        torch.equal(got[2], right[2]),
        "After forward, the next random numbers are others than without checkpointing. Keeping the state should not change it.",
    )
    require(
        torch.equal(got[3], right[3]),
        "After backward, the next random numbers are others than without checkpointing: the generator was left where the "
        "second run had put it. What would the next dropout in the network draw?",
    )


@CHECKPOINT.check("keeps its inputs and its output, and runs the function twice", points=3)
def check_kept(answer: Answer) -> None:
    """Bytes alive when backward begins, beyond the inputs."""
    weights, inputs = _chain(rows=2000, hidden=200)
    out, _, _, _, runs, kept = answer.call(_checkpointed, weights, inputs, [True, True])
    without = _without(weights, inputs, [True, True])[5]
    allowed = out.nbytes + sum(x.nbytes for x in inputs) + (16 << 10)
    require(
        kept <= allowed,
        f"{kept:,} bytes are kept from forward to backward; the output, copies of the inputs and 16 KiB make {allowed:,} "
        f"(without checkpointing: {without:,}). Does autograd watch the first run?",
    )
    require(
        runs == 2, f"The function ran {runs} times; two are enough: one forward, one in backward."
    )


# --- 2. attention -------------------------------------------------------------------------------------------------

ATTENTION = Exercise(
    "attention_in_tiles",
    lesson="15",
    title="Memory-efficient attention, forward and backward",
    takes=("tiled_attention",),
    target="output and gradients to 1e-9; kept: output and one number a query; peak at 768 keys under 1 MiB",
)


def _attended(
    tiled_attention: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool, block: int
) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    with MemoryTracker(inputs=[q, k, v, grad]) as tracker:
        out = tiled_attention(q, k, v, causal, block)
        out.backward(grad)
    given = sum(x.nbytes for x in (q, k, v, grad))
    gradients = [x.grad for x in (q, k, v)]
    return out.detach(), gradients, tracker.activation_bytes, tracker.peak.bytes - given


def _reference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    out = scores.softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def _qkv(leading: tuple[int, ...], L: int, S: int, E: int, size: float = 1.0) -> list[Tensor]:
    shapes = (*leading, L, E), (*leading, S, E), (*leading, S, E), (*leading, L, E)
    q, k, v, grad = (torch.randn(s, dtype=torch.double) for s in shapes)
    return [q * size, k * size, v, grad]


def _right(answer: Answer, tensors: list[Tensor], causal: bool, block: int) -> None:
    out, gradients, _, _ = answer.call(_attended, *tensors, causal, block)
    q, k, v, grad = tensors
    expected = _reference(q, k, v, grad, causal)
    which = f"q {tuple(q.shape)}, k {tuple(k.shape)}, {'causal' if causal else 'no mask'}, block {block}: "
    for name, mine, right in zip(
        ("output", "q.grad", "k.grad", "v.grad"), [out, *gradients], expected, strict=True
    ):
        require(
            mine is not None and mine.shape == right.shape,
            f"{which}{name} has not the shape {tuple(right.shape)}.",
        )
        require(
            mine.isfinite().all(),
            f"{which}{name} has infinities or NaN. Relative to what are the exponentials taken?",
        )
        error = (mine - right).abs().max().item()
        hint = {
            "output": "When a new maximum comes, what happens to the sum and to the weighted values so far? Is every key in one tile?",
            "q.grad": "What becomes of the gradient of the probabilities on its way through the softmax (delta), and where is the scale?",
            "k.grad": "Which queries see this block of keys, and where is the scale?",
            "v.grad": "Are these the probabilities of the forward pass: exp(score - log-sum-exp), masked?",
        }[name]
        require(error < 1e-9, f"{which}{name} is off by {error:.2g}. {hint}")


@ATTENTION.check("output and gradients, with and without a causal mask", points=4)
def check_attention(answer: Answer) -> None:
    """On (batch, length, dim) and (batch, heads, length, dim)."""
    for leading in ((2,), (2, 3)):
        for causal in (False, True):
            _right(answer, _qkv(leading, 32, 32, 6), causal, 8)


@ATTENTION.check("any lengths: no multiple of the block, more keys than queries, fewer", points=2)
def check_lengths(answer: Answer) -> None:
    """The last tile is shorter."""
    for L, S, causal in (
        (21, 21, True),
        (9, 30, False),
        (30, 9, True),
        (13, 27, True),
        (1, 5, False),
    ):
        _right(answer, _qkv((2,), L, S, 4), causal, 8)


@ATTENTION.check("scores far beyond what exp can hold", points=2)
def check_large_scores(answer: Answer) -> None:
    """Scores of several thousand, where exp overflows from 710 on."""
    for causal in (False, True):
        _right(answer, _qkv((1,), 40, 40, 8, size=30.0), causal, 8)


@ATTENTION.check(
    "keeps the output and one number a query; its peak is far below the scores", points=4
)
def check_bytes(answer: Answer) -> None:
    """What is alive when backward begins, and at the worst moment, beyond q, k, v and the gradient given."""
    tensors = _qkv((2,), 768, 768, 8)
    out, _, kept, peak = answer.call(_attended, *tensors, True, 64)
    allowed = out.nbytes + 2 * 768 * 8 + 2048
    scores = 2 * 768 * 768 * 8
    require(
        kept <= allowed,
        f"{kept:,} bytes are kept from forward to backward, beyond q, k and v; the output and one number a query are "
        f"{allowed:,} (all probabilities: {scores:,}). What does backward need that it cannot make again?",
    )
    require(
        peak < 1 << 20,
        f"At the worst moment {peak:,} bytes are alive beyond the inputs; 1 MiB is allowed, and the scores alone would be "
        f"{scores:,}. Is a tile gone before the next one is made, in backward too?",
    )


# --- 3. cuts ------------------------------------------------------------------------------------------------------

CUTS = Exercise(
    "cut_a_chain",
    lesson="15",
    title="Where to cut a chain of unequal layers",
    takes=("best_cuts",),
    target="the least peak in 60 random chains of up to 24 layers",
)


def _cuts(best_cuts: Any, chains: list[tuple[list[int], list[int]]]) -> list[Any]:
    return [[int(s) for s in best_cuts(list(kept), list(inputs))] for kept, inputs in chains]


def _peak(kept: list[int], inputs: list[int], starts: list[int]) -> int:
    ends = [*starts[1:], len(kept)]
    return sum(inputs[s] for s in starts) + max(
        sum(kept[a:b]) for a, b in zip(starts, ends, strict=True)
    )


def _least(kept: list[int], inputs: list[int]) -> int:
    """For every size that the largest segment may have: the cheapest inputs. The best of these."""
    n = len(kept)
    sums = [0]
    for size in kept:
        sums.append(sums[-1] + size)
    best = math.inf
    for limit in sorted({sums[b] - sums[a] for a in range(n) for b in range(a + 1, n + 1)}):
        cost = [0.0] + [math.inf] * n
        for end in range(1, n + 1):
            cost[end] = min(
                (cost[a] + inputs[a] for a in range(end) if sums[end] - sums[a] <= limit),
                default=math.inf,
            )
        best = min(best, cost[n] + limit)
    return int(best)


def _random_chain(n: int) -> tuple[list[int], list[int]]:
    kept = [random.choice([1, 2, 4, 8, 16, 32]) * random.randint(1, 9) for _ in range(n)]
    return kept, [random.choice([1, 1, 2, 5, 10, 40]) * random.randint(1, 4) for _ in range(n)]


@CUTS.check("starts that can be: the first is 0, rising, inside the chain", points=1)
def check_starts(answer: Answer) -> None:
    """Also for one layer."""
    chains = [_random_chain(n) for n in (1, 2, 7)]
    for (kept, _), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        require(
            starts[:1] == [0] and starts == sorted(set(starts)) and starts[-1] < len(kept),
            f"For {len(kept)} layers it returns {starts}. It should be the first layer of each segment: 0 first, then rising.",
        )


@CUTS.check("equal layers: the square-root rule", points=2)
def check_equal(answer: Answer) -> None:
    """4, 9, 16 and 36 equal layers, each of whose inputs is as large as what it keeps."""
    chains = [([5] * n, [5] * n) for n in (4, 9, 16, 36)]
    for (kept, inputs), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        n = len(kept)
        require(starts[:1] == [0], f"{starts}: the first segment starts with layer 0.")
        got, least = _peak(kept, inputs, starts), _least(kept, inputs)
        require(
            got == least,
            f"{n} equal layers in {len(starts)} segments: {got // 5} layers' bytes at the peak, and {least // 5} would do. "
            f"What is the square root of {n}?",
        )


@CUTS.check("unequal layers: the least peak there is", points=4)
def check_unequal(answer: Answer) -> None:
    """60 random chains."""
    chains = [_random_chain(random.randint(3, 24)) for _ in range(60)]
    for (kept, inputs), starts in zip(chains, answer.call(_cuts, chains), strict=True):
        require(starts[:1] == [0], f"{starts}: the first segment starts with layer 0.")
        got, least = _peak(kept, inputs, starts), _least(kept, inputs)
        require(
            got == least,
            f"Layers that keep {kept} with inputs of {inputs}: cut at {starts} the peak is {got}, and {least} can be had. If "
            "you knew how large the largest segment may be, how would you choose the cuts with the cheapest inputs?",
        )
