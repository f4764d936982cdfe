"""Answers to diagnose_recompute: see test_exercises.py."""

_CUT = (
    '        if block["trains"] and block["gradient"] is None:\n            return "cut off", i\n'
)
_KEPT = (
    '        if block["trains"] and len(outputs) == 1:\n            return "not recomputed", i\n'
)
_MASK = "not torch.allclose(*outputs, atol=1e-5)"
_MOVED = "not torch.allclose(after, once, atol=1e-5)"

MUTANTS = [
    ("gradients are not looked at", "should train and has no gradient", ((_CUT, ""),)),
    (
        "frozen blocks must have a gradient",
        "A frozen block before which nothing trains",
        (
            (
                'if block["trains"] and block["gradient"] is None',
                'if block["gradient"] is None',
            ),
        ),
    ),
    (
        "frozen blocks must run again",
        "A frozen block before which nothing trains",
        (('if block["trains"] and len(outputs) == 1', "if len(outputs) == 1"),),
    ),
    ("one run is enough", "Which block ran once", ((_KEPT, ""),)),
    (
        "no rounding allowed",
        "Two runs of a block may differ by rounding",
        ((_MASK, "not torch.equal(*outputs)"),),
    ),
    (
        "outputs are not compared",
        "differ, by more than rounding",
        (("len(outputs) == 2 and " + _MASK, "len(outputs) > 2"),),
    ),
    (
        "statistics are not looked at",
        "after the same batch twice",
        ((_MOVED, "not after.isfinite().all()"),),
    ),
    (
        "the share of old and new exchanged",
        "a tenth of the way to the batch's",
        (
            (
                '0.9 * before + 0.1 * block["batch_mean"]',
                '0.1 * before + 0.9 * block["batch_mean"]',
            ),
        ),
    ),
    (
        "the block after it",
        "differ, by more than rounding",
        (('return "other mask", i', 'return "other mask", i + 1'),),
    ),
    (
        "a word, no block",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_recompute(blocks):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "one question after the other, over all blocks",
        """
def diagnose_recompute(blocks):
    def first(name, wrong):
        return next(((name, i) for i, block in enumerate(blocks) if wrong(block)), None)

    def zeros(block):
        return [int((out == 0).sum()) for out in block["outputs"]], [(out == 0) for out in block["outputs"]]

    def moved(block):
        before, after = block["mean"]
        twice = 0.81 * before + 0.19 * block["batch_mean"]
        once = 0.9 * before + 0.1 * block["batch_mean"]
        return (after - twice).norm() < (after - once).norm()

    return (
        first("cut off", lambda b: b["trains"] and b["gradient"] is None)
        or first("not recomputed", lambda b: b["trains"] and len(b["outputs"]) < 2)
        or first("other mask", lambda b: len({tuple(z.flatten().tolist()) for z in zeros(b)[1]}) > 1)
        or first("moved twice", moved)
        or ("healthy", None)
    )
""",
    ),
    (
        "by the largest deviation",
        """
def diagnose_recompute(blocks):
    for i, block in enumerate(blocks):
        if block["trains"] and block["gradient"] is None:
            return ["cut off", i]
        if block["gradient"] is not None and len(block["outputs"]) == 1:
            return ["not recomputed", i]
    apart = [float((b["outputs"][0] - b["outputs"][-1]).abs().max()) for b in blocks]
    if max(apart) > 1e-3:
        return ["other mask", apart.index(max(apart))]
    step = [float((b["mean"][1] - b["mean"][0]).norm() / (b["batch_mean"] - b["mean"][0]).norm()) for b in blocks]
    if max(step) > 0.15:
        return ["moved twice", step.index(max(step))]
    return ["healthy", None]
""",
    ),
]
