"""What every node of a cluster has: `dtcourse doctor --cluster slurm` runs this as a job, one rank per node."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any

MEGABYTES = 16


def probe() -> dict[str, Any]:
    """What this node is and has; `clock` is read by all nodes right after they have met.

    megabytes_per_second: of an all-reduce of 16 MB, as algorithmic bandwidth (bytes of the tensor per second)
    """
    import psutil
    import torch
    import torch.distributed as dist

    from dtcourse import device

    x = torch.ones(MEGABYTES * 2**18, device=device.current())
    dist.all_reduce(x[:1])
    dist.barrier()
    clock = time.time()
    start = time.monotonic()
    dist.all_reduce(x)
    device.synchronize()
    seconds = time.monotonic() - start
    return {
        "node": os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpus": device.names(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "interface": os.environ["GLOO_SOCKET_IFNAME"],
        "address": os.environ["MASTER_ADDR"],
        "clock": clock,
        "megabytes_per_second": MEGABYTES / seconds,
    }
