"""Answers to choose_way: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_SUM = "sum(times * seconds(n) for n, times in calls)"
_NONE = "        if any(one is None for rows in measured.values() for row in rows for one in row):\n            continue\n"
_SLOWEST = "slowest = max(a for row in brief for a in row), max(b for row in lasting for b in row)"
_WIDEST = """    wide = min(pings, key=lambda name: pings[name][1 << 20][0][1])
    return min(one for one in found if one[1] == wide)[1:]
"""
_EARLIEST = """    early = min(pings, key=lambda name: pings[name][64][0][1])
    return min(one for one in found if one[1] == early)[1:]
"""

MUTANTS = [
    ("the interface with the most bytes per second", "spent on its bytes", ((_RETURN, _WIDEST),)),
    (
        "the interface whose messages begin first",
        "a message of that many bytes",
        ((_RETURN, _EARLIEST),),
    ),
    (
        "the longest call decides",
        "take together",
        ((_SUM, "max(calls)[1] * seconds(max(calls)[0])"),),
    ),
    ("one call of each size", "take together", ((_SUM, "sum(seconds(n) for n, _ in calls)"),)),
    (
        "the short calls decide",
        "Which of them is the larger part",
        ((_SUM, "min(calls)[1] * seconds(min(calls)[0])"),),
    ),
    (
        "always a ring, as the lesson chooses for large messages",
        "how many messages follow one another",
        ((_RETURN, '    return min(one for one in found if one[2] == "ring")[1:]\n'),),
    ),
    (
        "always by rank 0",
        "which rank sends or receives the most",
        ((_RETURN, '    return min(one for one in found if one[2] == "naive")[1:]\n'),),
    ),
    (
        "a tree for all",
        "how many messages follow one another",
        ((_RETURN, '    return min(one for one in found if one[2] == "tree")[1:]\n'),),
    ),
    (
        "rank 0 sends to all at once, as if it had a port for each",
        "which rank sends or receives the most",
        (("2 * alpha + 2 * (p - 1) * n * beta", "2 * alpha + n * beta"),),
    ),
    (
        "a ring sends the whole in each of its steps",
        "which rank sends or receives the most",
        (("alpha + n / p * beta", "alpha + n * beta"),),
    ),
    (
        "only ranks 0 and 1 are looked at",
        "Which pair of ranks is the slowest",
        ((_SLOWEST, "slowest = brief[0][1], lasting[0][1]"),),
    ),
    (
        "what never came counts nothing",
        "no group forms",
        (
            (_NONE, ""),
            ("max(a for row in brief for a in row)", "max(a or 0 for row in brief for a in row)"),
            (
                "max(b for row in lasting for b in row)",
                "max(b or 0 for row in lasting for b in row)",
            ),
        ),
    ),
    (
        "the interface alone",
        "a choice is an interface and an algorithm",
        ((_RETURN, "    return min(found)[1]\n"),),
    ),
    (
        "an algorithm that is not there",
        "The algorithm is one of",
        ((_RETURN, '    return min(found)[1], "halving"\n'),),
    ),
    (
        "the simulator is asked",
        "asks you to write that yourself",
        (
            (
                _RETURN,
                "    from dtcourse import simulator\n    simulator.nodes\n    return min(found)[1:]\n",
            ),
        ),
    ),
]

NOTHING = [
    ("nothing is returned", "def choose_way(pings, calls):\n    return None\n"),
    ("what every machine has", 'def choose_way(pings, calls):\n    return "lo", "ring"\n'),
]

ACCEPTED = [
    (
        "a line through both sizes for each pair, and the slower of two calls' parts",
        """
def choose_way(pings, calls):
    def slowest(rows):
        return max((math.inf if one is None else one) for row in rows for one in row)

    best = (math.inf, None, None)
    for name in pings:
        a, b = (torch.tensor(slowest(pings[name][n]), dtype=torch.double) for n in (64, 1 << 20))
        if torch.isinf(a):
            continue
        line = torch.linalg.solve(torch.tensor([[1.0, 64.0], [1.0, 2.0**20]], dtype=torch.double), torch.stack([a, b]))
        for algorithm, messages, whole in (("naive", 2, 6), ("tree", 4, 4), ("ring", 6, 1.5)):
            cost = torch.tensor([[messages, whole * n] for n, _ in calls], dtype=torch.double) @ line
            total = float(cost @ torch.tensor([float(times) for _, times in calls], dtype=torch.double))
            best = min(best, (total, name, algorithm))
    return list(best[1:])
""",
    ),
    (
        "messages one after the other, each on its own pair's cable",
        """
def choose_way(pings, calls):
    def pair(name, a, b, n):
        short, long = pings[name][64][a][b], pings[name][1 << 20][a][b]
        per_byte = (long - short) / (2**20 - 64)
        return short - 64 * per_byte, n * per_byte

    def naive(name, n):
        up = [pair(name, r, 0, n) for r in (1, 2, 3)]
        down = [pair(name, 0, r, n) for r in (1, 2, 3)]
        half = lambda way: max(alpha for alpha, _ in way) + sum(byte for _, byte in way)
        return half(up) + half(down)

    def tree(name, n):
        up = max(sum(pair(name, 1, 0, n)), sum(pair(name, 3, 2, n))) + sum(pair(name, 2, 0, n))
        return up + sum(pair(name, 0, 2, n)) + max(sum(pair(name, 0, 1, n)), sum(pair(name, 2, 3, n)))

    def ring(name, n):
        return 6 * max(sum(pair(name, r, (r + 1) % 4, n / 4)) for r in range(4))

    takes = {"ring": ring, "tree": tree, "naive": naive}
    usable = [name for name in pings if all(one is not None for row in pings[name][64] for one in row)]
    step = lambda choice: sum(times * takes[choice[1]](choice[0], n) for n, times in calls)
    return min(itertools.product(usable, takes), key=step)
""".replace(
            "def choose_way(pings, calls):\n",
            "def choose_way(pings, calls):\n    import itertools\n\n",
        ),
    ),
]
