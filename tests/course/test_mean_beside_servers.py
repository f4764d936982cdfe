"""What exercise 13b-3 takes for the busiest port of the best mix, by trying all mixes."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_13b_messages_and_ports import mean_beside_servers as exercise


@pytest.mark.parametrize(("workers", "servers"), exercise.GROUPS)
def test_the_busiest_port_is_that_of_the_best_of_all_mixes(workers, servers):
    found = []
    for tenths in range(10_001):
        at_servers = tenths / 10_000
        x, y = (1 - at_servers) / workers, at_servers / servers
        # What a rank sends: the parts of others, and its sum to each other worker.
        found.append(max(1 - x + (workers - 1) * x, workers * y))
    assert min(found) == pytest.approx(exercise.BUSIEST[workers, servers], rel=1e-3)
    # Nobody helping, or everything at the servers, is over the limit.
    assert min(found[0], found[-1]) > exercise.BYTES * exercise.BUSIEST[workers, servers]
