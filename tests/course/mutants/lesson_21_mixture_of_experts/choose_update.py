"""Answers to choose_update: see test_exercises.py."""

_CHOICE = "    return min(seen, key=seen.get)\n"
_STEADY = "after a batch that is unlike the others"
_DRIFTING = "How far does a bias come"

MUTANTS = [
    ("the paper's rule, always", _DRIFTING, (('for rule in ("sign", "proportional"):', 'for rule in ("sign",):'),)),
    ("in proportion, always", _STEADY, (('for rule in ("sign", "proportional"):', 'for rule in ("proportional",):'),)),
    ("the paper's rule and rate", _DRIFTING, "\ndef choose_update(measure, changes):\n    return 'sign', 0.001\n"),
    ("the largest change", _STEADY, ((_CHOICE, "    return min(seen, key=seen.get)[0], changes[-1]\n"),)),
    ("the smallest change", _DRIFTING, ((_CHOICE, "    return min(seen, key=seen.get)[0], changes[0]\n"),)),
    ("the worst", _STEADY, ((_CHOICE, "    return max(seen, key=seen.get)\n"),)),
    (
        "everything is measured",
        "no more may be",
        "\ndef choose_update(measure, changes):\n    return min(((r, c) for r in ('sign', 'proportional') for c in changes), key=lambda x: measure(*x))\n",
    ),
    ("no rule is named", "a choice is 2 things", ((_CHOICE, "    return min(seen, key=seen.get)[1]\n"),)),
    ("a change that is not there", "is not possible", "\ndef choose_update(measure, changes):\n    return 'sign', 0.002\n"),
]  # fmt: skip
NAMED = "in proportion, always"

ACCEPTED = [
    (
        "uphill from a hundredth, by each rule",
        """
def choose_update(measure, changes):
    best = {}
    for rule in ("sign", "proportional"):
        at, load = 3, measure(rule, changes[3])
        for step in (1, -1):
            moved = False
            while 0 <= at + step < len(changes) and measure(rule, changes[at + step]) < load:
                at, moved = at + step, True
                load = measure(rule, changes[at])
            if moved:
                break
        best[load] = rule, changes[at]
    return best[min(best)]
""",
    ),
    ("a list", ((_CHOICE, "    return list(min(seen, key=seen.get))\n"),)),
]  # fmt: skip

NOTHING = [
    ("nothing is chosen", "\ndef choose_update(measure, changes):\n    return None\n"),
]
