"""Answers to diagnose_quantiser: see test_exercises.py."""

_WRAPPED = (
    '    if ((y * x < 0) & (off > 1.01 * x.abs() + 0.5 * step)).any():\n        return "wrapped"\n'
)
_TRUNCATED = '    if (y.abs() <= 1.0001 * x.abs()).all():\n        return "truncated"\n'
_DRAWS = '    if (y == y[0]).all():\n        return "same draws"\n'

MUTANTS = [
    ("wrapped is never said", "with which sign", ((_WRAPPED, ""),)),
    (
        "one scale is never said",
        "How wide is a step in a block of small numbers",
        (('    if (off > 1.01 * step).any():\n        return "one scale"\n', ""),),
    ),
    ("truncated is never said", "as long as x", ((_TRUNCATED, ""),)),
    ("same draws is never said", "Compare two ranks", ((_DRAWS, ""),)),
    (
        "ranks compared before truncation is looked for",
        "as long as x",
        ((_TRUNCATED, _DRAWS),),
    ),
    (
        "half a step, as if rounded to the nearest",
        "rounded up or down by chance",
        (("(off > 1.01 * step)", "(off > 0.51 * step)"),),
    ),
    (
        "steps of one scale",
        "How wide is a step",
        (
            (
                "step = rows.amax(1) / (2",
                "step = rows.max().expand(len(rows)) / (2",
            ),
        ),
    ),
    (
        "one bit too few",
        "rounded up or down by chance",
        (("(2 ** (bits - 1) - 1)", "(2**bits - 1)"),),
    ),
    (
        "a rank compared with itself in the next step",
        "Compare two ranks",
        (("(y == y[0]).all()", "(y[0] == y[0, 0]).all()"),),
    ),
    (
        "a mean that must be the number itself",
        "how near is the mean of many",
        (
            (
                _TRUNCATED,
                '    if not torch.allclose(y.mean((0, 1)), x, rtol=1e-6):\n        return "truncated"\n',
            ),
        ),
    ),
    (
        "yes or no",
        "A diagnosis is one of",
        (('return "healthy"', "return True"),),
    ),
    (
        "a code that wraps round is looked for at 8 bits only",
        "with which sign",
        (("if ((y * x < 0) &", "if bits == 8 and ((y * x < 0) &"),),
    ),
]

ACCEPTED = [
    (
        "by bias and by codes",
        (
            (
                _TRUNCATED,
                '    if ((y.mean((0, 1)) - x) * x.sign() / step).mean() < -0.2:\n        return "truncated"\n',
            ),
            (
                _DRAWS,
                '    if all(torch.equal(one, y[0]) for one in y[1:]):\n        return "same draws"\n',
            ),
        ),
    ),
    (
        "number by number, in plain Python",
        (
            (
                "    off = (y - x).abs()\n",
                "    worst = {'wrapped': False, 'one scale': False}\n"
                "    for i, (one, s) in enumerate(zip(x.tolist(), step.tolist(), strict=True)):\n"
                "        low, high = y[..., i].min().item(), y[..., i].max().item()\n"
                "        worst['wrapped'] |= min(low * one, high * one) < 0 and max(one - low, high - one) > abs(one) + 0.5 * s\n"
                "        worst['one scale'] |= max(one - low, high - one) > 1.001 * s\n"
                "    for kind, found in worst.items():\n        if found:\n            return kind\n"
                "    off = (y - x).abs()\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_quantiser(x, y, bits, block):\n    return "healthy"\n',
    ),
    (
        "always truncated",
        '\ndef diagnose_quantiser(x, y, bits, block):\n    return "truncated"\n',
    ),
    (
        "always wrapped",
        '\ndef diagnose_quantiser(x, y, bits, block):\n    return "wrapped"\n',
    ),
]
