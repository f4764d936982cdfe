"""Answers to diagnose_means: see test_exercises.py."""

_ALIKE = '    if is_so(alike=True):\n        return "alike", None\n'
_ALL = '    if is_so(everyone=True):\n        return "all samples", None\n'
_LOST = '        if is_so(lost=client):\n            return "lost", client\n'
_LATE = '        if is_so(late=client):\n            return "late", client\n'
_CLOSE = "torch.allclose(models[t] + moved, models[t + 1], rtol=1e-5, atol=1e-5)"
_CLIENTS = "    for client in range(len(samples)):\n"
_BEFORE = "            before[S] = changes[t, S]\n"
_HEAD = "\nimport torch\n\n\ndef diagnose_means(models, changes, drawn, samples):\n"

# The lesson's: how much of the changes' length is left in x's.
_LESSONS = (
    _HEAD
    + """    for t, S in enumerate(drawn):
        kept = (models[t + 1] - models[t]).norm() / changes[t, S].norm(dim=1).mean()
        if kept > 1:
            return "alike", None
        if kept < 0.1:
            return "lost", S[0]
    return "healthy", None
"""
)

MUTANTS = [
    ("the lesson's share of the lengths, and nothing else", "and by how much should it", _LESSONS),
    ("alike is never said", "and by how much should it", ((_ALIKE, ""),)),
    ("all samples is never said", "How far along it", ((_ALL, ""),)),
    ("lost is never said", "What is missing from x", ((_LOST, ""),)),
    ("late is never said", "And at the second", ((_LATE, ""),)),
    ("lost: the client after it", "What is missing from x", ((_LOST, _LOST.replace('"lost", client', '"lost", client + 1')),)),
    ("late: no client", "And at the second", ((_LATE, _LATE.replace('late", client', 'late", None')),)),
    ("never the last client", "What is missing from x", ((_CLIENTS, "    for client in range(len(samples) - 1):\n"),)),
    ("never the first client", "What is missing from x", ((_CLIENTS, "    for client in range(1, len(samples)):\n"),)),
    (
        "only the first round is looked at",
        "And at the second",
        (("for t, S in enumerate(drawn):", "for t, S in enumerate(drawn[:1]):"),),
    ),
    ("late: the change of the round before", "And at the second", ((_BEFORE, "            before = changes[t]\n"),)),
    ("late: nothing ever comes", "What is missing from x", ((_BEFORE, ""), (_LOST, _LOST.replace("lost=", "late=").replace('"lost"', '"late"')))),
    ("lost: its samples are not counted either", "What is missing from x", (("sum(weights.values())", "sum(w for k, w in weights.items() if k != lost)"),)),
    ("the sum is not divided", "What does a right server make", (("(sum(samples) if everyone else sum(weights.values()))", "1"),)),
    ("the number of clients drawn", "What does a right server make", (("sum(weights.values())", "len(S)"),)),
    (
        "a tolerance that single precision does not meet",
        "rounded to single precision",
        ((_CLOSE, "torch.allclose(models[t] + moved, models[t + 1], rtol=0.0, atol=1e-13)"),),
    ),
    ("a tolerance that meets everything", "and by how much should it", ((_CLOSE, "torch.allclose(models[t] + moved, models[t + 1], atol=99.0)"),)),
    ("what is wrong, without a client", "A diagnosis is two things", ((_ALIKE, _ALIKE.replace('"alike", None', '"alike"')),)),
]  # fmt: skip

ACCEPTED = [
    (
        "the weights that x's moves show, by least squares",
        _HEAD
        + """    moved, everyone = models.diff(dim=0), sum(samples)
    shares = []
    for t, S in enumerate(drawn):
        found = torch.linalg.lstsq(changes[t, S].T, moved[t][:, None]).solution.flatten()
        left = (changes[t, S].T @ found - moved[t]).abs().max().item()
        shares.append((S, found, left))

    def same(a, b):
        return abs(float(a) - float(b)) < 1e-3

    def by_samples(S):
        return [samples[k] / sum(samples[j] for j in S) for k in S]

    def all_same(right):
        return all(left < 1e-4 and all(map(same, found, right(S))) for S, found, left in shares)

    if all_same(by_samples):
        return "healthy", None
    if all_same(lambda S: [1 / len(S)] * len(S)):
        return "alike", None
    if all_same(lambda S: [samples[k] / everyone for k in S]):
        return "all samples", None
    for client in range(len(samples)):
        if all_same(lambda S: [share * (k != client) for share, k in zip(by_samples(S), S)]):
            return "lost", client
    for client in range(len(samples)):
        before, fits = torch.zeros_like(moved[0]), True
        for t, S in enumerate(drawn):
            rest = sum((s * changes[t, k] for s, k in zip(by_samples(S), S) if k != client), 0 * before)
            if client in S:
                rest = rest + samples[client] / sum(samples[j] for j in S) * before
                before = changes[t, client]
            fits = fits and (rest - moved[t]).abs().max() < 1e-4
        if fits:
            return "late", client
    return "healthy", None
""",
    ),
    (
        "in the relative 2-norm of what a round moves",
        (
            (
                _CLOSE,
                "(models[t] + moved - models[t + 1]).norm() <= 1e-4 * (1e-3 + changes[t].norm())",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_means(models, changes, drawn, samples):\n    return "healthy", None\n',
    ),
    (
        "always alike",
        '\ndef diagnose_means(models, changes, drawn, samples):\n    return "alike", None\n',
    ),
]
