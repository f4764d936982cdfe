"""The table of pairs in CONTRIBUTING is the one that the tests prove."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.pairs import test_around_a_run, test_pipedream, test_plain_replica, test_weighted
from tests.pairs.around import AROUND, around
from tests.pairs.table import PAIRS, table
from tests.parameters.test_slices import REFUSED

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_contributing_holds_the_table():
    text = CONTRIBUTING.read_text()
    for one in (table(), around()):
        assert one in text, f"put this into CONTRIBUTING.md (python -m tests.pairs.around):\n{one}"


def test_each_row_is_proven():
    refused = (
        REFUSED
        | test_pipedream.REFUSED
        | test_around_a_run.REFUSED
        | test_plain_replica.REFUSED
        | test_weighted.REFUSED
    )
    for pair in (*PAIRS, *AROUND):
        if pair.works:
            module, _, name = pair.proof.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), pair
        else:
            assert pair.proof in refused, pair


def test_no_pair_is_there_twice():
    for pairs in (PAIRS, AROUND):
        assert len({(p.outer, p.inner) for p in pairs}) == len(pairs)
