"""Answers to choose_overlap: see test_exercises.py."""

_RING = '    ring = measure("ring", ranks)[0]\n'
_CHOICE = '    return ("ring", ranks) if ring < seen[best] else ("all-reduce", parts[best])\n'
_OTHER_WAY = "was the other way measured as well"
_PRICE = "What does each further part cost"

MUTANTS = [
    ("always the ring", _PRICE, "\ndef choose_overlap(measure, ranks, parts):\n    return 'ring', ranks\n"),
    (
        "never the ring",
        _OTHER_WAY,
        ((_CHOICE, '    return "all-reduce", parts[best]\n'),),
    ),
    ("the lesson's four parts", _PRICE, "\ndef choose_overlap(measure, ranks, parts):\n    return 'all-reduce', 4\n"),
    (
        "as many parts as there are",
        _PRICE,
        "\ndef choose_overlap(measure, ranks, parts):\n    return 'all-reduce', parts[-1]\n",
    ),
    (
        "one part, or the ring",
        "What is left to wait for after the last part",
        """
def choose_overlap(measure, ranks, parts):
    both = ("all-reduce", 1), ("ring", ranks)
    return min(both, key=lambda choice: measure(*choice))
""",
    ),
    (
        "everything is measured",
        "no more may be",
        (
            (
                "    while large > 1:\n",
                "    for at in range(len(parts)):\n        seconds(at)\n    while large > 1:\n",
            ),
        ),
    ),
    (
        "the slowest",
        _PRICE,
        (("min(seen, key=seen.get)", "max(seen, key=seen.get)"), ("ring < seen", "ring > seen")),
    ),
    (
        "no way is named",
        "a choice is 2 things",
        ((_CHOICE, "    return parts[best]\n"),),
    ),
    (
        "a number of parts that is not there",
        "is not possible",
        "\ndef choose_overlap(measure, ranks, parts):\n    return 'all-reduce', 5\n",
    ),
]  # fmt: skip

NOTHING = [
    ("nothing is chosen", "\ndef choose_overlap(measure, ranks, parts):\n    return None\n"),
]

ACCEPTED = [
    (
        "uphill from both ends of the middle",
        """
def choose_overlap(measure, ranks, parts):
    seen = {("ring", ranks): measure("ring", ranks)}
    for k in (1, 2, 8):
        seen["all-reduce", k] = measure("all-reduce", k)
    best = min((c for c in seen if c[0] != "ring"), key=seen.get)
    for k in {1: (3,), 2: (3, 4), 8: (6, 12)}[best[1]]:
        seen["all-reduce", k] = measure("all-reduce", k)
    return min(seen, key=seen.get)
""",
    ),
    ("a list", ((_CHOICE, _CHOICE.replace('return ', 'return list(')[:-1] + ')\n'),)),
]  # fmt: skip
