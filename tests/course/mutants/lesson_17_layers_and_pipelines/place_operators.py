"""Answers to place_operators: see test_exercises.py."""

_TRY = "    return min(likely, key=lambda choice: measure(*choice))\n"

MUTANTS = [
    (
        "the lesson's own: operator i on rank i modulo p",
        "whichever ranks do it",
        (
            """
def place_operators(measure, seconds, needs, message):
    return [i % 2 for i in range(len(seconds))]
"""
        ),
    ),
    (
        "no message takes time",
        "which rank waits for each",
        (("likely = sorted(", "message = 0\n    likely = sorted("), ("[:8]", "[:1]")),
    ),
    (
        "equal work: the longest operator to the rank that has least",
        "what could run beside it",
        (
            """
def place_operators(measure, seconds, needs, message):
    load, placed = [0, 0], [0] * len(seconds)
    for i in sorted(range(len(seconds)), key=lambda i: -seconds[i]):
        placed[i] = load.index(min(load))
        load[placed[i]] += seconds[i]
    return placed
"""
        ),
    ),
    (
        "the lesson's own: consecutive operators, two stages",
        "which rank waits for each",
        (
            """
def place_operators(measure, seconds, needs, message):
    n = len(seconds)
    cuts = [[0] * cut + [1] * (n - cut) for cut in range(n)]
    return min(cuts, key=lambda choice: measure(*choice))
"""
        ),
    ),
    (
        "both ranks have to work",
        "what do its messages cost",
        (("key=step)", "key=lambda choice: (not any(choice), step(choice)))"),),
    ),
    (
        "all are measured",
        "no more may be",
        (("[:8]", ""),),
    ),
    (
        "the operators of rank 1 alone",
        "a choice is 7 things",
        ((_TRY, "    best = min(likely, key=lambda choice: measure(*choice))\n    return tuple(i for i, rank in enumerate(best) if rank)\n"),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "all on one rank but for the last",
        """
def place_operators(measure, seconds, needs, message):
    return [0] * (len(seconds) - 1) + [1]
""",
    ),
]

ACCEPTED = [
    ("by its own prediction alone", ((_TRY, "    return likely[0]\n"),)),
    (
        "from several starts one operator after the other moves; what seems best is measured",
        """
import random


def place_operators(measure, seconds, needs, message):
    n = len(seconds)
    users = [[k for k in range(n) if i in needs[k]] for i in range(n)]

    def end(choice):
        free, done = {0: 0.0, 1: 0.0}, {}
        for order, before, times in ((range(n), needs, 1), (reversed(range(n)), users, 2)):
            done = {}
            for i in order:
                came = [done[k] + (message if choice[k] != choice[i] else 0) for k in before[i]]
                done[i] = max([free[choice[i]], *came]) + times * seconds[i]
                free[choice[i]] = done[i]
        return max(free.values())

    found = {}
    for start in range(60):
        draw = random.Random(start)
        choice = [draw.randrange(2) for _ in range(n)]
        moved = True
        while moved:
            moved = False
            for i in range(n):
                other = [*choice[:i], 1 - choice[i], *choice[i + 1 :]]
                if end(other) < end(choice) - 1e-15:
                    choice, moved = other, True
        found[tuple(choice)] = end(choice)
    few = sorted(found, key=found.get)[:8]
    return list(min(few, key=lambda choice: measure(*choice)))
""",
    ),
]
