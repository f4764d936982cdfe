"""How many Python calls a message is, and a collective besides: by count, which no busy machine stretches."""

from __future__ import annotations

import pytest

from dtcourse import launch
from tests import walks


@pytest.fixture(scope="module")
def found():
    return launch(walks.of_all, 4)[0]


def test_a_ring_is_few_calls_a_message_and_few_besides(found):
    two, four = found["ring, 2 ranks"], found["ring, 4 ranks"]
    message = (four.ours - two.ours) / 8  # of 12 messages sent and received, and of 4
    assert message <= 11.5
    assert two.ours - 4 * message <= 80
    assert two.all <= 176 and four.all <= 274, "nor is it moved into other files"
    assert len(two.files) <= 19


def test_who_hears_of_messages_is_asked_once(found):
    asked = "collectives/wire/channel.py:Channel._ask"
    assert asked not in found["ring, 4 ranks"].functions
    assert found["ring, 2 ranks, counted"].functions[asked] == 1


def test_a_group_is_looked_up_for_a_collective_and_not_for_its_messages(found):
    looked_up = "collectives/p2p.py:channel"
    assert (
        found["ring, 4 ranks"].functions[looked_up]
        == found["ring, 2 ranks"].functions[looked_up]
        <= 4
    )


def test_a_pipeline_s_step_is_few_calls(found):
    step = found["1F1B step, 2 ranks"]
    assert step.ours <= 234
    assert len(step.files) <= 20
