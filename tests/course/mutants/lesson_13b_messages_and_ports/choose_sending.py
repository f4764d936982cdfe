"""Answers to choose_sending: see test_exercises.py."""

_HEAD = "\ndef choose_sending(measure, buckets, slices):\n"
_BOTH = '(("backward", buckets), ("forward", slices))'
_PASSES = "whom does a smaller slice let pass"
_PRICE = "How many messages does each choice send"

MUTANTS = [
    ("never by priority", _PASSES, ((_BOTH, '(("backward", buckets),)'),)),
    ("always by priority", _PRICE, ((_BOTH, '(("forward", slices),)'),)),
    ("whole layers by priority", _PASSES, _HEAD + '    return "forward", 1\n'),
    ("the lesson's two layers per bucket", _PASSES, _HEAD + '    return "backward", 2\n'),
    ("lesson 13's three slices", _PASSES, _HEAD + '    return "forward", 3\n'),
    ("as many slices as there may be", _PASSES, _HEAD + '    return "forward", slices[-1]\n'),
    ("one bucket of everything", _PASSES, _HEAD + '    return "backward", buckets[-1]\n'),
    (
        "everything is measured",
        "no more may be",
        ((
            "        while large > 1:\n",
            "        for at in range(len(numbers)):\n            seconds(at)\n        while large > 1:\n",
        ),),
    ),
    ("the slowest", _PASSES, (("min(seen, key=seen.get)", "max(seen, key=seen.get)"),)),
    ("a number that is not there", "is not possible", _HEAD + '    return "forward", 5\n'),
    (
        "exchanged",
        "is not possible",
        (("    return min(seen, key=seen.get)\n", "    return min(seen, key=seen.get)[::-1]\n"),),
    ),
    ("no way is named", "a choice is 2 things", _HEAD + "    return slices[0]\n"),
]  # fmt: skip

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
]

ACCEPTED = [
    (
        "the middle of both, measured and compared",
        _HEAD
        + """    tried = [("backward", n) for n in buckets[1:4]] + [("forward", n) for n in slices[:4]]
    return min(tried, key=lambda choice: measure(*choice))
""",
    ),
    (
        "downhill, as a list",
        _HEAD
        + """    best = []
    for wait_in, numbers in (("forward", slices), ("backward", buckets)):
        at, found = 1, measure(wait_in, numbers[1])
        while at < 4 and measure(wait_in, numbers[at + 1]) < found:
            at += 1
            found = measure(wait_in, numbers[at])
        if at == 1 and measure(wait_in, numbers[0]) < found:
            at, found = 0, measure(wait_in, numbers[0])
        best.append((found, wait_in, numbers[at]))
    return list(min(best)[1:])
""",
    ),
]
