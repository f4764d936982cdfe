"""Answers to diagnose_low_rank: see test_exercises.py."""

_HEAD = "\ndef diagnose_low_rank(gradients, first, sent_p, sent_q):\n"
_COLD = '    if is_so(cold=True):\n        return "cold start", None\n'
_FORGETS = '        if is_so(forgets=rank):\n            return "no feedback", rank\n'
_BARE = '        if is_so(bare=rank):\n            return "not orthogonal", rank\n'
_CLOSE = "torch.allclose(made, found, rtol=1e-4, atol=1e-4)"
_WARM = "With which Q does the second one begin"
_LEFT = "its gradient, and what besides"
_SEED = "sends another first factor in the first step"
_BASIS = "By which basis has each rank multiplied"
_RIGHT = "What does a right rank send of these gradients"

# The lesson's step, whose mean forgets what it leaves out.
_LESSONS = (
    _HEAD
    + """    q, ranks = first, gradients.shape[1]
    for g, p, new in zip(gradients, sent_p, sent_q):
        for rank in range(ranks):
            if not torch.allclose(g[rank] @ q, p[rank], rtol=1e-4, atol=1e-4):
                return "no feedback", rank
        q = new.mean(0)
    return "healthy", None
"""
)

MUTANTS = [
    ("the lesson's step, without residuals", _RIGHT, _LESSONS),
    ("cold start is never said", _WARM, ((_COLD, ""),)),
    ("no feedback is never said", _LEFT, ((_FORGETS, ""),)),
    ("not orthogonal is never said", _BASIS, ((_BARE, ""),)),
    ("the rank after it forgets", _LEFT, ((_FORGETS, _FORGETS.replace('", rank', '", rank + 1')),)),
    ("the rank after it is bare", _BASIS, ((_BARE, _BARE.replace('", rank', '", rank + 1')),)),
    ("only the first ranks are tried", _LEFT, (("    for rank in ranks:\n", "    for rank in range(2):\n"),)),
    ("another seed: always rank 0", _SEED, (('"another seed", off.index(True)', '"another seed", 0'),)),
    ("all ranks forget", _LEFT, (("left[forgets] = 0.0", "left = torch.zeros_like(left)"),)),
    ("nothing is ever left", _LEFT, (("            left = torch.stack(", "            left = 0 * torch.stack("),)),
    ("what is left is the mean's, not the rank's", _LEFT, (("[w - b @ mean.T for w, b in", "[wanted.mean(0) - b @ mean.T for w, b in"),)),
    ("the sum of the Qs, not their mean", _WARM, (("mean = qs.sum(0) / p", "mean = qs.sum(0)"),)),
    ("only the first step is looked at", _WARM, (("for at, step in enumerate(gradients):", "for at, step in enumerate(gradients[:1]):"),)),
    ("a tolerance that single precision does not meet", "rounded to single precision", ((_CLOSE, "torch.equal(made, found)"),)),
    ("a tolerance that meets everything", _WARM, ((_CLOSE, "torch.allclose(made, found, atol=1e3)"),)),
    ("what is wrong, without a rank", "A diagnosis is two things", ((_COLD, _COLD.replace('"cold start", None', '"cold start"')),)),
    ("ready-made", "asks you to write that yourself", "from dtcourse.compression import PowerSGDState\n" + _HEAD + "    PowerSGDState(2)\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "from one step to the next, by what was sent",
        _HEAD
        + """    steps, ranks = gradients.shape[:2]

    def close(a, b):
        return (a - b).norm() < 1e-3 * (a.norm() + b.norm())

    bases = [torch.linalg.qr(p.sum(0))[0] for p in sent_p]
    off = [r for r in range(ranks) if not close(gradients[0, r] @ first, sent_p[0, r])]
    if off:
        return "another seed", off[0]
    for r in range(ranks):
        if not close(gradients[0, r].T @ bases[0], sent_q[0, r]):
            return "not orthogonal", r
    mean = sent_q[0].mean(0)
    wanted = gradients[1] + gradients[0] - bases[0] @ mean.T
    off = [r for r in range(ranks) if not close(wanted[r] @ mean, sent_p[1, r])]
    if not off:
        return "healthy", None
    return ("cold start", None) if len(off) == ranks else ("no feedback", off[0])
""",
    ),
    (
        "projections in place of bases",
        (
            (
                "            basis = torch.linalg.qr(total).Q\n",
                "            # The same columns, by Gram and Schmidt, one after the other, with the signs of QR.\n"
                "            basis = total.clone()\n"
                "            for i in range(total.shape[1]):\n"
                "                for j in range(i):\n"
                "                    basis[:, i] -= basis[:, j] * (basis[:, j] @ total[:, i])\n"
                "                basis[:, i] /= basis[:, i].norm()\n"
                "            basis *= (basis * torch.linalg.qr(total).Q).sum(0).sign()\n",
            ),
        ),
    ),
    ("a tighter look", ((_CLOSE, "torch.allclose(made, found, rtol=1e-5, atol=2e-5)"),)),
]

NOTHING = [
    ("always healthy", _HEAD + '    return "healthy", None\n'),
    ("always a cold start", _HEAD + '    return "cold start", None\n'),
]
