"""Answers to diagnose_silent: see test_exercises.py."""

_TWICE = '            return ("alone", None) if number == 0 else ("repeated", twice[0])\n'
_FROZEN = '            return "frozen", number\n'
_KEPT = '            return "kept", number\n'
_NEAR = "return (a - b).abs().max() <= 1e-4 * (1 + b.abs().max())"
_LEFT = "                if alike(used[0], mean - own[rank] / ranks):\n"
_STEPS = "    for number, step in enumerate(log):\n"

MUTANTS = [
    ("whoever reads twice is alone", "which of them is not rank 0", ((_TWICE, '            return "alone", None\n'),)),
    ("whoever is alone reads twice", "whose gradients are in what it uses", ((_TWICE, '            return "repeated", twice[0]\n'),)),
    ("the rank that is read from", "which of them is not rank 0", ((_TWICE, _TWICE.replace("twice[0])", "0)")),)),
    ("counted from one", "first change nothing", ((_FROZEN, '            return "frozen", number + 1\n'),)),
    ("gradients that are kept, from one", "first more than the mean", ((_KEPT, '            return "kept", number + 1\n'),)),
    ("to the last digit", "All is right there", ((_NEAR, "return (a == b).all()"),)),
    ("the mean of the others", "still divided by the number of all", ((_LEFT, "                if alike(used[0], (mean * ranks - own[rank]) / (ranks - 1)):\n"),)),
    ("the first step alone", "first change nothing", ((_STEPS, "    for number, step in enumerate(log[:1]):\n"),)),
    ("the last step alone", "whose gradients are in what it uses", ((_STEPS, "    for number, step in [(len(log) - 1, log[-1])]:\n"),)),
    ("a left-out rank is kept", "Whose gradient is missing", ((_LEFT, "                if False:\n"),)),
    ("rank 0 is never left out", "Whose gradient is missing", (("for rank in range(ranks):", "for rank in range(1, ranks):"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "in plain Python, by what each mistake would give",
        """
def diagnose_silent(ranks, lr, log):
    def near(a, b):
        return all(abs(p - q) < 1e-3 * (1 + abs(q)) for p, q in zip(a, b))

    sets = [[frozenset(samples) for samples in step["read"]] for step in log]
    if sets[0][0] & sets[0][1]:
        return "alone", None
    for step in sets:
        for rank in range(1, ranks):
            if step[rank] & step[0]:
                return "repeated", rank
    for number, step in enumerate(log):
        for before, after, used in zip(step["before"], step["after"], step["used"]):
            if not near(after, [w - lr * g for w, g in zip(before, used)]):
                return "frozen", number
    previous = None
    for number, step in enumerate(log):
        mean = [sum(each) / ranks for each in zip(*step["own"])]
        used = step["used"][0]
        if previous and not near(used, mean) and near(used, [a + b for a, b in zip(mean, previous)]):
            return "kept", number
        for rank in range(ranks):
            rest = [sum(g[i] for r, g in enumerate(step["own"]) if r != rank) / ranks for i in range(len(mean))]
            if near(used, rest) and not near(used, mean):
                return "left out", rank
        previous = used
    return "healthy", None
""",
    ),
    ("a list", ((_FROZEN, '            return ["frozen", number]\n'),)),
    ("a wider tolerance", ((_NEAR, "return (a - b).abs().max() <= 3e-4 * (1 + b.abs().max())"),)),
]

NOTHING = [
    ("all is well", '\ndef diagnose_silent(ranks, lr, log):\n    return "healthy", None\n'),
]
