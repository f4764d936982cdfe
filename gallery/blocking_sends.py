"""With a small grid it ran for months; on this machine, and with a larger one, all ranks stand still at once.

Cause: every rank sends its border to its neighbour first and receives after that. A send may return before anybody
receives it (small messages, a backend that buffers), and need not: here each waits for a receive that comes after a
send.
Found by: the flight recorder's records, in which the waits form a circle.
Repair: the send is posted and waited for after the receive (isend, or batch_isend_irecv).
"""

import torch
import torch.distributed as dist

RANKS = 3
KIND = "hangs"
TOOL = "hang"
NAMES = ("Ranks 0, 1 and 2", "dist.send(border", "each sends first")
REPAIR = [
    ("        dist.send(border, right)\n", "        sent = dist.isend(border, right)\n"),
    ("        dist.recv(ghost, left)\n", "        dist.recv(ghost, left)\n        sent.wait()\n"),
]


def smooth(field, turns=4):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    for _ in range(turns):
        border, ghost = field[-1:].clone(), torch.empty_like(field[:1])
        dist.send(border, right)
        dist.recv(ghost, left)
        field = (field + torch.cat([ghost, field[:-1]])) / 2
    return field


def whole_field():
    torch.manual_seed(0)
    return torch.rand(12 * RANKS, 64)


def step():
    mine = smooth(whole_field().chunk(dist.get_world_size())[dist.get_rank()])
    whole = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, mine)
    return {"fields": {"field": torch.cat(whole)}}


def reference():
    field = whole_field()
    for _ in range(4):
        field = (field + field.roll(1, 0)) / 2
    return {"fields": {"field": field}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
