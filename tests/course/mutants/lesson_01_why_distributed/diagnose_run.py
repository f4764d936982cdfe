"""Answers to diagnose_run: see test_exercises.py."""

_CLOSE = "(a - b).abs().max() < 1e-3 * gradients.abs().max()"
_SHARE = """    for rank in range(p):
        if any(same(gradients[rank], gradients[lower]) for lower in range(rank)):
            return "same share", rank
"""
_START = """    for rank in range(p):
        if not same(before[rank], before.median(0).values):
            return "other start", rank
"""
_SUM = '"summed": (p * mean, None), '
_OUT = "(p * mean - gradients[rank]) / (p - 1)"

NAMED = "shares are not compared"

MUTANTS = [
    ("equal to the last bit", "how near is equal", ((_CLOSE, "torch.equal(a, b)"),)),
    ("nearly anything is equal", "how near is equal", ((_CLOSE, _CLOSE.replace("1e-3", "1")),)),
    ("the start is not looked at", "before the step", ((_START, ""),)),
    ("shares are not compared", "When are they equal", ((_SHARE, ""),)),
    (
        "the lower of two ranks with one share",
        "on which rank is that a mistake",
        ((_SHARE, _SHARE.replace("lower in range(rank)", "lower in range(rank + 1, p)")),),
    ),
    (
        "only that all ranks agree after the step",
        "How long is their step",
        (
            (
                "    for name, (right, rank) in",
                '    if same(after, after[0]):\n        return "healthy", None\n    for name, (right, rank) in',
            ),
        ),
    ),
    ("no sum", "How long is their step", ((_SUM, ""),)),
    (
        "the learning rate is forgotten",
        "how near is equal",
        (("(before - after) / lr", "before - after"),),
    ),
    (
        "the rank before it",
        "Of which ranks' gradients",
        ((_OUT, "(p * mean - gradients[rank - 1]) / (p - 1)"),),
    ),
    (
        "a name without a place",
        "A diagnosis is two things",
        (("return name, rank", "return name"),),
    ),
    (
        "rank 0 begins with the right weights, always",
        "which one has not",
        (
            (
                "for rank in range(p):\n        if not same(before",
                "for rank in range(1, p):\n        if not same(before",
            ),
        ),
    ),
    (
        "equal shares are looked for beside rank 0 only",
        "When are they equal",
        (
            (
                "any(same(gradients[rank], gradients[lower]) for lower in range(rank))",
                "rank and same(gradients[rank], gradients[0])",
            ),
        ),
    ),
    (
        "rank 0 is never left out",
        "Of which ranks' gradients is it the mean",
        (("min(range(p), key", "min(range(1, p), key"),),
    ),
]

NOTHING = [
    (
        "knows nothing",
        """
def diagnose_run(before, gradients, after, lr):
    return "unknown", None
""",
    ),
]

ACCEPTED = [
    (
        "in double precision, with torch.allclose",
        """
def diagnose_run(before, gradients, after, lr):
    before, gradients, after = before.double(), gradients.double(), after.double()
    p = len(before)
    near = lambda a, b: torch.allclose(a, b, rtol=1e-3, atol=1e-3)
    odd = [r for r in range(p) if sum(near(before[r], other) for other in before) == 1]
    if odd:
        return "other start", odd[0]
    for a in range(p):
        for b in range(a + 1, p):
            if near(gradients[a], gradients[b]):
                return "same share", b
    step = (before - after) / lr
    if not near(step, step[:1].expand_as(step)):
        return "not averaged", None
    step = step.mean(0)
    if near(step, gradients.mean(0)):
        return "healthy", None
    if near(step, gradients.sum(0)):
        return "summed", None
    return "left out", min(
        range(p),
        key=lambda r: (step - torch.cat([gradients[:r], gradients[r + 1 :]]).mean(0)).norm(),
    )
""",
    ),
    (
        "what the weights should be, by the largest difference",
        """
def diagnose_run(before, gradients, after, lr):
    ranks = range(len(before))
    scale = lr * gradients.abs().mean()

    def far(a, b):
        return (a - b).abs().max() > scale / 50

    for rank in ranks:
        if sum(bool(far(before[rank], before[other])) for other in ranks) > 1:
            return ("other start", rank)
    for rank in ranks:
        for other in range(rank):
            if not far(lr * gradients[rank], lr * gradients[other]):
                return ("same share", rank)
    if not far(after, before - lr * gradients.mean(0)):
        return ("healthy", None)
    if not far(after, before - lr * gradients):
        return ("not averaged", None)
    for rank in ranks:
        others = gradients[[other for other in ranks if other != rank]].mean(0)
        if not far(after, before - lr * others):
            return ("left out", rank)
    return ("summed", None)
""",
    ),
]
