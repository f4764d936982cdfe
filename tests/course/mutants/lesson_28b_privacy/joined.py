"""Answers to joined: see test_exercises.py."""

_COMBINATIONS = "    for some in combinations(sorted(shares), threshold):\n"
_ENOUGH = "        if len(wrong) <= allowed:\n"
_ALLOWED = "    allowed = (len(shares) - threshold) // 2\n"
_WRONG = "        wrong = [v for v in sorted(shares) if value_at(v + 1, some) != shares[v]]\n"
_POINT = "                    above = above * (x - (w + 1)) % prime\n"
_DIVIDED = "            total += above * pow(below, -1, prime)\n"

# The lesson's own: it joins all shares, or as many as are needed.
_LESSONS = """
def joined(shares, threshold, prime):
    some = dict(list(shares.items())[:threshold])
    total = 0
    for v, share in some.items():
        for w in some:
            if w != v:
                share = share * (w + 1) * pow(w - v, -1, prime) % prime
        total += share
    return total % prime, []
"""

_MOST_VOTES = """
from collections import Counter
from itertools import combinations


def solved(points, prime):
    rows = [[pow(x, k, prime) for k in range(len(points))] + [y] for x, y in points]
    for i in range(len(rows)):
        j = next(j for j in range(i, len(rows)) if rows[j][i] % prime)
        rows[i], rows[j] = rows[j], rows[i]
        turned = pow(rows[i][i], -1, prime)
        rows[i] = [n * turned % prime for n in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [(a - rows[j][i] * b) % prime for a, b in zip(rows[j], rows[i])]
    return tuple(row[-1] for row in rows)


def joined(shares, threshold, prime):
    points = {v: (v + 1, share) for v, share in shares.items()}
    votes = Counter(solved([points[v] for v in some], prime) for some in combinations(points, threshold))
    best = votes.most_common(1)[0][0]
    wrong = []
    for v, (x, share) in points.items():
        value = 0
        for c in reversed(best):
            value = (value * x + c) % prime
        if value != share:
            wrong.append(v)
    return [best[0], sorted(wrong)]
"""

MUTANTS = [
    (
        "the first shares are taken",
        "A wrong share may be among those that you join",
        (
            (_COMBINATIONS, "    for some in [sorted(shares)[:threshold]]:\n"),
            (_ENOUGH, "        if True:\n"),
        ),
    ),
    ("the lesson's own", "A wrong share may be among those that you join", _LESSONS),
    (
        "the points are at v",
        "at v or at v + 1",
        (
            (_POINT, "                    above = above * (x - w) % prime\n"),
            (_WRONG, "        wrong = [v for v in sorted(shares) if value_at(v, some) != shares[v]]\n"),
        ),
    ),
    (
        "divided in floating point",
        "A division modulo a prime is a multiplication with what number",
        ((_DIVIDED, "            total += above / below\n"), (_ENOUGH, "        if True:\n")),
    ),
    (
        "divided in whole numbers",
        "divisions too",
        (
            (_DIVIDED, "            total += above // below\n"),
            (_ENOUGH, "        if True:\n"),
        ),
    ),
    (
        "at most one is wrong",
        "or more, leaving out one does not help",
        ((_ALLOWED, "    allowed = 1\n"), ("            return value_at(0, some), wrong\n", "            return value_at(0, some), wrong\n    return 0, []\n")),
    ),
    (
        "one more that agrees is enough",
        "How many of all shares must lie on the right polynomial",
        ((_ALLOWED, "    allowed = max(0, len(shares) - threshold - 1)\n"),),
    ),
    (
        "who is wrong is not said",
        "have all the others been compared",
        (("            return value_at(0, some), wrong\n", "            return value_at(0, some), []\n"),),
    ),
    (
        "the right ones are named",
        "have all the others been compared",
        (("            return value_at(0, some), wrong\n", "            return value_at(0, some), [v for v in sorted(shares) if v not in wrong]\n"),),
    ),
    (
        "right with the smallest prime alone",
        "it finds nothing",
        ((_ALLOWED, "    prime = 251\n" + _ALLOWED),),
    ),
    (
        "the secret alone",
        "the answer is (secret, wrong)",
        (("            return value_at(0, some), wrong\n", "            return value_at(0, some)\n"),),
    ),
    (
        "the course's own",
        "dtcourse.federated",
        """
from dtcourse.federated.secure import shamir


def joined(shares, threshold, prime):
    return shamir.at_zero(shares), []
""",
    ),
    (
        "too few are allowed to be wrong",
        "How many of all shares must lie",
        ((_ALLOWED, "    allowed = (len(shares) - threshold) // 2 + (threshold > 3)\n"),),
    ),
    (
        "it gives up",
        "it finds nothing",
        ((_ALLOWED, "    allowed = min(1, (len(shares) - threshold) // 2)\n"),),
    ),
]  # fmt: skip

NAMED = "the first shares are taken"

ACCEPTED = [
    ("linear equations, and the polynomial that most sets of shares give", _MOST_VOTES),
    (
        "the polynomial with which most shares agree",
        (
            (_COMBINATIONS, "    best = None\n" + _COMBINATIONS),
            (_ENOUGH, "        if best is None or len(wrong) < len(best[1]):\n"),
            ("            return value_at(0, some), wrong\n", "            best = value_at(0, some), wrong\n    return best\n"),
            (_ALLOWED, ""),
        ),
    ),
]  # fmt: skip

NOTHING = [
    ("zero, and all is well", "\ndef joined(shares, threshold, prime):\n    return 0, []\n"),
    ("nothing", "\ndef joined(shares, threshold, prime):\n    return None\n"),
]
