"""A handle that is waited for twice: at once on our own backends; named under launch, where gloo waits for ever."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import p2p
from dtcourse.launch import RankTimeout, deadlock


def twice(start):
    x = torch.ones(2)
    rank = dist.get_rank()
    work = start("isend" if rank == 0 else "irecv")(x, 1 - rank)
    work.wait()
    work.wait()
    return work.is_completed()


def by_torch():
    return twice(lambda kind: getattr(dist, kind))


def by_p2p():
    return twice(lambda kind: getattr(p2p, kind))


@pytest.mark.parametrize("backend", ["ring", "naive"])
def test_on_our_backends_the_second_wait_returns(backend):
    assert list(launch(by_torch, 2, backend=backend)) == [True, True]


@pytest.mark.parametrize("record", [False, True])
def test_p2p_s_own_handles_may_be_waited_for_twice_on_gloo_too(record):
    launch(by_p2p, 2, record=record)


def test_gloo_s_second_wait_is_named():
    with (
        deadlock.found_early(),
        pytest.raises(RankTimeout, match="A handle is waited for once") as caught,
    ):
        launch(by_torch, 2, timeout=60)
    assert all("work.wait()" in where for where in caught.value.waiting.values())
