"""Answers to two_halves: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_SCATTER = "sent[i] = mine, dist.reduce_scatter(mine, list(gradient.chunk(p)), async_op=True)"
_GATHER = "coming[i] = dist.all_gather(list(weight.chunk(p)), part, async_op=True)"
_FORWARD = "        coming[i].wait()\n        forward(i)\n"
_UPDATES = "    for i, weight in enumerate(weights):\n"

# The lesson's own: an all-reduce per layer, and each layer waits and steps before its forward.
_LESSONS = """
import torch
import torch.distributed as dist


def two_halves(weights, backward, update, forward):
    means = {}
    for i in reversed(range(len(weights))):
        gradient = backward(i) / dist.get_world_size()
        means[i] = gradient, dist.all_reduce(gradient, async_op=True)
    for i in range(len(weights)):
        gradient, work = means[i]
        work.wait()
        update(i, weights[i], gradient)
        forward(i)
"""

MUTANTS = [
    ("the lesson's own: all-reduce, and a step of the whole layer", "are its part", _LESSONS),
    (
        "says itself when its forward began",
        "unexpected keyword argument",
        (("forward(i)", "forward(i, begun=-100.0)"),),
    ),
    (
        "all-reduced, then gathered",
        "What travels that the other ranks do not need",
        (
            (
                "mine = torch.empty(len(gradient) // p, dtype=gradient.dtype)",
                "mine = gradient.chunk(p)[rank]",
            ),
            (_SCATTER, "sent[i] = mine, dist.all_reduce(gradient, async_op=True)"),
        ),
    ),
    (
        "PyTorch's own sharded module",
        "torch.distributed.fsdp",
        (
            (
                "    sent, coming = {}, {}\n",
                "    from torch.distributed.fsdp import fully_shard\n\n    fully_shard(torch.nn.Linear(2, 2))\n    sent, coming = {}, {}\n",
            ),
        ),
    ),
    (
        "a sum where the mean belongs",
        "Whose part of the mean does a rank have",
        (("update(i, part, mine / p)", "update(i, part, mine)"),),
    ),
    (
        "averaged twice",
        "Whose part of the mean does a rank have",
        (("update(i, part, mine / p)", "update(i, part, mine / p**2)"),),
    ),
    (
        "each half is waited for at once",
        "What does a rank wait for before it needs it",
        (
            (_SCATTER, _SCATTER + "\n        sent[i][1].wait()"),
            (_GATHER, _GATHER + "\n        coming[i].wait()"),
        ),
    ),
    (
        "all weights are waited for before the first forward",
        "What does a rank wait for before it needs it",
        ((_FORWARD, "        [work.wait() for work in coming.values()]\n        forward(i)\n"),),
    ),
    (
        "gathered last layer first",
        "which layer's weights does the next forward need first",
        ((_UPDATES, "    for i, weight in reversed(list(enumerate(weights))):\n"),),
    ),
    (
        "never waited for before forward",
        "Which handle says that they are",
        ((_FORWARD, "        forward(i)\n"),),
    ),
    (
        "the next rank's part of the weights",
        "Whose part of the mean does a rank have",
        (("weight.chunk(p)[rank].clone()", "weight.chunk(p)[(rank + 1) % p].clone()"),),
    ),
    (
        "the own gradient instead of the mean",
        "Whose part of the mean does a rank have",
        (
            (
                "sent[i] = mine, dist.reduce_scatter(mine, list(gradient.chunk(p)), async_op=True)",
                "spare = torch.empty_like(mine)\n"
                "        mine.copy_(p * gradient.chunk(p)[rank])\n"
                "        sent[i] = mine, dist.reduce_scatter(spare, list(gradient.chunk(p)), async_op=True)",
            ),
        ),
    ),
    (
        "forward of the first layers only",
        "all of 0 to 3 are asked for",
        (
            (
                "    for i in range(len(weights)):\n        coming",
                "    for i in range(len(weights) - 1):\n        coming",
            ),
        ),
    ),
    (
        "rank 0 gathers nothing",
        "rank",
        (
            (
                _GATHER,
                "coming[i] = work if rank == 0 else dist.all_gather(list(weight.chunk(p)), part, async_op=True)",
            ),
        ),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch.distributed as dist


def two_halves(weights, backward, update, forward):
    from dtcourse import emulation

    rank, p = dist.get_rank(), dist.get_world_size()
    means = {i: torch.stack(everyones(backward(i))).mean(0) for i in reversed(range(len(weights)))}
    emulation.sleep(30.0)
    for i, weight in enumerate(weights):
        part = weight.chunk(p)[rank].clone()
        update(i, part, means[i].chunk(p)[rank])
        weight.copy_(torch.cat(everyones(part)))
    for i in range(len(weights)):
        forward(i)
""",
    ),
]

ACCEPTED = [
    (
        "the first half by an all-to-all, and a sum",
        """
import torch
import torch.distributed as dist


def two_halves(weights, backward, update, forward):
    rank, p = dist.get_rank(), dist.get_world_size()
    works = []
    for i in range(len(weights) - 1, -1, -1):
        gradient = backward(i) / p
        parts = torch.zeros_like(gradient)
        works.insert(0, (parts, gradient, dist.all_to_all_single(parts, gradient, async_op=True)))
    gathers = []
    for i, (parts, _, work) in enumerate(works):
        work.wait()
        part = weights[i].view(p, -1)[rank].clone()
        update(i, part, parts.view(p, -1).sum(0))
        gathers.append(dist.all_gather(list(weights[i].chunk(p)), part, async_op=True))
    for i, work in enumerate(gathers):
        work.wait()
        forward(i)
""",
    ),
    (
        "one layer ahead, as a prefetch",
        """
import torch
import torch.distributed as dist


def two_halves(weights, backward, update, forward):
    rank, p, L = dist.get_rank(), dist.get_world_size(), len(weights)
    means = {}
    for i in reversed(range(L)):
        gradient = backward(i)
        mean = gradient.new_empty(gradient.numel() // p)
        means[i] = mean, dist.reduce_scatter(mean, list(gradient.chunk(p)), async_op=True)

    def gather(i):
        mean, work = means[i]
        work.wait()
        part = weights[i].clone().chunk(p)[rank]
        update(i, part, mean / p)
        return dist.all_gather(list(weights[i].chunk(p)), part, async_op=True)

    coming = gather(0)
    for i in range(L):
        following = gather(i + 1) if i + 1 < L else None
        coming.wait()
        forward(i)
        coming = following
""",
    ),
]

NOTHING = [
    ("nothing", "\ndef two_halves(weights, backward, update, forward):\n    pass\n"),
    (
        "each rank alone",
        "\ndef two_halves(weights, backward, update, forward):\n    gradients = [backward(i) for i in reversed(range(len(weights)))]\n"
        "    for i in range(len(weights)):\n        forward(i)\n",
    ),
]
