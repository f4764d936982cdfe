"""Answers to diagnose_training: see test_exercises.py."""

_APART = '        if sum(torch.equal(w, other) for other in weights[0]) == 1:\n            return "apart", rank\n'
_SAME = (
    '        if all(torch.equal(g, own[0]) for g in own):\n            return "same part", None\n'
)
_STEPS = "    for before, after, own in zip(weights, weights[1:], gradients, strict=False):\n"
_ALONE = '                return "alone", rank\n'

MUTANTS = [
    ("starts are equal", "before the first step", ((_APART, "            pass\n"),)),
    (
        "the rank after it started apart",
        "before the first step",
        (('return "apart", rank', 'return "apart", rank + 1'),),
    ),
    (
        "unlike rank 0 is apart",
        "before the first step",
        (
            (
                _APART,
                '        if not torch.equal(w, weights[0][0]):\n            return "apart", rank\n',
            ),
        ),
    ),
    (
        "the first step tells all",
        "Not every run goes wrong in its first step",
        ((_STEPS, _STEPS.replace("gradients, strict", "gradients[:1], strict")),),
    ),
    (
        "only rank 0 steps",
        "Whose step is its own gradient",
        (("for rank, w in enumerate(after):", "for rank, w in list(enumerate(after))[:1]:"),),
    ),
    (
        "the rank after it is alone",
        "Whose step is its own gradient",
        ((_ALONE, _ALONE.replace("rank\n", "rank + 1\n")),),
    ),
    (
        "a sum is as good",
        "How long is a step",
        (('            return "sum", None\n', '            return "healthy", None\n'),),
    ),
    ("gradients are not compared", "what does each add to the mean", ((_SAME, ""),)),
    (
        "no rounding allowed",
        "but for rounding",
        (("torch.allclose(step, rate * mean)", "torch.equal(step, rate * mean)"),),
    ),
    (
        "a word, no rank",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_training(weights, gradients, rate):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "step lengths as ratios",
        """
def diagnose_training(weights, gradients, rate):
    ranks = len(weights[0])
    for rank in range(ranks):
        others = [weights[0][r] for r in range(ranks) if r != rank]
        if all((weights[0][rank] - w).abs().max() > 0 for w in others):
            return ("apart", rank)
    for t, own in enumerate(gradients):
        mean = sum(own) / ranks
        if max((g - mean).norm() for g in own) < 1e-12 * mean.norm():
            return ("same part", None)
        taken = [(weights[t][r] - weights[t + 1][r]) / rate for r in range(ranks)]
        wrong = [r for r in range(ranks) if (taken[r] - mean).norm() > 1e-6 * mean.norm()]
        if len(wrong) == ranks:
            return ("sum", None)
        if wrong:
            return ("alone", wrong[0])
    return ("healthy", None)
""",
    ),
    (
        "in lists of numbers",
        """
def diagnose_training(weights, gradients, rate):
    first = [tuple(w.tolist()) for w in weights[0]]
    for rank, w in enumerate(first):
        if first.count(w) == 1:
            return ["apart", rank]
    if len({tuple(g.tolist()) for g in gradients[0]}) == 1:
        return ["same part", None]
    for before, after, own in zip(weights[:-1], weights[1:], gradients):
        own = [g.tolist() for g in own]
        mean = [sum(column) / len(own) for column in zip(*own)]
        for rank, (w, v) in enumerate(zip(before, after)):
            step = [(a - b) / rate for a, b in zip(w.tolist(), v.tolist())]
            if max(abs(a - b) for a, b in zip(step, mean)) > 1e-9:
                long = max(abs(a - len(own) * b) for a, b in zip(step, mean)) < 1e-9
                return ["sum", None] if long else ["alone", rank]
    return ["healthy", None]
""",
    ),
]
