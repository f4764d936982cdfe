"""Answers to choose_exchange: see test_exercises.py."""

_CHOICE = "    return min(seen, key=seen.get)\n"
_MESSAGES = "How many messages does each way send"
_HIDDEN = "What of the exchange is hidden"

MUTANTS = [
    (
        "at once, always",
        _MESSAGES,
        (('for way in ("at once", "two steps"):', 'for way in ("at once",):'),),
    ),
    (
        "in two steps, always",
        _HIDDEN,
        (('for way in ("at once", "two steps"):', 'for way in ("two steps",):'),),
    ),
    (
        "whole, by the better way",
        _HIDDEN,
        ((_CHOICE, "    return min((c for c in seen if c[1] == 1 or c[1] == 2), key=seen.get)[0], 1\n"),),
    ),
    (
        "as many chunks as there may be",
        _MESSAGES,
        ((_CHOICE, "    return min(seen, key=seen.get)[0], chunks[-1]\n"),),
    ),
    (
        "the first numbers only",
        _HIDDEN,
        (("    near = (0, 2) if few < many else (4, 5)\n", "    near = ()\n"), ("(1, 3)", "(0, 1)"), ("chunks[3]", "chunks[0]")),
    ),
    ("the slowest", _MESSAGES, ((_CHOICE, "    return max(seen, key=seen.get)\n"),)),
    (
        "everything is measured",
        "no more may be",
        (("(1, 3)", "range(6)"),),
    ),
    ("no way is named", "a choice is 2 things", ((_CHOICE, "    return min(seen, key=seen.get)[1]\n"),)),
    (
        "a number of chunks that is not there",
        "is not possible",
        "\ndef choose_exchange(measure, nodes, places, chunks):\n    return 'at once', 5\n",
    ),
    (
        "with its seconds",
        "a choice is 2 things",
        ((_CHOICE, "    best = min(seen, key=seen.get)\n    return *best, seen[best]\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "both ways in two chunks, then all numbers of the faster one",
        """
def choose_exchange(measure, nodes, places, chunks):
    way = min(("at once", "two steps"), key=lambda way: measure(way, 2))
    return min(((way, n) for n in chunks), key=lambda choice: measure(*choice))
""",
    ),
    (
        "uphill from three chunks, and a list",
        """
def choose_exchange(measure, nodes, places, chunks):
    seen = {(way, 2): measure(way, chunks[2]) for way in ("at once", "two steps")}
    way, at = min(seen, key=seen.get)
    for step in (1, -1):
        while 0 <= at + step < len(chunks):
            there = measure(way, chunks[at + step])
            if there >= seen[way, at]:
                break
            at += step
            seen[way, at] = there
    return [way, chunks[at]]
""",
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        "\ndef choose_exchange(measure, nodes, places, chunks):\n    return None\n",
    ),
]
