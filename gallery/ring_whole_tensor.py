"""The ring is right, and on more ranks it takes longer and longer: each adds the whole tensor's time again.

Cause: this all-reduce passes the whole tensor round the ring, N - 1 times, where blocks of 1/N of it would do. The
sum is right, and each rank sends N / 2 times too much.
Found by: the bytes that a rank sends, against what the sum that came of them needs.
Repair: first each rank sums up one block (reduce-scatter), then the blocks go round (all-gather). The ring of PyTorch's
tutorial "Writing Distributed Applications with PyTorch" sends wholes.
"""

import torch
import torch.distributed as dist

RANKS = 4
KIND = "slow"
TOOL = "bytes"
NAMES = ("rank 0", "isend(out")
REPAIR = [
    ("    ring_of_wholes(vector)\n", "    ring_of_blocks(vector)\n"),
]


def ring_of_wholes(vector):
    rank, size = dist.get_rank(), dist.get_world_size()
    out, incoming, total = vector.clone(), torch.empty_like(vector), vector.clone()
    for _ in range(size - 1):
        request = dist.isend(out, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        request.wait()
        total += incoming
        out, incoming = incoming, out
    vector.copy_(total)


def ring_of_blocks(vector):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = list(vector.chunk(size))
    for turn in range(2 * (size - 1)):
        gone, comes = (rank - turn) % size, (rank - turn - 1) % size
        incoming = torch.empty_like(blocks[comes])
        request = dist.isend(blocks[gone], (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        request.wait()
        if turn < size - 1:
            blocks[comes] += incoming
        else:
            blocks[comes].copy_(incoming)


def step():
    torch.manual_seed(dist.get_rank())
    vector = torch.randn(4000)
    ring_of_wholes(vector)
    return {"sums": {"vector": vector}}


def reference():
    total = torch.zeros(4000)
    for rank in range(RANKS):
        torch.manual_seed(rank)
        total += torch.randn(4000)
    return {"sums": {"vector": total}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
