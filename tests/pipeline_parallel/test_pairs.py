"""A forward and a backward at once: against the simulator where nothing is gained, and by hand where something is."""

from __future__ import annotations

import pytest

from dtcourse.pipeline_parallel.actions import Action, Schedule
from dtcourse.pipeline_parallel.pairs import in_pairs
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.zero_bubble import dualpipe_v
from tests.pipeline_parallel.samples import MAKE


@pytest.mark.parametrize("name", MAKE)
def test_without_waiting_it_is_the_simulators_step(name):
    schedule, times = MAKE[name](4, 8), Times(1, 1.2, [0.7, 0.5, 0.7, 0.9], transfer=0.1)
    assert in_pairs(schedule, times, 0.0).makespan == pytest.approx(
        simulate(schedule, times).makespan
    )


def one_rank(*words: str) -> Schedule:
    """Of a single stage: "F0" is the forward of micro-batch 0."""
    actions = [Action(0, word[0], int(word[1:])) for word in words]
    return Schedule("by hand", [actions], [0], 2, [2])


def test_a_pair_is_a_forward_and_a_backward_that_is_ready():
    times = Times(1, 1, 1)
    # F1 and B0 at once: (1 - 0.25) (1 + 2) instead of 3. F0 and B0 would need each other.
    assert in_pairs(one_rank("F0", "F1", "B0", "B1"), times, 0.25) == (1 + 0.75 * 3 + 2, 1)
    assert in_pairs(one_rank("F0", "B0", "F1", "B1"), times, 0.25) == (1 + 0.75 * 3 + 2, 1)
    # A whole backward needs at least its own time, however much of it is waiting.
    assert in_pairs(one_rank("F0", "F1", "B0", "B1"), times, 0.9) == (1 + 2 + 2, 1)
    # A half gains less; W is a partner for nobody, and no action has two.
    halves = one_rank("F0", "F1", "I0", "I1", "W0", "W1")
    assert in_pairs(halves, times, 0.25) == (1 + 0.75 * 2 + 1 + 2, 1)
    assert in_pairs(one_rank("F0", "I0", "W0", "F1", "I1", "W1"), times, 0.25) == (6, 0)


def test_a_message_that_comes_later_makes_no_pair():
    lists = [
        [Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1)],
        [Action(1, "F", 0), Action(1, "B", 0), Action(1, "F", 1), Action(1, "B", 1)],
    ]
    schedule = Schedule("by hand", lists, [0, 1], 2, [2, 2])
    # Rank 1's B0 and F1 are the only two: F1 is there at 2, and B0 starts at 2. Rank 0's B0 comes at 4, after F1.
    assert in_pairs(schedule, Times(1, 1, 1), 0.25) == (8.25, 1)
    assert in_pairs(schedule, Times(1, 1, 1, transfer=0.5), 0.25) == (9.25, 1)


def test_both_results_of_a_pair_may_leave_together():
    """PyTorch's ScheduleDualPipeV takes 27 ms on emulated ranks of 1 ms per action, DeepSeek's formula has
    (p - 1) (F&B + B - 3 W) = 3 (1.5 + 1 - 1.5) = 3 ms of idle time beside 24 of work, and our list as it stands 25.5.
    """
    v = dualpipe_v(4, 8)
    assert in_pairs(v, Times(), 0.0).makespan == 25.5
    assert in_pairs(v, Times(), 0.0, together=True).makespan == 27.0
    # On two ranks: rank 1's B0 and F1 are a pair from 2 to 5; B0's gradient leaves at 4, or with F1's result.
    lists = [
        [Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1)],
        [Action(1, "F", 0), Action(1, "B", 0), Action(1, "F", 1), Action(1, "B", 1)],
    ]
    schedule = Schedule("by hand", lists, [0, 1], 2, [2, 2])
    assert in_pairs(schedule, Times(1, 1, [1, 3]), 0.0) == (13.0, 1)
    assert in_pairs(schedule, Times(1, 1, [1, 3]), 0.0, together=True).pairs == 1


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"below 1; got 1\.5"):
        in_pairs(one_rank("F0", "F1", "B0", "B1"), Times(), 1.5)
    with pytest.raises(ValueError, match="not modelled"):
        in_pairs(one_rank("F0", "F1", "B0", "B1"), Times(sender_waits=True), 0.3)
