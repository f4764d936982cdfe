"""Answers to tree_broadcast: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_TREE = """
def tree_broadcast(tensor, src=0):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    {body}
"""


def _tree(body: str) -> str:
    return _TREE.replace("{body}", body.strip().replace("\n", "\n    "))


MUTANTS = [
    (
        "a star: the source serves all",
        "can pass it on",
        _tree("""
if rank == src:
    for other in range(world_size):
        if other != src:
            dist.send(tensor, other)
else:
    dist.recv(tensor, src)
"""),
    ),
    (
        "a chain",
        "can pass it on",
        _tree("""
me = (rank - src) % world_size
if me > 0:
    dist.recv(tensor, (rank - 1) % world_size)
if me < world_size - 1:
    dist.send(tensor, (rank + 1) % world_size)
"""),
    ),
    (
        "serves the leaves first",
        "can pass it on",
        _tree("""
me = (rank - src) % world_size
low = me & -me if me else 1 << (world_size - 1).bit_length()
if me:
    dist.recv(tensor, (me - low + src) % world_size)
distance = 1
while distance < low:
    if me + distance < world_size:
        dist.send(tensor, (me + distance + src) % world_size)
    distance *= 2
"""),
    ),
    (
        "only right for powers of two",
        "on 3 ranks",
        _tree("""
me = (rank - src) % world_size
distance = 1
while distance < world_size:
    if me < distance:
        dist.send(tensor, (me + distance + src) % world_size)
    elif me < 2 * distance:
        dist.recv(tensor, (me - distance + src) % world_size)
    distance *= 2
"""),
    ),
    (
        "takes rank 0 for the source, whatever src says",
        "should hold what rank",
        _tree("""
distance = 1
while distance < world_size:
    if rank < distance and rank + distance < world_size:
        dist.send(tensor, rank + distance)
    elif distance <= rank < 2 * distance:
        dist.recv(tensor, rank - distance)
    distance *= 2
"""),
    ),
    (
        "the source waits too: a deadlock",
        "wait for each other",
        _tree("""
me = (rank - src) % world_size
dist.recv(tensor, (rank - 1) % world_size)
if me < world_size - 1:
    dist.send(tensor, (rank + 1) % world_size)
"""),
    ),
    (
        "lets PyTorch do it",
        "build the broadcast yourself",
        _tree("dist.broadcast(tensor, src)"),
    ),
    (
        "one round too few",
        "Who sends to it, and in which round?",
        _tree("""
me = (rank - src) % world_size
distance = 1
while 2 * distance < world_size + 1:
    if me < distance and me + distance < world_size:
        dist.send(tensor, (me + distance + src) % world_size)
    elif distance <= me < 2 * distance:
        dist.recv(tensor, (me - distance + src) % world_size)
    distance *= 2
"""),
    ),
    (
        "its messages hold nothing",
        "receives 4 bytes; the tensor has 16",
        EVERYONES
        + """def tree_broadcast(tensor, src=0):
    tensor.copy_(everyones(tensor)[src])
    rank, size, number = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
    me, mask = (rank - src) % size, 1
    while mask < size and not me & mask:
        mask <<= 1
    if me:
        dist.recv(number, (me - mask + src) % size)
    while mask > 1:
        mask >>= 1
        if me + mask < size:
            dist.send(number, (me + mask + src) % size)
""",
    ),
]

NOTHING = [
    (
        "leaves the tensor alone",
        """
def tree_broadcast(tensor, src=0):
    pass
""",
    ),
]

ACCEPTED = [
    (
        "the farthest first, as MPI does it",
        """
def tree_broadcast(tensor, src=0):
    rank, size = dist.get_rank(), dist.get_world_size()
    me, mask = (rank - src) % size, 1
    while mask < size and not me & mask:
        mask <<= 1
    if me:
        dist.recv(tensor, (me - mask + src) % size)
    while mask > 1:
        mask >>= 1
        if me + mask < size:
            dist.send(tensor, (me + mask + src) % size)
""",
    ),
    (
        "halves of halves",
        """
def tree_broadcast(tensor, src=0):
    rank, size = dist.get_rank(), dist.get_world_size()
    me, first, last = (rank - src) % size, 0, size
    while last - first > 1:
        middle = (first + last + 1) // 2
        if me == first:
            dist.send(tensor, (middle + src) % size)
        elif me == middle:
            dist.recv(tensor, (first + src) % size)
        first, last = (first, middle) if me < middle else (middle, last)
""",
    ),
]
