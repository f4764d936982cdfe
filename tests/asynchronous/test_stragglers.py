"""Stragglers are found from step times, alike on all ranks; a hiccup is none."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.asynchronous import StragglerDetector, find_stragglers, stragglers_in
from dtcourse.emulation import EmulatedNetwork
from dtcourse.events import Event, Timeline


def noisy(rng, seconds, number=20):
    """Times that differ by 5 %, and now and then are three times as long."""
    return [
        seconds * rng.lognormvariate(0, 0.05) * (3 if rng.random() < 0.1 else 1)
        for _ in range(number)
    ]


def test_a_slow_rank_is_found_among_noisy_ones_and_nobody_where_there_is_none():
    right = wrong = 0
    for seed in range(200):
        rng = random.Random(seed)
        slow = rng.randrange(8)
        times = [noisy(rng, 1.5 if rank == slow else 1.0) for rank in range(8)]
        right += find_stragglers(times).ranks == (slow,)
        wrong += find_stragglers([noisy(rng, 1.0) for _ in range(8)]).ranks != ()
    assert right >= 198 and wrong <= 2


def test_one_slow_step_makes_no_straggler():
    assert find_stragglers([[1.0] * 5, [1.0, 1.0, 9.0, 1.0, 1.0], [1.0] * 5]).ranks == ()


def test_the_slowest_comes_first_and_says_how_slow():
    found = find_stragglers([[1.0] * 3, [2.0] * 3, [1.0] * 3, [4.0] * 3, [1.0] * 3])
    assert found.ranks == (3, 1) and found.usual == 1.0
    assert found.slowdown == (1, 2, 1, 4, 1)


def test_half_of_the_ranks_may_be_slow_and_most_cannot():
    assert find_stragglers([[1.0] * 3, [2.0] * 3]).ranks == (1,)
    assert find_stragglers([[1.0] * 3, [2.0] * 3, [2.0] * 3]).ranks == ()


def test_too_small_a_difference_is_none():
    times = [[1.0] * 3, [1.0] * 3, [1.05] * 3]
    assert find_stragglers(times).ranks == ()
    assert find_stragglers(times, least=0.01).ranks == (2,)
    spread = [[0.9, 1.0, 1.1], [0.9, 1.0, 1.1], [1.2, 1.3, 1.4]]
    assert find_stragglers(spread).ranks == ()
    assert find_stragglers(spread, threshold=1.0).ranks == (2,)


def _steps(window):
    """Rank 2 is slow in its last four steps alone; rank 1 has one hiccup."""
    detector, rank = StragglerDetector(window=window), dist.get_rank()
    for step in range(8):
        with detector.own_work():
            emulation.sleep(2.0 if rank == 2 and step >= 4 else 1.0)
            if rank == 1 and step == 6:
                emulation.sleep(7.0)
        dist.barrier()  # which all leave together, whoever was slow
    found = detector.check()
    return found.ranks, found.seconds, emulation.now()


def test_all_ranks_find_the_same_from_their_own_work():
    net = EmulatedNetwork(0.0)
    run = launch(_steps, 4, 4, network=net, clock="virtual", record=True)
    assert [r[:2] for r in run] == [((2,), (1.0, 1.0, 2.0, 1.0))] * 4
    assert {r[2] for r in run} == {4 * 1.0 + 3 * 2.0 + 8.0}, "the barrier hides who it was"
    assert stragglers_in(run.timeline, "own work").slowdown[2] == 1.5, "half of all its steps"
    last = Timeline(e for e in run.timeline.of(name="own work") if e.start >= 4.0)
    assert stragglers_in(last, "own work").ranks == (2,)


def _nothing_measured():
    detector = StragglerDetector()
    if dist.get_rank() == 0:
        with detector.own_work():
            pass
    try:
        detector.check()
    except ValueError as error:
        return str(error)


def test_a_rank_that_has_measured_nothing_is_named_on_all():
    said = "rank 1 has measured no step: use own_work() on each rank"
    assert list(launch(_nothing_measured, 2)) == [said, said]


def _group_for_gpus_alone():
    """Where the check's tensors would be, in a group that carries CUDA tensors alone, as NCCL's does; and in gloo's."""
    store = dist.HashStore()
    dist.init_process_group("cuda:gloo", store=store, rank=0, world_size=1)
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *n, device, **_: sent.append(torch.device(device)))
        patch.setattr(torch, "tensor", lambda *n, device, **_: sent.append(torch.device(device)))
        patch.setattr(dist, "all_gather", lambda *_, **__: 1 / 0)
        detector = StragglerDetector()
        with pytest.raises(ZeroDivisionError):
            detector.check()
    dist.destroy_process_group()
    return [where.type for where in sent]


def test_the_check_s_tensors_are_where_the_group_can_carry_them():
    assert launch(_group_for_gpus_alone, 1, init=False)[0] == ["cuda", "cuda"]


@pytest.mark.gpu  # unverified: no GPU was at hand when this was written
def test_on_a_gpu_the_work_is_timed_and_not_its_queueing():
    where = torch.device("cuda")
    x = torch.randn(4096, 4096, device=where)
    detector = StragglerDetector(window=3, where=where)
    with detector.own_work():
        x @ x
    for number in (1, 50, 50):
        with detector.own_work():
            for _ in range(number):
                x @ x
    detector._read()
    one, *many = detector.seconds
    assert all(seconds > 10 * one for seconds in many)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="a window of 3 steps or more; got 2"):
        StragglerDetector(window=2)
    with pytest.raises(ValueError, match=r"above 0; got 0 and 0\.1"):
        StragglerDetector(threshold=0)
    with pytest.raises(ValueError, match="no time of rank 1 is known"):
        find_stragglers([[1.0], []])
    with pytest.raises(ValueError, match="no rank, no time"):
        find_stragglers([])
    timeline = Timeline([Event("a", "step", 0, 0.0, 1.0), Event("b", "step", 1, 0.0, 1.0)])
    with pytest.raises(ValueError, match="no event 'a' of rank 1"):
        stragglers_in(timeline, "a")
