"""Answers to diagnose_balance: see test_exercises.py."""

_HEAD = "\ndef diagnose_balance(shares, seconds):\n"
_HEALTHY = "Each step's shares are the proportions"
_WAITS = "What does this rank tell in steps"
_STALE = "From which of this rank's figures"
_EXCHANGED = "Whose speed would explain"
_BEHIND = "Of which step's figures"
_PER_SAMPLE = "When all ranks end at the same time"
_EDGE = "abs(n - total * one / sum(found)) >= 1"

MUTANTS = [
    ("exchanged: with rank 0 alone", _EXCHANGED, (("if explains(exchanged(r, s)):", "if r == 0 and explains(exchanged(r, s)):"),)),
    ("exchanged: with the last rank alone", _EXCHANGED, (("if explains(exchanged(r, s)):", "if s == p - 1 and explains(exchanged(r, s)):"),)),
    ("exchanged: neighbours alone", _EXCHANGED, (("if explains(exchanged(r, s)):", "if s == r + 1 and explains(exchanged(r, s)):"),)),
    ("the last step's shares alone", _EXCHANGED, (("for t in range(1, steps):", "for t in range(steps - 1, steps):"),)),
    ("waiting is never seen", _WAITS, (("if all(longest) and shared:", "if False:"),)),
    ("waiting: never the first rank", _WAITS, (("        for r in range(p):\n            # Who", "        for r in range(1, p):\n            # Who"),)),
    ("stale is never said", _STALE, (("if explains(stale(r)):", "if False:"),)),
    ("stale: never the last rank", _STALE, (("    for r in range(p):\n        if explains(stale", "    for r in range(p - 1):\n        if explains(stale"),)),
    ("stale: the rank after", _STALE, (('return "stale", r', 'return "stale", (r + 1) % p'),)),
    ("whoever is the slowest waits", _HEALTHY, _HEAD + """    p = len(shares[0])
    last = [max(range(p), key=lambda r: one[r]) for one in seconds]
    return "waits", max(range(p), key=last.count)
"""),
    (
        "the speed is one over the seconds",
        _HEALTHY,
        (("return [n / s for n, s in zip(shares[t], seconds[t], strict=True)]", "return [1 / s for s in seconds[t]]"),),
    ),
    ("shares are rounded to the nearest", _HEALTHY, ((_EDGE, _EDGE.replace(">= 1", ">= 0.5")),)),
    ("no difference matters", _STALE, ((_EDGE, _EDGE.replace(">= 1", ">= total")),)),
    ("of the step itself", _HEALTHY, (("found = made(t - 1)", "found = made(t)"),)),
    ("not looked at since the step before the last", _STALE, (("speeds(0)[r] if one == r", "speeds(max(0, t - 2))[r] if one == r"),)),
    ("exchanged is never said", _EXCHANGED, (("if explains(exchanged(r, s)):", "if False:"),)),
    ("behind is never said", _BEHIND, (('        return "behind", None\n', '        return "not per sample", None\n'),)),
    ("the pair the other way round", _EXCHANGED, (('return "exchanged", (r, s)', 'return "exchanged", (s, r)'),)),
    ("one of the two", _EXCHANGED, (('return "exchanged", (r, s)', 'return "exchanged", r'),)),
    ("the rank after", _WAITS, (('return "waits", r', 'return "waits", (r + 1) % p'),)),
    (
        "flapping is healthy",
        _PER_SAMPLE,
        (('    return "not per sample", None\n', '    return "healthy", None\n'),),
    ),
    ("what is wrong, without where", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "each fault simulated, and the one that is off least",
        """
import torch


def diagnose_balance(shares, seconds):
    n, s = torch.tensor(shares).double(), torch.tensor(seconds).double()
    total, speed = n[0].sum(), n / s
    p = n.shape[1]

    def off(made):
        exact = total * made / made.sum(1, keepdim=True)
        return ((n[1:] - exact).abs() >= 1).any(1).sum().item()

    latest = speed[:-1]
    found = {("not per sample", None): off(1 / s[:-1])}
    found["behind", None] = off(torch.cat([torch.ones(1, p).double(), latest[:-1]]))
    for r in range(p):
        old = latest.clone()
        old[:, r] = speed[0, r]
        found["stale", r] = off(old)
        for q in range(r):
            order = list(range(p))
            order[r], order[q] = q, r
            found["exchanged", (q, r)] = off(latest[:, order])
    found["healthy", None] = off(latest) - 0.5
    kind = min(found, key=found.get)
    if kind[0] == "healthy":
        top = s.max(1, keepdim=True).values
        several = (s == top).sum(1) > 1
        for r in range(p):
            if several.any() and (s[:, r] == top[:, 0]).all():
                return ["waits", r]
    return kind
""",
    ),
    (
        "who is never below the longest of the others, and as long twice; the rest as in the solution",
        (
            (
                "            longest = [seconds[t][r] == max(seconds[t]) for t in range(steps)]\n"
                "            shared = any(seconds[t].count(max(seconds[t])) > 1 for t in range(steps))\n"
                "            if all(longest) and shared:\n",
                "            others = [max(seconds[t][:r] + seconds[t][r + 1 :]) for t in range(steps)]\n"
                "            if sum(seconds[t][r] == others[t] for t in range(steps)) >= 2:\n"
                "                if any(seconds[t][r] < others[t] for t in range(steps)):\n"
                "                    continue\n",
            ),
        ),
    ),
]

NOTHING = [
    ("always healthy", _HEAD + '    return "healthy", None\n'),
    ("always rank 0", _HEAD + '    return "stale", 0\n'),
]
