"""The two layouts of full sharding: what is tested here of one holds for the other too,
unless it is about the layout."""

from __future__ import annotations

import pytest

from dtcourse.sharding import FullyShardedDataParallel, fully_shard


@pytest.fixture(params=[fully_shard, FullyShardedDataParallel], ids=lambda shard: shard.__name__)
def shard(request):
    """fully_shard, then FullyShardedDataParallel."""
    return request.param
