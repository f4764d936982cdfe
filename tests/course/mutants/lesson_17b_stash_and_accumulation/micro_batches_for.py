"""Answers to micro_batches_for: see test_exercises.py."""

_KEPT = "kept = batch * boundary + samples * stash if recompute else batch * stash"

MUTANTS = [
    ("memory is not looked at", "What does GPipe", (("kept <= memory and ", ""),)),
    (
        "without recomputation a micro-batch's activations only",
        "What does GPipe",
        ((_KEPT, "kept = samples * stash"),),
    ),
    (
        "with recomputation the inputs only",
        "What does GPipe",
        (("batch * boundary + samples * stash", "batch * boundary"),),
    ),
    (
        "recomputation wherever it fits",
        "is recomputation needed there",
        (("(False, True)", "(True,)"),),
    ),
    (
        "never recomputes",
        "there is a plan that meets all conditions",
        (("(False, True)", "(False,)"),),
    ),
    (
        "recomputation for nothing",
        "is recomputation needed there",
        (("4 if recompute else 3", "3"), ("(False, True)", "(True, False)")),
    ),
    ("no overhead", "What does one more micro-batch cost", (("2 * overhead + ", ""),)),
    (
        "the bubble over m",
        "there is a plan that meets all conditions",
        (("(m + ranks - 1) > idle", "m > idle"),),
    ),
    (
        "the idle share is not looked at",
        "How many rounds",
        ((" or (ranks - 1) / (m + ranks - 1) > idle", ""),),
    ),
    ("does not divide the batch", "do not divide the batch", (("batch % m or ", ""),)),
    (
        "the fewest micro-batches that will do",
        "What does one more micro-batch cost",
        (("seconds < shortest", "best is None"),),
    ),
    (
        "as many as there are samples",
        "What does one more micro-batch cost",
        (("seconds < shortest", "True"),),
    ),
    (
        "m + p rounds that do not count the bubble",
        "What does one more micro-batch cost",
        (("seconds = (m + ranks - 1)", "seconds = m"),),
    ),
    (
        "something even where nothing meets the conditions",
        "None is the answer",
        (("    return best", "    return best or (batch, True)"),),
    ),
]

ACCEPTED = [
    (
        "recomputation only where the stash does not fit, and a list",
        """
def micro_batches_for(ranks, batch, per_sample, overhead, stash, boundary, memory, idle):
    def seconds(m, recompute):
        return (m + ranks - 1) * (2 * overhead + (4 if recompute else 3) * batch / m * per_sample)

    counts = [m for m in range(batch, 0, -1) if batch % m == 0 and (ranks - 1) <= idle * (m + ranks - 1)]
    if batch * stash <= memory:
        plans = [(m, False) for m in counts]
    else:
        plans = [(m, True) for m in counts if batch * boundary + batch / m * stash <= memory]
    return list(min(plans, key=lambda plan: seconds(*plan))) if plans else None
""",
    ),
    (
        "the formula's best number, rounded to the next one that will do",
        """
def micro_batches_for(ranks, batch, per_sample, overhead, stash, boundary, memory, idle):
    plans = []
    for recompute, factor in ((False, 3), (True, 4)):
        best = ((ranks - 1) * factor * batch * per_sample / (2 * overhead)) ** 0.5
        for m in sorted((m for m in range(1, batch + 1) if batch % m == 0), key=lambda m: abs(m - best)):
            kept = batch * (boundary if recompute else stash) + (batch / m * stash if recompute else 0)
            if kept <= memory and (ranks - 1) / (m + ranks - 1) <= idle:
                time = (m + ranks - 1) * (2 * overhead + factor * batch / m * per_sample)
                plans.append((time, m, recompute))
    return min(plans)[1:] if plans else None
""",
    ),
]

NOTHING = [
    (
        "one micro-batch, whatever the budget",
        """
def micro_batches_for(ranks, batch, per_sample, overhead, stash, boundary, memory, idle):
    return 1, False
""",
    ),
    (
        "nothing at all",
        """
def micro_batches_for(ranks, batch, per_sample, overhead, stash, boundary, memory, idle):
    return None
""",
    ),
]
