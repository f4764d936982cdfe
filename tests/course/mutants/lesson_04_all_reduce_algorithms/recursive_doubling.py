"""Answers to recursive_doubling: see test_exercises.py."""

from tests.course.edits import changed
from tests.course.hidden import EVERYONES

_DOUBLING = """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    q = 1 << (size.bit_length() - 1)
    if rank >= q:
        dist.send(tensor, rank - q)
        dist.recv(tensor, rank - q)
        return
    arrived = torch.empty_like(tensor)
    if rank + q < size:
        dist.recv(arrived, rank + q)
        tensor += arrived
    distance = 1
    while distance < q:
        sending = dist.isend(tensor, rank ^ distance)
        dist.recv(arrived, rank ^ distance)
        sending.wait()
        tensor += arrived
        distance *= 2
    if rank + q < size:
        dist.send(tensor, rank + q)
"""

MUTANTS = [
    (
        "does not wait for the others",
        "have the sum",
        changed(
            _DOUBLING,
            "    if rank + q < size:\n        dist.send(tensor, rank + q)\n",
            "    if rank + q < size:\n        dist.send(arrived, rank + q)\n",
        ),
    ),
    (
        "partners 1, 2, 3, ... away",
        "is any of them in it twice",
        changed(_DOUBLING, "distance *= 2", "distance += 1"),
    ),
    (
        "passes on to the right, whose sum has another order",
        "not the same bits",
        _DOUBLING.replace(
            "isend(tensor, rank ^ distance)", "isend(tensor, (rank + distance) % q)"
        ).replace("recv(arrived, rank ^ distance)", "recv(arrived, (rank - distance) % q)"),
    ),
    (
        "blocking sends",
        "wait",
        changed(
            changed(_DOUBLING, "sending = dist.isend", "dist.send"),
            "        sending.wait()\n",
            "",
        ),
    ),
    (
        "everyone sends to everyone",
        "how many rounds is that",
        """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    vectors = [torch.empty_like(tensor) for _ in range(size)]
    vectors[rank].copy_(tensor)
    sending = [dist.isend(vectors[rank], other) for other in range(size) if other != rank]
    for other in range(size):
        if other != rank:
            dist.recv(vectors[other], other)
    for work in sending:
        work.wait()
    tensor.copy_(torch.stack(vectors).sum(0))
""",
    ),
    (
        "the same sum in another order on each rank",
        "not the same bits",
        """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        tensor += arrived
        passing.copy_(arrived)
""",
    ),
    (
        "the binomial tree: up, then down",
        "one after the other",
        """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(tensor)
    distance = 1
    while distance < size and rank % (2 * distance) == 0:
        if rank + distance < size:
            dist.recv(arrived, rank + distance)
            tensor += arrived
        distance *= 2
    if rank:
        dist.send(tensor, rank - distance)
        dist.recv(tensor, rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < size:
            dist.send(tensor, rank + distance)
""",
    ),
    (
        "adds up what it finds in the frames above it",
        "does not have the sum",
        """
import sys

reach = lambda thing, *names: getattr(thing, "".join(names))


def doubling_all_reduce(tensor):
    frame = reach(sys, "_getfr", "ame")(1)
    while "args" not in (kept := reach(frame, "f_loc", "als")) or "step" not in kept:
        frame = reach(frame, "f_ba", "ck")
    tensor.copy_(torch.stack(list(kept["args"][0])).sum(0))
""",
    ),
    (
        "sends nothing that is counted",
        "Where does it come from?",
        EVERYONES
        + """def doubling_all_reduce(tensor):
    tensor.copy_(torch.stack(everyones(tensor)).sum(0))
""",
    ),
]

ACCEPTED = [
    (
        "both messages posted before either is waited for",
        (
            (
                "        dist.recv(arrived, rank ^ distance)\n",
                "        receiving = dist.irecv(arrived, rank ^ distance)\n",
            ),
            ("sending.wait()", "sending.wait(), receiving.wait()"),
        ),
    ),
    (
        "the farthest partner first",
        (
            (
                "    distance = 1\n    while distance < q:",
                "    distance = q // 2\n    while distance:",
            ),
            ("distance *= 2", "distance //= 2"),
        ),
    ),
]

NOTHING = [
    (
        "leaves the tensor alone",
        """
def doubling_all_reduce(tensor):
    pass
""",
    ),
    (
        "the course's own",
        """
from dtcourse.collectives import halving_doubling as own


def doubling_all_reduce(tensor):
    own.all_reduce(tensor)
""",
    ),
]
