"""Answers to choose_patience: see test_exercises.py."""

_HEAD = "\ndef choose_patience(measure, ways, patiences):\n"
_SHARE = "What can a slow rank still do"
_OUT = "What does a slow rank cost the others"
_WAY = "way = min(ways, key=lambda way: seconds(way, middle))"
_ALL = "    for patience in patiences:\n"
_END = "    return min(seen, key=seen.get)\n"

MUTANTS = [
    ("the four least patiences", _OUT, ((_ALL, "    for patience in patiences[:4]:\n"),)),
    (
        "upwards, until it gets worse",
        _SHARE,
        _HEAD
        + """    way, best = min(ways, key=lambda way: measure(way, patiences[0])), patiences[0]
    for patience in patiences[1:]:
        if measure(way, patience) > measure(way, best):
            break
        best = patience
    return way, best
""",
    ),
    ("always shares", _OUT, ((_WAY, "way = ways[0]"),)),
    ("always leaves out", _SHARE, ((_WAY, "way = ways[1]"),)),
    ("the lesson's patience of two", _SHARE, ((_ALL, "    for patience in [2]:\n"), (_END, "    return way, 2\n"))),
    ("at once", _SHARE, ((_END, "    return way, patiences[0]\n"),)),
    ("as patient as possible", _SHARE, ((_END, "    return way, patiences[-1]\n"),)),
    ("the better way, at the patience at which it was found", _SHARE, ((_END, "    return way, middle\n"),)),
    ("the slowest", "the best choice takes", ((_END, "    return max(seen, key=seen.get)\n"),)),
    ("every second patience of both", "the best choice takes", _HEAD + """    tried = [(way, patience) for way in ways for patience in patiences[::2]]
    return min(tried, key=lambda choice: measure(*choice))
"""),
    (
        "everything is measured",
        "no more may be",
        _HEAD + """    tried = [(way, patience) for way in ways for patience in patiences]
    return min(tried, key=lambda choice: measure(*choice))
""",
    ),
    ("a patience that is not there", "is not possible", ((_END, "    return way, 3\n"),)),
    ("exchanged", "is not possible", ((_END, "    return min(seen, key=seen.get)[::-1]\n"),)),
    ("no patience is named", "a choice is 2 things", _HEAD + "    return ways[0]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "downwards, until it gets worse",
        _HEAD
        + """    best = patiences[-1]
    way = min(ways, key=lambda way: measure(way, best))
    for patience in patiences[-2::-1]:
        if measure(way, patience) >= measure(way, best):
            break
        best = patience
    return way, best
""",
    ),
    (
        "the way at the largest patience, then all others with it, as a list",
        _HEAD
        + """    found = {way: measure(way, patiences[-2])[0] for way in ways}
    way = min(found, key=found.get)
    times = [measure(way, patience)[0] for patience in patiences]
    return [way, patiences[times.index(min(times))]]
""",
    ),
    (
        "one way's patience first, then the other's beside it",
        _HEAD
        + """    first = {patience: measure(ways[0], patience)[0] for patience in patiences[:-1]}
    patience = min(first, key=first.get)
    at = patiences.index(patience)
    found = {(ways[0], one): took for one, took in first.items()}
    found[ways[1], patience] = measure(ways[1], patience)[0]
    near = patiences[at - 1] if at else patiences[1]
    found[ways[1], near] = measure(ways[1], near)[0]
    return min(found, key=found.get)
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the last choice that there is", _HEAD + "    return ways[-1], patiences[-1]\n"),
    ("the first choice that there is", _HEAD + "    return ways[0], patiences[0]\n"),
]
