"""Answers to diagnose_calls: see test_exercises.py."""

_ORDER = 'if calls != usual and sorted(calls) == sorted(usual):\n            return "another order", rank\n'
_SHAPE = "if sorted(call[:2] for call in calls) != sorted(call[:2] for call in usual):"
_ASIDE = '    run = [[call[:2] if call[0] == "broadcast" else call for call in calls] for calls in run]\n'
_HEAD = "\ndef diagnose_calls(run):\n"

NAMED = "order is never said"

MUTANTS = [
    ("without the lines", "what else is known of a call", (("if calls != usual and sorted(calls) == sorted(usual):", "if [call[:2] for call in calls] != [call[:2] for call in usual] and sorted(calls) == sorted(usual):"),)),
    ("the root is healthy whatever it calls", "are its other calls as the others'", ((_ASIDE, ""),)),
    ("other lines are a fault", "All is right there", ((_ASIDE, ""), ("if calls != usual and sorted(calls) == sorted(usual):", "if calls != usual and [call[:2] for call in calls] == [call[:2] for call in usual]:"),)),
    ("rank 0 is always right", "How many calls does each rank make", (("    count = most(len(calls) for calls in run)\n", "    count = len(run[0])\n"), ("    whole = [calls for calls in run if len(calls) == count]\n", "    whole = run[:1]\n"))),
    ("order is never said", "what else is known of a call", ((_ORDER, "pass\n"),)),
    ("shape is never said", "the number of elements of one call", ((_SHAPE, "if False:"),)),
    ("a missing call is never said", "How many calls does each rank make", (('            return "leaves one out", rank\n', "            continue\n"),)),
    ("order for shape", "Is it the order", (('return "another shape", rank', 'return "another order", rank'),)),
    ("counted from one", "How many calls does each rank make", (('return "leaves one out", rank', 'return "leaves one out", rank + 1'),)),
    ("a word alone", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    ("never rank 0", "which number do most ranks have", (("for rank, calls in enumerate(run):", "for rank, calls in list(enumerate(run))[1:]:"),)),
    ("never the last rank", "which number do most ranks have", (("for rank, calls in enumerate(run):", "for rank, calls in enumerate(run[:-1]):"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "rank against rank, by multisets",
        _HEAD
        + """    from collections import Counter

    ranks = range(len(run))

    def odd(of):
        values = [of(calls) for calls in run]
        return [r for r in ranks if 2 * values.count(values[r]) <= len(run)]

    for rank in odd(len):
        return "leaves one out", rank
    for rank in odd(lambda calls: Counter(call[:2] for call in calls)):
        return "another shape", rank
    for rank in odd(lambda calls: [call[:2] for call in calls]):
        return "another order", rank
    for rank in odd(lambda calls: [call[2] for call in calls if call[0] == "all_reduce"]):
        return "another order", rank
    return "healthy", None
""",
    ),
    (
        "a list, and rank 1's broadcasts under the others' lines",
        (
            (_ASIDE, "    run = [[call if call[0] != 'broadcast' else (*call[:2], '') for call in calls] for calls in run]\n"),
            ('return "another order", rank', 'return ["another order", rank]'),
        ),
    ),
]  # fmt: skip

NOTHING = [("all is well", _HEAD + '    return "healthy", None\n')]
