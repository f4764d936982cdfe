"""Answers to choose_recompute: see test_exercises.py."""

_FITS = "        if max(kept) <= room:\n"
_SKIPPED = "        if max(stash) > room:\n"
_MESSAGE = "sent[r] = there = max(sent[r], free[r]) + gap"
_MEASURED = """    found = []
    for _, *choice in sorted(likely)[:4]:
        seconds, *kept = measure(*choice)
        if max(kept) <= room:
            found.append((seconds, *choice))
    return min(found)[1:]
"""

MUTANTS = [
    (
        "the lesson's own: all recompute, with as many micro-batches as there are",
        "which do it without need",
        """
def choose_recompute(measure, forward, stored, boundary, gap, batch, room):
    return 8, (True, True, True)
""",
    ),
    (
        "nobody recomputes, since it costs a third",
        "Which of them stash more",
        """
def choose_recompute(measure, forward, stored, boundary, gap, batch, room):
    return min((2, 4, 8), key=lambda m: measure(m, (False,) * 3)[0]), (False, False, False)
""",
    ),
    (
        "messages cost nothing",
        "what do its messages cost",
        ((_MESSAGE, "sent[r] = there = max(sent[r], free[r])"), ("sorted(likely)[:4]", "sorted(likely)[:1]")),
    ),
    (
        "a rank that recomputes stashes nothing but one micro-batch's activations, and it is not measured",
        "Which of them stash more",
        (
            ("samples * (stored[r] + (m - 1) * boundary) if", "samples * boundary if"),
            ("batch * stored[r]", "0"),
            (_MEASURED, "    return min(likely)[1:]\n"),
        ),
    ),
    (
        "whoever has more than a third of all that is stored",
        "bytes",
        """
def choose_recompute(measure, forward, stored, boundary, gap, batch, room):
    which = tuple(3 * one > sum(stored) for one in stored)
    return min((2, 4, 8), key=lambda m: measure(m, which)[0]), which
""",
    ),
    (
        "all are measured",
        "no more may be",
        (("sorted(likely)[:4]", "sorted(likely)"), (_SKIPPED, "        if False:\n")),
    ),
    (
        "a list in the choice",
        "is not possible",
        ((_MEASURED, "    _, m, which = min(likely)\n    return m, list(which)\n"),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "two micro-batches, nobody recomputes",
        """
def choose_recompute(measure, forward, stored, boundary, gap, batch, room):
    return 2, (False, False, False)
""",
    ),
]

ACCEPTED = [
    ("by its own prediction alone", ((_MEASURED, "    return list(min(likely)[1:])\n"),)),
    (
        "who has to recompute does, and the number of micro-batches is measured",
        """
def choose_recompute(measure, forward, stored, boundary, gap, batch, room):
    which = tuple(batch * one > room for one in stored)
    found = {}
    for m in (2, 4, 8):
        seconds, *kept = measure(m, which)
        if max(kept) <= room:
            found[m] = seconds
    return min(found, key=found.get), which
""",
    ),
]
