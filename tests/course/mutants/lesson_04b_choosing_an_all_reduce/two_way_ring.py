"""Answers to two_way_ring: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HOOK = """
def ring_hook(state, bucket):
    gradients = bucket.buffer()
    two_way_all_reduce(gradients)
    gradients /= dist.get_world_size()
    future = torch.futures.Future()
    future.set_result(gradients)
    return future
"""

# The lesson's own ring, all of it to the right.
_ONE_WAY = """
def two_way_all_reduce(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % p, (rank + 1) % p
    blocks = tensor.tensor_split(p)
    for step in range(2 * (p - 1)):
        give, mine = blocks[(rank - step - 1) % p], blocks[(rank - step - 2) % p]
        arrived = torch.empty_like(mine)
        sending = dist.isend(give, right) if len(give) else None
        if len(mine):
            dist.recv(arrived, left)
        if step < p - 1:
            mine += arrived
        else:
            mine.copy_(arrived)
        if sending:
            sending.wait()
"""

_ONE_AFTER_THE_OTHER = """
def two_way_all_reduce(tensor):
    rank, p = dist.get_rank(), dist.get_world_size()
    for way, half in zip((1, -1), tensor.tensor_split(2)):
        blocks = half.tensor_split(p)
        for step in range(2 * (p - 1)):
            give = blocks[(rank - way * (step + 1)) % p]
            mine = blocks[(rank - way * (step + 2)) % p]
            arrived = torch.empty_like(mine)
            sending = dist.isend(give, (rank + way) % p) if len(give) else None
            if len(mine):
                dist.recv(arrived, (rank - way) % p)
            if step < p - 1:
                mine += arrived
            else:
                mine.copy_(arrived)
            if sending:
                sending.wait()
"""

_THROUGH_ROOT = """
def two_way_all_reduce(tensor):
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

_TORCHS = """
def two_way_all_reduce(tensor):
    dist.all_reduce(tensor)
"""

MUTANTS = [
    ("the lesson's ring, one way round", "Which half of the vector travels", _ONE_WAY + _HOOK),
    ("one way after the other", "the second half wait for the first", _ONE_AFTER_THE_OTHER + _HOOK),
    ("all through a root", "one rank do the work of all", _THROUGH_ROOT + _HOOK),
    ("calls PyTorch's all-reduce", "It calls all_reduce", _TORCHS + _HOOK),
    (
        "a hook that calls PyTorch's all-reduce",
        "round your own ring",
        (("    two_way_all_reduce(gradients)\n", "    dist.all_reduce(gradients)\n"),),
    ),
    (
        "a hook that broadcasts each rank's bucket in turn",
        "calls broadcast. The hook is to send the bucket round your own ring",
        (
            (
                "    two_way_all_reduce(gradients)\n",
                "    own, total = gradients.clone(), torch.zeros_like(gradients)\n"
                "    for rank in range(dist.get_world_size()):\n"
                "        theirs = own.clone()\n"
                "        dist.broadcast(theirs, rank)\n"
                "        total += theirs\n"
                "    gradients.copy_(total)\n",
            ),
        ),
    ),
    (
        "a hook that sends its ring's result once more by one broadcast, in the first step",
        "calls broadcast. The hook is to send the bucket round your own ring",
        (
            (
                "    two_way_all_reduce(gradients)\n",
                "    two_way_all_reduce(gradients)\n"
                "    if not hasattr(two_way_all_reduce, 'once'):\n"
                "        two_way_all_reduce.once = True\n"
                "        dist.broadcast(gradients, 0)\n",
            ),
        ),
    ),
    (
        "the sum for the mean",
        "times too far in each step",
        (("    gradients /= dist.get_world_size()\n", ""),),
    ),
    (
        "a step too few",
        "which block leaves a rank",
        (("range(2 * (size - 1))", "range(2 * (size - 1) - 1)"),),
    ),
    (
        "off by one block",
        "which block leaves a rank",
        (("if step < size - 1:", "if step < size - 2:"),),
    ),
    (
        "right for up to four ranks",
        "on 5 ranks",
        (("range(2 * (size - 1))", "range(6)"),),
    ),
    (
        "what comes is never waited for",  # what it adds is chance, or it hangs
        "✗ the sum, on every rank",
        (("            work.wait()\n            if step", "            if step"),),
    ),
    (
        "blocks of one length, the rest forgotten",
        "are all blocks of one length",
        (
            (
                "half.tensor_split(size) for half",
                "half[: len(half) // size * size].tensor_split(size) for half",
            ),
        ),
    ),
    (
        "through the store, where nothing is counted",
        "Under DDP on 2 ranks, rank 0 receives",
        (
            (
                "    two_way_all_reduce(gradients)\n",
                "    "
                + EVERYONES.strip().replace("\n", "\n    ")
                + "\n\n    gradients.copy_(sum(everyones(gradients)))\n",
            ),
        ),
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
        "the first half to the left",
        (("zip((1, -1), halves", "zip((-1, 1), halves"),),
    ),
]

NOTHING = [
    (
        "leaves the tensor alone",
        """
def two_way_all_reduce(tensor):
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


def two_way_all_reduce(tensor):
    dist.all_reduce(tensor)


def ring_hook(state, bucket):
    return allreduce_hook(None, bucket)
""",
    ),
]
