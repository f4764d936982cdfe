"""Answers to choose_round: see test_exercises.py."""

_HEAD = "\ndef choose_round(measure, asked, shares):\n"
_SHARE = "    share = next(one for one in shares if not measure(asked[middle], one)[1])\n"
_LESS = "measure(asked[at], share)[0] < measure(asked[at + 1], share)[0]"
_END = "    return asked[low], share\n"
_MEASURED = "How does a round's time grow with those asked"
_STAY = "still there in the end"
_GROUPS = "its helpers are in both"

# Those that are safe, and then the quickest number by trying all of them.
_SCAN = """
    middle = asked[len(asked) // 2]
    for share in shares:
        if measure(middle, share)[1] == 0:
            break
    return min(((n, share) for n in asked), key=lambda choice: measure(*choice)[0])
"""

_DOWNWARDS = """
    low, high = 0, len(shares) - 1
    while low < high:
        at = (low + high) // 2
        if measure(asked[5], shares[at])[1]:
            low = at + 1
        else:
            high = at
    share, found = shares[low], []
    for n in reversed(asked):
        seconds, _ = measure(n, share)
        if found and seconds > 1.5 * min(found)[0]:
            break
        found.append((seconds, n))
    return [min(found)[1], share]
"""

MUTANTS = [
    ("the quickest, whoever is uncovered", _GROUPS, _HEAD + """    share = shares[0]
    return min(((n, share) for n in asked), key=lambda choice: measure(*choice)[0])
"""),
    ("just above half", _GROUPS, ((_SHARE, "    share = shares[0]\n"),)),
    ("two thirds, as the lesson says of a third that helps", _GROUPS, ((_SHARE, "    share = shares[1]\n"),)),
    ("a high threshold, to be sure", _STAY, ((_SHARE, "    share = shares[-1]\n"),)),
    ("three quarters", _STAY, ((_SHARE, "    share = shares[2]\n"),)),
    ("as many as possible", _MEASURED, ((_END, "    return asked[-1], share\n"),)),
    ("as few as possible", _STAY, ((_END, "    return asked[0], share\n"),)),
    ("always the number in the middle", _MEASURED, ((_END, "    return asked[middle], share\n"),)),
    ("two more than the best", _MEASURED, ((_END, "    return asked[min(low + 2, len(asked) - 1)], share\n"),)),
    ("the slower half", _STAY, ((_LESS, _LESS.replace("<", ">")),)),
    ("numbers are not compared", _MEASURED, ((_LESS, "measure(asked[at], share)[0] == -1"),)),
    ("everything is measured", "no more may be", _HEAD + "    every = [(n, share) for share in shares for n in asked]\n    return min(every, key=lambda choice: measure(*choice)[::-1])\n"),
    ("a number that is not there", "is not possible", ((_END, "    return asked[low] + 1, share\n"),)),
    ("the threshold as a number of clients", "is not possible", ((_END, "    return asked[low], int(asked[low] * share)\n"),)),
    ("exchanged", "is not possible", ((_END, "    return share, asked[low]\n"),)),
    ("three quarters where half is not safe", _STAY, ((_SHARE, "    share = shares[2] if measure(asked[middle], shares[0])[1] else shares[0]\n"),)),
    ("no threshold", "a choice is 2 things", ((_END, "    return asked[low]\n"),)),
]  # fmt: skip

NAMED = "just above half"

ACCEPTED = [
    ("the smallest share that is safe, and all numbers with it", _HEAD + _SCAN),
    ("shares by halves, and numbers from the largest on, as a list", _HEAD + _DOWNWARDS),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the first choice that there is", _HEAD + "    return asked[0], shares[0]\n"),
    ("the last choice that there is", _HEAD + "    return asked[-1], shares[-1]\n"),
]
