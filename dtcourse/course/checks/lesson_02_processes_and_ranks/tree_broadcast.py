"""A tree that broadcasts."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS

TREE = Exercise(
    "tree_broadcast",
    lesson="02",
    title="A tree that broadcasts",
    takes=("tree_broadcast",),
    target="n - 1 messages and ceil(log2 n) rounds: 3 rounds for 8 ranks",
    forbidden=(*ALGORITHMS,),
)

ELEMENTS = 4


def _broadcast(tree_broadcast: Any, tensor: torch.Tensor, src: int) -> torch.Tensor:
    tree_broadcast(tensor, src)
    return tensor


def _values(world_size: int) -> list[torch.Tensor]:
    return [torch.randn(ELEMENTS) for _ in range(world_size)]


@TREE.check("every rank ends with the tensor of rank 0", points=2)
def check_from_zero(answer: Answer) -> None:
    """At 2, 4, 3 and 5 ranks."""
    for world_size in (2, 4, 3, 5):
        _check_broadcast(answer, world_size, 0)


@TREE.check("from any rank, not only from rank 0", points=2)
def check_from_any(answer: Answer) -> None:
    """A random source, and the last one."""
    for world_size, src in ((4, random.randrange(1, 3)), (3, 2), (5, 4)):
        _check_broadcast(answer, world_size, src)


def _check_broadcast(answer: Answer, world_size: int, src: int) -> None:
    values = _values(world_size)
    run = answer.run(_broadcast, world_size, Each(values), src, timeout=6)
    for rank in range(world_size):
        require(
            torch.equal(run[rank], values[src]),
            f"with {world_size} ranks and src={src}, rank {rank} should hold what rank {src} had, and does not. "
            "Who sends to it, and in which round? Is the tensor changed in place?",
        )


def _recorded(answer: Answer, world_size: int) -> Any:
    values = Each(_values(world_size))
    return answer.run(_broadcast, world_size, values, 0, record=True, timeout=15)


@TREE.check("n - 1 messages, by send and receive alone", points=2, needs=("check_from_zero",))
def check_count(answer: Answer) -> None:
    """Everyone but the source receives once."""
    for world_size in (5, 8):
        run = _recorded(answer, world_size)
        used = sorted(set(run.traffic.operations) - {"send", "recv"})
        require(
            not used,
            f"this answer calls {', '.join(used)}; build the broadcast yourself, from send and receive alone.",
        )
        sent = run.traffic.messages_sent()
        require(
            sent == world_size - 1,
            f"{world_size} ranks need {world_size - 1} messages, one for each rank that does not have the tensor "
            f"yet; yours were {sent}.",
        )
        for rank in range(1, world_size):
            came, needed = run.traffic.bytes_received(rank=rank), 4 * ELEMENTS
            require(
                came == needed,
                f"with {world_size} ranks, rank {rank} receives {came} bytes; the tensor has {needed}.",
            )


@TREE.check("ceil(log2 n) rounds", points=2, needs=("check_from_zero",))
def check_rounds(answer: Answer) -> None:
    """A message leaves when its sender has the tensor and has sent its message before: what takes how many rounds?"""
    for world_size in (4, 5, 8):
        run = _recorded(answer, world_size)
        sends: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
        for event in run.timeline.of(name="send"):  # in the order in which they started
            sends[event.rank].append(event.detail["peer"])
        has = {0: 0}  # rank: the round after which it has the tensor
        front = [0]
        while front:
            rank = front.pop()
            for number, peer in enumerate(sends[rank], 1):
                if peer not in has:
                    has[peer] = has[rank] + number
                    front.append(peer)
        rounds, needed = max(has.values()), math.ceil(math.log2(world_size))
        late = max(has, key=lambda rank: has[rank])
        require(
            rounds <= needed,
            f"with {world_size} ranks, rank {late} has the tensor after {rounds} rounds; {needed} are enough. In "
            "each round, everyone who has it can pass it on: do all of them? And does each first serve the rank "
            "that has the most others to serve?",
        )
