"""Checkpoints in halves: log2(n) inputs in place of the square root of n."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, CheckFailed, Exercise, require
from dtcourse.plural import plural

CHAIN = Exercise(
    "checkpoint_in_halves",
    lesson="15",
    title="Checkpoints in halves",
    takes=("run_chain",),
    target="gradients to 1e-12; 64 layers with log2(64) + 10 tensors at the peak, in at most 512 runs of a layer",
    forbidden=(
        "torch.utils.checkpoint",
        "dtcourse.memory",
    ),
    watched=("torch.utils.checkpoint", "dtcourse.memory"),
)

BESIDES = 10  # tensors of the input's size, besides log2(n) checkpoints: one layer's, the output, gradients


def _chained(run_chain: Any, weights: list[Tensor], x: Tensor, needed: bool) -> Any:
    from dtcourse.profiling.memory_tracker import MemoryTracker

    weights = [w.clone().requires_grad_() for w in weights]
    x = x.clone().requires_grad_(needed)
    for w in weights:
        w.grad = torch.zeros_like(w)
    runs = 0

    def layer(weight: Tensor, x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return torch.nn.functional.dropout(torch.tanh(x @ weight), 0.1)

    torch.manual_seed(7)
    with MemoryTracker(inputs=[x, *weights]) as tracker:
        out = run_chain([partial(layer, w) for w in weights], x)
        between = torch.rand(3)
        out.square().sum().backward()
    after = torch.rand(3)
    gradients = [None if t.grad is None else t.grad for t in (*weights, x)]
    return out.detach(), gradients, between, after, runs, tracker.peak.bytes - x.nbytes


def _chain(layers: int, rows: int = 16, width: int = 6) -> tuple[list[Tensor], Tensor]:
    double = torch.double
    weights = [torch.randn(width, width, dtype=double) / 2 for _ in range(layers)]
    return weights, torch.randn(rows, width, dtype=double)


def _without(weights: list[Tensor], x: Tensor, needed: bool) -> Any:
    """What comes out without checkpoints; the judge's own random state is left as it was."""

    def plainly(layers: list[Any], x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    with torch.random.fork_rng(devices=[]):
        return _chained(plainly, weights, x, needed)


def _compare(answer: Answer, layers: int, needed: bool = True) -> Any:
    weights, x = _chain(layers)
    got, right = answer.call(_chained, weights, x, needed), _without(weights, x, needed)
    which = plural(layers, "layer")
    require(
        got[0].shape == right[0].shape and (got[0] - right[0]).abs().max() < 1e-12,
        f"{which}: what it returns is not what the layers return one after the other. The forward pass is theirs.",
    )
    missing = [i for i, g in enumerate(got[1][:-1]) if g is None or not g.any()]
    require(
        not missing,
        f"{which}: the weights of layers {missing} have no gradient. They are not among the inputs; which backward "
        "gives them theirs?",
    )
    require(
        (got[1][-1] is None) == (not needed),
        f"{which}: the input requires {'a' if needed else 'no'} gradient, and got "
        f"{'one' if got[1][-1] is not None else 'none'}.",
    )
    for i, (mine, theirs) in enumerate(zip(got[1], right[1], strict=True)):
        if theirs is None:
            continue
        whose = "the input" if i == layers else f"layer {i}'s weight"
        require(
            (mine - theirs).abs().max() < 1e-12,
            f"{which}: the gradient of {whose} is off by {(mine - theirs).abs().max():.2g}. Which random numbers "
            "does each layer draw when it runs again, and does each gradient come once?",
        )
    return got, right


@CHAIN.check(
    "the gradients of all weights and of the input, with dropout in each layer",
    points=3,
    needs=("check_peak",),
)
def check_gradients(answer: Answer) -> None:
    """Also where halves are unequal, and for one layer."""
    for layers in (8, 1, 5, 13):
        _compare(answer, layers)


@CHAIN.check("an input that requires no gradient", points=2, needs=("check_peak",))
def check_batch(answer: Answer) -> None:
    """A batch; the weights train all the same."""
    try:
        _compare(answer, 6, needed=False)
    except CheckFailed as failed:
        raise CheckFailed(
            f"{failed} (The input is a batch here: it requires no gradient, and the weights do. autograd leaves an "
            "operation out none of whose inputs requires a gradient: what could you give it?)"
        ) from None


@CHAIN.check(
    "the random numbers of the rest of the program are the same as without it",
    points=2,
    needs=("check_peak",),
)
def check_stream(answer: Answer) -> None:
    """After forward and after backward."""
    got, right = _compare(answer, 8)
    require(
        torch.equal(got[2], right[2]),
        "After forward, the next random numbers are others than without checkpoints. Reading the state should not "
        "change it.",
    )
    require(
        torch.equal(got[3], right[3]),
        "After backward, the next random numbers are others than without checkpoints: the generator was left where "
        "a second run had put it. What would the next step's dropout draw?",
    )


@CHAIN.check(
    "log2(n) checkpoints at the peak, and n (log2(n) + 2) runs",
    points=5,
    needs=("check_gradients",),
)
def check_peak(answer: Answer) -> None:
    """64 layers, on a batch that is much larger than their weights."""
    layers = 64
    weights, x = _chain(layers, rows=4000)
    *_, runs, peak = answer.call(_chained, weights, x, True, timeout=60)
    held, allowed = peak / x.nbytes, math.log2(layers) + BESIDES
    require(
        held <= allowed,
        f"At the peak {held:.1f} tensors of the input's size are alive, besides the input; {allowed:.0f} are "
        f"allowed. The inputs of {math.isqrt(layers)} segments would be {math.isqrt(layers)}, with a segment's "
        "activations besides. Which inputs does a half need while backward is in it, and do a layer's activations "
        "go before the next layer's come?",
    )
    most = layers * (math.log2(layers) + 2)
    require(
        runs <= most,
        f"Layers ran {runs} times in all; {most:.0f} are allowed for {layers} layers. How often does each layer "
        "run, if every input is found from the nearest one that is kept?",
    )  # fmt: skip
