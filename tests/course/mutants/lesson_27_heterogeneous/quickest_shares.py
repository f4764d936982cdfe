"""Answers to quickest_shares: see test_exercises.py."""

_HEAD = "\ndef quickest_shares(total, fixed, each, limits, join):\n"
_PRICE = "Until when is a rank busy"
_PIECE = "What does the first sample of another piece cost"
_JOIN = "What do all wait for longer"
_UNTIL = """    def until(rank, samples):
        return -(-samples // limits[rank]) * fixed[rank] + samples * each[rank]

"""
_SHARED = """    def shared(some):
        shares = [0] * len(each)
        for _ in range(total):
            shares[min(some, key=lambda r: until(r, shares[r] + 1))] += 1
        part = [r for r in some if shares[r]]
        return max(until(r, shares[r]) for r in part) + join * (len(part) - 1), shares

"""

MUTANTS = [
    (
        "ranks leave one after the other, always the one without which it is quickest",
        _JOIN,
        _HEAD
        + _UNTIL
        + _SHARED
        + """    some = list(range(len(each)))
    found = [shared(some)]
    while len(some) > 1:
        some = min(([r for r in some if r != gone] for gone in some), key=lambda one: shared(one)[0])
        found.append(shared(some))
    return min(found)[1]
""",
    ),
    (
        "ranks join one after the other, always the one with which it is quickest",
        _JOIN,
        _HEAD
        + _UNTIL
        + _SHARED
        + """    some, found = [], []
    while len(some) < len(each):
        some = min(([*some, r] for r in range(len(each)) if r not in some), key=lambda one: shared(one)[0])
        found.append(shared(some))
    return min(found)[1]
""",
    ),
    (
        "those that are quickest with an equal share, as many as are best",
        _JOIN,
        _HEAD
        + _UNTIL
        + _SHARED
        + """    found = []
    for number in range(1, len(each) + 1):
        some = sorted(range(len(each)), key=lambda r: until(r, -(-total // number)))[:number]
        found.append(shared(some))
    return min(found)[1]
""",
    ),
    (
        "the lesson's: in proportion to speed, and what is left to who ends first",
        _PRICE,
        _HEAD
        + """    speeds = [1 / one for one in each]
    exact = [total * speed / sum(speeds) for speed in speeds]
    shares = [int(one) for one in exact]
    while sum(shares) < total:
        shares[min(range(len(each)), key=lambda rank: (shares[rank] + 1) / exact[rank])] += 1
    return shares
""",
    ),
    (
        "the course's own",
        "dtcourse.heterogeneous",
        _HEAD + "    from dtcourse.heterogeneous import proportional_shares\n\n    return proportional_shares(total, [1 / one for one in each])\n",
    ),
    (
        "the fixed costs are forgotten",
        _PRICE,
        (
            ("        piece = fixed[rank] + limits[rank] * each[rank]\n", "        piece = limits[rank] * each[rank]\n"),
            ("seconds - whole * piece - fixed[rank])", "seconds - whole * piece)"),
        ),
    ),
    (
        "paid once, whatever the pieces are",
        _PIECE,
        _HEAD
        + """    shares = [0] * len(each)
    for _ in range(total):
        rank = min(range(len(each)), key=lambda r: fixed[r] + (shares[r] + 1) * each[r])
        shares[rank] += 1
    return shares
""",
    ),
    (
        "a limit is a wall",
        _PIECE,
        _HEAD
        + """    shares = [0] * len(each)
    for _ in range(total):
        free = [r for r in range(len(each)) if shares[r] < limits[r]] or range(len(each))
        rank = min(free, key=lambda r: fixed[r] + (shares[r] + 1) * each[r])
        shares[rank] += 1
    return shares
""",
    ),
    (
        "everybody gets one",
        _PRICE,
        _HEAD
        + _UNTIL
        + """    shares = [1 if rank < total else 0 for rank in range(len(each))]
    while sum(shares) < total:
        shares[min(range(len(each)), key=lambda r: until(r, shares[r] + 1))] += 1
    return shares
""",
    ),
    (
        "to whom is done first now, not with the sample",
        _PRICE,
        _HEAD
        + _UNTIL
        + """    shares = [0] * len(each)
    for _ in range(total):
        shares[min(range(len(each)), key=lambda r: until(r, shares[r]))] += 1
    return shares
""",
    ),
    ("one rank more costs nothing", _JOIN, (("seconds = high + join * (number - 1)", "seconds = high"),)),
    (
        "the fastest by their samples, as many as are best",
        _JOIN,
        _HEAD
        + _UNTIL
        + """    found = []
    by_speed = sorted(range(len(each)), key=lambda rank: each[rank])
    for number in range(1, len(each) + 1):
        shares = [0] * len(each)
        for _ in range(total):
            shares[min(by_speed[:number], key=lambda r: until(r, shares[r] + 1))] += 1
        part = [rank for rank in range(len(each)) if shares[rank]]
        found.append((max(until(r, shares[r]) for r in part) + join * (len(part) - 1), shares))
    return min(found)[1]
""",
    ),
    ("one sample too few", "together", (("    return shares\n", "    shares[shares.index(max(shares))] -= 1\n    return shares\n"),)),
    ("what is too much stays", "together", (("        shares[rank] -= min(shares[rank], sum(shares) - total)\n", "        pass\n"),)),
    ("parts of samples", "whole numbers", _HEAD + "    return [total / len(each)] * len(each)\n"),
    ("equal shares", _PRICE, _HEAD + "    return [total // len(each) + (r < total % len(each)) for r in range(len(each))]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "every set of ranks; in it sample by sample, to the rank that has done it soonest",
        _HEAD
        + _UNTIL
        + """    from itertools import combinations

    ranks, best = range(len(each)), None
    for number in range(1, len(each) + 1):
        for some in combinations(ranks, number):
            shares = [0] * len(each)
            for _ in range(total):
                shares[min(some, key=lambda r: until(r, shares[r] + 1))] += 1
            seconds = max(until(r, shares[r]) for r in some if shares[r]) + join * (number - 1)
            if best is None or seconds < best[0]:
                best = seconds, shares
    return best[1]
""",
    ),
    (
        "by the moments at which some rank has done some number",
        _HEAD
        + _UNTIL
        + """    from bisect import bisect_left, bisect_right

    ranks = range(len(each))
    ends = [[until(rank, n) for n in range(1, total + 1)] for rank in ranks]
    moments = sorted({end for one in ends for end in one})

    def able(number, moment):
        return sorted((bisect_right(ends[rank], moment), rank) for rank in ranks)[-number:]

    found = []
    for number in range(1, len(each) + 1):
        at = bisect_left(moments, total, key=lambda moment: sum(n for n, _ in able(number, moment)))
        found.append((moments[at] + join * (number - 1), able(number, moments[at])))
    shares, left = [0] * len(each), total
    for n, rank in min(found)[1]:
        shares[rank] = min(n, left)
        left -= shares[rank]
    return tuple(shares)
""",
    ),
    ("the first rank counted, too", (("join * (number - 1)", "join * number"),)),
]

NOTHING = [
    ("nothing", _HEAD + "    return None\n"),
    ("all to the first", _HEAD + "    return [total] + [0] * (len(each) - 1)\n"),
]
