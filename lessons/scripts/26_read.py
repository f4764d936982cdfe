"""A task of lesson 26 that reads a shared file in one of three ways; prints its node, and the bytes it read of it."""

import json
import os
import sys

shared, way = sys.argv[1:]
rank, tasks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
node, size = os.environ["SLURMD_NODENAME"], os.path.getsize(shared)


def bytes_read() -> int:
    """What the kernel has counted for this process (rchar)."""
    with open("/proc/self/io") as counted:
        return int(counted.read().split()[1])


before, data = bytes_read(), b""
with open(shared, "rb", buffering=0) as file:
    if way == "own part":
        file.seek(rank * size // tasks)
        data = file.read(size // tasks)
    elif way == "every rank" or os.environ["SLURM_LOCALID"] == "0":
        data = file.read()
count = bytes_read() - before
if way == "staged" and data:
    with open(f"{shared}-{node}", "wb") as copy:  # stands for a disk of the node
        copy.write(data)
print(json.dumps([node, count]))
