"""Sharded data parallelism: what data parallelism keeps p times is shared out over the ranks (ZeRO, FSDP).

In the order in which to read them:

    partition.py       who owns which parameter
    zero1.py           ZeroRedundancyOptimizer: optimizer states on their owner (P_os)
    zero2.py           ShardedDataParallel: gradients on their owner as well (P_os+g)
"""

from dtcourse.sharding.zero1 import ZeroRedundancyOptimizer
from dtcourse.sharding.zero2 import ShardedDataParallel

__all__ = ["ShardedDataParallel", "ZeroRedundancyOptimizer"]
