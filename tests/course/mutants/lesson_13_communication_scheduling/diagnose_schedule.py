"""Answers to diagnose_schedule: see test_exercises.py."""

_FIFO = (
    "    for n, (layer, begun, _) in enumerate(sent[0]):\n"
    "        if any(other < layer and ready[other] < begun - close for other, _, _ in sent[0][n:]):\n"
    '            return "first in, first out", None\n'
)
_ALL = (
    "    if forward[0][0] > max(ready[0], there[0]) + close:\n"
    '        return "waits for all", None\n'
)
_EARLY = '                return "too early", layer\n'
_ORDERS = "        if orders.count(order) == 1:\n"

MUTANTS = [
    ("no wait is too long", "when did its forward begin", ((_ALL, ""),)),
    ("any order will do", "was one of an earlier layer ready", ((_FIFO, ""),)),
    (
        "slices that are not ready should go first",
        "Slices that are not ready cannot go first",
        (("other < layer and ready[other] < begun - close", "other < layer"),),
    ),
    (
        "only rank 0 is looked at",
        "on every rank",
        (("    for begins in forward:\n", "    for begins in forward[:1]:\n"),),
    ),
    (
        "the first slice counts, not the last",
        "when its last slice is",
        (
            (
                "there = {layer: arrived for layer, _, arrived in sent[0]}",
                "there = {layer: arrived for layer, _, arrived in reversed(sent[0])}",
            ),
        ),
    ),
    (
        "the layer after it",
        "on every rank",
        ((_EARLY, _EARLY.replace("layer\n", "layer + 1\n")),),
    ),
    (
        "the rank after it",
        "What does the n-th message of one rank meet",
        (('return "another order", rank', 'return "another order", rank + 1'),),
    ),
    (
        "orders are sets",
        "What does the n-th message of one rank meet",
        (
            (
                "orders = [[layer for layer, _, _ in slices] for slices in sent]",
                "orders = [sorted(layer for layer, _, _ in slices) for slices in sent]",
            ),
        ),
    ),
    (
        "the last rank that differs from rank 0 only",
        "What does the n-th message of one rank meet",
        ((_ORDERS, "        if rank and order != orders[0] and rank == len(orders) - 1:\n"),),
    ),
    (
        "a name without a place",
        "A diagnosis is two things",
        (('return "healthy", None', 'return "healthy"'),),
    ),
    (
        "what waits for all is first in, first out",
        "when did its forward begin",
        (('return "waits for all", None', 'return "first in, first out", None'),),
    ),
]

ACCEPTED = [
    (
        "a wait is looked for before the order",
        (
            (_ALL, ""),
            (
                _FIFO,
                _ALL.replace(
                    "if forward", "if max(a for *_, a in sent[0]) > there[0] + close and forward"
                )
                + _FIFO,
            ),
        ),
    ),
    (
        "by playing the run again",
        """
from collections import Counter


def diagnose_schedule(ready, sent, forward):
    orders = [tuple(layer for layer, *_ in slices) for slices in sent]
    usual, _ = Counter(orders).most_common(1)[0]
    for rank, order in enumerate(orders):
        if order != usual:
            return "another order", rank
    arrived = [max(a for i, _, a in sent[0] if i == layer) for layer in range(len(ready))]
    late = [[begun - there for begun, there in zip(one, arrived)] for one in forward]
    for one in late:
        for layer, slack in enumerate(one):
            if slack < -1e-6:
                return "too early", layer
    left = list(usual)
    for layer, begun, _ in sent[0]:
        if layer != min(i for i in left if ready[i] <= begun + 1e-6):
            return "first in, first out", None
        left.remove(layer)
    if late[0][0] > 1e-6:
        return "waits for all", None
    return "healthy", None
""",
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_schedule(ready, sent, forward):\n    return "healthy", None\n',
    ),
    (
        "always first in, first out",
        '\ndef diagnose_schedule(ready, sent, forward):\n    return "first in, first out", None\n',
    ),
    (
        "always layer 1",
        '\ndef diagnose_schedule(ready, sent, forward):\n    return "too early", 1\n',
    ),
]
