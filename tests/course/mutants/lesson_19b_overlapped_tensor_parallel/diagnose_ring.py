"""Answers to diagnose_ring: see test_exercises.py."""

_ELSEWHERE = '    if any(steps[-1]["whose"] != r for r, steps in enumerate(log)):\n        return "ends elsewhere", None\n'
_LATE = '    if all(s["sent"] >= s["end"] for steps in log for s in steps[1:]):\n        return "posted late", None\n'
_DROPS = 'abs(now["total"] - now["part"] - before["total"]) > 1e-4'

MUTANTS = [
    ("where sums end is never looked at", "who needs that sum", ((_ELSEWHERE, ""),)),
    ("what hides a message is never looked at", "handing its sum to the network", ((_LATE, ""),)),
    (
        "the first rank whose last sum is wrong",
        "which rank is the one whose sum is not",
        (
            (
                "    for r in range(p):\n        for before",
                "    sums = [sum(s['part'] for steps in log for s in steps if s['whose'] == r) for r in range(p)]\n"
                "    for r in range(p):\n        if abs(log[r][-1]['total'] - sums[r]) > 1e-3:\n"
                "            return 'drops sums', r\n        for before",
            ),
        ),
    ),
    (
        "sums must be equal to the last digit",
        "rounding to single precision",
        (("> 1e-4", "> 0"),),
    ),
    (
        "the rank that waits longest is slow",
        "Which rank's own work",
        (
            (
                "        if max(found) > 1.4 * median(found):\n",
                "        waits = [sum(max(0, s['came'] - s['end']) for s in steps[1:]) for steps in log]\n"
                "        if max(found) > 1.4 * median(found) and name == 'slow rank':\n"
                "            return name, waits.index(max(waits))\n"
                "        if max(found) > 1.4 * median(found):\n",
            ),
        ),
    ),
    (
        "the link is named by who receives",
        "From which rank does the slow one come",
        (("found.index(max(found))", "(found.index(max(found)) + (name == 'slow link')) % p"),),
    ),
    (
        "a message longer than a product is slow",
        "may all messages take longer",
        (("1.4 * median(found)", "(1.4 if name == 'slow rank' else 0.0) * median(found) + (name == 'slow link') * 1.2 * median(products)"),),
    ),
    (
        "two hundredths longer is slow",
        "How much do times differ",
        (("1.4 * median(found)", "1.001 * median(found)"),),
    ),
    (
        "the slow rank is the one after it",
        "Which rank's own work",
        (('return name, found.index(max(found))', 'return name, (found.index(max(found)) + (name == "slow rank")) % p'),),
    ),
    ("a diagnosis of one thing", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
]  # fmt: skip
NAMED = "the rank that waits longest is slow"

ACCEPTED = [
    (
        "all times as tables, the largest over the second smallest",
        """
import torch


def diagnose_ring(log):
    p = len(log)
    table = {k: torch.tensor([[float(s[k]) if s[k] is not None else 0.0 for s in steps] for steps in log]) for k in log[0][0]}
    if not torch.equal(table["whose"][:, -1].long(), torch.arange(p)):
        return "ends elsewhere", None
    came_with = table["total"] - table["part"] - table["total"].roll(1, 0).roll(1, 1)
    wrong = (came_with[:, 1:].abs() > 1e-3).any(1)
    if wrong.any():
        return "drops sums", int(wrong.int().argmax())
    if (table["sent"] - table["begin"])[:, 1:].mean() > 0:
        return "posted late", None
    for name, seconds in (
        ("slow link", (table["came"].roll(-1, 0) - table["sent"])[:, 1:].mean(1)),
        ("slow rank", (table["end"] - table["begin"]).mean(1)),
    ):
        if seconds.max() > 1.4 * seconds.sort().values[1]:
            return name, int(seconds.argmax())
    return "healthy", None
""",
    ),
    (
        "times first, and a list",
        (
            (
                'return "healthy", None',
                'return ["healthy", None]',
            ),
            ("1.4 * median(found)", "1.5 * sorted(found)[-2]"),
        ),
    ),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef diagnose_ring(log):\n    return "healthy", None\n'),
    ("always the first rank", '\ndef diagnose_ring(log):\n    return "slow rank", 0\n'),
    ("always late", '\ndef diagnose_ring(log):\n    return "posted late", None\n'),
]
