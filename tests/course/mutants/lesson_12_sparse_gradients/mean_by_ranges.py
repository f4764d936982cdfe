"""Answers to mean_by_ranges: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_CHOSEN = "places = x.abs().topk(k).indices.sort().values"
_ADDED = "index_add(0, of, values / p)"
_BOUNDS = "bounds = [r * n // p for r in range(p + 1)]"

# The lesson's own mean: everyone's pairs come to everyone.
_LESSONS = """
import torch
import torch.distributed as dist


def mean_by_ranges(x, k):
    places = x.abs().topk(k).indices
    everyone, p = [], dist.get_world_size()
    for mine in (x[places], places.int()):
        everyone.append([torch.empty_like(mine) for _ in range(p)])
        dist.all_gather(everyone[-1], mine)
    mean = torch.zeros_like(x)
    for values, where in zip(*everyone):
        mean.index_add_(0, where.long(), values / p)
    return mean
"""

_DENSE = """
import torch
import torch.distributed as dist


def mean_by_ranges(x, k):
    places = x.abs().topk(k).indices
    mean = torch.zeros_like(x).index_copy(0, places, x[places]) / dist.get_world_size()
    dist.all_reduce(mean)
    return mean
"""

MUTANTS = [
    ("the lesson's own mean, gathered", "how often does it travel to everyone", _LESSONS),
    ("the plain all-reduce of sparse vectors", "does anything travel that nobody chose", _DENSE),
    (
        "the course's own",
        "dtcourse.compression",
        """
from dtcourse.compression import TopK, average


def mean_by_ranges(x, k):
    return average(x, TopK(k / len(x), takes=x.dtype))
""",
    ),
    ("the sum", "where is it divided by the ranks", ((_ADDED, "index_add(0, of, values)"),)),
    (
        "the largest signed",
        "what of large numbers below zero",
        ((_CHOSEN, "places = x.topk(k).indices.sort().values"),),
    ),
    (
        "all numbers",
        "which of them were to be chosen",
        ((_CHOSEN, "places = torch.arange(n)"),),
    ),
    (
        "one number less",
        "Whose numbers are at the places that differ",
        ((_CHOSEN, "places = x.abs().topk(k - 1).indices.sort().values"),),
    ),
    (
        "the last of equal places wins, and is not added",
        "were they added once",
        ((_ADDED, "index_copy(0, of, values / p)"),),
    ),
    (
        "places not in the order of their owners",
        "Whose numbers are at the places that differ",
        ((_CHOSEN, "places = x.abs().topk(k).indices"),),
    ),
    (
        "the owner's whole range comes back",
        "does anything travel that nobody chose",
        (
            (
                "    mine, of = at.unique(return_inverse=True)\n",
                "    rank = dist.get_rank()\n"
                "    mine, of = torch.arange(bounds[rank], bounds[rank + 1]), at - bounds[rank]\n",
            ),
        ),
    ),
    (
        "ranges of ceil(n / p) places",
        "Is the first place of rank r's range r n // p",
        ((_BOUNDS, "bounds = [min(n, r * -(-n // p)) for r in range(p + 1)]"),),
    ),
    (
        "places are dealt out in turn",
        "Is the first place of rank r's range r n // p",
        (
            (
                _CHOSEN,
                "places = x.abs().topk(k).indices.sort().values\n    places = places[(places % p).argsort()]",
            ),
            ("torch.bucketize(places, torch.tensor(bounds[1:]), right=True)", "places % p"),
        ),
    ),
    (
        "values travel in single precision",
        "the rounding of float32",
        (("to_owners(x[places])", "to_owners(x[places].float()).double()"),),
    ),
    (
        "padding is taken for sums",
        "Whose numbers are at the places that differ",
        (("mean[i[:count]] = s[:count]", "mean[i] = s"),),
    ),
    (
        "a rank whose numbers are all its own stays away",
        "rank",
        (
            (
                "    receives = torch.empty_like(sends)\n",
                "    if int(sends[dist.get_rank()]) == k:\n        return torch.zeros_like(x)\n    receives = torch.empty_like(sends)\n",
            ),
        ),
    ),
    (
        "the counts never travel",
        "rank",
        (("    dist.all_to_all_single(receives, sends)\n", "    receives.copy_(sends)\n"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def mean_by_ranges(x, k):
    total, found = torch.zeros_like(x), everyones(x)
    for one in found:
        places = one.abs().topk(k).indices
        total[places] += one[places]
    return total / len(found)
""",
    ),
]

ACCEPTED = [
    (
        "another order of sums, and a dense range to add in",
        (
            (
                "    mine, of = at.unique(return_inverse=True)\n    sums = x.new_zeros(len(mine)).index_add(0, of, values / p)\n",
                "    table = x.new_zeros(n).index_add(0, at.flip(0), values.flip(0))\n"
                "    mine = at.unique()\n    sums = table[mine] / p\n",
            ),
        ),
    ),
    (
        "point to point to the owners, lengths first; 32-bit places",
        """
import torch
import torch.distributed as dist


def mean_by_ranges(x, k):
    rank, p, n = dist.get_rank(), dist.get_world_size(), len(x)
    places = x.abs().topk(k).indices
    total, chosen = torch.zeros_like(x), torch.zeros(n, dtype=torch.bool)

    def add(where, values):
        total[where] += values
        chosen[where] = True

    def of(r):
        at = places[(places >= r * n // p) & (places < (r + 1) * n // p)]
        return at, x[at]

    add(*of(rank))
    for shift in range(1, p):
        to, source = (rank + shift) % p, (rank - shift) % p
        at, values = of(to)
        count = torch.empty(1, dtype=torch.long)
        for work in [dist.irecv(count, source), dist.isend(torch.tensor([len(at)]), to)]:
            work.wait()
        where, came = torch.empty(int(count), dtype=torch.int32), x.new_empty(int(count))
        works = [dist.irecv(where, source), dist.irecv(came, source)] if len(came) else []
        works += [dist.isend(at.int(), to), dist.isend(values, to)] if len(at) else []
        for work in works:
            work.wait()
        add(where.long(), came)
    mine = chosen.nonzero().flatten()
    counts = [torch.empty(1, dtype=torch.long) for _ in range(p)]
    dist.all_gather(counts, torch.tensor([len(mine)]))
    most = max(int(count) for count in counts)
    message = x.new_zeros(2, most)
    message[0, : len(mine)], message[1, : len(mine)] = mine.to(x.dtype), total[mine] / p
    everyone = [torch.empty_like(message) for _ in range(p)]
    dist.all_gather(everyone, message)
    mean = torch.zeros_like(x)
    for count, (where, values) in zip(counts, everyone):
        mean[where[: int(count)].long()] = values[: int(count)]
    return mean
""",
    ),
]

NOTHING = [
    (
        "zeros",
        "\nimport torch\n\n\ndef mean_by_ranges(x, k):\n    return torch.zeros_like(x)\n",
    ),
    ("its own vector", "\ndef mean_by_ranges(x, k):\n    return x\n"),
]
