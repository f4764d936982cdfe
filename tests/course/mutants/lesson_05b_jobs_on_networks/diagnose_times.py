"""Answers to diagnose_times: see test_exercises.py."""

MUTANTS = [
    ("one scale for all pairs", "Of which pairs are the times to be compared", (("crossing[a, b] == kind)", "True)"), ('    raise ValueError("more than one part is slow")', '    return "card", 0'))),
    ("noise taken for a fault", "how far apart are two", (("> 1.25 *", "> 1.03 *"), ('    raise ValueError("more than one part is slow")', '    return "card", 0'))),
    (
        "the median is healthy",
        "Half of the times between nodes can be slow",
        (
            ("        kind: min(seconds[a][b] for a, b in pairs if crossing[a, b] == kind)", "        kind: torch.stack([seconds[a][b] for a, b in pairs if crossing[a, b] == kind]).median()"),
            ('    raise ValueError("more than one part is slow")', '    return "healthy", None'),
        ),
    ),
    ("the cable from its other end", "in which direction", (('return "cable", next(iter(slow))', 'return "cable", next(iter(slow))[::-1]'),)),
    (
        "the longest time is a cable",
        "you say ('cable'",
        (("    if len(slow) == 1:\n", "    if slow:\n"), ("next(iter(slow))", "max(slow, key=lambda pair: float(seconds[pair[0]][pair[1]]))")),
    ),
    (
        "what it sends alone",
        "Which rank is part of every pair",
        (("if slow == {pair for pair in pairs if r in pair}", "if slow == {pair for pair in pairs if r == pair[0]}"), ('raise ValueError("more than one part is slow")', 'return "healthy", None')),
    ),
    (
        "a card is looked for by its first rank",
        "as fast as ever inside the node",
        (("            return \"card\", k\n", "            return \"card\", k * g\n"),),
    ),
    (
        "a rank wherever many are slow",
        "as fast as ever inside the node",
        (("        if slow == {pair for pair in pairs if r in pair}:", "        if sum(r in pair for pair in slow) >= p - g:"),),
    ),
    (
        "everything is well",
        "is part of every pair",
        (("    if not slow:\n", "    if len(slow) != 1:\n"),),
    ),
    ("rank 0 is never slow", "part of every pair that is slow", (("for r in range(p):", "for r in range(1, p):"), ("raise ValueError(\"more than one part is slow\")", "return \"rank\", 1"))),
    ("the first card is never slow", "what is a healthy one then", (("for k in range(p // g):", "for k in range(1, p // g):"), ("raise ValueError(\"more than one part is slow\")", "return \"card\", 1"))),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef diagnose_times(seconds, g):\n    return "healthy", None\n'),
]

ACCEPTED = [
    (
        "with tensors: each explanation against the whole matrix",
        """
def diagnose_times(seconds, g):
    p = len(seconds)
    x = seconds.double()
    rank = torch.arange(p)
    cross = (rank[:, None] // g) != (rank[None, :] // g)
    inside = ~cross & ~torch.eye(p, dtype=torch.bool)
    slow = (cross & (x > 1.3 * x[cross].min())) | (inside & (x > 1.3 * x[inside].min()))
    n = int(slow.sum())
    if n == 0:
        return "healthy", None
    if n == 1:
        return "cable", tuple(slow.nonzero()[0].tolist())
    if (slow & inside).any():
        return "rank", int((slow.sum(0) + slow.sum(1)).argmax())
    touched = (slow.sum(0) + slow.sum(1)).view(-1, g).sum(1)
    if n == 2 * (p - g) * g:
        return "card", int(touched.argmax())
    return "rank", int((slow.sum(0) + slow.sum(1)).argmax())
""",
    ),
    (
        "counting, rank by rank, in a list",
        """
def diagnose_times(seconds, g):
    t = [[float(v) for v in row] for row in seconds]
    p = len(t)
    near = min(t[a][b] for a in range(p) for b in range(p) if a != b and a // g == b // g)
    far = min(t[a][b] for a in range(p) for b in range(p) if a // g != b // g)
    slow = [(a, b) for a in range(p) for b in range(p) if a != b and t[a][b] > 1.2 * (near if a // g == b // g else far)]
    if not slow:
        return ["healthy", None]
    if len(slow) == 1:
        return ["cable", list(slow[0])]
    ranks = [r for r in range(p) if all(r in pair for pair in slow)]
    if ranks:
        return ["rank", ranks[0]]
    return ["card", next(k for k in range(p // g) if all(k in (a // g, b // g) for a, b in slow))]
""",
    ),
]
