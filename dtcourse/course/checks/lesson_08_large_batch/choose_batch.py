"""How many ranks, how large a micro-batch and how many of them: the least time to a loss, within a budget. Really run."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_batch",
    lesson="08",
    title="Choose the batch",
    takes=("choose_batch",),
    target="on 6 clusters, at most 1.05 times the shortest time to the loss within the budget; at most 12 of 64 choices "
    "tried",
)

MOST_RANKS, OUT = 4, 32
MOST = 12  # choices that an answer may try
NEAR = 1.05  # the steps to the loss are really taken, and so have noise
CHOICES: list[trials.Choice] = [
    (ranks, micro, accumulation)
    for ranks in range(1, MOST_RANKS + 1)
    for micro in (1, 2, 4, 8)
    for accumulation in (1, 2, 4, 8)
]
DRAWS = 64  # gradients of which a measurement gives the mean squared norm
KNOWN = 16  # the batch of which an answer is told the steps
LOSS = 1e-3  # of the first one: where a run ends
SEEDS = 8
# inputs of the linear model; operations and bytes per second of a device; latency and bytes per second of the network
Cluster = tuple[int, float, float, float, float]
QUICK: Cluster = (64, 4e8, 2e8, 20e-6, 4e8)  # a network that costs little
WIDE: Cluster = (128, 1e9, 2e8, 50e-6, 2e8)  # much noise
FAR: Cluster = (32, 1e9, 2e8, 500e-6, 1e8)  # a long way from rank to rank
# With each, rank-seconds.
NOISE = ((QUICK, 1e9), (WIDE, 1e9))
NETWORK = ((FAR, 1e9), ((96, 1e9, 4e8, 300e-6, 2e7), 1e9))
BUDGET = ((QUICK, 0.9), (WIDE, 0.9))


def data(inputs: int, samples: int, draw: torch.Generator) -> torch.Tensor:
    """Standard normal inputs (samples, inputs)."""
    return torch.randn(samples, inputs, generator=draw)


def gradient(x: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    """Of the mean of the samples' halved squared errors; off: what the weights are away from the right ones."""
    return x.mT @ (x @ off) / x.shape[-2]


def step(choice: tuple[int, int, int], inputs: int) -> tuple[float, float, float]:
    """On each rank: the seconds of a step; the mean squared norms of a rank's gradient, and of the ranks' mean."""
    import torch.distributed as dist

    from dtcourse import emulation

    ranks, micro, accumulation = choice
    group, rank = dist.new_group(list(range(ranks))), dist.get_rank()
    draw = torch.Generator().manual_seed(rank)
    off = torch.randn(inputs, OUT, generator=torch.Generator().manual_seed(99))
    parts = data(inputs, micro * accumulation, draw).split(micro)
    start = trials.begin_together()
    if rank >= ranks:
        return 0.0, 0.0, 0.0
    total = torch.zeros_like(off)
    for x in parts:
        total += gradient(x, off)
    if ranks > 1:
        dist.all_reduce(total, group=group)
    off = off - 1e-3 / (ranks * accumulation) * total
    taken = emulation.now() - start
    own = gradient(torch.randn(DRAWS, micro * accumulation, inputs, generator=draw), off)
    both = torch.stack([own.square().sum() / DRAWS / ranks])
    if ranks > 1:
        dist.all_reduce(both, group=group)
        dist.all_reduce(own, group=group)
    return taken, float(both), float((own / ranks).square().sum() / DRAWS)


@cache
def steps_to_loss(inputs: int, batch: int) -> float:
    """Steps of SGD with its best learning rate for the batch, up to a tenth, really taken; the mean of SEEDS runs.

    Inputs are standard normal, so the curvature is 1 in all directions, and tr(Sigma) is inputs + 1 times |G|^2 all the
    way: lesson 08's best learning rate is exact.
    """
    lr, draw = 0.1 / (1 + (inputs + 1) / batch), torch.Generator().manual_seed(0)
    off = torch.randn(SEEDS, inputs, OUT, generator=draw)
    first, taken = off.square().sum((1, 2)), torch.zeros(SEEDS)
    while True:
        going = off.square().sum((1, 2)) > LOSS * first
        if not going.any():
            return taken.mean().item()
        taken += going
        x = torch.randn(SEEDS, batch, inputs, generator=draw)
        off -= lr * gradient(x, off)


def case(cluster: Cluster, budget: float) -> trials.Case:
    """A cluster as an answer gets it."""
    inputs, flops, bandwidth, latency, network = cluster
    emulated: dict[str, Any] = {
        "devices": EmulatedDevice(flops, bandwidth),
        "network": EmulatedNetwork(latency=latency, bandwidth=network),
    }
    told = (CHOICES, KNOWN, steps_to_loss(inputs, KNOWN), budget)
    return trials.Case(step, MOST_RANKS, CHOICES, (inputs,), told, MOST, emulated)


def seconds(cluster: Cluster, choice: trials.Choice, of_a_step: float) -> float:
    """To the loss: the steps that were taken, and what one of them takes."""
    ranks, micro, accumulation = choice
    return steps_to_loss(cluster[0], ranks * micro * accumulation) * of_a_step


@cache
def to_loss(cluster: Cluster) -> dict[trials.Choice, float]:
    """Seconds to the loss by every choice."""
    found = case(cluster, 0.0).search()
    return {choice: seconds(cluster, choice, taken) for choice, (taken, *_) in found.items()}


def best(cluster: Cluster, budget: float) -> tuple[float, trials.Choice]:
    """The shortest time within the budget, and its choice."""
    return min(
        (taken, choice) for choice, taken in to_loss(cluster).items() if taken * choice[0] <= budget
    )


def __getattr__(name: str) -> Any:
    if name == "PRACTICE":
        return case(*NOISE[0])
    raise AttributeError(name)


def _require(answer: Answer, cases: tuple[tuple[Cluster, float], ...], hint: str) -> None:
    for cluster, budget in cases:
        where = (
            f"A model of {cluster[0]} inputs, a network of {1e6 * cluster[3]:g} µs and {cluster[4] / 1e6:g} MB/s, "
            f"{budget:g} rank-seconds"
        )
        tried = case(cluster, budget).tried(answer)
        of_a_step, *_ = trials.require_possible(
            where,
            tried,
            (4, 2, 1),
            f"There are 1 to {MOST_RANKS} ranks; micro and accumulation are 1, 2, 4 or 8.",
        )
        taken = seconds(cluster, tried.choice, of_a_step)
        used = taken * tried.choice[0]
        require(
            used <= budget,
            f"{where}: {tried.choice!r} uses {used:.3g} rank-seconds, which is above the budget. How many steps does "
            "its batch need, and on how many ranks?",
        )
        least, _ = best(cluster, budget)
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint, near=NEAR)


@CHOOSE.check("where noise limits", points=2)
def check_noise(answer: Answer) -> None:
    """The network costs little: more ranks pay up to a batch above the noise scale."""
    _require(
        answer, NOISE, "How many steps does a larger batch save there, and what does a step cost?"
    )


@CHOOSE.check("where the network limits", points=3)
def check_network(answer: Answer) -> None:
    """Ranks that accumulate, or fewer of them, beat ranks that wait for messages."""
    _require(
        answer,
        NETWORK,
        "What does the all-reduce of so many ranks cost, and how often per sample does it come?",
    )


@CHOOSE.check("where the budget limits", points=3)
def check_budget(answer: Answer) -> None:
    """Beyond the noise scale a rank more costs more than it saves."""
    _require(answer, BUDGET, "Of the choices that the budget allows, which takes the least time?")
