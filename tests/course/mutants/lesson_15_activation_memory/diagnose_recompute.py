"""Answers to diagnose_recompute: see test_exercises.py."""

_FROZEN = "        if not trains[block]:\n            continue"
_CUT = '        if gradients[block] is None:\n            return "reentrant", block\n'
_ONCE = "if len(runs) == micro_batches:"
_FAR = "if abs(a - b) > 1e-5 * abs(a):"
_PAIRS = "zip(runs[::2], runs[1::2], strict=True)"
_KINDS = 'kinds = ("in place", "random state", "statistics")'

MUTANTS = [
    (
        "one micro-batch's rule for any number of them",
        "so many micro-batches",
        ((_ONCE, "if len(runs) == 1:"),),
    ),
    ("gradients are not looked at", "does it get a gradient at all", ((_CUT, ""),)),
    (
        "frozen blocks must run again and have gradients",
        "what has a frozen block to run",
        ((_FROZEN, "        if False:\n            continue"),),
    ),
    (
        "no rounding allowed",
        "Which of the differences here is rounding",
        ((_FAR, "if a != b:"),),
    ),
    (
        "the first runs are compared with each other, and the second ones",
        "which are between micro-batches",
        ((_PAIRS, "zip(runs, runs[2:])"),),
    ),
    (
        "the output comes before the input",
        "What does a second run start from",
        ((_KINDS, 'kinds = ("random state", "random state", "statistics")'),),
    ),
    (
        "outputs are not compared",
        "makes something else",
        ((_KINDS, _KINDS + "\n    rows = [[n, i, 1.0, m] for n, i, _, m in rows]"),),
    ),
    (
        "statistics are not looked at",
        "only makes activations again",
        ((_KINDS, _KINDS + "\n    rows = [[n, i, o, 1.0] for n, i, o, _ in rows]"),),
    ),
    (
        "the block after it",
        "makes something else",
        (("                    return what, block", "                    return what, block + 1"),),
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
def diagnose_recompute(rows, trains, gradients, micro_batches):
    return "healthy", None
""",
    ),
    (
        "always the same",
        """
def diagnose_recompute(rows, trains, gradients, micro_batches):
    return "random state", trains.index(True)
""",
    ),
]

ACCEPTED = [
    (
        "one question after the other, over all blocks",
        """
def diagnose_recompute(rows, trains, gradients, micro_batches):
    blocks = [i for i, trained in enumerate(trains) if trained]
    runs = {i: torch.tensor([row[1:] for row in rows if row[0] == i], dtype=torch.double) for i in blocks}
    lost = [i for i in blocks if gradients[i] is None]
    if lost:
        return ["reentrant", lost[0]]
    kept = [i for i in blocks if len(runs[i]) < 2 * micro_batches]
    if kept:
        return ["no checkpoint", kept[0]]
    for column, what in enumerate(("in place", "random state", "statistics")):
        for i in blocks:
            first, second = runs[i].view(micro_batches, 2, 3)[..., column].T
            if not torch.allclose(first, second, rtol=1e-6):
                return [what, i]
    return ["healthy", None]
""",
    ),
    (
        "as the log is read, backward by backward",
        """
def diagnose_recompute(rows, trains, gradients, micro_batches):
    waiting, ended = {}, {i: 0 for i, trained in enumerate(trains) if trained}
    for block, given, made, mean in rows:
        if block not in ended:
            continue
        if block not in waiting:
            waiting[block] = (given, made, mean)
            continue
        before = waiting.pop(block)
        if gradients[block] is not None and ended[block] >= 0:
            apart = [abs(x / y - 1) > 1e-4 for x, y in zip((given, made, mean), before)]
            if any(apart) and len([row for row in rows if row[0] == block]) == 2 * micro_batches:
                return (("in place", "random state", "statistics")[apart.index(True)], block)
        ended[block] += 1
    for block in ended:
        if gradients[block] is None:
            return ("reentrant", block)
        if ended[block] < micro_batches:
            return ("no checkpoint", block)
    return ("healthy", None)
""",
    ),
]
