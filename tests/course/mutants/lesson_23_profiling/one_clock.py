"""Answers to one_clock: see test_exercises.py."""

_ENDS = "{(row[1], row[2]): row[4] for row in rows"
_POINTS = "        points = [(ends[other][key], ends[known][key]) for key in ends[known] if key in ends[other]]\n"
_RATE = "        rate = statistics.median(slopes)\n"
_LINE = "        return statistics.median(y - rate * x for x, y in points), rate\n"
_FOUND = "                found[other] = shift + rate * off, rate * slope\n"

MUTANTS = [
    (
        "starts are matched",
        "Which moment of a collective is nearly the same",
        ((_ENDS, _ENDS.replace("row[4]", "row[3]")),),
    ),
    (
        "middles are matched",
        "and why not the other one",
        ((_ENDS, _ENDS.replace("row[4]", "(row[3] + row[4]) / 2")),),
    ),
    (
        "the sign of a shift",
        "Which moment of a collective is nearly the same",
        ((_LINE, _LINE.replace("y - rate * x", "rate * x - y")),),
    ),
    (
        "an offset, and no drift",
        "what it was at its beginning",
        ((_RATE, "        rate = 1.0\n"),),
    ),
    (
        "the same place of the list",
        "the one at the same place of the list",
        (
            (
                _POINTS,
                "        points = list(zip(ends[other].values(), ends[known].values()))\n",
            ),
        ),
    ),
    (
        "the first and the last collective that both have",
        "How much do these move your line",
        (
            (
                _RATE,
                "        (a, b), (c, d) = min(points), max(points)\n        rate = (d - b) / (c - a)\n",
            ),
        ),
    ),
    (
        "means in place of medians",
        "How much do these move your line",
        ((_RATE, _RATE.replace("median", "mean")), (_LINE, _LINE.replace("median", "mean"))),
    ),
    (
        "rank 3 as its neighbour sees it",
        "Whose clock does it share moments with",
        ((_FOUND, "                found[other] = off, slope\n"),),
    ),
    (
        "shifts are added, whatever the clock between runs like",
        "Whose clock does it share moments with",
        ((_FOUND, "                found[other] = shift + off, slope\n"),),
    ),
    (
        "collectives of other pairs with the same number",
        "Whose clock does it share moments with",
        ((_ENDS, _ENDS.replace("(row[1], row[2])", "row[2]")),),
    ),
]

NOTHING = [
    (
        "all clocks are right",
        "\ndef one_clock(traces):\n    return [(0.0, 1.0)] * len(traces)\n",
    ),
]

ACCEPTED = [
    (
        "least squares, twice: the second time without what lies far off, along a chain of ranks",
        """
import numpy as np


def one_clock(traces):
    def met(a, b):
        mine = {row[1:3]: row[4] for row in traces[a] if row[1] and b in row[1]}
        both = [(row[4], mine[row[1:3]]) for row in traces[b] if row[1:3] in mine and row[1]]
        return np.array(both).T

    def line(a, b):
        x, y = met(a, b)
        keep = np.ones(len(x), bool)
        for _ in range(12):
            rate, shift = np.polyfit(x[keep] - x[0], y[keep] - x[keep], 1)
            off = np.abs(y - x - rate * (x - x[0]) - shift)
            keep = off <= max(40e-6, np.quantile(off, 0.6))
        return shift - rate * x[0], 1 + rate

    way = {rank: 0 if len(met(0, rank)) else 1 for rank in range(1, len(traces))}
    found = {0: (0.0, 1.0)}
    for rank, past in sorted(way.items(), key=lambda item: item[1]):
        shift, rate = line(past, rank)
        found[rank] = found[past][0] + found[past][1] * shift, found[past][1] * rate
    return [found[rank] for rank in range(len(traces))]
""",
    ),
    (
        "by halves: a median of the early differences, and one of the late ones, in tensors",
        """
import torch


def one_clock(traces):
    pairs, left = [None] * len(traces), list(range(len(traces)))
    pairs[left.pop(0)] = [0.0, 1.0]
    ends = [{(g, n): e for what, g, n, _, e in rows if what != "compute"} for rows in traces]
    while left:
        other = left.pop(0)
        for known, pair in enumerate(pairs):
            shared = sorted(set(ends[known]) & set(ends[other]), key=ends[other].get)
            if pair is None or not shared:
                continue
            x = torch.tensor([ends[other][key] for key in shared], dtype=torch.double)
            y = torch.tensor([ends[known][key] for key in shared], dtype=torch.double)
            half, d = len(x) // 2, y - x
            # The middle of a cloud's lower and upper edge would do as well; medians of both halves, to a fixed point.
            rate = 0.0
            for _ in range(50):
                flat = d - rate * (x - x.mean())
                step = flat[half:].median() - flat[:half].median()
                rate = rate + (step / (x[half:].mean() - x[:half].mean())).item()
            shift = (d - rate * (x - x.mean())).median().item() - rate * x.mean().item()
            pairs[other] = [pair[0] + pair[1] * shift, pair[1] * (1 + rate)]
            break
        else:
            left.append(other)
    return pairs
""",
    ),
]
