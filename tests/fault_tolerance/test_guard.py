"""A guarded run is, to the bit, one that never had the batches that it left out; and one process tells spikes."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.fault_tolerance.guard import Copies, LossGuard, Spikes, Unstable, lowering
from dtcourse.fault_tolerance.guard.seen import MESSAGE, summed, whose
from tests.fault_tolerance.guarded import Run

FEW = {"threshold": 8.0, "window": 16, "least": 8}  # losses that the spikes of these tests need


def left_by(numbers, bad=None, **keywords):
    run = Run()
    guard = LossGuard(run.touched(), spikes=Spikes(**FEW), **keywords)
    return run.train(guard, numbers, bad), run.left()


def test_a_skipped_batch_leaves_nothing_behind():
    for kind, at in (("nan", 3), ("far", 12)):
        verdicts, left = left_by(range(15), {at: kind})
        assert [v.take for v in verdicts] == [n != at for n in range(15)]
        assert verdicts[-1].steps == 13
        assert left == left_by([n for n in range(15) if n != at])[1]


def test_without_what_the_forward_touched_it_would():
    """The mutant: statistics that have seen a nan, and the next masks of dropout."""
    run = Run()
    run.train(LossGuard(), range(15), {3: "nan"})
    assert run.left() != left_by([n for n in range(15) if n != 3])[1]
    assert run.model[1].running_mean.isnan().any()


def rolled_back(bad, every, numbers=range(30), **keywords):
    run = Run()
    guard = LossGuard(
        run.touched(), spikes=Spikes(**FEW), on_spike=["roll back"], copies=Copies(run.all_parts()), every=every,
        **keywords,
    )  # fmt: skip
    return run.train(guard, numbers, bad), run.left()


@pytest.mark.parametrize(
    ("bad", "every", "seen"),
    [
        ([17], 5, [*range(15), *range(18, 30)]),  # back to step 15
        ([17, 24], 5, [*range(15), *range(18, 23), *range(25, 30)]),  # to 15; past 17; to 20
        ([17, 20], 5, [*range(10), *range(21, 30)]),  # to 15, and when that does not help to 10
        (
            [11, 14],
            10,
            [*range(10), *range(15, 30)],
        ),  # twice to step 10, whose copy stays as it was
        ([10, 20], 100, [*range(21, 30)]),  # twice to the start, when the optimizer had no states
    ],
)
def test_after_a_roll_back_the_batches_since_the_copy_were_never_there(bad, every, seen):
    verdicts, left = rolled_back(dict.fromkeys(bad, "far"), every)
    assert [n for n, v in enumerate(verdicts) if v.done == ("roll back",)] == bad
    assert verdicts[-1].steps == len(seen) - 1
    assert left == left_by(seen)[1]


def test_the_learning_rate_is_lowered_for_good_and_once_more_each_time():
    run = Run()
    guard = LossGuard(
        run.touched(), spikes=Spikes(**FEW), on_spike=["roll back", "lower lr"], every=100,
        copies=Copies(run.all_parts()), lower_lr=lowering(run.optimizer, 0.5, run.schedule),
    )  # fmt: skip
    verdicts = run.train(guard, range(25), {10: "far", 20: "far"})
    assert sum(v.done == ("roll back", "lower lr") for v in verdicts) == 2
    assert run.schedule.last_epoch == 4  # batches 21 to 24
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 4 / (1 + 4))
    run = Run()
    guard = LossGuard(
        run.touched(), spikes=Spikes(**FEW), on_spike=["lower lr"], lower_lr=lowering(run.optimizer, 0.5, run.schedule)
    )  # fmt: skip
    assert all(v.take for v in run.train(guard, range(15), {12: "far"}))
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 2 / (1 + 15))


def test_after_the_limit_it_stops_with_a_sentence_and_a_good_step_begins_the_count_anew():
    bad = {3: "nan", 4: "nan", 6: "nan", 7: "nan", 8: "nan"}
    run = Run()
    with pytest.raises(
        Unstable,
        match=r"3 bad steps in a row, after 4 that were taken; .*rank 0: the loss and grad",
    ):
        run.train(LossGuard(run.touched(), limit=2), range(9), bad)
    verdicts, _ = left_by(range(9), bad, limit=3)
    assert [v.take for v in verdicts].count(False) == 5
    with pytest.raises(Unstable, match="deviations above the median"):
        rolled_back(dict.fromkeys(range(12, 40), "far"), 5, range(40), limit=4)


def test_a_spike_is_told_by_the_median_which_it_does_not_move():
    draw = random.Random(0)
    spikes = Spikes(threshold=8.0, window=32, least=16)
    for n in range(200):  # losses that fall and scatter: no alarm
        loss = 3 * 0.99**n * (1 + 0.1 * draw.gauss(0, 1))
        assert not spikes.is_spike(loss)
        spikes.add(loss)
    for _ in range(10):  # though ten of them have been let in
        assert spikes.is_spike(3.0)
        spikes.add(3.0)
    other = Spikes(threshold=8.0, window=32, least=16)
    other.load_state_dict(spikes.state_dict())
    assert other.deviations(3.0) == spikes.deviations(3.0) > 8
    constant = Spikes(least=3)
    for _ in range(3):
        constant.add(1.0)
    assert not constant.is_spike(1.05)  # five hundredths are five floors
    assert constant.is_spike(1.1)
    assert Spikes(least=3).deviations(1e9) == 0, "nothing is judged before there are losses"


def three_ranks():
    """A nan on one rank alone; what is agreed on, what it costs, and what each rank would have seen by itself."""
    from dtcourse.data_parallel import DistributedDataParallel

    rank = dist.get_rank()

    def trained(numbers, bad):
        run = Run(DistributedDataParallel)
        guard = LossGuard(run.touched(), spikes=Spikes(**FEW))
        verdicts = run.train(guard, numbers, bad if rank == 1 else None, rank)
        return [(v.take, v.loss, v.why) for v in verdicts if not v.take], run.left()

    bad = {3: "nan", 12: "far"}
    with traffic.counting() as good:
        summed([1.0, 1.0, 0.0], None)
    with traffic.counting() as named:
        said = whose(rank == 2, rank != 0, None)
    return {
        "guarded": trained(range(15), bad),
        "without": trained([n for n in range(15) if n not in bad], {}),
        "bytes": (good.bytes_sent(), named.bytes_sent()),
        "said": said,
        "limit": _stopped(rank),
    }


def _stopped(rank):
    guard = LossGuard(limit=1)
    try:
        for _ in range(2):
            guard.begin()
            guard.look(math.nan if rank == 0 else 1.0)
    except Unstable as error:
        return str(error)


def test_what_one_rank_has_seen_all_answer_and_it_costs_24_bytes():
    ranks = list(launch(three_ranks, 3, backend="ring"))
    for rank, found in enumerate(ranks):
        skipped, left = found["guarded"]
        assert [why for _, _, why in skipped] == [why for _, _, why in ranks[0]["guarded"][0]]
        assert "rank 1: the loss and gradients" in skipped[0][2]
        assert math.isnan(skipped[0][1])
        assert "deviations above the median" in skipped[1][2]
        assert skipped[1][1] == ranks[0]["guarded"][0][1][1] > 1000
        assert found["without"] == ([], left), rank
        assert found["bytes"] == (8 * ring.all_reduce_volume(3, 3, rank).elements, 2 * 4)
        assert (
            found["said"]
            == "not finite on rank 1: gradients; not finite on rank 2: the loss and gradients"
        )
        assert found["limit"] == ranks[0]["limit"] is not None
    assert MESSAGE == 3 * 8


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: LossGuard(on_spike=["pray"]),
            "actions are of skip, roll back, lower lr; got pray",
        ),
        (lambda: LossGuard(on_nonfinite=["lower lr"], lower_lr=print), "needs skip or roll back"),
        (lambda: LossGuard(on_spike=["roll back"]), "to roll back, the guard needs copies"),
        (lambda: LossGuard(on_spike=["lower lr"]), "to lower lr, the guard needs lower_lr"),
        (lambda: LossGuard(limit=0), "1 or more; got 100 and 0"),
        (lambda: Spikes(window=8), "window 8, least 16"),
        (lambda: Spikes().add(math.inf), "only finite losses"),
        (lambda: lowering(torch.optim.SGD([torch.ones(1)], lr=1), 2), "between 0 and 1; got 2"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def test_look_needs_begin():
    with pytest.raises(RuntimeError, match="call begin before each forward"):
        LossGuard().look(1.0)
