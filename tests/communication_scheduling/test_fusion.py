"""The size of a bucket: what the model says is what DistributedDataParallel takes under emulation,
and the best is the best."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import nn

from dtcourse import emulation, launch
from dtcourse.communication_scheduling.fusion import (
    AssignDivision,
    Gradient,
    all_reduce_seconds,
    arrival,
    best_division,
    best_even_size,
    best_size,
    divide,
)
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedNetwork
from dtcourse.parameters.reducer import Reducer
from dtcourse.simulator.collective_cost import Link

LAYERS, WIDTH = 12, 12
NBYTES = WIDTH * WIDTH * 4
BACKWARD = 1e-3  # seconds, of a layer
P = 3


class Takes(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        emulation.sleep(BACKWARD)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = Takes.apply(layer(x))
        return x


GRADIENTS = [Gradient(NBYTES, (i + 1) * BACKWARD) for i in range(LAYERS)]
LINKS = {  # the ring's time of a layer beside its backward: latency, bytes, or both above it
    "latency": Link(alpha=4e-4, beta=0.05e-3 / NBYTES, gap=1e-4),
    "bytes": Link(alpha=1e-5, beta=1.2e-3 / NBYTES, gap=1e-5),
    "both": Link(alpha=3e-4, beta=0.7e-3 / NBYTES),
    "neither": Link(alpha=2e-5, beta=0.1e-3 / NBYTES),
}


def of_ddp():
    """Backward's time by layers in a bucket."""
    times = {}
    for layers in range(1, LAYERS + 1):
        wrapped = DistributedDataParallel(Model(), bucket_cap_mb=layers * NBYTES / (1 << 20))
        times[layers] = timed(wrapped, nn.Module.zero_grad)
    return times


def of_division(division):
    module = Model()
    names = {p: name for name, p in module.named_parameters()}
    reducer = Reducer(names, assign=AssignDivision(division))

    def forward(x):
        output = module(x)
        reducer.prepare_for_backward(output)
        return output

    return timed(forward, lambda _: module.zero_grad())


def timed(forward, clear):
    for _ in range(3):
        clear(forward)
        loss = forward(torch.ones(1, WIDTH)).sum()
        begun = math.ceil(emulation.now()) + 1.0  # all ranks begin at one moment
        emulation.sleep(begun - emulation.now())
        loss.backward()
        seconds = emulation.now() - begun
    return seconds


def both(division):
    return of_ddp(), of_division(division)


@pytest.mark.parametrize("name", LINKS)
def test_the_best_size_predicted_is_the_best_that_ddp_has(name):
    link = LINKS[name]
    seconds = all_reduce_seconds(P, link)
    network = EmulatedNetwork(link.alpha, link.bandwidth, gap=link.gap)
    division, promised = best_division(GRADIENTS, seconds)
    measured, divided = launch(both, P, division, backend="ring", network=network, clock="virtual")[
        0
    ]
    for layers, took in measured.items():
        predicted = arrival(GRADIENTS, divide(GRADIENTS, layers * NBYTES), seconds)
        assert took == pytest.approx(predicted, rel=1e-9), layers
    size, when = best_size(GRADIENTS, seconds)
    assert min(measured.values()) == pytest.approx(when, rel=1e-9)
    assert measured[size // NBYTES] == pytest.approx(min(measured.values()), rel=1e-9)
    assert divided == pytest.approx(promised, rel=1e-9)
    assert promised <= when * (1 + 1e-12)
    if name in ("bytes", "both"):
        assert promised < 0.98 * when, "unequal buckets are worth something here"
    assert (size > NBYTES) == (name in ("latency", "both")), "one layer's time is the latency's"


@pytest.mark.parametrize("seed", range(30))
def test_no_division_of_any_kind_is_better(seed):
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    ready = list(itertools.accumulate(draw.uniform(0, 2) for _ in range(count)))
    gradients = [Gradient(draw.randint(1, 50), t) for t in ready]
    a, beta = draw.uniform(0, 2), draw.uniform(0, 0.1)

    def seconds(nbytes):
        return a + beta * nbytes

    everything = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        places = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        everything.append([b - a for a, b in itertools.pairwise(places)])
    shortest = min(arrival(gradients, each, seconds) for each in everything)
    division, when = best_division(gradients, seconds)
    assert when == arrival(gradients, division, seconds) == shortest
    size, of_size = best_size(gradients, seconds)
    tried = [arrival(gradients, divide(gradients, n), seconds) for n in range(1, 500)]
    assert of_size == min(tried) == arrival(gradients, divide(gradients, size), seconds)


@pytest.mark.parametrize(
    ("a", "beta"), [(0.05, 2.0), (0.5, 0.8), (0.02, 0.5), (0.1, 0.999), (50.0, 3.0)]
)
def test_the_formula_finds_the_best_size_of_an_even_flow(a, beta):
    """A thousand gradients of one byte, one a second."""
    gradients = [Gradient(1, i + 1.0) for i in range(1000)]

    def when(size):
        return arrival(gradients, divide(gradients, size), lambda nbytes: a + beta * nbytes)

    formula = best_even_size(1000, 1000.0, a, beta)
    assert 0 < formula <= 1000
    best = min(when(size) for size in range(1, 1001))
    # Whole gradients, and a last bucket that is not full: a size of the formula's, up to a gradient.
    assert min(when(max(1, round(formula) + d)) for d in (-1, 0, 1)) <= best * 1.01


def test_what_cannot_be_divided_is_refused():
    some = [Gradient(4, 0.0), Gradient(4, 1.0)]
    for call, words in (
        (lambda: divide([], 4), "there are 0 gradients"),
        (lambda: divide(some, 0), "bucket_bytes=0"),
        (lambda: divide([Gradient(-1, 0.0)], 4), "nbytes=-1"),
        (lambda: arrival(some, [1], len), r"2 in all; got \[1\]"),
        (lambda: arrival(some, [2, 0], len), r"got \[2, 0\]"),
        (lambda: best_even_size(0, 1, 1, 1), "total_bytes=0"),
        (lambda: AssignDivision([2])([torch.zeros(1)]), "for 2 gradients, and there are 1"),
        (
            lambda: AssignDivision([2])([torch.zeros(1), torch.zeros(1).double()]),
            "bucket 0 .* torch.float32 on cpu and torch.float64 on cpu",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
