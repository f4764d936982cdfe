"""Under the monkey, with copies in memory: a rank and the holder of its copy are lost, and all go on from the file."""

from __future__ import annotations

import sys

import pytest

from dtcourse.course import survivor, survivor_in_parts
from dtcourse.fault_tolerance.chaos import FROM_MEMORY, plan
from tests.rotation import ALL

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the monkey needs Linux: /proc and prlimit"
)


@pytest.mark.slow
@pytest.mark.stands_on(
    "dtcourse/fault_tolerance/",
    "dtcourse/course/survivor.py",
    "dtcourse/course/survivor_in_parts.py",
    share=ALL,
)
def test_a_rank_is_killed_with_the_neighbour_that_keeps_its_copy_and_all_go_back_to_the_file():
    """In the plan of seed 5 a rank is killed, another's disk is full while all recover, and then a pair is killed."""
    small = survivor.Settings(steps=60, every=15, pace=0.002, strikes=2, stopped=0.5, longest=0.3)
    strikes = plan(5, small.steps, small.strikes, FROM_MEMORY)
    assert [strike.kinds for strike in strikes] == [("fill",), ("pair",)]
    alone = survivor_in_parts.undisturbed(small)["bits"]
    run = survivor_in_parts.disturbed(small, 5, alone)
    log = "\n".join(run["log"])
    assert run["same"], log
    assert run["kinds"]["pair"] == 1 and "which keeps its copy" in log, log
    assert run["file"] >= 1, log
    assert "from a file" in log.split("which keeps its copy")[1], log
    assert len(set(alone)) == small.ranks, "each rank has another part"
