"""The records of exercise 25b-2 are what they are said to be: the course's own watcher and folders say the same."""

from __future__ import annotations

import math

import pytest

from dtcourse.course.checks.lesson_25b_detect_and_recover import run_records
from dtcourse.fault_tolerance import folders
from dtcourse.fault_tolerance.mark import NotComplete

OF_RANKS = ("dead", "stopped", "hung")
CASES = [(kind, way) for kind, ways in run_records.WAYS.items() for way in dict.fromkeys(ways)]


@pytest.mark.parametrize("kind", list(run_records.WAYS))
def test_the_watcher_says_of_the_ranks_what_has_happened_to_them(kind):
    for way in dict.fromkeys(run_records.WAYS[kind]):
        _, right, look = run_records.made(kind, way)
        if (
            kind == "out of memory"
        ):  # whoever has left by itself is no fault; who waits for it is late
            odd = look.verdicts[right[1]]
            assert odd.kind == "left" and "Memory" in odd.seen.beat.left
            continue
        found = [(one.kind, one.rank) for one in look.reasons]
        assert found == ([right] if kind in OF_RANKS else []), f"{way}: {look}"


@pytest.mark.parametrize("way", [*run_records.WAYS["damaged"], "in a save", "returned"])
def test_a_checkpoint_is_damaged_where_its_mark_says_so(way, tmp_path):
    kind = "damaged" if way in run_records.WAYS["damaged"] else "healthy"
    record, (_, where) = run_records.drawn(kind, way)
    for folder, files in record["checkpoints"].items():
        for name, data in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    damaged = []
    for step in folders.steps(tmp_path):
        try:
            folders.checked(tmp_path / folders.name_of(step))
        except NotComplete:
            damaged.append(step)
    assert damaged == ([] if where is None else [where])


@pytest.mark.parametrize(
    ("kind", "way"), [c for c in CASES if c[0] == "not finite"] + [("healthy", "skipped")]
)
def test_a_batch_spoils_the_weights_unless_its_step_is_left_out(kind, way):
    record, (_, where) = run_records.drawn(kind, way)
    losses = [one["losses"] for one in record["ranks"]]
    bad = [
        (step, rank)
        for rank, of in enumerate(losses)
        for step, loss in of.items()
        if not math.isfinite(loss)
    ]
    first = [rank for step, rank in bad if step == min(bad)[0]]
    assert len(first) == 1 and (where is None or first == [where])
    after = [loss for of in losses for step, loss in of.items() if step > min(bad)[0]]
    assert all(math.isfinite(loss) == (kind == "healthy") for loss in after)
