"""Answers to choose_ranks: see test_exercises.py."""

_COST = "what do its two all-reduces cost"
_OWN = "as many ranks as the others"
_DEGREES = "        for degree in degrees:\n"
_TAKEN = "    return tuple(best)\n"
_MIN = "best.append(min(tried, key=tried.get))"

MUTANTS = [
    (
        "the same for all regions",
        _COST,
        """
def choose_ranks(measure, tokens, width, hidden, degrees):
    return min([(degree,) * 3 for degree in degrees], key=lambda choice: measure(*choice))
""",
    ),
    ("no region is left whole", _COST, ((_DEGREES, "        for degree in degrees[1:]:\n"),)),
    ("never between nodes", _OWN, ((_DEGREES, "        for degree in degrees[:2]:\n"),)),
    ("the widest over all ranks, always", _COST, ((_TAKEN, "    best[hidden.index(max(hidden))] = 4\n" + _TAKEN),)),
    ("in the order from the last", _COST, ((_TAKEN, "    return tuple(best[::-1])\n"),)),
    ("the slowest of each", _COST, ((_MIN, _MIN.replace("min(", "max(")),)),
    (
        "everything is measured",
        "no more may be",
        """
def choose_ranks(measure, tokens, width, hidden, degrees):
    every = [(a, b, c) for a in degrees for b in degrees for c in degrees]
    return min(every, key=lambda choice: measure(*choice))
""",
    ),
    ("three ranks", "is not possible", ((_TAKEN, "    return 3, 2, 1\n"),)),
    ("one number", "a choice is 3 things", ((_TAKEN, "    return best[0]\n"),)),
]  # fmt: skip

ACCEPTED = [
    ("beginning with nothing cut", (("start, best = (2, 2, 2), []", "start, best = (1, 1, 1), []"),)),
    (
        "each region beside the best of those before it, as a list",
        """
def choose_ranks(measure, tokens, width, hidden, degrees):
    best = [4, 4, 4]
    for region in (2, 0, 1):
        seconds = []
        for degree in degrees:
            best[region] = degree
            seconds.append(measure(*best))
        best[region] = degrees[seconds.index(min(seconds))]
    return best
""",
    ),
]  # fmt: skip

NOTHING = [
    ("inside the node", "\ndef choose_ranks(measure, tokens, width, hidden, degrees):\n    return 2, 2, 2\n"),
    ("all ranks", "\ndef choose_ranks(measure, tokens, width, hidden, degrees):\n    return 4, 4, 4\n"),
]  # fmt: skip
