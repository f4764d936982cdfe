"""Answers to round_in_one: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HEAD = "\nimport torch\nimport torch.distributed as dist\n\n\ndef round_in_one(x, mine):\n"
_SUM = "    dist.all_reduce(held)\n"
_RETURN = "    return x + held[:-1] / held[-1].clamp(min=1)\n"
_CHANGE = "held[:-1] += samples * (y - x)"
_WEIGHT = "held[-1] += samples"

# As the lesson's FedAvg.collect: the changes are added up over the ranks, and the weights are those that it knows.
_LESSONS = (
    _HEAD
    + """    total, weight = torch.zeros_like(x), 0
    for samples, y in mine:
        total += samples * (y - x)
        weight += samples
    dist.all_reduce(total)
    return x + total / max(1, weight)
"""
)

# Every client's model to every rank.
_GATHERED = (
    _HEAD
    + """    rows = torch.zeros(3, len(x) + 1, dtype=x.dtype)
    for row, (samples, y) in zip(rows, mine):
        row[0], row[1:] = samples, y - x
    everyone = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, rows)
    held = torch.cat(everyone)
    return x + (held[:, :1] * held[:, 1:]).sum(0) / held[:, 0].sum().clamp(min=1)
"""
)

_TWO_SUMS = (
    _HEAD
    + """    total, weight = torch.zeros_like(x), torch.zeros(1, dtype=x.dtype)
    for samples, y in mine:
        total += samples * (y - x)
        weight += samples
    dist.all_reduce(total)
    dist.all_reduce(weight)
    return x + total / weight.clamp(min=1)
"""
)

MUTANTS = [
    ("the lesson's own: weights that a rank knows", "divided by this rank's own samples", _LESSONS),
    (
        "the course's own",
        "dtcourse.federated",
        _HEAD + "    from dtcourse.federated import FedAvg\n\n    return FedAvg\n",
    ),
    ("each client alike", "Each client counts alike", ((_CHANGE, "held[:-1] += y - x"), (_WEIGHT, "held[-1] += 1"))),
    (
        "the mean of the ranks' means",
        "How many samples stand behind",
        (
            (
                _SUM,
                "    own = held[:-1] / held[-1].clamp(min=1)\n    dist.all_reduce(own)\n"
                "    held = torch.cat([own, own.new_tensor([dist.get_world_size()])])\n",
            ),
        ),
    ),
    ("weights alone, not samples, are divided by", "what is it divided by", ((_WEIGHT, "held[-1] += 1"),)),
    ("not divided", "what is it divided by", ((_RETURN, "    return x + held[:-1]\n"),)),
    (
        "by the number of ranks",
        "what is it divided by",
        ((_RETURN, "    return x + held[:-1] / dist.get_world_size()\n"),),
    ),
    ("its own clients alone", "What is added up over all ranks", ((_SUM, ""),)),
    ("the change backwards", "What is added up", ((_CHANGE, "held[:-1] += samples * (x - y)"),)),
    (
        "models and not changes",
        "Nobody has come",
        ((_CHANGE, "held[:-1] += samples * y"), (_RETURN, "    return held[:-1] / held[-1].clamp(min=1)\n")),
    ),
    ("nothing by nothing", "Nobody has come", ((_RETURN, "    return x + held[:-1] / held[-1]\n"),)),
    ("every client to every rank", "before it travels", _GATHERED),
    ("two sums", "What could travel with the changes", _TWO_SUMS),
    ("a rank without clients goes on", "wait", ((_SUM, "    if not mine:\n        return x\n" + _SUM),)),
    (
        "in single precision",
        "the new x",
        (("torch.zeros(len(x) + 1, dtype=x.dtype)", "torch.zeros(len(x) + 1)"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def round_in_one(x, mine):
    held = torch.zeros(len(x) + 1, dtype=x.dtype)
    for samples, y in mine:
        held[:-1] += samples * (y - x)
        held[-1] += samples
    held = sum(everyones(held))
    return x + held[:-1] / held[-1].clamp(min=1)
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "rank 0 is the server: all send to it, and it answers",
        _HEAD
        + """    rank, size = dist.get_rank(), dist.get_world_size()
    weight = float(sum(samples for samples, _ in mine))
    total = sum((samples * (y - x) for samples, y in mine), torch.zeros_like(x))
    held = torch.cat([total, total.new_tensor([weight])])
    if rank:
        dist.send(held, 0)
        dist.recv(held, 0)
    else:
        came = [torch.empty_like(held) for _ in range(size - 1)]
        for work in [dist.irecv(one, k) for k, one in enumerate(came, 1)]:
            work.wait()
        held = held + sum(came)
        for work in [dist.isend(held, k) for k in range(1, size)]:
            work.wait()
    return x + held[:-1] / held[-1] if held[-1] > 0 else x
""",
    ),
    (
        "the mean of models, by weights, in one vector",
        _HEAD
        + """    weights = x.new_tensor([samples for samples, _ in mine])
    models = torch.stack([y for _, y in mine]) if mine else x.new_zeros(0, len(x))
    sums = torch.cat([weights @ models, weights.sum()[None]])
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    samples = sums[-1].item()
    return sums[:-1] / samples if samples else x
""",
    ),
]

NOTHING = [
    ("x as it is", "\ndef round_in_one(x, mine):\n    return x\n"),
    ("nothing", "\ndef round_in_one(x, mine):\n    return None\n"),
]
