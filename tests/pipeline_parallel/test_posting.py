"""The one order of messages: it respects the schedule, and makes no rank receive much before it needs it."""

from __future__ import annotations

import pytest

from dtcourse.pipeline_parallel import schedules
from dtcourse.pipeline_parallel.actions import FORWARD, Schedule, needed_by, needs, result
from dtcourse.pipeline_parallel.posting import in_rounds, messages_of
from tests.pipeline_parallel.samples import MAKE

SIZES = [(2, 4), (3, 6), (4, 8), (4, 24)]


@pytest.mark.parametrize("name", [*MAKE, "PipeDream"])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_order_is_the_ranks_own_and_makes_before_it_needs(name, p, m):
    schedule = {**MAKE, "PipeDream": schedules.pipedream}[name](p, m)
    order = in_rounds(schedule)
    for rank, actions in enumerate(schedule):
        assert [one for one in order if schedule.rank_of[one.stage] == rank] == list(actions)
    made = set()
    for action in order:
        need = needs(action, schedule.num_stages)
        assert need is None or need in made
        made.add(result(action))


def test_messages_are_those_that_the_ranks_exchange_each_once():
    schedule = MAKE["ZB-V"](3, 6)
    messages = messages_of(schedule)
    assert [one.number for one in messages] == list(range(len(messages)))
    assert len({one.made for one in messages}) == len(messages) == 2 * 4 * 6
    for one in messages:
        forward = one.made.kind == FORWARD
        assert one.forward.kind == FORWARD and one.forward.micro_batch == one.made.micro_batch
        assert one.forward.stage == one.made.stage - (not forward)
        to = needed_by(one.made, schedule.num_stages)
        assert (schedule.rank_of[one.made.stage], schedule.rank_of[to]) == one[1:3]


def most_ahead(schedule: Schedule) -> int:
    """The most messages that a rank has posted to receive, and does not need yet, since a send of its own is next."""
    messages, most = messages_of(schedule), 0
    place = {one.made: one.number for one in messages}
    for rank, actions in enumerate(schedule):
        used: set[object] = set()
        for action in actions:
            used.add(needs(action, schedule.num_stages))
            if (mine := place.get(result(action))) is not None:
                before = [one.made for one in messages[:mine] if one.destination == rank]
                most = max(most, sum(one not in used for one in before))
    return most


@pytest.mark.parametrize("name", MAKE)
def test_what_is_received_early_does_not_grow_with_the_micro_batches(name):
    few, many = (most_ahead(MAKE[name](4, m)) for m in (8, 24))
    # Breadth-first stores all micro-batches of a chunk before the next one, be it received early or not.
    assert few == many <= 4 or (name == "breadth-first" and many < 24)
