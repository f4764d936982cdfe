"""The simulator against rules applied by brute force, and steps drawn by hand."""

from __future__ import annotations

import random

import pytest

from dtcourse.pipeline_parallel import schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.simulate import Memory, Times, simulate

SCHEDULES = [
    schedules.sequential(3, 4),
    schedules.gpipe(4, 6),
    schedules.one_f_one_b(4, 9),
    schedules.interleaved_1f1b(3, 6, 3),
    schedules.breadth_first(2, 5, 3),
    zero_bubble.zb_h1(4, 6),
    zero_bubble.zb_h2(3, 7),
    zero_bubble.zb_v(4, 9),
    zero_bubble.dualpipe_v(3, 8),
]


def by_brute_force(schedule: Schedule, seconds: dict, transfer: float, sender_waits: bool) -> dict:
    """Starts at 0 and pushes every action back until each rule holds. seconds: by (stage, kind)."""
    start = {action: 0.0 for actions in schedule for action in actions}
    made = {(s, "B" if k == "I" else k, i): (s, k, i) for s, k, i in start}

    def leaves(action) -> bool:
        stage, kind, _ = action
        to = stage + (1 if kind == "F" else -1)
        return (
            kind != "W"
            and 0 <= to < schedule.num_stages
            and schedule.rank_of[to] != schedule.rank_of[stage]
        )

    changed = True
    while changed:
        changed = False
        for actions in schedule:
            for before, action in zip([None, *actions], actions, strict=False):
                least = 0.0
                if before is not None:
                    least = start[before] + seconds[before[:2]]
                    least += transfer if sender_waits and leaves(before) else 0.0
                stage, kind, i = action
                need = (stage - 1, "F", i) if kind == "F" else (stage + 1, "B", i)
                if kind != "W" and (need := made.get(need)) is not None:
                    arrives = start[need] + seconds[need[:2]]
                    least = max(least, arrives + (transfer if leaves(need) else 0.0))
                if least > start[action]:
                    start[action] = least
                    changed = True
    return start


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("sender_waits", [False, True])
def test_every_start_is_that_of_the_rules(schedule, sender_waits):
    dice = random.Random(1)
    f, b, w = ([dice.uniform(0.5, 2) for _ in schedule.rank_of] for _ in "FIW")
    found = simulate(schedule, Times(f, b, w, transfer=0.3, sender_waits=sender_waits))
    # One number per stage is taken as it is; with one stage a rank that is the same as one per rank.
    seconds = {}
    for stage in range(schedule.num_stages):
        parts = {"F": f[stage], "I": b[stage], "W": w[stage], "B": b[stage] + w[stage]}
        seconds |= {(stage, kind): length for kind, length in parts.items()}
    expected = by_brute_force(schedule, seconds, 0.3, sender_waits)
    for rank, actions in enumerate(schedule):
        assert found.starts[rank] == pytest.approx([expected[one] for one in actions], rel=1e-12)
        lengths = [seconds[one[:2]] for one in actions]
        measured = [
            end - start for start, end in zip(found.starts[rank], found.ends[rank], strict=True)
        ]
        assert measured == pytest.approx(lengths)
        assert found.work[rank] == pytest.approx(sum(lengths))


def test_a_step_drawn_by_hand():
    """Two ranks, two micro-batches, 1F1B; F = 1, B = 2, and half a second on the way."""
    found = simulate(schedules.one_f_one_b(2, 2), Times(1, 1, 1, transfer=0.5, optimizer=0.25))
    # 0F0 0F1 0B0 0B1 and 1F0 1B0 1F1 1B1
    assert found.starts == [[0, 1, 5, 8], [1.5, 2.5, 4.5, 5.5]]
    assert found.ends == [[1, 2, 7, 10], [2.5, 4.5, 5.5, 7.5]]
    assert (found.makespan, found.cost) == (10.25, 10)
    assert found.bubble_rate == pytest.approx(0.4)
    assert found.idle_share == pytest.approx([1 - 6.25 / 10.25] * 2)
    assert found.peak_memory == [2, 1]
    assert found.timeline.order(1) == ["1F0", "1B0", "1F1", "1B1", "optimizer"]
    assert found.timeline.span == 10.25


def test_a_full_backward_sends_at_its_end_and_a_half_one_at_its_own():
    whole = simulate(schedules.one_f_one_b(2, 1), Times(1, 1, 5))
    half = simulate(zero_bubble.zb_h1(2, 1), Times(1, 1, 5))
    assert whole.starts[0][1] == 1 + 1 + 6
    assert half.starts[0][1] == 1 + 1 + 1


def test_chunks_are_parts_of_a_rank_and_lists_per_stage_are_not():
    schedule = schedules.breadth_first(2, 2, 2)
    even = simulate(schedule, Times(2, 2, 2))
    assert even.work == [12, 12]
    assert simulate(schedule, Times([2, 2], 2, 2)).starts == even.starts
    assert simulate(schedule, Times([1] * 4, [1] * 4, [1] * 4)).starts == even.starts
    slow = simulate(schedule, Times([2, 4], 2, 2))
    assert slow.work == [12, 16]
    # The most laden rank's work is not its bubble.
    assert slow.bubble_rate == pytest.approx((slow.cost - 16) / slow.cost)


def test_the_optimizer_waits_for_everybody_or_not():
    schedule = zero_bubble.zb_h2(3, 7)
    together = simulate(schedule, Times(optimizer=1))
    alone = simulate(schedule, Times(optimizer=1, barrier=False))
    assert together.optimizer_ends == [24, 24, 24]
    assert alone.optimizer_ends == [22, 23, 24]
    assert together.cost == alone.cost == 21


def test_memory_in_bytes():
    schedule = zero_bubble.zb_h1(4, 8)
    assert simulate(schedule, Times()).peak_memory == [4, 4, 4, 4]
    found = simulate(schedule, Times(), Memory(stored=100, kept=40, limit=350))
    # Rank 3 keeps three weight gradients back and has one micro-batch under way.
    assert found.peak_memory == [400, 340, 280, 220]
    assert not found.fits
    assert simulate(schedule, Times(), Memory(100, 40, 400)).fits
    chunks = simulate(schedules.interleaved_1f1b(4, 8, 2), Times(), Memory(stored=100))
    assert chunks.peak_memory == [550, 450, 350, 250]


def test_every_part_of_a_step_counts_where_it_should():
    """A transfer is paid for twice per border on the way to the first backward, and hidden after it."""
    free = simulate(schedules.one_f_one_b(4, 8), Times(2, 2, 1))
    paid = simulate(schedules.one_f_one_b(4, 8), Times(2, 2, 1, transfer=0.25))
    assert paid.makespan > free.makespan + 2 * 3 * 0.25 - 1e-9
    assert simulate(schedules.one_f_one_b(1, 8), Times(transfer=9)).makespan == 24


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: simulate(s, Times(forward=-1)), "forward is 0 seconds or more; got -1"),
        (lambda s: simulate(s, Times(transfer=-1)), "transfer is 0 seconds or more; got -1"),
        (lambda s: simulate(s, Times(optimizer=float("nan"))), "optimizer is 0 seconds or more"),
        (
            lambda s: simulate(s, Times(backward_weight=[1, 2, 3])),
            r"backward_weight is one number, one per rank \(2\) or one per stage \(4\); got 3",
        ),
        (lambda s: simulate(s, Times(), Memory(stored=1, kept=2)), "leaves no more than that"),
    ],
)
def test_what_makes_no_sense_is_said(call, says):
    with pytest.raises(ValueError, match=says):
        call(schedules.breadth_first(2, 2, 2))
