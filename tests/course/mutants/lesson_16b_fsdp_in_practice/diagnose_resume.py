"""Answers to diagnose_resume: see test_exercises.py."""

_START = "    held = written[start]\n"
_FAR = "abs(a - b) > 1e-6 * max(abs(a), abs(b))"
_OLD = '            return "old file", other[0]\n'
_ROUNDED = "    if far(of_all(read, 1), of_all(held, 1)):\n"
_TOKENS = '    if any(first[step]["tokens"] != second[step]["tokens"] for step in both):\n        return "data again", None\n'
_ORDER = '    if start in wrong:\n        return "wrong order", None\n'
_LOST = '    if wrong:\n        return "states lost", None\n'

MUTANTS = [
    (
        "only the first step's loss is looked at",
        "Which later step shows what an update used",
        ((_LOST, ""),),
    ),
    (
        "resumed from the last save, whichever it was",
        "From which of the saves was it resumed",
        ((_START, "    held = written[max(written)]\n"),),
    ),
    (
        "ranks compared where there are others",
        "on how many ranks",
        (
            (
                _ROUNDED,
                "    if any(far(a[1], b[1]) for a, b in zip(read, held)) and not len(read) == len(held):\n",
            ),
        ),
    ),
    ("no rounding allowed", "how far from equal is rounding", ((_FAR, "a != b"),)),
    (
        "what is below a hundredth is rounding",
        "To how many digits do healthy runs agree",
        ((_FAR, "abs(a - b) > 1e-2 * max(abs(a), abs(b))"),),
    ),
    (
        "only parameters have been looked at",
        "Which norm is not the one that was written",
        ((_ROUNDED, "    if far(of_all(read, 0), of_all(held, 0)):\n"),),
    ),
    (
        "the rank after it",
        "Which rank has read something else",
        ((_OLD, _OLD.replace("other[0]", "other[0] + 1")),),
    ),
    (
        "whoever reads other norms has an old file",
        "What else does a loss depend on",
        (("        if len(other) == 1:\n", "        if other:\n"),),
    ),
    (
        "an old file's states taken for rounded ones",
        "Which rank has read something else",
        ((_OLD, '            return "rounded", None\n'),),
    ),
    (
        "all norms are there, so the files are right",
        "What else does a loss depend on",
        ((_ORDER, ""),),
    ),
    (
        "another loss is another order",
        "On what did the first step compute",
        ((_TOKENS, ""),),
    ),
    (
        "a word, no rank",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all healthy",
        """
def diagnose_resume(first, second, written, read):
    return "healthy", None
""",
    ),
    (
        "always the first rank's old file",
        """
def diagnose_resume(first, second, written, read):
    return "old file", 0
""",
    ),
]

ACCEPTED = [
    (
        "what is right is struck out, from the data to the update",
        """
def diagnose_resume(first, second, written, read):
    start, steps = min(second), sorted(set(first) & set(second))
    tokens, losses = (torch.tensor([[log[s][name] for s in steps] for log in (first, second)], dtype=torch.double)
                      for name in ("tokens", "loss"))
    if not torch.equal(*tokens):
        return ["data again", None]
    now, then = (torch.tensor(norms, dtype=torch.double) for norms in (read, written[start]))
    same = (losses[0] / losses[1] - 1).abs() < 1e-6
    if not same[0]:  # parameters are wrong
        if now.square().sum(0).allclose(then.square().sum(0), rtol=1e-9):
            return ["wrong order", None]
        return ["old file", int((now - then).abs().sum(1).argmax())]
    if not now.square().sum(0).allclose(then.square().sum(0), rtol=1e-6, atol=0):
        return ["rounded", None]
    return ["healthy" if same.all() else "states lost", None]
""",
    ),
    (
        "an old file is found in the save before",
        (
            (
                "        other = [rank for rank in range(len(read)) if far(read[rank][0], held[rank][0])]\n",
                "        before = written.get(max((s for s in written if s < start), default=None), held)\n"
                "        other = [\n"
                "            rank\n"
                "            for rank in range(len(read))\n"
                "            if tuple(read[rank]) == tuple(before[rank]) != tuple(held[rank])\n"
                "        ]\n",
            ),
        ),
    ),
]
