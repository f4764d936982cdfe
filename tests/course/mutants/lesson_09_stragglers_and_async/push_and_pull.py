"""Answers to push_and_pull: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_PUSH = "dist.all_to_all_single(pushed, gradient, [n] * p, sizes)"
_PULL = "dist.all_to_all_single(pulled, mine.repeat(p), sizes, [n] * p)"
_MINE = "mine = parameters[first : first + n] - lr * pushed.view(p, n).mean(0)"

# The lesson's own cell: equal parts, whatever the sizes are.
_LESSONS = """
import torch
import torch.distributed as dist


def push_and_pull(gradient, parameters, sizes, lr):
    rank, p = dist.get_rank(), dist.get_world_size()
    w = parameters.clone()
    parts = list(w.tensor_split(p))
    pushed = [torch.empty_like(parts[rank]) for _ in range(p)]
    dist.all_to_all(pushed, list(gradient.tensor_split(p)))
    parts[rank] -= lr * sum(pushed) / p
    coming = [torch.empty_like(part) for part in parts]
    dist.all_to_all(coming, [parts[rank]] * p)
    for part, new in zip(parts, coming, strict=True):
        part.copy_(new)
    return w
"""

MUTANTS = [
    ("the lesson's equal parts", "not pulled from its server", _LESSONS),
    (
        "the course's own server",
        "dtcourse.asynchronous",
        """
import torch

from dtcourse.asynchronous import ColocatedWorker


def push_and_pull(gradient, parameters, sizes, lr):
    model = torch.nn.ParameterList([torch.nn.Parameter(parameters)])
    with ColocatedWorker(model, lambda found: torch.optim.SGD(found, lr)) as worker:
        model[0].grad = gradient
        worker.push()
        worker.pull()
    return model[0].detach()
""",
    ),
    (
        "gradients all-reduced, parameters broadcast",
        "Who needs which part of a gradient",
        """
import torch
import torch.distributed as dist


def push_and_pull(gradient, parameters, sizes, lr):
    p, first = dist.get_world_size(), 0
    dist.all_reduce(gradient)
    new = parameters - lr * gradient / p
    for rank, n in enumerate(sizes):
        if n:
            part = new[first : first + n].clone()
            dist.broadcast(part, rank)
            new[first : first + n] = part
        first += n
    return new
""",
    ),
    (
        "everything is gathered everywhere",
        "Who needs which part of a gradient",
        """
import torch
import torch.distributed as dist


def push_and_pull(gradient, parameters, sizes, lr):
    p = dist.get_world_size()
    known = [torch.empty_like(parameters) for _ in range(p)]
    dist.all_gather(known, parameters)
    gradients = [torch.empty_like(gradient) for _ in range(p)]
    dist.all_gather(gradients, gradient)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    whole = torch.cat([known[r][ends[r] : ends[r + 1]] for r in range(p)])
    return whole - lr * sum(gradients) / p
""",
    ),
    ("a sum", "That is a sum of gradients", ((_MINE, _MINE.replace("mean(0)", "sum(0)")),)),
    (
        "without the learning rate",
        "without the learning rate",
        ((_MINE, _MINE.replace("lr * ", "")),),
    ),
    ("uphill", "The step goes uphill", ((_MINE, _MINE.replace("- lr", "+ lr")),)),
    (
        "no update",
        "Nothing was updated",
        ((_MINE, "mine = parameters[first : first + n].clone()"),),
    ),
    (
        "without the own gradient",
        "does each server hear all workers",
        (
            (
                _MINE,
                "pushed.view(p, n)[rank] = 0\n    mine = parameters[first : first + n] - lr * pushed.view(p, n).sum(0) / p",
            ),
        ),
    ),
    (
        "without a pull",
        "not pulled from its server",
        (
            (
                _PULL,
                "pulled = parameters.clone()\n    pulled[first : first + n] = mine",
            ),
        ),
    ),
    (
        "its own part of each gradient",
        "Whose part is where",
        (
            (
                _MINE,
                "mine = parameters[first : first + n] - lr * gradient[first : first + n]",
            ),
        ),
    ),
    (
        "off by one number",
        "must match the size",
        (("first = sum(sizes[:rank])", "first = sum(sizes[:rank]) + 1"),),
    ),
    (
        "who serves nothing stays away",
        "all ranks call the same collectives",
        (
            (
                "    n = sizes[rank]\n",
                "    n = sizes[rank]\n    if not n:\n        return parameters\n",
            ),
        ),
    ),
    (
        # Rank 0 comes first, so that nothing of the others can be there yet, and its own part is there in any case.
        "the push is never waited for",
        "does each server hear all workers",
        (
            (
                _PUSH,
                "pushed.zero_()\n"
                "    own = sum(sizes[:rank])\n"
                "    pushed[rank * n : (rank + 1) * n] = gradient[own : own + n]\n"
                "    if rank:\n"
                "        import time\n\n"
                "        time.sleep(0.2)\n"
                "    dist.all_to_all_single(pushed, gradient, [n] * p, sizes, async_op=True)",
            ),
        ),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def push_and_pull(gradient, parameters, sizes, lr):
    known = torch.stack(everyones(parameters)).nan_to_num(0.0).sum(0)
    return known - lr * torch.stack(everyones(gradient)).mean(0)
""",
    ),
]

ACCEPTED = [
    (
        "point to point, each message posted before any is waited for",
        """
import torch
import torch.distributed as dist


def push_and_pull(gradient, parameters, sizes, lr):
    rank, p = dist.get_rank(), dist.get_world_size()
    ends = [sum(sizes[:r]) for r in range(p + 1)]
    others = [r for r in range(p) if r != rank]
    mine = slice(ends[rank], ends[rank + 1])
    parts = [gradient[ends[r] : ends[r + 1]].contiguous() for r in range(p)]
    came = {r: gradient.new_empty(sizes[rank]) for r in others}
    works = [dist.irecv(came[r], r) for r in others if sizes[rank]]
    works += [dist.isend(parts[r], r) for r in others if sizes[r]]
    for work in works:
        work.wait()
    new = parameters[mine] - lr * torch.stack([parts[rank], *came.values()]).mean(0)
    out = torch.empty_like(parameters)
    pulled = {r: parameters.new_empty(sizes[r]) for r in others}
    works = [dist.irecv(pulled[r], r) for r in others if sizes[r]]
    works += [dist.isend(new, r) for r in others if sizes[rank]]
    for work in works:
        work.wait()
    out[mine] = new
    for r in others:
        out[ends[r] : ends[r + 1]] = pulled[r]
    return out
""",
    ),
    (
        "each worker divides before it pushes, and the answers are broadcast",
        (
            (_PUSH, "dist.all_to_all_single(pushed, gradient / p, [n] * p, sizes)"),
            (_MINE, _MINE.replace("mean(0)", "sum(0)")),
            (
                _PULL,
                "for r in range(p):\n"
                "        at = sum(sizes[:r])\n"
                "        part = mine.clone() if r == rank else mine.new_empty(sizes[r])\n"
                "        if sizes[r]:\n"
                "            for other in range(p):\n"
                "                if rank == r and other != r:\n"
                "                    dist.send(part, other)\n"
                "            if rank != r:\n"
                "                dist.recv(part, r)\n"
                "        pulled[at : at + sizes[r]] = part",
            ),
        ),
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef push_and_pull(gradient, parameters, sizes, lr):\n    return torch.zeros_like(parameters)\n",
    ),
    (
        "the parameters",
        "\ndef push_and_pull(gradient, parameters, sizes, lr):\n    return parameters\n",
    ),
]
