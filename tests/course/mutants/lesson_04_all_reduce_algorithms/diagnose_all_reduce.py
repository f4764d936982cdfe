"""Answers to diagnose_all_reduce: see test_exercises.py."""

MUTANTS = [
    (
        "looks at the first block alone",
        "Look at all",
        (("for number in numbers:", "for number in numbers[:1]:"),),
    ),
    (
        "any missing share is a lost one",
        "the same rank's digit",
        (("if len(missing) > 1:", "if len(missing) > len(ends):"),),
    ),
    (
        "a missing share is a step too few",
        "Whose digit is missing",
        (("if len(missing) > 1:", "if missing:"),),
    ),
    (
        "never looks at the traffic",
        "Who sends how much",
        (('return "through a root", root', "pass"),),
    ),
    (
        "the root is always rank 0",
        "Who sends how much",
        (('return "through a root", root', 'return "through a root", 0'),),
    ),
    (
        "numbers ranks from 1",
        "Whose digit is missing",
        (('return "share lost", min(missing)', 'return "share lost", min(missing) + 1'),),
    ),
]

ACCEPTED = [
    (
        "digits as text",
        (
            (
                "digits = [number // 10**rank % 10 for rank in ranks]",
                "digits = [int(d) for d in reversed(str(number).zfill(len(ends)))]",
            ),
        ),
    ),
    (
        "the root by the matrix's row",
        (
            (
                "if all(a == root or b == root or not sent[a][b] for a in ranks for b in ranks):",
                "if len(ends) > 2 and all(sent[root][b] for b in ranks if b != root):",
            ),
        ),
    ),
]

NOTHING = [
    (
        "all are healthy",
        """
def diagnose_all_reduce(ends, sent):
    return "healthy", None
""",
    ),
]
