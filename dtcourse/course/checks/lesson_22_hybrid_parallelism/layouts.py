"""A training step on a mesh of data, pipeline and tensor parallelism, on the emulated clock: the job of a decision.

Layers take seconds of the clock, and messages really travel, as long as a layout's are. What a rank holds is counted
while the step runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dtcourse.course.judging import trials
from dtcourse.emulation import EmulatedNetwork

RANKS, NODE = 8, 4
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


def step(_: Any, choice: Choice, given: tuple[Any, ...]) -> tuple[float, float]:
    """On each rank: seconds of a step of 1F1B, and the most bytes that the rank holds: states, and what layers keep."""
    import torch.distributed as dist

    from dtcourse import emulation

    job = Job(*given)
    dp, pp, tp, order, micro_batches = choice
    sizes = dict(zip(AXES, (dp, pp, tp), strict=True))
    axes = [axis for axis in AXES if sizes[axis] == 1] + order.split()
    ranks = torch.arange(RANKS).view([sizes[axis] for axis in axes])
    rank, groups, members = dist.get_rank(), {}, {}
    for dim, axis in enumerate(axes):
        for group in ranks.movedim(dim, -1).reshape(-1, sizes[axis]).tolist():
            made = dist.new_group(group) if sizes[axis] > 1 else None
            if rank in group:
                groups[axis], members[axis] = made, group
    stages = members["pp"]
    stage, layers, samples = stages.index(rank), LAYERS // pp, SAMPLES // dp // micro_batches
    states, kept = layers * job.states / tp, layers * samples * job.kept / tp
    passed = torch.zeros(samples * job.passed // 4)
    held = most = 0.0

    def compute(times: int) -> None:
        for _ in range(layers):
            emulation.sleep(times * (job.launch + samples * job.sample / tp))
            if tp > 1:
                dist.all_reduce(passed, group=groups["tp"])

    waiting: list[Any] = []

    def run(backward: bool) -> None:
        nonlocal held, most
        before, after = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
        if 0 <= before < pp:
            dist.recv(torch.empty_like(passed), stages[before])
        compute(2 if backward else 1)
        held += -kept if backward else kept
        most = max(most, held)
        if 0 <= after < pp:
            sent = passed.clone()
            waiting.append((dist.isend(sent, stages[after]), sent))

    start = trials.begin_together()
    ahead = min(pp - 1 - stage, micro_batches)
    for _ in range(ahead):
        run(backward=False)
    for _ in range(micro_batches - ahead):
        run(backward=False)
        run(backward=True)
    for _ in range(ahead):
        run(backward=True)
    if dp > 1:
        dist.all_reduce(torch.zeros(layers * job.weights // tp // 4), group=groups["dp"])
    for work, _ in waiting:
        work.wait()
    return emulation.now() - start, states + most


def options(job: Job) -> dict[str, Any]:
    """Of a launch: the emulated cluster."""
    network = EmulatedNetwork(
        job.latency, job.inside, node_size=NODE, between=(job.latency, job.between)
    )
    return {"backend": "ring", "network": network, "clock": "virtual", "timeout": 60.0}


def measure(job: Sequence[float], choice: Choice) -> tuple[float, float]:
    """(seconds of a step, bytes on the fullest rank) of a choice: to try one in the notebook."""
    from dtcourse import launch

    given = Job(*job)  # type: ignore[arg-type]
    run = launch(step, RANKS, None, choice, tuple(given), **options(given))
    seconds, held = (max(numbers) for numbers in zip(*run, strict=True))
    return seconds, held
