"""Answers to choose_axes: see test_exercises.py."""

_HIDES = "Which messages travel while a rank computes"
_SLOWER = "over the slower links"
_FEW = '        tried = [("ring", "ring"), ("gather", "gather"), ("Ulysses", "ring")]\n'
_MANY = '        tried = [("Ulysses", "Ulysses"), ("Ulysses", "ring"), ("ring", "Ulysses")]\n'
_TAKEN = "    return min(tried, key=lambda choice: measure(*choice))\n"

MUTANTS = [
    (
        "one way on all ranks",
        _HIDES,
        ((_MANY, _FEW.replace('"Ulysses", "ring"', '"Ulysses", "Ulysses"')),),
    ),
    (
        "with Ulysses on one axis or both, always",
        "which way needs every key-value head",
        ((_FEW, _MANY),),
    ),
    (
        "Ulysses inside the node, always",
        _SLOWER,
        ((_MANY, _MANY.replace('"ring", "Ulysses"', '"Ulysses", "gather"')),),
    ),
    (
        "few key-value heads are passed on, always",
        _SLOWER,
        ((_FEW, '        tried = [("ring", "ring")]\n'),),
    ),
    (
        "the axes are taken for each other",
        _HIDES,
        ((_TAKEN, _TAKEN.replace("return min", "return tuple(min").rstrip() + "[::-1])\n"),),
    ),
    ("the slowest", _HIDES, ((_TAKEN, _TAKEN.replace("min(", "max(")),)),
    (
        "everything is measured",
        "no more may be",
        (
            (
                _TAKEN,
                '    tried += [("gather", "Ulysses"), ("Ulysses", "gather")]\n' + _TAKEN,
            ),
        ),
    ),
    (
        "gathers inside, and passes on between nodes",
        "is not possible",
        ((_TAKEN, '    return "gather", "ring"\n'),),
    ),
    (
        "one axis only",
        "a choice is 2 things",
        ((_TAKEN, _TAKEN.rstrip() + "[:1]\n"),),
    ),
]

ACCEPTED = [
    (
        "by the query heads of a key-value head",
        (("if kv_heads < 4:", "if heads > 2 * kv_heads:"),),
    ),
    (
        "one after the other, and for few key-value heads two of them",
        """
def choose_axes(measure, tokens, heads, kv_heads):
    if kv_heads in (1, 2):
        ring, gather = measure("ring", "ring"), measure("gather", "gather")
        return ("ring", "ring") if ring <= gather else ("gather", "gather")
    best, least = None, float("inf")
    for choice in (("ring", "Ulysses"), ("Ulysses", "ring"), ("Ulysses", "Ulysses")):
        (seconds,) = measure(*choice)
        if seconds < least:
            best, least = choice, seconds
    return list(best)
""",
    ),
]

NOTHING = [
    (
        "Ulysses",
        '\ndef choose_axes(measure, tokens, heads, kv_heads):\n    return "Ulysses", "Ulysses"\n',
    ),
    (
        "the ring",
        '\ndef choose_axes(measure, tokens, heads, kv_heads):\n    return "ring", "ring"\n',
    ),
]
