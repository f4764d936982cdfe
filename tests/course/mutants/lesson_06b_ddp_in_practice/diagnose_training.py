"""Answers to diagnose_training: see test_exercises.py."""

_START = '        if sum(torch.equal(w, other) for other in weights[0]) == 1:\n            return "start", rank\n'
_SAME = '        if all(torch.allclose(g, own[0]) for g in own):\n            return "same part", None\n'
_RIGHT = "        if torch.allclose(taken, mean):\n"
_OWN = '        if torch.allclose(taken, own[0]):\n            return "no_sync", step\n'
_SUM = '        return "sum" if torch.allclose(taken, mean * len(own)) else "unweighted", None\n'
_SHARE = "share = torch.tensor(counts[step], dtype=torch.double) / sum(counts[step])"

MUTANTS = [
    ("starts are equal", "and from when on", ((_START, "            pass\n"),)),
    (
        "the rank after it has the old checkpoint",
        "and from when on",
        (('return "start", rank', 'return "start", rank + 1'),),
    ),
    (
        "unlike rank 0 is apart",
        "and from when on",
        (
            (
                _START,
                '        if not torch.equal(w, weights[0][0]):\n            return "start", rank\n',
            ),
        ),
    ),
    (
        "parts are alike",
        "Does every sample of a step weigh the same",
        ((_SHARE, "share = torch.ones(len(own), dtype=torch.double) / len(own)"),),
    ),
    (
        "the first step tells all",
        "Not every job goes wrong in its first step",
        (("enumerate(gradients):", "enumerate(gradients[:1]):"),),
    ),
    (
        "the step after it",
        "in which steps",
        (('return "no_sync", step', 'return "no_sync", step + 1'),),
    ),
    (
        "a sum is as good",
        "How long is a step",
        ((_SUM, _SUM.replace('"sum"', '"healthy"')),),
    ),
    (
        "whatever is no sum is healthy",
        "How much does one sample of each rank weigh",
        ((_SUM, _SUM.replace('"unweighted"', '"healthy"')),),
    ),
    ("gradients are not compared", "what does each add to the mean", ((_SAME, ""),)),
    (
        "no rounding allowed",
        "which of the differences is rounding",
        ((_RIGHT, "        if torch.equal(taken, mean):\n"),),
    ),
    (
        "a word, no place",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_training(weights, gradients, counts, lr):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "the step as a combination of the ranks' gradients",
        """
def diagnose_training(weights, gradients, counts, lr):
    ranks = len(weights[0])
    for rank in range(ranks):
        others = [weights[0][r] for r in range(ranks) if r != rank]
        if all((weights[0][rank] - w).abs().max() > 0 for w in others):
            return ("start", rank)
    if all((g - gradients[0][0]).norm() < 1e-9 for g in gradients[0]):
        return ("same part", None)
    for t, own in enumerate(gradients):
        rows = torch.stack(own)
        shares = torch.tensor(counts[t], dtype=torch.double)
        taken = torch.stack([(weights[t][r] - weights[t + 1][r]) / lr for r in range(ranks)])
        guesses = {
            "healthy": (shares / shares.sum()) @ rows,
            "sum": ranks * (shares / shares.sum()) @ rows,
            "unweighted": rows.mean(0),
            "no_sync": rows,
        }
        found = min(guesses, key=lambda name: (taken - guesses[name]).norm())
        if found != "healthy" and (taken - guesses["healthy"]).norm() > 1e-7:
            return (found, t if found == "no_sync" else None)
    return ("healthy", None)
""",
    ),
    (
        "in lists of numbers",
        """
def diagnose_training(weights, gradients, counts, lr):
    first = [tuple(w.tolist()) for w in weights[0]]
    for rank, w in enumerate(first):
        if first.count(w) == 1:
            return ["start", rank]
    for t, own in enumerate(gradients):
        own, near = [g.tolist() for g in own], lambda a, b: max(abs(x - y) for x, y in zip(a, b)) < 1e-8
        if all(near(g, own[0]) for g in own):
            return ["same part", None]
        mean = [sum(n * g for n, g in zip(counts[t], column)) / sum(counts[t]) for column in zip(*own)]
        step = [(a - b) / lr for a, b in zip(weights[t][1].tolist(), weights[t + 1][1].tolist())]
        if near(step, mean):
            continue
        if near(step, own[1]):
            return ["no_sync", t]
        if near(step, [len(own) * one for one in mean]):
            return ["sum", None]
        return ["unweighted", None]
    return ["healthy", None]
""",
    ),
]
