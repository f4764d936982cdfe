"""Answers to diagnose_timeline: see test_exercises.py."""

_BLOCKED = "blocked = first[1][0] - first[0][1] > 1e-6 * (first[0][1] - first[0][0])"
_FIRST = "first = sorted((start, end) for rank, _, _, _, start, end in events if rank == 0)[:2]"

MUTANTS = [
    (
        "of whole backwards only the last micro-batch's is looked for",
        "Count both halves",
        (
            (
                'if kind == "F" and not',
                'last = max(event[3] for event in events)\n        if kind == "F" and (i == last or (stage, "I", 0) in done) and not',
            ),
        ),
    ),
    (
        "any gap is a send that blocks",
        "A rank that waits for a message is not ill",
        (
            (
                _FIRST,
                "first = sorted((start, end) for rank, _, _, _, start, end in events if rank == 0)",
            ),
            (
                _BLOCKED,
                "blocked = any(b[0] - a[1] > 1e-6 * (a[1] - a[0]) for a, b in zip(first, first[1:]))",
            ),
        ),
    ),
    (
        "the last rank's gaps",
        "Between which two actions of rank 0",
        ((_BLOCKED, "blocked = False"),),
    ),
    (
        "the rank that is done last is the slow one",
        "A rank that waits for a message is not ill",
        (("means[slowest] > 1.1 * min(means.values())", "True"),),
    ),
    (
        "only a rank of twice the time is slow",
        "How long does one action take on each rank",
        (("means[slowest] > 1.1", "means[slowest] > 1.5"),),
    ),
    (
        "the fastest rank is named",
        "How long does one action take on each rank",
        (
            ("slowest = max(means, key=means.get)", "slowest = min(means, key=means.get)"),
            (
                "means[slowest] > 1.1 * min(means.values())",
                "max(means.values()) > 1.1 * means[slowest]",
            ),
        ),
    ),
    (
        "a backward-input counts as a backward",
        "Count both halves",
        (('(stage, "W", i)}', '(stage, "I", i)}'),),
    ),
    (
        "whole backwards only",
        "A rank that waits for a message is not ill",
        (('{(stage, "B", i), (stage, "W", i)}', '{(stage, "B", i)}'),),
    ),
    (
        "in seconds, not in parts of an action",
        "you say",
        ((_BLOCKED, "blocked = first[1][0] - first[0][1] > 0.1"),),
    ),
    (
        "the order of the list is taken for that of time",
        "you say",
        (
            (
                _FIRST,
                "first = [(start, end) for rank, _, _, _, start, end in events if rank == 0][:2]",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "medians of all kinds of actions",
        (
            (
                "    means = {rank: sum(each) / len(each) for rank, each in lengths.items()}\n",
                "    means = {rank: sorted(each)[len(each) // 2] for rank, each in lengths.items()}\n",
            ),
        ),
    ),
    (
        "work of a rank, from its first two actions; a count of backwards",
        (
            (
                '        if kind == "F" and not {(stage, "B", i), (stage, "W", i)} & done:\n',
                '        if kind == "F" and sum((stage, k, i) in done for k in "BW") == 0:\n',
            ),
            (_BLOCKED, "blocked = first[1][0] > first[0][1] + (first[1][1] - first[1][0]) / 100"),
        ),
    ),
]

NOTHING = [
    ("always healthy", '\ndef diagnose_timeline(events):\n    return "healthy", None\n'),
    ("always blocked", '\ndef diagnose_timeline(events):\n    return "sends block", None\n'),
    ("always rank 0", '\ndef diagnose_timeline(events):\n    return "lost gradient", 0\n'),
]
