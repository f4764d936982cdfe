"""Answers to diagnose_quiet: see test_exercises.py."""

_FLIPPED = "if len(apart) == 1:"
_SKIPPED = 'return ("skipped" if sums[odd] == before else "rate"), odd'
_USED = '        for name in step["used"][0]:\n            if len({used[name] for used in step["used"]}) > 1:\n'
_ODD = "odd = min(range(ranks), key=lambda rank: values.count(values[rank]))"
_SHARED = '            return "samples", sorted(shared[0])\n'

_BY_TABLES = """
from collections import Counter


def diagnose_quiet(ranks, log):
    previous = None
    for step in log:
        count = Counter(s for read in step["read"] for s in read)
        twice = {s for s, n in count.items() if n > 1}
        who = [rank for rank in range(ranks) if twice & set(step["read"][rank])]
        if who:
            return ["samples", who]
        for name in step["used"][0]:
            values = [used[name] for used in step["used"]]
            if max(values) > min(values):
                return ["unaveraged", name]
        whole = [tuple(sorted(one.items())) for one in step["sums"]]
        usual = Counter(whole).most_common(1)[0][0]
        odd = [rank for rank in range(ranks) if whole[rank] != usual]
        if odd:
            rank = odd[0]
            if previous and whole[rank] == previous[rank]:
                return ["skipped", rank]
            return ["flipped" if len(set(whole[rank]) ^ set(usual)) == 2 else "rate", rank]
        previous = whole
    return ["healthy", None]
"""

MUTANTS = [
    (
        "a flip is another learning rate",
        "in how many tensors",
        ((_FLIPPED, "if not apart:"),),
    ),
    (
        "who has left an update out is not asked",
        "did that rank's own sums change",
        ((_SKIPPED, 'return "rate", odd'),),
    ),
    (
        "rank 0 is right",
        "which rank differs from most",
        ((_ODD, "odd = next(rank for rank in range(ranks) if values[rank] != values[0])"),),
    ),
    (
        "what ranks step with is not compared",
        "what does each rank take its step with",
        ((_USED, '        for name in step["used"][0]:\n            if False:\n'),),
    ),
    (
        "gradients before the averaging are compared",
        "which are each rank's own",
        ((_USED, '        for name in step["own"][0]:\n            if len({own[name] for own in step["own"]}) > 1:\n'),),
    ),
    ("samples are not compared", "Which ranks read the same ones", ((_SHARED, "            pass\n"),)),
    (
        "from the last step back",
        "the first step after which the sums",
        (("for number, step in enumerate(log):", "for number, step in reversed(list(enumerate(log))):"),),
    ),
]  # fmt: skip

NOTHING = [
    ("all is well", '\ndef diagnose_quiet(ranks, log):\n    return "healthy", None\n'),
    ("always rank 0", '\ndef diagnose_quiet(ranks, log):\n    return "rate", 0\n'),
]

ACCEPTED = [
    ("by counting", _BY_TABLES),
    (
        "sums as wholes first",
        (
            (
                'values = [one[apart[0]] for one in sums]',
                "values = [str(sorted(one.items())) for one in sums]",
            ),
            ("if len(apart) == 1:", "if len(apart) < 2:"),
        ),
    ),
]  # fmt: skip
