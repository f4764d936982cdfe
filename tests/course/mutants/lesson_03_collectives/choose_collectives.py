"""Answers to choose_collectives: see test_exercises.py."""

_HEAD = "\ndef choose_collectives(before, after, sizes):\n"
_ONE = "Which single collective makes this change"
_SEVERAL = "Can the tensor be made smaller before it is summed or moved"

# Sums, gathers everything, then cuts it: right, and dear.
_WHOLE = """    plan, marks = [], list(before)
    for place, name in ((2, "all_reduce"), (0, "all_gather"), (1, "all_gather")):
        if marks[place]:
            marks[place] = ""
            plan.append((name, tuple(marks)))
    for place in (0, 1):
        if after[place]:
            marks[place] = after[place]
            plan.append(("slice", tuple(marks)))
    return plan
"""

MUTANTS = [
    ("everything whole, then cut", _ONE, _HEAD + _WHOLE),
    ("no reduce-scatter", _ONE, (('yield "reduce_scatter", (summed, columns, ""), (p - 1)', 'yield "reduce_scatter", (summed, columns, ""), 99 * (p - 1)'), ('yield "reduce_scatter", (rows, summed, ""), (p - 1)', 'yield "reduce_scatter", (rows, summed, ""), 99 * (p - 1)'))),
    ("no all-to-all", _ONE, (("if bool(rows) != bool(columns):", "if False:"),)),
    ("cuts last", _SEVERAL, (('yield "slice", (axis, columns, summed), 0.0', 'yield "slice", (axis, columns, summed), 0.5 * bool(summed)'), ('yield "slice", (rows, axis, summed), 0.0', 'yield "slice", (rows, axis, summed), 0.5 * bool(summed)'))),
    ("the fewest steps, not bytes", _SEVERAL, (("for name, there, more in steps(marks):", "for name, there, more in ((n, t, 1.0) for n, t, _ in steps(marks)):"),)),
    ("gathers before it sums", _SEVERAL, ((('yield "all_gather", ("", columns, summed), (sizes[rows] - 1) * holds', 'yield "all_gather", ("", columns, summed), 0.01 * holds')),)),
    ("stops before the end", "Which mark is still to change", (("    return best[after][1]\n", "    return best[after][1][:-1]\n"),)),
    ("a name alone", "a plan is a list of", _HEAD + '    return "all_gather"\n'),
    ("all-reduce that cuts", "What does it do to the marks", (('yield "reduce_scatter", (summed, columns, "")', 'yield "all_reduce", (summed, columns, "")'),)),
]  # fmt: skip

NOTHING = [("no step", _HEAD + "    return []\n")]

ACCEPTED = [
    (
        "the cheapest of all plans of up to five steps",
        (
            (
                "    return best[after][1]\n",
                """    found = []

    def go(marks, sent, plan):
        if marks == after:
            found.append((sent, len(plan), plan))
        elif len(plan) < 5:
            for name, there, more in steps(marks):
                go(there, sent + more, [*plan, (name, there)])

    go(before, 0.0, [])
    return min(found)[2]
""",
            ),
        ),
    ),
    (
        "lists, and columns before rows",
        (
            ("    return best[after][1]\n", "    return [[name, list(there)] for name, there in best[after][1]]\n"),
            ("        for axis in set(sizes) - set(marks):\n", "        for axis in sorted(set(sizes) - set(marks), reverse=True):\n"),
        ),
    ),
]  # fmt: skip
