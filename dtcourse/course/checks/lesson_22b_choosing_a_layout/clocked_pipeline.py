"""1F1B on a mesh, on the emulated clock: what both decisions of lesson 22b run.

Layers take seconds of the clock. Messages really travel, as long as a layout's are, on a cluster of two nodes of four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dtcourse.emulation import EmulatedNetwork

RANKS, NODE = 8, 4


def groups_of(sizes: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """On each rank, by axis: its group (None where it is alone), and the ranks in it. A collective.

    sizes: of each axis, the outermost first
    """
    import torch.distributed as dist

    ranks = torch.arange(RANKS).view(*sizes.values())
    groups, members = {}, {}
    for dim, axis in enumerate(sizes):
        for group in ranks.movedim(dim, -1).reshape(-1, sizes[axis]).tolist():
            made = dist.new_group(group) if sizes[axis] > 1 else None
            if dist.get_rank() in group:
                groups[axis], members[axis] = made, group
    return groups, members


def one_f_one_b(
    stages: Sequence[int],
    micro_batches: int,
    passed: torch.Tensor,
    compute: Callable[[bool], None],
    kept: float,
) -> tuple[float, list[Any]]:
    """On each rank: (the most bytes that its layers keep at once, the messages under way at the end, to wait for).

    stages:  the ranks of this rank's pipeline
    passed:  what crosses a border, for each micro-batch in each direction
    compute: one micro-batch in this stage; whether backward
    kept:    bytes from a micro-batch's forward to its backward
    """
    import torch.distributed as dist

    stage, last = stages.index(dist.get_rank()), len(stages) - 1
    held = most = 0.0
    waiting: list[Any] = []

    def run(backward: bool) -> None:
        nonlocal held, most
        before, after = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
        if 0 <= before <= last:
            dist.recv(torch.empty_like(passed), stages[before])
        compute(backward)
        held += -kept if backward else kept
        most = max(most, held)
        if 0 <= after <= last:
            sent = passed.clone()
            waiting.append((dist.isend(sent, stages[after]), sent))

    ahead = min(last - stage, micro_batches)
    for _ in range(ahead):
        run(backward=False)
    for _ in range(micro_batches - ahead):
        run(backward=False)
        run(backward=True)
    for _ in range(ahead):
        run(backward=True)
    return most, waiting


def options(latency: float, inside: float, between: float) -> dict[str, Any]:
    """Of a launch: the emulated cluster."""
    network = EmulatedNetwork(latency, inside, node_size=NODE, between=(latency, between))
    return {"backend": "ring", "network": network, "clock": "virtual", "timeout": 60.0}
