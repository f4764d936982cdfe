"""Answers to mixture_once: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_NEEDS = "needs = torch.zeros(len(x), p, dtype=torch.bool).scatter(1, experts // each, True)"
_COMPUTED = (
    "        y = expert(rank * each + i, there[chose, :D])\n"
    "        sums[chose] += there[chose, D + i].unsqueeze(1) * y\n"
)
_COUNTS = "    dist.all_to_all_single(receives, sends)\n"
_BACK = "out = torch.zeros_like(x).index_add(0, torch.cat(tokens), back)"
_HOME = "grad_x = torch.zeros_like(grad).index_add(0, torch.cat(tokens), home[:, :D])"
_EXPERTS = "weight * arrived[chose]\n"
_WEIGHTS = "(arrived[chose] * y).sum(1)"

# What is never reached, or asked for nothing.
_STUB = """

def mixture_once_backward(grad, kept, expert_backward):
    return grad, grad
"""

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
    return torch.zeros_like(x).index_add(0, tokens, back * weights.flatten()[order].unsqueeze(1)), None
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
    return y[rank * most : rank * most + len(x)].clone(), None
"""

MUTANTS = [
    (
        "the lesson's dispatch, a row per pair",
        "Does a row travel twice to a rank",
        _LESSONS + _STUB,
    ),
    (
        "all rows gathered, and all results summed",
        "who gets rows that it does not need",
        _GATHERED + _STUB,
    ),
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
    return combine(dispatch(x, experts, [dist.group.WORLD])[0], None), None
"""
        + _STUB,
    ),
    (
        "added without the gate's weights",
        "where does the gate's weight come in",
        ((_COMPUTED, _COMPUTED.replace("there[chose, D + i].unsqueeze(1) * ", "")),),
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
                _BACK.replace("torch.cat(tokens)", "torch.cat(tokens).sort().values"),
            ),
        ),
    ),
    (
        "results of the last rank win, and are not added",
        "whose are they",
        ((_BACK, _BACK.replace("index_add", "index_copy")),),
    ),
    (
        "off by one expert",
        "holds no expert",
        ((_COMPUTED, _COMPUTED.replace("each + i", "each + i + 1")),),
    ),
    (
        "the experts counted from 0 on each rank",
        "holds no expert",
        ((_COMPUTED, _COMPUTED.replace("rank * each + i", "i")),),
    ),
    (
        "each expert computes all that arrived",
        "Which of the rows that arrived are for which expert",
        (
            (
                _COMPUTED,
                "        y = expert(rank * each + i, there[:, :D])\n"
                "        sums += there[:, D + i].unsqueeze(1) * y\n        y = y[chose]\n",
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
                "    if not len(x):\n        return x, None\n    needs = torch",
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
            ("receives.sum()), D + each)", "receives.sum()), D + D + p * each)"),
        ),
    ),
    (
        "the experts' gradient without the gate's weight",
        "each with what weight",
        ((_EXPERTS, "arrived[chose]\n"),),
    ),
    (
        "gradients of this rank's own tokens alone",
        "Whose tokens has this expert computed",
        (
            (
                "dist.all_to_all_single(arrived, grad[torch.cat(tokens)], receives, sends)",
                "start = sum(receives[:rank])\n"
                "    arrived.zero_()[start : start + receives[rank]] = grad[tokens[rank]]",
            ),
        ),
    ),
    (
        "no gradient comes home",
        "From how many ranks does a token's gradient come home",
        (
            (
                "    dist.all_to_all_single(home, found, sends, receives)\n",
                "    start, own = sum(receives[:rank]), sum(sends[:rank])\n"
                "    home.zero_()[own : own + sends[rank]] = found[start : start + sends[rank]]\n",
            ),
        ),
    ),
    (
        "of a token's gradients the last rank's wins",
        "From how many ranks does a token's gradient come home",
        ((_HOME, _HOME.replace("index_add", "index_copy")),),
    ),
    (
        "the gate's weight once more on the way home",
        "what does each of them send it",
        (
            (
                "found[chose, :D] += expert_backward(",
                "found[chose, :D] += weight * expert_backward(",
            ),
        ),
    ),
    (
        "weights of another rank's experts",
        "which, for each place of `experts`",
        (
            (
                "table[t, r * each : (r + 1) * each] = part[:, D:]",
                "table[t, r * each : (r + 1) * each] = part[:, D:].roll(1, 1)",
            ),
        ),
    ),
    (
        "the weights' gradient from what was multiplied already",
        "before or after it was multiplied",
        ((_WEIGHTS, "(arrived[chose] * y * weight).sum(1)"),),
    ),
    (
        "off by one expert in backward",
        "holds no expert",
        (
            (
                "expert_backward(\n            rank * each + i,",
                "expert_backward(\n            rank * each + i + 1,",
            ),
        ),
    ),
    (
        "the tokens travel once more beside their gradients",
        "Which rows are there since forward",
        (
            (
                "    arrived = grad.new_empty(len(there), D)\n",
                "    arrived = grad.new_empty(len(there), D)\n"
                "    dist.all_to_all_single(arrived, grad[torch.cat(tokens)], receives, sends)\n",
            ),
        ),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch
import torch.distributed as dist


def mixture_once(x, experts, weights, expert, each):
    rank, found = dist.get_rank(), []
    for rows, chosen, w in zip(everyones(x), everyones(experts), everyones(weights)):
        rows, chosen, w = rows.view(-1, x.shape[1]), chosen.view(-1, experts.shape[1]), w.view(-1, experts.shape[1])
        y = torch.zeros_like(rows)
        for e in range(rank * each, (rank + 1) * each):
            n, i = (chosen == e).nonzero(as_tuple=True)
            y[n] += w[n, i, None] * expert(e, rows[n])
        found.append(y)
    whole = sum(everyones(torch.cat(found)))
    return whole.split([len(one) for one in found])[rank], None


def mixture_once_backward(grad, kept, expert_backward):
    return grad, grad
""",
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

    def backward(grad, expert_backward):
        # The experts' outputs were not kept: they are computed again.
        arrived, rows_grad = exchange(grad[at], sends, receives), torch.zeros_like(rows)
        of_weights = torch.zeros_like(weighted)
        for e in range(rank * each, (rank + 1) * each):
            n, choice = (chosen == e).nonzero(as_tuple=True)
            of_weights[n, choice] = (expert(e, rows[n]) * arrived[n]).sum(1)
            rows_grad[n] += expert_backward(e, rows[n], weighted[n, choice, None] * arrived[n])
        grad_x = torch.zeros_like(grad).index_add(0, at, exchange(rows_grad, receives, sends))
        return grad_x, torch.zeros_like(weights).index_add(0, at, exchange(of_weights, receives, sends))

    return out, backward


def mixture_once_backward(grad, kept, expert_backward):
    return kept(grad, expert_backward)
""",
    ),
    (
        "point to point, one rank after the other, token by token",
        """
import torch
import torch.distributed as dist


def mixture_once(x, experts, weights, expert, each):
    rank, p, D, k = dist.get_rank(), dist.get_world_size(), x.shape[1], experts.shape[1]
    out, by_shift = torch.zeros_like(x), []
    kept = x, experts, weights, expert, each, by_shift

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
            by_shift.append((at, message))
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
        by_shift.append((at, arrived))
    return out, kept


def mixture_once_backward(grad, kept, expert_backward):
    x, experts, weights, expert, each, by_shift = kept
    rank, p, D, k = dist.get_rank(), dist.get_world_size(), x.shape[1], experts.shape[1]
    grad_x, grad_weights = torch.zeros_like(grad), torch.zeros_like(weights)
    for shift, (at, arrived) in enumerate(by_shift):
        to, source = (rank + shift) % p, (rank - shift) % p
        came = grad[at] if shift == 0 else grad.new_empty(len(arrived), D)
        if shift:
            works = [dist.irecv(came, source)] if len(came) else []
            works += [dist.isend(grad[at], to)] if len(at) else []
            [work.wait() for work in works]
        home = grad.new_zeros(len(arrived), D + k)
        for n in range(len(arrived)):
            row = arrived[n : n + 1, :D]
            for i, e in enumerate(arrived[n, D : D + k].long().tolist()):
                if e // each == rank:
                    w = arrived[n, D + k + i]
                    home[n, D + i] = expert(e, row)[0] @ came[n]
                    home[n, :D] += expert_backward(e, row, w * came[n : n + 1])[0]
        back = home if shift == 0 else grad.new_empty(len(at), D + k)
        if shift:
            works = [dist.irecv(back, to)] if len(at) else []
            works += [dist.isend(home, source)] if len(home) else []
            [work.wait() for work in works]
        grad_x[at] += back[:, :D]
        grad_weights[at] += back[:, D:]
    return grad_x, grad_weights
""",
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef mixture_once(x, experts, weights, expert, each):\n    return torch.zeros_like(x), None\n"
        + _STUB,
    ),
    (
        "the tokens",
        "\ndef mixture_once(x, experts, weights, expert, each):\n    return x, None\n" + _STUB,
    ),
]
