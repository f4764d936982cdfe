"""Recorded messages of a real run fall into the textbook's steps, and the replayed buffers end as the real ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.profiling.replay import Replay


def all_reduce(elements):
    x = torch.full((elements,), 10.0 ** dist.get_rank())
    dist.all_reduce(x)
    return x.tolist()


def starts(ranks, elements):
    return [[10.0**r] * elements for r in range(ranks)]


@pytest.mark.parametrize(
    ("backend", "ranks", "messages_in_each_step"),
    [
        ("naive", 4, [1] * 6),  # 2 (p - 1), one after the other at the root's port
        ("ring", 3, [3] * 4),  # 2 (p - 1), all links busy
        ("ring", 4, [4] * 6),
        ("tree", 4, [2, 1, 1, 2]),  # 2 log2 p
        ("halving_doubling", 4, [4] * 4),  # 2 log2 p
    ],
)
def test_the_steps_are_the_textbooks(backend, ranks, messages_in_each_step):
    run = launch(all_reduce, ranks, ranks, backend=backend, record=True)
    replay = Replay.of(run.timeline, starts(ranks, ranks))
    assert [len(step) for step in replay.steps] == messages_in_each_step
    assert replay.states[-1] == list(run), "the pictured buffers end as the real ones"
    sent = sum(move.bytes for step in replay.steps for move in step)
    assert sent == sum(run.traffic.bytes_sent(rank=r) for r in range(ranks))


def test_what_only_moves_takes_the_place_of_what_was_there():
    def broadcast():
        x = torch.full((2,), 10.0 ** dist.get_rank())
        dist.broadcast(x, 1)
        return x.tolist()

    run = launch(broadcast, 4, backend="tree", record=True)
    replay = Replay.of(run.timeline, starts(4, 2))
    assert replay.states[-1] == list(run) == [[10.0, 10.0]] * 4


def test_a_root_takes_messages_in_its_own_order():
    """naive adds up in rank order, whenever the messages come: the picture shows that order."""

    def reduce():
        dist.reduce(torch.full((1,), 10.0 ** dist.get_rank()), 0)

    run = launch(reduce, 4, backend="naive", record=True)
    replay = Replay.of(run.timeline, starts(4, 1))
    assert [[move.src for move in step] for step in replay.steps] == [[1], [2], [3]]


def test_large_messages_keep_no_values_and_that_is_said():
    run = launch(all_reduce, 2, 1000, backend="ring", record=True)
    with pytest.raises(ValueError, match="whose values are not kept"):
        Replay.of(run.timeline, starts(2, 1000))
