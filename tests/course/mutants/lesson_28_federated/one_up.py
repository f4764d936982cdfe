"""Answers to one_up: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_STEP = "lr * (gradient(y) - own + c)"
_OWN = "own = own - c + (x - y) / (steps[rank] * lr)"
_MOVED = "moved = sum(-c - change / (steps[k] * lr) for k, change in changes.items())"
_MEAN = "c = c + moved / num_clients"
_X = "x = x + sum(changes.values()) / len(S)"
_SEND = "dist.send(y - x, 0)"
_SENDS = "works = [dist.isend(down, k) for k in S]"
_RECVS = "works += [dist.irecv(change, k) for k, change in changes.items()]"

# As the paper's algorithm: both changes go up.
_TWO_UP = """
import torch
import torch.distributed as dist


def one_up(gradient, x, drawn, steps, lr):
    rank, num_clients = dist.get_rank(), dist.get_world_size() - 1
    c, own = torch.zeros_like(x), torch.zeros_like(x)
    for S in drawn:
        if rank == 0:
            down, up = torch.stack([x, c]), {k: x.new_empty(2, len(x)) for k in S}
            works = [dist.isend(down, k) for k in S] + [dist.irecv(v, k) for k, v in up.items()]
            for work in works:
                work.wait()
            x = x + sum(v[0] for v in up.values()) / len(S)
            c = c + sum(v[1] for v in up.values()) / num_clients
        elif rank in S:
            down = x.new_empty(2, len(x))
            dist.recv(down, 0)
            x, c = down
            y = x.clone()
            for _ in range(steps[rank]):
                y = y - lr * (gradient(y) - own + c)
            after = own - c + (x - y) / (steps[rank] * lr)
            dist.send(torch.stack([y - x, after - own]), 0)
            own = after
    return own if rank else (x, c)
"""

# The server tells everybody.
_BROADCAST = """
import torch
import torch.distributed as dist


def one_up(gradient, x, drawn, steps, lr):
    rank, size = dist.get_rank(), dist.get_world_size()
    c, own = torch.zeros_like(x), torch.zeros_like(x)
    for S in drawn:
        down = torch.stack([x, c])
        dist.broadcast(down, 0)
        x, c = down
        change = torch.zeros_like(x)
        if rank in S:
            y = x.clone()
            for _ in range(steps[rank]):
                y = y - lr * (gradient(y) - own + c)
            change = y - x
            own = own - c - change / (steps[rank] * lr)
        every = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(every, change)
        moved = sum(-c - every[k] / (steps[k] * lr) for k in S)
        x, c = x + sum(every[k] for k in S) / len(S), c + moved / (size - 1)
    return own if rank else (x, c)
"""

MUTANTS = [
    ("the paper's own: two vectors up", "What can be worked out where it arrives", _TWO_UP),
    (
        "the course's own",
        "dtcourse.federated",
        "\ndef one_up(gradient, x, drawn, steps, lr):\n    from dtcourse.federated import Scaffold\n\n    return Scaffold\n",
    ),
    ("the server tells everybody", "who is not asked at all", _BROADCAST),
    ("FedAvg's steps", "No client is corrected there", ((_STEP, "lr * gradient(y)"),)),
    ("the correction backwards", "What does a client's step subtract", ((_STEP, "lr * (gradient(y) + own - c)"),)),
    ("its own variate alone", "What does a client's step subtract", ((_STEP, "lr * (gradient(y) - own)"),)),
    (
        "c moves by the mean of those drawn",
        "those of clients that stay away too",
        ((_MEAN, "c = c + moved / len(S)"),),
    ),
    (
        "the sum, and no mean",
        "what does the server add up",
        ((_MEAN, "c = c + moved"),),
    ),
    (
        "c is the mean over the clients that have come so far",
        "what does the server add up",
        (
            ("c, own = torch.zeros_like(x), torch.zeros_like(x)", "c, own, total, seen = *torch.zeros(3, len(x), dtype=x.dtype), set()"),
            (_MEAN, "seen, total = seen | set(S), total + moved\n            c = total / len(seen)"),
        ),
    ),
    (
        "the steps are left out, by both",
        "How many has it taken",
        ((_OWN, "own = own - c + (x - y) / lr"), (_MOVED, _MOVED.replace("(steps[k] * lr)", "lr"))),
    ),
    (
        "the server takes all clients to make as many steps",
        "what does the server add up",
        ((_MOVED, _MOVED.replace("steps[k]", "steps[1]")),),
    ),
    (
        "the client's variate keeps c",
        "What does a client's step subtract",
        ((_OWN, "own = own + (x - y) / (steps[rank] * lr)"),),
    ),
    ("the server forgets c", "what does the server add up", ((_MOVED, _MOVED.replace("-c - change", "-change")),)),
    ("x is the sum of the changes", "what does the server add up", ((_X, "x = x + sum(changes.values())"),)),
    (
        "x is the mean over all clients",
        "what does the server add up",
        ((_X, "x = x + sum(changes.values()) / num_clients"),),
    ),
    (
        "the new variate corrects nobody",
        "What does a client's step subtract",
        ((_OWN, "own = torch.zeros_like(own)"),),
    ),
    (
        "one client after the other",
        "need not wait for each other",
        (
            (_SENDS, "works = []"),
            (
                _RECVS,
                "for k, change in changes.items():\n                dist.isend(down, k).wait()\n"
                "                dist.recv(change, k)",
            ),
        ),
    ),
    ("a client that is not drawn waits for x", "wait", (("        elif rank in S:\n", "        else:\n"),)),
    ("x alone is returned", "Rank 0 returns two things", (("(x, c)\n", "x\n"),)),
    (
        "changes through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch
import torch.distributed as dist


def one_up(gradient, x, drawn, steps, lr):
    rank, size = dist.get_rank(), dist.get_world_size()
    c, own = torch.zeros_like(x), torch.zeros_like(x)
    for S in drawn:
        x, c = everyones(torch.stack([x, c]), "down")[0]
        change = torch.zeros_like(x)
        if rank in S:
            y = x.clone()
            for _ in range(steps[rank]):
                y = y - lr * (gradient(y) - own + c)
            change = y - x
            own = own - c - change / (steps[rank] * lr)
        every = everyones(change, "up")
        moved = sum(-c - every[k] / (steps[k] * lr) for k in S)
        x, c = x + sum(every[k] for k in S) / len(S), c + moved / (size - 1)
    return own if rank else (x, c)
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "the client's mean gradient goes up, and the server keeps every variate",
        """
import torch
import torch.distributed as dist


def one_up(gradient, x, drawn, steps, lr):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        variates = x.new_zeros(size, len(x))
        for S in drawn:
            c = variates[1:].mean(0)
            means = x.new_empty(size, len(x))
            batch = [dist.P2POp(dist.isend, v, k) for k in S for v in (x, c)]
            batch += [dist.P2POp(dist.irecv, means[k], k) for k in S]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            x = x - lr * sum(steps[k] * means[k] for k in S) / len(S)
            for k in S:
                variates[k] += means[k] - c
        return x, variates[1:].mean(0)
    own = torch.zeros_like(x)
    for _ in [S for S in drawn if rank in S]:
        start, c = torch.empty_like(x), torch.empty_like(x)
        for work in [dist.irecv(start, 0), dist.irecv(c, 0)]:
            work.wait()
        y, total = start, torch.zeros_like(x)
        for _ in range(steps[rank]):
            g = gradient(y) - own + c
            total += g
            y = y - lr * g
        dist.isend(total / steps[rank], 0).wait()
        own = own - c + total / steps[rank]
    return own
""",
    ),
    (
        "the model itself goes up, and the server subtracts",
        (
            (_SEND, "dist.send(y, 0)"),
            (_MOVED, _MOVED.replace("change / (", "(change - x) / (")),
            (_X, "x = sum(changes.values()) / len(S)"),
        ),
    ),
]

NOTHING = [
    ("the start", "\ndef one_up(gradient, x, drawn, steps, lr):\n    return x\n"),
    ("nothing", "\ndef one_up(gradient, x, drawn, steps, lr):\n    return None\n"),
]
