"""Ranks stay from one test to the next: each launches a few for a second."""

from __future__ import annotations

import pytest

from dtcourse.launch import standby
from tests import kept_ranks


@pytest.fixture(scope="module", autouse=True)
def ranks_that_stay():
    kept_ranks.come_from_template(60)
    with standby.keeping():
        yield
