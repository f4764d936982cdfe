"""Answers to mixture_once: see test_exercises.py."""

_NEEDS = "needs = torch.zeros(len(x), p, dtype=torch.bool).scatter(1, experts // each, True)"
_ADDED = (
    "sums[chose] += there[chose, D + i].unsqueeze(1) * expert(rank * each + i, there[chose, :D])"
)
_COUNTS = "    dist.all_to_all_single(receives, sends)\n"
_BACK = "return torch.zeros_like(x).index_add(0, torch.cat(tokens), back)"

# The lesson's own dispatch and combine: a row for each pair of token and expert.
_LESSONS = """
import torch
import torch.distributed as dist


def mixture_once(x, experts, weights, expert, each):
    p, rank, k = dist.get_world_size(), dist.get_rank(), experts.shape[1]
    chosen = experts.flatten()
    order = chosen.argsort(stable=True)
    tokens = torch.arange(len(x)).repeat_interleave(k)[order]
    counts = torch.bincount(chosen, minlength=p * each).view(p, each)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    sends, receives = counts.sum(1).tolist(), coming.sum(1).tolist()
    there = x.new_empty(sum(receives), x.shape[1])
    dist.all_to_all_single(there, x[tokens], receives, sends)
    mine = torch.arange(each).repeat(p).repeat_interleave(coming.flatten())
    y = torch.empty_like(there)
    for e in range(each):
        y[mine == e] = expert(rank * each + e, there[mine == e])
    back = x.new_empty(len(tokens), x.shape[1])
    dist.all_to_all_single(back, y, sends, receives)
    return torch.zeros_like(x).index_add(0, tokens, back * weights.flatten()[order].unsqueeze(1))
"""

_GATHERED = """
import torch
import torch.distributed as dist


def mixture_once(x, experts, weights, expert, each):
    rank, p = dist.get_rank(), dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(p)]
    dist.all_gather(lengths, torch.tensor([len(x)]))
    most = max(int(n) for n in lengths)
    table = x.new_zeros(most, x.shape[1] + p * each)
    table[: len(x), : x.shape[1]] = x
    table[: len(x), x.shape[1] :].scatter_(1, experts, weights)
    parts = [torch.empty_like(table) for _ in range(p)]
    dist.all_gather(parts, table)
    every = torch.cat(parts)
    y = every.new_zeros(len(every), x.shape[1])
    for e in range(rank * each, (rank + 1) * each):
        w = every[:, x.shape[1] + e]
        at = w.nonzero().flatten()
        y[at] += w[at].unsqueeze(1) * expert(e, every[at, : x.shape[1]])
    dist.all_reduce(y)
    return y[rank * most : rank * most + len(x)].clone()
"""

MUTANTS = [
    ("the lesson's dispatch, a row per pair", "Does a row travel twice to a rank", _LESSONS),
    ("all rows gathered, and all results summed", "who gets rows that it does not need", _GATHERED),
    (
        "every token to every rank",
        "who gets rows that it does not need",
        ((_NEEDS, "needs = torch.ones(len(x), p, dtype=torch.bool)"),),
    ),
    (
        "the course's own dispatch",
        "dtcourse.expert_parallel",
        """
import torch.distributed as dist

from dtcourse.expert_parallel import combine, dispatch


def mixture_once(x, experts, weights, expert, each):
    return combine(dispatch(x, experts, [dist.group.WORLD])[0], None)
""",
    ),
    (
        "added without the gate's weights",
        "where does the gate's weight come in",
        (("there[chose, D + i].unsqueeze(1) * expert(", "expert("),),
    ),
    (
        "first choices only",
        "where are the others",
        (
            (
                "    rank, p, D = dist",
                "    experts, weights = experts[:, :1], weights[:, :1]\n    rank, p, D = dist",
            ),
        ),
    ),
    (
        "one expert of each rank",
        "which of them does it meet there",
        (
            (
                "table = x.new_zeros(len(x), p * each).scatter(1, experts, weights)",
                "table, seen = x.new_zeros(len(x), p * each), set()\n"
                "    for n in range(len(x)):\n        for e, w in zip(experts[n].tolist(), weights[n]):\n"
                "            if (n, e // each) not in seen:\n"
                "                table[n, e] = w\n                seen.add((n, e // each))",
            ),
        ),
    ),
    (
        "results put back in the order of arrival",
        "In what order do the rows come back",
        (
            (
                _BACK,
                "return torch.zeros_like(x).index_add(0, torch.cat(tokens).sort().values, back)",
            ),
        ),
    ),
    (
        "results of the last rank win, and are not added",
        "whose are they",
        ((_BACK, "return torch.zeros_like(x).index_copy(0, torch.cat(tokens), back)"),),
    ),
    (
        "off by one expert",
        "holds no expert",
        (("expert(rank * each + i, ", "expert(rank * each + i + 1, "),),
    ),
    (
        "the experts counted from 0 on each rank",
        "holds no expert",
        (("expert(rank * each + i, ", "expert(i, "),),
    ),
    (
        "each expert computes all that arrived",
        "Which of the rows that arrived are for which expert",
        (
            (
                _ADDED,
                "sums += there[:, D + i].unsqueeze(1) * expert(rank * each + i, there[:, :D])",
            ),
        ),
    ),
    (
        "the counts never travel",
        "rank",
        ((_COUNTS, "    receives.copy_(sends)\n"),),
    ),
    (
        "a rank without tokens stays away",
        "rank",
        (
            (
                "    needs = torch",
                "    if not len(x):\n        return x\n    needs = torch",
            ),
        ),
    ),
    (
        "a whole table of weights beside each row",
        "Does a row travel twice",
        (
            (
                "torch.cat([x[t], table[t, r * each :][:, :each]], 1)",
                "torch.cat([x[t], table[t].roll(-r * each, 1), x[t] * 0], 1)",
            ),
            ("D + each)", "D + D + p * each)"),
        ),
    ),
]

ACCEPTED = [
    (
        "experts and weights in a message each, messages of the course's own",
        """
import torch
import torch.distributed as dist

from dtcourse.collectives import pairwise


def mixture_once(x, experts, weights, expert, each):
    rank, p = dist.get_rank(), dist.get_world_size()
    k = experts.shape[1]
    tokens, destinations = (experts // each).new_zeros(0), []
    picks = []
    for r in range(p):
        at = ((experts // each) == r).any(1).nonzero().flatten()
        picks.append(at)
    sends = [len(at) for at in picks]
    received = torch.empty(p, dtype=torch.long)
    dist.all_to_all_single(received, torch.tensor(sends))
    receives = received.tolist()

    def exchange(rows, there, back):
        out = rows.new_empty(sum(back), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), back, there)
        return out

    at = torch.cat(picks)
    rows = exchange(x[at], sends, receives)
    chosen = exchange(experts[at], sends, receives)
    weighted = exchange(weights[at], sends, receives)
    y = torch.zeros_like(rows)
    for e in range(rank * each, (rank + 1) * each):
        n, choice = (chosen == e).nonzero(as_tuple=True)
        if len(n):
            y[n] += weighted[n, choice].unsqueeze(1) * expert(e, rows[n])
    out = torch.zeros_like(x)
    out.index_add_(0, at, exchange(y, receives, sends))
    return out
""",
    ),
    (
        "point to point, one rank after the other, token by token",
        """
import torch
import torch.distributed as dist


def mixture_once(x, experts, weights, expert, each):
    rank, p, D, k = dist.get_rank(), dist.get_world_size(), x.shape[1], experts.shape[1]
    out = torch.zeros_like(x)

    def compute(rows, chosen, weights):
        y = torch.zeros_like(rows)
        for n in range(len(rows)):
            for e, w in zip(chosen[n].long().tolist(), weights[n]):
                if e // each == rank:
                    y[n] += w * expert(e, rows[n : n + 1])[0]
        return y

    for shift in range(p):
        to, source = (rank + shift) % p, (rank - shift) % p
        at = ((experts // each) == to).any(1).nonzero().flatten()
        message = torch.cat([x[at], experts[at].to(x.dtype), weights[at]], 1)
        if shift == 0:
            out[at] += compute(x[at], experts[at], weights[at])
            continue
        count = torch.empty(1, dtype=torch.long)
        works = [dist.irecv(count, source), dist.isend(torch.tensor([len(at)]), to)]
        [work.wait() for work in works]
        arrived, back = x.new_empty(int(count), D + 2 * k), x.new_empty(len(at), D)
        works = [dist.irecv(arrived, source)] if len(arrived) else []
        works += [dist.isend(message, to)] if len(at) else []
        [work.wait() for work in works]
        y = compute(arrived[:, :D], arrived[:, D : D + k], arrived[:, D + k :])
        works = [dist.irecv(back, to)] if len(at) else []
        works += [dist.isend(y, source)] if len(y) else []
        [work.wait() for work in works]
        out[at] += back
    return out
""",
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef mixture_once(x, experts, weights, expert, each):\n    return torch.zeros_like(x)\n",
    ),
    ("the tokens", "\ndef mixture_once(x, experts, weights, expert, each):\n    return x\n"),
]
