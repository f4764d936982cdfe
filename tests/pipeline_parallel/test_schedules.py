"""Each schedule: complete, within its memory, with the bubble of its formula, in the order of PyTorch's own."""

from __future__ import annotations

import pytest

from dtcourse import torch_private
from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.validate import stored, validate

ONE_STAGE = [
    schedules.sequential,
    schedules.gpipe,
    schedules.one_f_one_b,
    schedules.pipedream,
    zero_bubble.zb_h1,
    zero_bubble.zb_h2,
]
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 5, 8, 16, 24)]


@pytest.mark.parametrize("make", [*ONE_STAGE, zero_bubble.zb_v])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_they_are_valid_and_reach_their_bound(make, p, m):
    schedule = make(p, m)
    validate(schedule)
    assert (schedule.num_ranks, schedule.micro_batches) == (p, m)
    if make is zero_bubble.zb_v and m < 2 * p - 1:
        assert all(a <= b for a, b in zip(stored(schedule), schedule.memory_bound, strict=True))
    else:
        assert stored(schedule) == [float(bound) for bound in schedule.memory_bound]


@pytest.mark.parametrize("make", [schedules.interleaved_1f1b, schedules.breadth_first])
@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m % max(1, m // p) == 0])
def test_with_several_stages_a_rank(make, p, m, v):
    schedule = make(p, m, v)
    validate(schedule)
    assert stored(schedule) == [float(bound) for bound in schedule.memory_bound]
    assert schedule.num_chunks == v
    assert schedule.stages_of(p - 1) == [p - 1 + chunk * p for chunk in range(v)]


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= 2 * p])
def test_dualpipe_v(p, m):
    schedule = zero_bubble.dualpipe_v(p, m)
    validate(schedule)
    assert stored(schedule) == [float(bound) for bound in schedule.memory_bound]


# Forward, backward-input and backward-weight of one micro-batch, chosen so that no two sums of them are alike.
F, INPUT, W = 3.0, 2.5, 1.25
B = INPUT + W
IDLE = {
    "sequential": lambda p, m: m * (p - 1) * (F + B),
    "GPipe": lambda p, m: (p - 1) * (F + B),
    "1F1B": lambda p, m: (p - 1) * (F + B),
    "PipeDream": lambda p, m: (p - 1) * (F + B),
    "ZB-H1": lambda p, m: (p - 1) * (F + INPUT - W),
}


@pytest.mark.parametrize("make", ONE_STAGE[:5])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 5), (4, 8), (8, 24)])
def test_the_bubble_is_the_formulas(make, p, m):
    schedule = make(p, m)
    found = simulate(schedule, Times(F, INPUT, W))
    idle = IDLE[schedule.name](p, m)
    assert found.cost == pytest.approx(m * (F + B) + idle, rel=1e-14)
    assert found.bubble_rate == pytest.approx(idle / (m * (F + B) + idle), rel=1e-13)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 5), (4, 8), (8, 24)])
def test_zero_bubbles(p, m):
    alike = Times(1, 1, 1)
    assert simulate(zero_bubble.zb_h2(p, m), alike).bubble_rate == 0
    assert simulate(zero_bubble.zb_v(p, m), alike).bubble_rate == 0
    unlike = simulate(zero_bubble.zb_h2(p, m), Times(1, 1, 0.9))  # F + I - 2 W = 0.2
    assert unlike.cost == pytest.approx(2.9 * m + (p - 1) * 0.2, rel=1e-14)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 9), (4, 8), (8, 24)])
def test_dualpipe_v_waits_less_than_zb_h1(p, m):
    alike = Times(1, 1, 1)
    found = simulate(zero_bubble.dualpipe_v(p, m), alike)
    assert found.cost < simulate(zero_bubble.zb_h1(p, m), alike).cost


@pytest.mark.parametrize("v", [1, 2, 4])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 24)])
def test_chunks_divide_the_bubble(p, m, v):
    for make in (schedules.interleaved_1f1b, schedules.breadth_first):
        found = simulate(make(p, m, v), Times(F, INPUT, W))
        assert found.makespan == pytest.approx((m + (p - 1) / v) * (F + B), rel=1e-14)


TORCH = {
    "ScheduleGPipe": (schedules.gpipe, 1),
    "ScheduleLoopedBFS": (schedules.breadth_first, 3),
    "ScheduleInterleaved1F1B": (schedules.interleaved_1f1b, 2),
    "ScheduleZBVZeroBubble": (zero_bubble.zb_v, 2),
    "ScheduleDualPipeV": (zero_bubble.dualpipe_v, 2),
    "ScheduleInterleavedZeroBubble": (zero_bubble.zb_h1, 1),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 4), (2, 8), (3, 9), (4, 8), (4, 10), (8, 16)])
def test_the_order_is_pytorchs(name, p, m):
    make, v = TORCH[name]
    looped = make in (schedules.interleaved_1f1b, schedules.breadth_first)
    schedule = make(p, m, v) if looped else make(p, m)
    theirs = torch_private.pipeline_order(name, p, m, v)
    assert [list(map(tuple, actions)) for actions in schedule] == theirs


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 24)])
def test_1f1b_is_pytorchs_but_for_what_it_lists_on_the_last_rank(p, m):
    """torch 2.13 *lists* the last rank's forwards from 1 on (it runs them from 0); with one stage a rank its
    interleaved 1F1B is the same schedule, and lists all of it."""
    ours = [list(map(tuple, actions)) for actions in schedules.one_f_one_b(p, m)]
    assert ours[:-1] == torch_private.pipeline_order("Schedule1F1B", p, m)[:-1]
    # Its warm-up is longer: 2 (p - 1 - r) forwards, which costs memory and gains nothing where a transfer is free.
    assert ours[-1] == torch_private.pipeline_order("ScheduleInterleaved1F1B", p, m)[-1]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: schedules.gpipe(0, 4), "1 rank or more; got 0"),
        (lambda: schedules.one_f_one_b(4, 0), "1 micro-batch or more; got 0"),
        (lambda: schedules.interleaved_1f1b(4, 9, 2), "do not make 2 equal rounds; 8 or 10 do"),
        (lambda: schedules.interleaved_1f1b(4, 8, 0), "1 chunk or more; got 0"),
        (lambda: zero_bubble.dualpipe_v(4, 7), "8 micro-batches or more; got 7"),
    ],
)
def test_what_makes_no_schedule_is_said(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_they_print_as_pytorchs():
    schedule = schedules.one_f_one_b(2, 3)
    assert str(list(schedule.ranks[0])) == "[0F0, 0F1, 0B0, 0F2, 0B1, 0B2]"
    assert str(list(schedule.ranks[1])) == "[1F0, 1B0, 1F1, 1B1, 1F2, 1B2]"
    assert repr(zero_bubble.zb_v(2, 8)) == "<ZB-V: 2 ranks of 2 stages each, 8 micro-batches>"
