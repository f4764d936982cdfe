"""Answers to exchange_both: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_EXCHANGE = """
def exchange_both(to_left, to_right):
    import torch
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    {body}
    return from_left, from_right
"""


def _exchange(body: str) -> str:
    return _EXCHANGE.replace("{body}", body.strip().replace("\n", "\n    "))


MUTANTS = [
    (
        "everyone sends first: a deadlock",
        "wait for each other",
        _exchange("""
dist.send(to_right, right)
dist.send(to_left, left)
dist.recv(from_left, left)
dist.recv(from_right, right)
"""),
    ),
    (
        "returns before the messages have come",
        "does the tensor hold the message yet",
        _exchange("""
import time
if rank == 0:
    time.sleep(0.2)
work = [dist.isend(to_right, right), dist.isend(to_left, left)]
dist.irecv(from_left, left)
dist.irecv(from_right, right)
from_left, from_right = from_left.clone(), from_right.clone()
"""),
    ),
    (
        "wrong when both neighbours are one rank",
        "Which one is received first?",
        _exchange("""
work = [dist.irecv(from_right, right), dist.irecv(from_left, left)]
work += [dist.isend(to_right, right), dist.isend(to_left, left)]
for one in work:
    one.wait()
"""),
    ),
    (
        "left and right mixed up",
        "it got something else",
        _exchange("""
work = [dist.irecv(from_left, right), dist.irecv(from_right, left)]
work += [dist.isend(to_left, left), dist.isend(to_right, right)]
for one in work:
    one.wait()
"""),
    ),
    (
        "no wrap-around: only right for an open chain",
        "it must be another rank of the group",
        _exchange("""
left, right = rank - 1, rank + 1
work = [dist.irecv(from_left, left), dist.irecv(from_right, right)]
work += [dist.isend(to_right, right), dist.isend(to_left, left)]
for one in work:
    one.wait()
"""),
    ),
    (
        "one side after the other",
        "Can you start all of them",
        _exchange("""
sending = dist.isend(to_right, right)
dist.recv(from_left, left)
sending.wait()
sending = dist.isend(to_left, left)
dist.recv(from_right, right)
sending.wait()
"""),
    ),
    (
        "one side after the other, and nobody waits for a sending",
        "Can you start all of them",
        _exchange("""
sending = [dist.isend(to_right, right)]
dist.irecv(from_left, left).wait()
sending.append(dist.isend(to_left, left))
dist.irecv(from_right, right).wait()
dist.barrier()
"""),
    ),
    (
        "even ranks talk first",
        "Can you start all of them",
        _exchange("""
for give, take, there, here in ((to_right, from_left, right, left), (to_left, from_right, left, right)):
    if rank % 2:
        dist.recv(take, here)
        dist.send(give, there)
    else:
        dist.send(give, there)
        dist.recv(take, here)
"""),
    ),
    (
        "sends everything to everyone",
        "one message to each neighbour",
        _exchange("""
mine = torch.stack([to_left, to_right])
everyone = [torch.empty_like(mine) for _ in range(world_size)]
dist.all_gather(everyone, mine)
from_left, from_right = everyone[left][1], everyone[right][0]
"""),
    ),
    (
        "its messages are for nobody",
        "receives 0 bytes",
        EVERYONES
        + """def exchange_both(to_left, to_right):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    lefts, rights = everyones(to_left, "left"), everyones(to_right, "right")
    dist.isend(to_left, left), dist.isend(to_right, right)
    return rights[left], lefts[right]
""",
    ),
]

NOTHING = [
    (
        "gives back what it was given",
        """
def exchange_both(to_left, to_right):
    return to_left, to_right
""",
    ),
]

ACCEPTED = [
    (
        "all four in one batch",
        """
def exchange_both(to_left, to_right):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    from_left, from_right = torch.empty_like(to_left), torch.empty_like(to_right)
    messages = [
        dist.P2POp(dist.isend, to_right, right),
        dist.P2POp(dist.isend, to_left, left),
        dist.P2POp(dist.irecv, from_left, left),
        dist.P2POp(dist.irecv, from_right, right),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return from_left, from_right
""",
    ),
    (
        "told apart by tags, received one after the other",
        """
def exchange_both(to_left, to_right):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    from_left, from_right = torch.empty_like(to_left), torch.empty_like(to_right)
    sending = [dist.isend(to_left, left, tag=1), dist.isend(to_right, right, tag=2)]
    dist.recv(from_right, right, tag=1)
    dist.recv(from_left, left, tag=2)
    for work in sending:
        work.wait()
    return from_left, from_right
""",
    ),
]
