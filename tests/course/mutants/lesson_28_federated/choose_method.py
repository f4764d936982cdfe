"""Answers to choose_method: see test_exercises.py."""

_HEAD = "\ndef choose_method(measure, methods, steps):\n"
_ALIKE = "What does SCAFFOLD save there"
_APART = "With how many steps does FedAvg still arrive"
_METHODS = "    for method in methods:\n"
_GRID = "        for at in range(1, len(steps), 3):\n"
_END = "    return method, steps[at]\n"

MUTANTS = [
    ("always FedAvg", _APART, ((_METHODS, "    for method in methods[:1]:\n"),)),
    ("always SCAFFOLD", _ALIKE, ((_METHODS, "    for method in methods[1:]:\n"),)),
    ("one step, as centralised training", _APART, _HEAD + '    return "FedAvg", 1\n'),
    ("the lesson's eight steps, whichever is quicker", _ALIKE, _HEAD + "    return min(((method, 8) for method in methods), key=lambda choice: measure(*choice))\n"),
    ("as many steps as possible", _ALIKE, ((_END, "    return method, steps[-1]\n"),)),
    ("the slowest", "the best choice takes", (("    method, at = min(seen, key=seen.get)\n    return", "    method, at = max(seen, key=seen.get)\n    return"),)),
    ("everything is measured", "no more may be", ((_GRID, "        for at in range(len(steps)):\n"),)),
    ("the best of 16 steps and fewer", _ALIKE, _HEAD + "    tried = [(method, K) for method in methods for K in steps[:5]]\n    return min(tried, key=lambda choice: measure(*choice))\n"),
    ("steps that are not there", "is not possible", _HEAD + '    return "SCAFFOLD", 100\n'),
    ("FedProx", "is not possible", _HEAD + '    return "FedProx", 8\n'),
    ("exchanged", "is not possible", ((_END, "    return steps[at], method\n"),)),
    ("no steps", "a choice is 2 things", _HEAD + "    return methods[0]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "downhill from the middle, each method, until the trials are spent, as a list",
        _HEAD
        + """    found, left = {}, 11
    for method in methods:
        at, stride, most = 6, 3, left - 5 if method == methods[0] else 99
        while stride and left > 0 and most > 0:
            for one in (at, at - stride, at + stride):
                if 0 <= one < len(steps) and (method, one) not in found and left and most:
                    found[method, one] = measure(method, steps[one])
                    left, most = left - 1, most - 1
            own = {one: t for (name, one), t in found.items() if name == method}
            best = min(own, key=own.get)
            at, stride = (best, stride) if best != at else (at, stride // 2)
    method, at = min(found, key=found.get)
    return [method, steps[at]]
""",
    ),
    (
        "the method first: does FedAvg arrive with many steps?",
        _HEAD
        + """    apart = measure("FedAvg", steps[9])[0] == float("inf")
    places = range(2, 9) if apart else range(6, 12)
    tried = [(methods[apart], steps[at]) for at in places]
    return min(tried, key=lambda choice: measure(*choice))
""",
    ),
    ("another third", ((_GRID, "        for at in range(2, len(steps), 3):\n"),)),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the first choice that there is", _HEAD + "    return methods[0], steps[0]\n"),
]
