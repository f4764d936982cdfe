"""Answers to striped_attention: see test_exercises.py."""

_DIAGONAL = "diagonal = 0 if owner <= rank else -1"
_VISIBLE = "visible = torch.ones(tokens, tokens, dtype=torch.bool).tril(diagonal)"
_POSTED = (
    "        works = []\n        if step < p - 1:\n            coming = torch.empty_like(here)\n"
    "            works = [dist.irecv(coming, (rank - 1) % p), dist.isend(here, (rank + 1) % p)]\n"
)
_AWAITED = "        for work in works:\n            work.wait()\n"
_MERGED = "out = out * (logsumexp - total).exp() + more * (more_logsumexp - total).exp()"

# The lesson's own ring, of ranks that hold neighbours.
_LESSONS = """
import torch
import torch.distributed as dist


def striped_attention(q, k, v, block):
    rank, p, n = dist.get_rank(), dist.get_world_size(), q.shape[1]
    at = torch.arange(n * p).chunk(p)
    here = torch.stack([k, v])
    for step in range(p):
        owner = (rank - step) % p
        if step < p - 1:
            coming = torch.empty_like(here)
            works = [dist.irecv(coming, (rank - 1) % p), dist.isend(here, (rank + 1) % p)]
        more = block(q, *here, at[owner] <= at[rank][:, None])
        result = merge(*result, *more) if step else more
        if step < p - 1:
            [work.wait() for work in works]
            here = coming
    return result[0]


def merge(out, logsumexp, more, more_logsumexp):
    total = torch.logaddexp(logsumexp, more_logsumexp)
    return out * (logsumexp - total).exp() + more * (more_logsumexp - total).exp(), total
"""

MUTANTS = [
    (
        "every block's diagonal is seen",
        "for b = a, where s is larger than r",
        ((_DIAGONAL, "diagonal = 0"),),
    ),
    (
        "only a rank's own diagonal is seen",
        "for b = a, where s is smaller than r",
        ((_DIAGONAL, "diagonal = 0 if owner == rank else -1"),),
    ),
    ("the lesson's ring, of neighbours", "the mask of ranks that hold neighbours", _LESSONS),
    (
        "no causal mask",
        "Tokens see their future",
        ((".tril(diagonal)", ""),),
    ),
    (
        "each rank for itself",
        "Where do the others' keys come in",
        (
            (
                "    return out\n",
                "    return block(q, k, v, torch.ones(tokens, tokens, dtype=torch.bool).tril())[0]\n",
            ),
        ),
    ),
    (
        "outputs averaged",
        "How large is each one's sum of exponentials",
        (
            (_MERGED, "out = out + more"),
            ("    return out\n", "    return out / p\n"),
        ),
    ),
    (
        "outputs added",
        "How large is each one's sum of exponentials",
        ((_MERGED, "out = out + more"),),
    ),
    (
        "the block of another rank than it is taken for",
        "Whose keys are here in each step",
        (("owner = (rank - step) % p", "owner = (rank + step + 1) % p"),),
    ),
    (
        "the last block is left out",
        "whose keys has it never met",
        (("    for step in range(p):\n", "    for step in range(p - 1):\n"),),
    ),
    (
        "posted after the block is computed",
        "when is it posted",
        (
            (_POSTED, "        works = []\n"),
            (
                _AWAITED,
                "        if step < p - 1:\n            coming = torch.empty_like(here)\n"
                "            works = [dist.irecv(coming, (rank - 1) % p), dist.isend(here, (rank + 1) % p)]\n"
                + _AWAITED,
            ),
        ),
    ),
    (
        "awaited before the block is computed",
        "What could travel while a block is computed",
        ((_POSTED, _POSTED + "            [work.wait() for work in works]\n"), (_AWAITED, "")),
    ),
    (
        "receives before it sends",
        "wait for each other",
        (
            (
                "            works = [dist.irecv(coming, (rank - 1) % p), dist.isend(here, (rank + 1) % p)]\n",
                "            dist.recv(coming, (rank - 1) % p)\n            dist.send(here, (rank + 1) % p)\n            works = [None]\n",
            ),
            ("            work.wait()\n", "            pass\n"),
        ),
    ),
    (
        "passed on after the last step as well",
        "Who needs the block of the last step",
        (("        if step < p - 1:\n            coming", "        if True:\n            coming"),),
    ),
    (
        "queries travel as well",
        "who needs queries",
        (
            (
                "here, out, logsumexp = torch.stack([k, v]), None, None",
                "here, out, logsumexp = torch.stack([k, v, q]), None, None",
            ),
            ("block(q, *here, visible)", "block(q, *here[:2], visible)"),
        ),
    ),
    (
        "all keys gathered, and one large block",
        "keys at a time",
        """
import torch
import torch.distributed as dist


def striped_attention(q, k, v, block):
    rank, p, n = dist.get_rank(), dist.get_world_size(), q.shape[1]
    whole = []
    for x in (k, v):
        parts = [torch.empty_like(x) for _ in range(p)]
        dist.all_gather(parts, x.contiguous())
        whole.append(torch.cat(parts, 1))
    at = torch.cat([torch.arange(n) * p + r for r in range(p)])
    return block(q, *whole, at <= (torch.arange(n) * p + rank)[:, None])[0]
""",
    ),
    (
        "the course's own ring",
        "dtcourse.sequence_parallel",
        """
from dtcourse.sequence_parallel import ring_attention


def striped_attention(q, k, v, block):
    return ring_attention(q[None], k[None], v[None], causal=True)[0]
""",
    ),
]

ACCEPTED = [
    (
        "to the left, keys and values as two messages of the course's p2p",
        (
            (
                "    rank, p, tokens = dist",
                "    from dtcourse.collectives import p2p\n\n    rank, p, tokens = dist",
            ),
            (
                "            coming = torch.empty_like(here)\n"
                "            works = [dist.irecv(coming, (rank - 1) % p), dist.isend(here, (rank + 1) % p)]\n",
                "            coming = torch.empty_like(here)\n"
                "            works = [p2p.irecv(x, (rank + 1) % p, tag=i) for i, x in enumerate(coming)]\n"
                "            works += [p2p.isend(x, (rank - 1) % p, tag=i) for i, x in enumerate(here)]\n",
            ),
            ("owner = (rank - step) % p", "owner = (rank + step) % p"),
        ),
    ),
    (
        "all blocks' results kept, and one softmax over their sums of exponentials at the end; places compared",
        (
            (
                _VISIBLE,
                "own, theirs = torch.arange(tokens) * p + rank, torch.arange(tokens) * p + owner\n"
                "        visible = theirs <= own[:, None]",
            ),
            (
                "        if out is None:\n            out, logsumexp = more, more_logsumexp\n        else:\n"
                "            total = torch.logaddexp(logsumexp, more_logsumexp)\n            "
                + _MERGED
                + "\n"
                "            logsumexp = total\n",
                "        out = [*(out or []), more]\n        logsumexp = [*(logsumexp or []), more_logsumexp]\n",
            ),
            (
                "    return out\n",
                "    return (torch.stack(logsumexp).softmax(0) * torch.stack(out)).sum(0)\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef striped_attention(q, k, v, block):\n    return torch.zeros_like(q)\n",
    ),
    ("the queries", "\ndef striped_attention(q, k, v, block):\n    return q\n"),
]
