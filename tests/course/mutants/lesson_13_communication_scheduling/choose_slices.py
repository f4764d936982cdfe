"""Answers to choose_slices: see test_exercises.py."""

_HEAD = "\ndef choose_slices(measure, forward, sizes, message, numbers):\n"
_PASS = "Whose slice is under way when the first layers are ready"
_HERE = "does that win more than messages cost"
_THIRDS = "for third in (2, 1, 0):"
_LEFT = "    return tuple(best)\n"

MUTANTS = [
    ("whole layers", _PASS, _HEAD + "    return 1, 1, 1\n"),
    (
        "the same for all layers, as in the lesson",
        _PASS,
        _HEAD + "    return min([(n,) * 3 for n in numbers], key=lambda choice: measure(*choice))\n",
    ),
    ("as many slices as there may be", _PASS, _HEAD + "    return (numbers[-1],) * 3\n"),
    (
        "slices of one size",
        _PASS,
        _HEAD
        + """    largest = max(sizes)
    return tuple(min(numbers, key=lambda n: abs(max(sizes[i : i + 2]) / n - largest / 8)) for i in (0, 2, 4))
""",
    ),
    ("the first layers are cut first, and no others", _PASS, ((_THIRDS, "for third in (0,):"),)),
    ("only the last layers are cut", _HERE, ((_THIRDS, "for third in (2,):"),)),
    ("the last layers are always cut in two", _HERE, ((_LEFT, "    best[2] = max(2, best[2])\n" + _LEFT),)),
    ("one step too far", _PASS, ((_LEFT, "    best[2] = min(8, 2 * best[2])\n" + _LEFT),)),
    ("in the order from the last", _PASS, ((_LEFT, "    return tuple(best[::-1])\n"),)),
    ("the slowest", _PASS, (("if seconds >= least:", "if seconds <= least:"),)),
    (
        "everything is measured",
        "no more may be",
        _HEAD
        + """    every = [(a, b, c) for a in numbers for b in numbers for c in numbers]
    return min(every, key=lambda choice: measure(*choice))
""",
    ),
    ("three slices", "is not possible", _HEAD + "    return 1, 1, 3\n"),
    ("one number", "a choice is 3 things", ((_LEFT, "    return best[2]\n"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "third by third, the largest first, as a list",
        _HEAD
        + """    best, least = [1, 1, 1], measure(1, 1, 1)
    for third in sorted(range(3), key=lambda i: -sum(sizes[2 * i : 2 * i + 2])):
        while best[third] < numbers[-1]:
            tried = [*best]
            tried[third] *= 2
            if measure(*tried) > least:
                break
            best, least = tried, measure(*tried)
    return best
""",
    ),
    (
        "the largest third alone, the others whole",
        _HEAD
        + """    third = max(range(3), key=lambda i: sizes[2 * i] + sizes[2 * i + 1])
    tried = []
    for number in numbers:
        choice = [1, 1, 1]
        choice[third] = number
        tried.append((measure(*choice), choice))
    return tuple(min(tried)[1])
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
]
