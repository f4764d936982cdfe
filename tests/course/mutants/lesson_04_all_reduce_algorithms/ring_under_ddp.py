"""Answers to ring_under_ddp: see test_exercises.py."""

from tests.course.edits import changed

_HOOK = """
def ring_hook(state, bucket):
    gradients = bucket.buffer()
    ring_all_reduce(gradients)
    gradients /= dist.get_world_size()
    future = torch.futures.Future()
    future.set_result(gradients)
    return future
"""

_RING = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    blocks = tensor.tensor_split(size)

    def exchange(give, take):
        sending = dist.isend(give, right) if len(give) else None
        if len(take):
            dist.recv(take, left)
        if sending:
            sending.wait()

    for step in range(size - 1):
        mine = blocks[(rank - step - 2) % size]
        arrived = torch.empty_like(mine)
        exchange(blocks[(rank - step - 1) % size], arrived)
        mine += arrived
    for step in range(size - 1):
        exchange(blocks[(rank - step) % size], blocks[(rank - step - 1) % size])
"""

_THROUGH_ROOT = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    arrived = torch.empty_like(tensor)
    for other in range(1, size):
        dist.recv(arrived, other)
        tensor += arrived
    for other in range(1, size):
        dist.send(tensor, other)
"""

_WHOLE_VECTOR = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        tensor += arrived
        passing.copy_(arrived)
"""

_TORCHS = """
def ring_all_reduce(tensor):
    dist.all_reduce(tensor)
"""

MUTANTS = [
    ("all through a root", "Does one rank do the work of all", _THROUGH_ROOT + _HOOK),
    ("sends the whole vector", "more than one block go in a step", _WHOLE_VECTOR + _HOOK),
    ("calls PyTorch's all-reduce", "It calls all_reduce", _TORCHS + _HOOK),
    (
        "a hook that calls PyTorch's all-reduce",
        "round your own ring",
        _RING + changed(_HOOK, "ring_all_reduce(gradients)", "dist.all_reduce(gradients)"),
    ),
    (
        "the sum for the mean",
        "times too far in each step",
        _RING + changed(_HOOK, "    gradients /= dist.get_world_size()\n", ""),
    ),
    (
        "off by one block",
        "which block leaves a rank",
        changed(
            _RING,
            "exchange(blocks[(rank - step) % size], blocks[(rank - step - 1) % size])",
            "exchange(blocks[(rank - step + 1) % size], blocks[(rank - step) % size])",
        )
        + _HOOK,
    ),
    (
        "right for four ranks alone",
        "on 2 ranks",
        _RING.replace("range(size - 1)", "range(3)") + _HOOK,
    ),
    (
        "blocking sends",
        "wait",
        changed(_RING, "sending = dist.isend(give, right)", "sending = dist.send(give, right)")
        + _HOOK,
    ),
    (
        "blocks of one length, the rest forgotten",
        "are all blocks of one length",
        changed(
            _RING,
            "blocks = tensor.tensor_split(size)",
            "blocks = tensor[: len(tensor) // size * size].tensor_split(size)",
        )
        + _HOOK,
    ),
]

ACCEPTED = [
    (
        "a hook that divides first, and sends a copy",
        (
            ("bucket.buffer()\n", "bucket.buffer() / dist.get_world_size()\n"),
            ("    gradients /= dist.get_world_size()\n", ""),
        ),
    ),
    (
        "what comes is asked for before anything is sent",
        (
            (
                "        sending = dist.isend(give, right) if len(give) else None\n"
                "        if len(take):\n            dist.recv(take, left)\n"
                "        if sending:\n            sending.wait()\n",
                "        work = [dist.irecv(take, left)] if len(take) else []\n"
                "        work += [dist.isend(give, right)] if len(give) else []\n"
                "        for one in work:\n            one.wait()\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "leaves the tensor alone",
        """
def ring_all_reduce(tensor):
    pass


def ring_hook(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
""",
    ),
    (
        "PyTorch's own hook",
        """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def ring_all_reduce(tensor):
    dist.all_reduce(tensor)


def ring_hook(state, bucket):
    return allreduce_hook(None, bucket)
""",
    ),
]
