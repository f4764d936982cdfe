"""Answers to diagnose_numbers: see test_exercises.py."""

_CLIPPED = (
    '        "clipped while scaled": begins("norm", lambda norm, usual: norm > 20 * usual),\n'
)
_LOST = '        "lost gradients": begins("zeros", lambda zeros, usual: zeros > usual + 0.2),\n'
_MASTERS = '        "no masters": begins("moved", lambda moved, usual: moved < 0.8 * usual),\n'
_RETURN = "            return kind, step\n"

MUTANTS = [
    (
        "whatever makes weights stand still",
        "Do their gradients exist",
        ((_CLIPPED + _LOST + _MASTERS, _MASTERS + _LOST + _CLIPPED),),
    ),
    (
        "looks at weights before norms",
        "multiplied by here",
        ((_CLIPPED + _LOST + _MASTERS, _LOST + _MASTERS + _CLIPPED),),
    ),
    (
        "weights are never looked at",
        "reach fewer weights",
        ((_MASTERS, ""),),
    ),
    (
        "a small scale is a fault",
        "a small scale is no fault",
        (
            (
                _LOST,
                '        "lost gradients": begins("scale", lambda scale, usual: scale < 2.0**20),\n',
            ),
        ),
    ),
    (
        "skipped steps count",
        "A skipped step moves nothing",
        (
            ('if math.isfinite(log[step]["norm"])]', "]"),
            (
                "        for step in reversed(taken):\n            if not is_wrong(log[step][name], usual):\n"
                "                break\n            first = step\n",
                "        for step in reversed(taken):\n            if is_wrong(log[step][name], usual):\n"
                "                first = step\n",
            ),
        ),
    ),
    (
        "steps counted from one",
        "from which step on",
        ((_RETURN, "            return kind, step + 1\n"),),
    ),
    (
        "a word, no step",
        "A diagnosis is two things",
        ((_RETURN, "            return kind\n"),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_numbers(log):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "by the last ten steps, then backwards",
        """
def diagnose_numbers(log):
    norms, zeros, moved = (torch.tensor([step[name] for step in log]) for name in ("norm", "zeros", "moved"))
    taken = norms.isfinite()
    if norms[taken][-5:].min() > 100:
        wrong, kind = norms > 100, "clipped while scaled"
    elif zeros[taken][-5:].min() > 0.3:
        wrong, kind = zeros > 0.3, "lost gradients"
    elif moved[taken][-5:].max() < 0.8:
        wrong, kind = moved < 0.8, "no masters"
    else:
        return "healthy", None
    right = (taken & ~wrong).nonzero().max().item()
    return kind, right + 1 + int(taken[right + 1 :].nonzero()[0])
""",
    ),
    (
        "the largest change between neighbours",
        """
def diagnose_numbers(log):
    taken = [(i, step) for i, step in enumerate(log) if step["norm"] < float("inf")]
    end = [step for _, step in taken[-5:]]
    if min(step["norm"] for step in end) > 50:
        kind, name, sign = "clipped while scaled", "norm", 1
    elif min(step["zeros"] for step in end) > 0.2:
        kind, name, sign = "lost gradients", "zeros", 1
    elif max(step["moved"] for step in end) < 0.85:
        kind, name, sign = "no masters", "moved", -1
    else:
        return ["healthy", None]
    limit = {"norm": 50, "zeros": 0.2, "moved": -0.85}[name]
    last = len(taken)
    while sign * taken[last - 1][1][name] > limit:
        last -= 1
    return [kind, taken[last][0]]
""",
    ),
]
