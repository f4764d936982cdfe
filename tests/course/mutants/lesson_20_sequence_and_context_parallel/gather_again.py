"""Answers to gather_again: see test_exercises.py."""

_OWN = "return out, (q, k, v, out, logsumexp)"
_TAKEN = (
    "    q, k, v, out, logsumexp = kept\n"
    "    keys, values = everyones(k, len(q)), everyones(v, len(q))\n"
)
_PART = "part = x.unflatten(0, (len(own), -1)).sum(1)"
_SENT = (
    "        mine = x.new_empty(own.shape[1], len(own), own.shape[2])\n"
    "        parts = part.movedim(1, 0).contiguous().chunk(dist.get_world_size())\n"
    "        dist.reduce_scatter(mine, list(parts))\n"
    "        found.append(mine.movedim(0, 1))\n"
)
_GATHERED = "    dist.all_gather(list(whole.chunk(p)), x.movedim(1, 0).contiguous())\n"

MUTANTS = [
    (
        "gradients of this rank's queries alone",
        "Whose queries have seen these keys",
        (
            (
                _SENT,
                "        n, r = own.shape[1], dist.get_rank()\n"
                "        found.append(part[:, r * n : (r + 1) * n])\n",
            ),
        ),
    ),
    (
        "keeps what it gathered",
        "What can be gathered again",
        (
            (_OWN, "return out, (q, k, v, out, logsumexp, keys, values)"),
            (_TAKEN, "    q, k, v, out, logsumexp, keys, values = kept\n"),
        ),
    ),
    (
        "keeps what it gathered in a global",
        "where another one has been forward since",
        (
            (
                _OWN,
                "gathered_forward.kept = keys, values\n    return out, (q, k, v, out, logsumexp)",
            ),
            (
                _TAKEN,
                _TAKEN.replace(
                    "everyones(k, len(q)), everyones(v, len(q))", "gathered_forward.kept"
                ),
            ),
        ),
    ),
    (
        "keeps what it gathered in a list, and its place there",
        "where another one has been forward since",
        (
            ("def gathered_forward(", "GATHERED = []\n\n\ndef gathered_forward("),
            (
                _OWN,
                "GATHERED.append((keys, values))\n    return out, (q, k, v, out, logsumexp, len(GATHERED) - 1)",
            ),
            (
                _TAKEN,
                "    q, k, v, out, logsumexp, place = kept\n    keys, values = GATHERED[place]\n",
            ),
        ),
    ),
    (
        "its own part is a view of what was gathered",
        "what is a view of something larger",
        (
            (
                _OWN,
                "n, r, every = k.shape[1], dist.get_rank(), len(q) // len(k)\n"
                "    own = [x[::every, r * n : (r + 1) * n] for x in (keys, values)]\n"
                "    return out, (q, *own, out, logsumexp)",
            ),
        ),
    ),
    (
        "the mean of the heads that share a key",
        "which query heads are summed",
        ((_PART, _PART.replace("sum", "mean")),),
    ),
    (
        "heads that share a key lie apart",
        "Which query heads share a key-value head",
        (("x.repeat_interleave(heads // len(x), 0)", "x.repeat(heads // len(x), 1, 1)"),),
    ),
    (
        "every query sees all keys",
        "which of all keys does a query of this rank see",
        (("sees(q.shape[1]))\n    return", "sees(q.shape[1]) | True)\n    return"),),
    ),
    (
        "each query head's keys are sent",
        "or once for each query head",
        (
            (
                "    p = dist.get_world_size()\n    whole",
                "    p, x = dist.get_world_size(), x.repeat_interleave(heads // len(x), 0)\n    whole",
            ),
        ),
    ),
    (
        "all gradients to all ranks",
        "does each rank get more than its own part",
        (
            (
                _SENT,
                "        part = part.contiguous()\n        dist.all_reduce(part)\n"
                "        found.append(part.chunk(dist.get_world_size(), 1)[dist.get_rank()])\n",
            ),
        ),
    ),
    (
        "gradients are summed over the heads after they have come",
        "before they travel",
        (
            (
                _SENT,
                "        mine = x.new_empty(own.shape[1], len(x), own.shape[2])\n"
                "        parts = x.movedim(1, 0).contiguous().chunk(dist.get_world_size())\n"
                "        dist.reduce_scatter(mine, list(parts))\n"
                "        found.append(mine.movedim(0, 1).unflatten(0, (len(own), -1)).sum(1))\n",
            ),
        ),
    ),
    (
        "the course's own ring",
        "dtcourse.sequence_parallel",
        """
from dtcourse.sequence_parallel import ring_attention


def gathered_forward(q, k, v, block):
    return ring_attention(q[None], k[None], v[None], causal=True)[0], ()


def gathered_backward(grad, kept, block_backward):
    return grad, grad, grad
""",
    ),
]

ACCEPTED = [
    (
        "passed round a ring instead, and summed after an all-to-all",
        (
            (
                _GATHERED,
                "    rank, parts = dist.get_rank(), list(whole.chunk(p))\n"
                "    parts[rank].copy_(x.movedim(1, 0))\n"
                "    for step in range(p - 1):\n"
                "        works = [\n"
                "            dist.irecv(parts[(rank - step - 1) % p], (rank - 1) % p),\n"
                "            dist.isend(parts[(rank - step) % p], (rank + 1) % p),\n"
                "        ]\n"
                "        for work in works:\n"
                "            work.wait()\n",
            ),
            (
                _SENT,
                "        sends = part.movedim(1, 0).contiguous()\n"
                "        comes = torch.empty_like(sends)\n"
                "        dist.all_to_all_single(comes, sends)\n"
                "        by_rank = comes.unflatten(0, (dist.get_world_size(), -1))\n"
                "        found.append(by_rank.sum(0).movedim(0, 1))\n",
            ),
        ),
    ),
    (
        "keeps no output: it is computed again",
        (
            (_OWN, "return out, {'own': [q, k, v]}"),
            (
                _TAKEN,
                "    q, k, v = kept['own']\n"
                "    keys, values = everyones(k, len(q)), everyones(v, len(q))\n"
                "    scores = (q @ keys.mT / q.shape[-1] ** 0.5).masked_fill(~sees(q.shape[1]), -torch.inf)\n"
                "    logsumexp = scores.logsumexp(-1, keepdim=True)\n"
                "    out = (scores - logsumexp).exp() @ values\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "each rank for itself",
        """
import torch


def gathered_forward(q, k, v, block):
    return torch.zeros_like(q), (q, k, v)


def gathered_backward(grad, kept, block_backward):
    return tuple(torch.zeros_like(x) for x in kept)
""",
    ),
]
