"""A step of a pipeline of uneven stages with data parallelism, on the emulated clock: the job of a decision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dtcourse.course.checks.lesson_22b_choosing_a_layout.clocked_pipeline import (
    RANKS,
    groups_of,
    one_f_one_b,
    options,
)
from dtcourse.course.judging import trials

STAGES, COPIES = 4, 2
ORDERS = ("pp dp", "dp pp")
STATES = 4  # times a gradient's bytes: weights, gradients, and Adam's two moments
Choice = tuple[tuple[int, ...], str]


class Job(NamedTuple):
    """What a case gives to the answer. Seconds, bytes, bytes per second; of three: the embedding, a block, the head.

    forward: seconds of a micro-batch, of which backward takes twice as many
    weights: bytes of gradients; kept: of a micro-batch, from its forward to its backward
    passed:  bytes of a micro-batch between two layers
    inside, between: in a node, and between nodes
    """

    blocks: int
    micro_batches: int
    forward: tuple[float, float, float]
    weights: tuple[int, int, int]
    kept: tuple[int, int, int]
    passed: int
    latency: float
    inside: float
    between: float


def choices(blocks: int) -> list[Choice]:
    """All (layers of each stage, order of the axes, the outermost first)."""
    layers = blocks + 2
    return [
        (tuple(b - a for a, b in itertools.pairwise((0, *ends, layers))), order)
        for ends in itertools.combinations(range(1, layers), STAGES - 1)
        for order in ORDERS
    ]


def by_stage(blocks: int, layers: Sequence[int], numbers: Sequence[float]) -> list[float]:
    """A sum for each stage. numbers: of the embedding, of a block, of the head."""
    embedding, block, head = numbers
    each = iter([embedding, *blocks * [block], head])
    return [sum(itertools.islice(each, size)) for size in layers]


def steps(_: Any, given: Sequence[tuple[Choice, tuple[Any, ...]]]) -> list[tuple[float, float]]:
    """On each rank: of each choice and job, what `step` finds, one after the other."""
    return [step(choice, job) for choice, job in given]


def step(choice: Choice, given: tuple[Any, ...]) -> tuple[float, float]:
    """On each rank: seconds of a step of 1F1B, and the most bytes that it holds: states, and what layers keep."""
    import torch.distributed as dist

    from dtcourse import emulation

    job, (layers, order) = Job(*given), choice
    sizes = {"pp": STAGES, "dp": COPIES}
    groups, members = groups_of({axis: sizes[axis] for axis in order.split()})
    stage = members["pp"].index(dist.get_rank())
    took, weights, kept = (
        by_stage(job.blocks, layers, numbers)[stage]
        for numbers in (job.forward, job.weights, job.kept)
    )
    start = trials.begin_together()
    most, waiting = one_f_one_b(
        members["pp"],
        job.micro_batches,
        torch.zeros(job.passed // 4),
        lambda backward: emulation.sleep((1 + backward) * took),
        kept,
    )
    dist.all_reduce(torch.zeros(int(weights) // 4), group=groups["dp"])
    for work, _ in waiting:
        work.wait()
    return emulation.now() - start, STATES * weights + most


def measure(job: Sequence[Any], choice: Choice) -> tuple[float, float]:
    """(seconds of a step, bytes on the fullest rank) of a choice: to try one in the notebook."""
    from dtcourse import launch

    given = Job(*job)
    run = launch(step, RANKS, choice, tuple(given), **options(*given[-3:]))
    seconds, held = (max(numbers) for numbers in zip(*run, strict=True))
    return seconds, held
