"""Answers to choose_low_ranks: see test_exercises.py."""

_GREEDY = """
def choose_low_ranks(singular_values, shapes, budget):
    ranks, spent = [0] * len(shapes), 0
    while True:
        found = []
        for i, (values, (n, m)) in enumerate(zip(singular_values, shapes)):
            if ranks[i] < len(values) and spent + n + m <= budget:
                found.append((GAIN, i, n + m))
        if not found:
            return ranks
        _, i, cost = max(found)
        ranks[i], spent = ranks[i] + 1, spent + cost
"""

MUTANTS = [
    (
        "the same rank for all",
        "What does one rank more gain in each matrix",
        """
def choose_low_ranks(singular_values, shapes, budget):
    rank = budget // sum(n + m for n, m in shapes)
    return [min(rank, len(values)) for values in singular_values]
""",
    ),
    (
        "the largest singular values, whatever they cost",
        "gain per number that it sends",
        _GREEDY.replace("GAIN", "float(values[ranks[i]])"),
    ),
    (
        "nothing is sent",
        "is possible",
        ((("    return min(best.values())[1]\n"), "    return [0] * len(shapes)\n"),),
    ),
    (
        "the worst",
        "is possible",
        (("min(best.values())[1]", "max(best.values())[1]"),),
    ),
    (
        "errors that are not squared",
        "Of what does the exercise count the sum",
        (("values.square(), {}", "values, {}"),),
    ),
    (
        "no matrix travels whole",
        "travel whole",
        (("whole = rank * (n + m) >= n * m", "whole = False"),),
    ),
    (
        "whole matrices cost nothing",
        "What does a rank cost",
        (("cost = n * m if whole else", "cost = 0 if whole else"),),
    ),
    (
        "one factor only is paid for",
        "What does a rank cost",
        (("else rank * (n + m)", "else rank * n"),),
    ),
    (
        "over the budget by a bit",
        "What does a rank cost",
        (("if total > budget", "if total > budget + 64"),),
    ),
    (
        "one rank too few",
        "is possible",
        (("[*ranks, rank]", "[*ranks, max(0, rank - 1)]"),),
    ),
    (
        "one rank too many",
        "rank",
        (("[*ranks, rank]", "[*ranks, rank + 1]"),),
    ),
    (
        "with its error",
        "an answer is a rank for each matrix",
        (("min(best.values())[1]", "min(best.values())"),),
    ),
    (
        "what was kept is counted, not what is left",
        "is possible",
        (("squares[rank:]", "squares[:rank]"),),
    ),
]

ACCEPTED = [
    (
        "by recursion, from the last matrix",
        """
from functools import cache


def choose_low_ranks(singular_values, shapes, budget):
    @cache
    def best(i, room):
        if i < 0:
            return 0.0, ()
        values, (n, m) = singular_values[i], shapes[i]
        found = []
        for rank in range(len(values) + 1):
            cost, left = rank * (n + m), float((values[rank:] ** 2).sum())
            if cost >= n * m:
                cost, left = n * m, 0.0
            if cost <= room:
                error, ranks = best(i - 1, room - cost)
                found.append((error + left, (*ranks, rank)))
        return min(found)

    return list(best(len(shapes) - 1, budget)[1])
""",
    ),
    (
        "combinations that no other one beats in both, matrix by matrix",
        """
def choose_low_ranks(singular_values, shapes, budget):
    front = [(0, 0.0, ())]
    for values, (n, m) in zip(singular_values, shapes):
        everything = []
        for rank in range(len(values) + 1):
            cost = min(rank * (n + m), n * m)
            left = float(values[rank:].pow(2).sum()) if cost < n * m else 0.0
            everything += [(c + cost, e + left, (*r, rank)) for c, e, r in front if c + cost <= budget]
        front, least = [], float("inf")
        for one in sorted(everything):
            if one[1] < least:
                front.append(one)
                least = one[1]
    return list(front[-1][2])
""",
    ),
]

NOTHING = [
    (
        "rank 0",
        "\ndef choose_low_ranks(singular_values, shapes, budget):\n    return [0] * len(shapes)\n",
    ),
    (
        "rank 1",
        "\ndef choose_low_ranks(singular_values, shapes, budget):\n    return [1] * len(shapes)\n",
    ),
]
