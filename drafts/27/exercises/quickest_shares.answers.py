"""Answers to quickest_shares: see test_exercises.py."""

_HEAD = "\ndef quickest_shares(total, fixed, each, limits):\n"
_LEFT = "got one sample more, and who is done first"
_PRICE = "Should it get one"
_PIECE = "What does the first sample of another piece cost"
_PROPORTION = """    speeds = [1 / one for one in each]
    exact = [total * speed / sum(speeds) for speed in speeds]
    shares = [int(one) for one in exact]
    by_remainder = sorted(range(len(each)), key=lambda rank: shares[rank] - exact[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares
"""

MUTANTS = [
    ("the lesson's: in proportion to speed, largest remainders", _LEFT, _HEAD + _PROPORTION),
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
        + """    shares = [1 if rank < total else 0 for rank in range(len(each))]
    while sum(shares) < total:
        rank = min(range(len(each)), key=lambda r: -(-(shares[r] + 1) // limits[r]) * fixed[r] + (shares[r] + 1) * each[r])
        shares[rank] += 1
    return shares
""",
    ),
    (
        "to whom is done first now, not with the sample",
        _LEFT,
        _HEAD
        + """    shares = [0] * len(each)
    for _ in range(total):
        rank = min(range(len(each)), key=lambda r: -(-shares[r] // limits[r]) * fixed[r] + shares[r] * each[r])
        shares[rank] += 1
    return shares
""",
    ),
    ("one sample too few", "Who has the others", (("    return shares\n", "    shares[0] -= shares[0] > 0\n    return shares\n"),)),
    ("what is too much stays", "Who has the others", (("        shares[rank] -= min(shares[rank], sum(shares) - total)\n", "        pass\n"),)),
    ("parts of samples", "whole numbers", _HEAD + "    return [total / len(each)] * len(each)\n"),
    ("equal shares", _LEFT, _HEAD + "    return [total // len(each) + (r < total % len(each)) for r in range(len(each))]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "sample by sample, to the rank that has done it soonest, from a heap",
        _HEAD
        + """    import heapq

    def until(rank, samples):
        return -(-samples // limits[rank]) * fixed[rank] + samples * each[rank]

    shares = [0] * len(each)
    queue = [(until(rank, 1), rank) for rank in range(len(each))]
    heapq.heapify(queue)
    for _ in range(total):
        _, rank = queue[0]
        shares[rank] += 1
        heapq.heapreplace(queue, (until(rank, shares[rank] + 1), rank))
    return shares
""",
    ),
    (
        "rank by rank, the best of all divisions so far: a table",
        _HEAD
        + """    infinite = float("inf")
    best, chosen = [0.0] + [infinite] * total, []
    for rank in range(len(each)):
        own = [-(-n // limits[rank]) * fixed[rank] + n * each[rank] for n in range(total + 1)]
        new, mine = [infinite] * (total + 1), [0] * (total + 1)
        for had in range(total + 1):
            for n in range(had + 1):
                seconds = max(best[had - n], own[n])
                if seconds < new[had]:
                    new[had], mine[had] = seconds, n
        best = new
        chosen.append(mine)
    shares, left = [], total
    for mine in reversed(chosen):
        shares.append(mine[left])
        left -= mine[left]
    return shares[::-1]
""",
    ),
]

NOTHING = [
    ("nothing", _HEAD + "    return None\n"),
    ("all to the first", _HEAD + "    return [total] + [0] * (len(each) - 1)\n"),
]
