"""Data parallelism: every rank holds the whole model and a part of the batch; gradients are averaged.

In the order in which to read them:

    naive.py           average the gradients after backward, one all-reduce a parameter, nothing overlapped
    consistency.py     are the replicas still the same?
    threads.py         nn.DataParallel: replicas in the threads of one process, and what that costs
    per_parameter.py   start each all-reduce from a hook, as soon as its gradient is ready
    ddp.py             DistributedDataParallel: what a user sees; buckets, overlap and parameters that the loss does not
                       depend on are in dtcourse/parameters: buckets.py, reducer.py, unused.py, comm_hooks.py
    options.py         what PyTorch's wrapper takes, and what it means here
    join.py            ranks that run out of data before the others
    sync_batchnorm.py  batch statistics over all ranks
"""

from dtcourse.data_parallel.consistency import ReplicasDiffer, check_replicas
from dtcourse.data_parallel.ddp import DistributedDataParallel
from dtcourse.data_parallel.naive import average_gradients, broadcast_model
from dtcourse.data_parallel.per_parameter import PerParameterDataParallel
from dtcourse.data_parallel.sync_batchnorm import SyncBatchNorm, batch_statistics
from dtcourse.data_parallel.threads import DataParallel

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "PerParameterDataParallel",
    "ReplicasDiffer",
    "SyncBatchNorm",
    "average_gradients",
    "batch_statistics",
    "broadcast_model",
    "check_replicas",
]
