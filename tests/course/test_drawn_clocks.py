"""Exercise 23-2's traces: what its text says of them is true, whatever is drawn."""

from __future__ import annotations

import pytest

from dtcourse.course.checks.lesson_23_profiling.drawn_clocks import SOON, STEPS, drawn


@pytest.mark.parametrize("pairs", [False, True])
def test_on_one_clock_no_collective_is_over_before_its_last_call_and_all_notice_soon(pairs):
    case = drawn(drift=True, pairs=pairs)
    found: dict = {}
    for rank, rows in enumerate(case.traces):
        for what, group, number, begin, end in rows:
            if what == "all_reduce":
                assert rank in group
                moments = case.on_first(rank, begin), case.on_first(rank, end)
                found.setdefault((group, number), []).append(moments)
    assert len(found) == STEPS * (2 if pairs else 1)
    for (group, _), moments in found.items():
        assert len(moments) == len(group)
        ends = [end for _, end in moments]
        assert max(begin for begin, _ in moments) < min(ends)
        assert max(ends) - min(ends) <= 1.001 * SOON


def test_an_offset_alone_is_off_by_more_than_is_allowed_where_clocks_drift():
    case = drawn(drift=True)
    for rank in range(1, len(case.traces)):
        first, last = case.traces[rank][0][3], case.traces[rank][-1][4]
        moved = (case.on_first(rank, last) - last) - (case.on_first(rank, first) - first)
        same = case.clocks[rank].rate / case.clocks[0].rate - 1
        assert abs(moved) == pytest.approx(abs(same) * (last - first), rel=1e-3)


def test_a_cut_recording_begins_elsewhere_and_keeps_most():
    case = drawn(drift=True, cut=True)
    begun = {rows[0][2] or rows[1][2] for rows in case.traces}
    assert len(begun) == len(case.traces)
    assert all(len(rows) >= 2 * (STEPS - 7) for rows in case.traces)
