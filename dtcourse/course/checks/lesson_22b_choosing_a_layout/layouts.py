"""A training step on a mesh of data, pipeline and tensor parallelism, on the emulated clock: the job of a decision.

What a rank holds is counted while the step runs.
"""

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

LAYERS, SAMPLES = 4, 8
AXES = ("dp", "pp", "tp")
Choice = tuple[int, int, int, str, int]


class Job(NamedTuple):
    """What a case gives to the answer. Seconds, bytes, bytes per second.

    launch:  of a layer's forward, for each micro-batch; sample: for each of its samples, on one rank of tp
    weights: bytes of a layer's gradient; states: of its weights, gradients and optimizer's states
    passed:  bytes that a sample is between two layers; kept: that a layer keeps of it for backward
    inside, between: in a node, and between nodes
    """

    launch: float
    sample: float
    weights: int
    states: int
    passed: int
    kept: int
    latency: float
    inside: float
    between: float


def choices() -> list[Choice]:
    """All (dp, pp, tp, order, micro-batches). An order names the axes of more than one rank, the outermost first."""
    found: list[Choice] = []
    for dp, pp, tp in itertools.product((1, 2, 4, 8), repeat=3):
        if dp * pp * tp != RANKS or pp > LAYERS:
            continue
        wide = [axis for axis, size in zip(AXES, (dp, pp, tp), strict=True) if size > 1]
        for order in itertools.permutations(wide):
            part = SAMPLES // dp
            found += [
                (dp, pp, tp, " ".join(order), micro) for micro in (1, 2, 4, 8) if micro <= part
            ]
    return found


def steps(_: Any, given: Sequence[tuple[Choice, tuple[Any, ...]]]) -> list[tuple[float, float]]:
    """On each rank: of each choice and job, what `step` finds, one after the other."""
    return [step(choice, job) for choice, job in given]


def step(choice: Choice, given: tuple[Any, ...]) -> tuple[float, float]:
    """On each rank: seconds of a step of 1F1B, and the most bytes that the rank holds: states, and what layers keep."""
    import torch.distributed as dist

    from dtcourse import emulation

    job = Job(*given)
    dp, pp, tp, order, micro_batches = choice
    sizes = dict(zip(AXES, (dp, pp, tp), strict=True))
    axes = [axis for axis in AXES if sizes[axis] == 1] + order.split()
    groups, members = groups_of({axis: sizes[axis] for axis in axes})
    layers, samples = LAYERS // pp, SAMPLES // dp // micro_batches
    states, kept = layers * job.states / tp, layers * samples * job.kept / tp
    passed = torch.zeros(samples * job.passed // 4)

    def compute(backward: bool) -> None:
        for _ in range(layers):
            emulation.sleep((1 + backward) * (job.launch + samples * job.sample / tp))
            if tp > 1:
                dist.all_reduce(passed, group=groups["tp"])

    start = trials.begin_together()
    most, waiting = one_f_one_b(members["pp"], micro_batches, passed, compute, kept)
    if dp > 1:
        dist.all_reduce(torch.zeros(layers * job.weights // tp // 4), group=groups["dp"])
    for work, _ in waiting:
        work.wait()
    return emulation.now() - start, states + most


def measure(job: Sequence[float], choice: Choice) -> tuple[float, float]:
    """(seconds of a step, bytes on the fullest rank) of a choice: to try one in the notebook."""
    from dtcourse import launch

    given = Job(*job)  # type: ignore[arg-type]
    run = launch(step, RANKS, choice, tuple(given), **options(*given[-3:]))
    seconds, held = (max(numbers) for numbers in zip(*run, strict=True))
    return seconds, held
