"""Counts and their nouns: in words, and in whatever lessons print."""

from __future__ import annotations

import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.plural import plural
from tests.notebooks.grammar import wrong_in, wrong_plurals


def test_one_and_many():
    assert plural(1, "rank") == "1 rank"
    assert [plural(n, "rank") for n in (0, 2)] == ["0 ranks", "2 ranks"]
    assert plural(1200, "byte") == "1,200 bytes"
    assert (
        plural(1, "batch", "batches") == "1 batch" and plural(2, "batch", "batches") == "2 batches"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("on 1 ranks", ["1 ranks"]),
        ("1 all-reduces, 1 missing messages", ["1 all-reduces", "1 missing messages"]),
        ("21 ranks, 0.1 seconds, rank 1 sends, 1 rank, 1,001 steps, 4 of 1, [1, 2] ranks", []),
        ("p - 1 steps", []),
    ],
)
def test_what_counts_as_wrong(text, found):
    assert wrong_plurals(text) == found


OUTPUTS = [
    pytest.param(path, id=f"{kind}/{path.name}")
    for kind in ("lessons", "solutions")
    for path in places.notebooks(kind).values()
]


@pytest.mark.parametrize("path", OUTPUTS)
def test_no_committed_output_says_one_of_many(path):
    assert wrong_in(nbfile.read(path)) == []
