"""Answers to diagnose_region: see test_exercises.py."""

_EQUAL = "return (a - b).norm() <= 1e-3 * b.norm()"
_MASKS = 'not all(equal(one["y"], ranks[0]["y"]) for one in ranks)'
_SAME = '    same = all(equal(one["dx"], ranks[0]["dx"]) for one in ranks)\n'

NAMED = "not summed and too large, taken for each other"

MUTANTS = [
    (
        "bit by bit",
        "differ by rounding",
        ((_EQUAL, "return torch.equal(a, b)"),),
    ),
    (
        "an absolute limit that small numbers pass",
        "you say",
        ((_EQUAL, "return (a - b).norm() <= 0.05"),),
    ),
    (
        "an absolute limit that large numbers do not pass",
        "differ by rounding",
        ((_EQUAL, "return (a - b).norm() <= 1e-6"),),
    ),
    (
        "looks at rank 0 alone",
        "Are the ranks' y copies of each other",
        ((_MASKS, "False"),),
    ),
    (
        "any wrong y is the masks' fault",
        "masks are not to blame",
        ((_MASKS, 'not all(equal(one["y"], truth["y"]) for one in ranks)'),),
    ),
    (
        "any wrong y is the bias's fault",
        "Are the ranks' y copies of each other",
        (('        return "masks differ"\n', '        return "bias counted p times"\n'),),
    ),
    (
        "gradients are not looked at",
        "What do the ranks' gradients of x add up to",
        (('if all(equal(one["dx"], truth["dx"]) for one in ranks):', "if True:"),),
    ),
    (
        "not summed and too large, taken for each other",
        "What do the ranks' gradients of x add up to",
        ((_SAME, _SAME.replace("same = all(", "same = not all(")),),
    ),
    (
        "every wrong gradient is one that was not summed",
        "What is its ratio to the right one",
        ((_SAME, "    same = False\n"),),
    ),
    (
        "in words of its own",
        "A diagnosis is one of",
        (('return "healthy"', 'return "all right"'),),
    ),
]

NOTHING = [
    ("always healthy", '\ndef diagnose_region(truth, ranks):\n    return "healthy"\n'),
    (
        "always the bias",
        '\ndef diagnose_region(truth, ranks):\n    return "bias counted p times"\n',
    ),
]

ACCEPTED = [
    (
        "the largest number, relative to the largest",
        ((_EQUAL, "return (a - b).abs().max() <= 1e-3 * b.abs().max()"),),
    ),
    (
        "by what the gradients add up to",
        (
            (
                _SAME,
                '    same = not equal(sum(one["dx"] for one in ranks), truth["dx"])\n',
            ),
        ),
    ),
]
