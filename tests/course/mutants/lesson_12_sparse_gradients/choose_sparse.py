"""Answers to choose_sparse: see test_exercises.py."""

_HEAD = "\ndef choose_sparse(measure, ways, percents, least):\n"
_SMALL = "How small a part keeps enough, in each way"
_ADDED = "What can be added on the way"
_WAYS = "    for way in ways:\n"
_END = "    return min(found)[1:]\n"

MUTANTS = [
    ("always whole", _SMALL, _HEAD + '    return "whole", 100\n'),
    ("the lesson's 1 % of the largest", "did `measure` say of it", _HEAD + '    return "top-k", 1\n'),
    ("enough of the largest, never another way", _SMALL, ((_WAYS, '    for way in ["top-k"]:\n'),)),
    ("never blocks", _SMALL, ((_WAYS, "    for way in ways[::2]:\n"),)),
    ("never drawn", _ADDED, ((_WAYS, "    for way in ways[:2]:\n"),)),
    ("never whole", _ADDED, (("    found = [(seconds, *whole)]\n", "    found = []\n"),)),
    ("the smallest part, whatever it takes", _ADDED, ((_END, "    return min(found, key=lambda one: one[2])[1:]\n"),)),
    ("nearly enough is enough", "did `measure` say of it", (("if kept >= least", "if kept + 0.5 >= least"),)),
    ("twice what is enough", _SMALL, ((_END, '    _, way, percent = min(found)\n    return way, {2: 5, 5: 10, 10: 20}.get(percent, percent)\n'),)),
    ("the quickest, whatever it keeps", "did `measure` say of it", _HEAD + "    return min([(way, percents[0]) for way in ways], key=lambda choice: measure(*choice)[0])\n"),
    (
        "everything is measured",
        "no more may be",
        _HEAD
        + """    every = [(measure(way, n), way, n) for way in ways for n in percents]
    return min((t, way, n) for (t, kept), way, n in every if kept >= least)[1:]
""",
    ),
    ("a percent that is not there", "is not possible", _HEAD + '    return "top-k", 3\n'),
    ("half of it whole", "is not possible", _HEAD + '    return "whole", 50\n'),
    ("no way is named", "a choice is 2 things", _HEAD + "    return ways[0]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "upwards, where a way is still quicker, as a list",
        _HEAD
        + """    (best, _), choice = measure("whole", 100), ["whole", 100]
    starts = {"random-k": 5, "blocks": 2, "top-k": 1}
    for way in ("random-k", "blocks", "top-k"):
        for percent in percents[starts[way] :]:
            seconds, kept = measure(way, percent)
            if seconds >= best:
                break
            if kept >= least:
                best, choice = seconds, [way, percent]
                break
    return choice
""",
    ),
    (
        "drawn numbers keep their own part",
        (
            (
                "        low, high = 0, len(percents)\n",
                '        low, high = (0, len(percents)) if way != "random-k" else (5, 5 + (least < 0.5))\n'
                '        if way == "random-k" and least > 0.5:\n'
                "            continue\n",
            ),
        ),
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
]
