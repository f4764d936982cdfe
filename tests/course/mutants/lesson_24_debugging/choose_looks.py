"""Answers to choose_looks: see test_exercises.py."""

_FIRST = "choices, first = (2, 3, 4, 6, 8, 12, 16, 24), 6"
_BEST = "return (min(seen, key=seen.get),)"
_AGAIN = "again = max(seen[first] - steps / first * stretch, 0.0) / stretch"
_COST = "return steps / every * (every * step_seconds + look_seconds) / good"
_TRIED = "sorted(choices, key=predicted)[:3]"

_AROUND = """
def choose_looks(measure, steps, step_seconds, look_seconds):
    choices, seen = [2, 3, 4, 6, 8, 12, 16, 24], {}

    def took(place):
        if place not in seen:
            seen[place] = measure(choices[place])[0]
        return seen[place]

    # A valley: of four numbers, the lower side is gone on with.
    low, high = (3, 5) if look_seconds > step_seconds else (0, 3)
    if took(low) < took(high):
        for place in (low + 1, low - 1):
            if place >= 0:
                took(place)
    else:
        for place in (high - 1, high + 1):
            took(place)
    return [choices[min(seen, key=seen.get)]]
"""

MUTANTS = [
    ("looks cost nothing", "How much of the run are looks", ((_BEST, "return (2,)"),)),
    ("seldom, for looks cost time", "How long is it from one fault", ((_BEST, "return (12,)"),)),
    (
        "nothing is ever spoiled",
        "How long is it from one fault",
        ((_AGAIN, "again = 0.0"), (_BEST, "return (min(choices, key=predicted),)")),
    ),
    (
        "the looks are left out",
        "How much of the run are looks",
        ((_COST, "return steps * step_seconds / good"), (_BEST, "return (min(choices, key=predicted),)")),
    ),
    ("all are measured", "no more may be", ((_TRIED, "choices"),)),
    ("between the choices", "is not possible", ((_BEST, "return (5,)"),)),
    ("a number", "a choice is 1 things", ((_BEST, "return min(seen, key=seen.get)"),)),
]  # fmt: skip

NOTHING = [
    ("none", "\ndef choose_looks(measure, steps, step_seconds, look_seconds):\n    return None\n"),
    (
        "the longest",
        "\ndef choose_looks(measure, steps, step_seconds, look_seconds):\n    return (24,)\n",
    ),
]

ACCEPTED = [
    ("down the valley, without a formula", _AROUND),
    ("from another first choice", ((_FIRST, "choices, first = (2, 3, 4, 6, 8, 12, 16, 24), 8"),)),
]  # fmt: skip
