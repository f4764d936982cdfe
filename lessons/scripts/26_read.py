"""A task of lesson 26 that reads a shared file in one of three ways; prints its node, the part of the file that it
read there (first byte, last byte + 1), and how many bytes it read of its node's own copy.
"""

import json
import os
import sys
import time

shared, way = sys.argv[1:]
rank, tasks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
node, size = os.environ["SLURMD_NODENAME"], os.path.getsize(shared)
copy = f"{shared}-{node}"  # stands for a disk of the node
first, last = 0, size
if way == "own part":
    first, last = rank * size // tasks, (rank + 1) * size // tasks
if way == "staged" and os.environ["SLURM_LOCALID"] != "0":
    first = last = 0

with open(shared, "rb", buffering=0) as file:
    file.seek(first)
    data = b"".join(iter(lambda: file.read(last - first - (file.tell() - first)), b""))
assert len(data) == last - first
local = 0
if way == "staged":
    if data:
        with open(f"{copy}-new", "wb") as new:
            new.write(data)
        os.replace(f"{copy}-new", copy)
    while not os.path.exists(copy):
        time.sleep(0.01)
    with open(copy, "rb") as file:
        local = len(file.read())
print(json.dumps([node, first, last, local]))
