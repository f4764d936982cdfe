"""Answers to choose_host: see test_exercises.py."""

_RETURN = "    return min((taken, choice) for choice, (needed, taken) in seen.items() if needed <= free)[1]\n"
_WAIT = "for which layers does it wait"

MUTANTS = [
    (
        "nothing is moved where it fits",
        _WAIT,
        ((_RETURN, "    if peak <= free:\n        return none\n" + _RETURN),),
    ),
    (
        "everything is moved, as offload_policy does",
        _WAIT,
        """
def choose_host(measure, free, sizes):
    return tuple(True for _ in sizes)
""",
    ),
    (
        "from the first layer on, until it fits",
        "Whose gradients come first in backward",
        """
def choose_host(measure, free, sizes):
    for n in range(len(sizes) + 1):
        choice = tuple(i < n for i in range(len(sizes)))
        if measure(*choice)[0] <= free:
            return choice
""",
    ),
    (
        "from the last layer on, whatever its size",
        "how many bytes travel between",
        """
def choose_host(measure, free, sizes):
    tried = [tuple(i >= n for i in range(len(sizes))) for n in range(len(sizes) + 1)]
    return min((measure(*c)[1], c) for c in tried if measure(*c)[0] <= free)[1]
""",
    ),
    (
        "the fewest bytes that make it fit",
        "Is what just fits also the fastest",
        """
def choose_host(measure, free, sizes):
    peak, _ = measure(*[False] * len(sizes))
    def moved(choice):
        return sum(size for size, there in zip(sizes, choice) if there)
    every = product((False, True), repeat=len(sizes))
    return min((c for c in every if peak - 8 * moved(c) <= free), key=moved)
""",
    ),
    (
        "the largest layers",
        "Whose gradients come first in backward",
        """
def choose_host(measure, free, sizes):
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    tried = [tuple(i in order[:n] for i in range(len(sizes))) for n in range(len(sizes) + 1)]
    return min((measure(*c)[1], c) for c in tried if measure(*c)[0] <= free)[1]
""",
    ),
    (
        "one layer at most",
        _WAIT,
        (("        if len(seen) < 12:\n", "        if len(seen) < 12 and sum(choice) == 5:\n"),),
    ),
    (
        "the fastest, whether it fits or not",
        "which does not fit",
        ((_RETURN, _RETURN.replace(" if needed <= free", "")),),
    ),
    (
        "every choice is measured",
        "no more may be",
        (("        if len(seen) < 12:\n", "        if True:\n"),),
    ),
    (
        "numbers for True and False",
        "whether its states are on the host",
        ((_RETURN, _RETURN.replace("return min(", "return tuple(map(int, min(").replace("[1]\n", "[1]))\n")),),
    ),
    (
        "the time, too",
        "a choice is 5 things",
        ((_RETURN, _RETURN.replace("[1]\n", "\n")),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_host(*gpu):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "in the order of bytes times the layers that are nearer to the input's end",
        """
def choose_host(measure, free, sizes):
    layers = len(sizes)
    def way(choice):
        return sum((layers - i) * size for i, size in enumerate(sizes) if choice[i])
    peak, _ = measure(*[False] * layers)
    fits = [
        c for c in product((True, False), repeat=layers)
        if peak - 8 * sum(size for size, there in zip(sizes, c) if there) <= free
    ]
    found = {c: measure(*c) for c in sorted(fits, key=way)[:11]}
    return min(found, key=lambda c: (found[c][0] > free, found[c][1]))
""",
    ),
    ("a list", ((_RETURN, _RETURN.replace("return ", "return list(").replace("[1]\n", "[1])\n")),)),
]  # fmt: skip
