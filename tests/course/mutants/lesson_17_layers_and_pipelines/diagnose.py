"""Answers to diagnose: see test_exercises.py."""

_CLOSE = "1e-4 * factor * right.abs().max()"

MUTANTS = [
    (
        "every difference is a sum",
        "Is there one factor for all parameters",
        (("if all(close[micro_batches].values()):", "if not (wrong <= set(tied)):"),),
    ),
    (
        "any factor is said to be statistics",
        "Is there one factor for all parameters",
        (("if all(close[micro_batches].values()):", "if False:"),),
    ),
    (
        "the factor is the number of ranks",
        "Is there one factor for all parameters",
        (
            (
                "len({action[1:] for _, action, _, _ in timeline})",
                "len({rank for rank, *_ in timeline})",
            ),
        ),
    ),
    (
        "not a digit may differ",
        "is no fault",
        ((_CLOSE, "0"),),
    ),
    (
        "wherever there are copies they are wrong",
        "are there copies that are right",
        (("    wrong = {", '    if tied:\n        return "tied copy"\n    wrong = {'),),
    ),
    (
        "copies that differ from one process are statistics",
        "Which parameters are wrong",
        (('"tied copy" if wrong <= set(tied) else ', ""),),
    ),
    (
        "a copy that is wrong, and the others too",
        "Which parameters are wrong",
        (("wrong <= set(tied)", "wrong & set(tied)"),),
    ),
    (
        "a large bubble is a fault",
        "A large bubble is no fault",
        (
            (
                "overlap = any(",
                "busy = sum(end - start for start, end in spans)\n    ranks = len({rank for rank, *_ in timeline})\n    overlap = busy / ranks / spans[-1][1] > 0.5 and any(",
            ),
        ),
    ),
    (
        "one micro-batch alone is a fault",
        "one micro-batch alone is no fault",
        ((" or micro_batches == 1", ""),),
    ),
    (
        "timelines are not looked at",
        "Do two ranks ever work at the same time",
        (('"healthy" if overlap or micro_batches == 1 else "one at a time"', '"healthy"'),),
    ),
    (
        "all forwards come first, or it is broken",
        "1F1B's order",
        (
            (
                "overlap = any(",
                'kinds = [a[0] for r, a, *_ in sorted(timeline, key=lambda e: e[2]) if r == 0]\n    overlap = "BF" not in "".join(kinds) and any(',
            ),
        ),
    ),
    (
        "the course's own comparison",
        "write that yourself",
        (
            (
                "    close = {}",
                "    from dtcourse import verify\n    verify.compare\n    close = {}",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "projections, and the busiest moment",
        """
def diagnose(timeline, gradients, expected, tied=()):
    m = 1 + max(int(action[1:]) for _, action, _, _ in timeline)
    off = []
    factors = []
    for name, right in expected.items():
        got = gradients[name].double()
        right = right.double()
        factor = float((got * right).sum() / right.square().sum())
        factors.append(factor)
        if float((got - right).abs().max()) > 1e-4 * float(right.abs().max()):
            off.append(name)
    if off and all(name in tied for name in off):
        return "tied copy"
    if off:
        straight = all(
            torch.allclose(gradients[name], m * right, rtol=1e-3, atol=1e-4 * m * float(right.abs().max()))
            for name, right in expected.items()
        )
        return "summed" if straight else "batch statistics"
    changes = sorted([(s, 1) for _, _, s, _ in timeline] + [(e - 1e-9, -1) for _, _, _, e in timeline])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return "one at a time" if most == 1 and m > 1 else "healthy"
""",
    ),
    (
        "work in all against the time from first to last",
        (
            (
                "overlap = any(later < end - 1e-9 for (_, end), (later, _) in pairwise(spans))",
                "overlap = any(b[0] < a[1] - 1e-9 for n, a in enumerate(spans) for b in spans[n + 1 :])",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        'def diagnose(timeline, gradients, expected, tied=()):\n    return "healthy"\n',
    ),
    (
        "always summed",
        'def diagnose(timeline, gradients, expected, tied=()):\n    return "summed"\n',
    ),
]
