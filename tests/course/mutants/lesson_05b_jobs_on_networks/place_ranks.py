"""Answers to place_ranks: see test_exercises.py."""

SECONDS = "        seconds = max(pairs) + 2 * (around - 1) / around * max(rings)"
MEAN = "1e-3 * (sum(pairs) + sum(rings))"
RING = "gpus[(i + 2) % p]] for i in range(p)]"

MUTANTS = [
    ("as they are counted", "and the best choice takes", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return list(range(len(rates)))\n"),
    (
        "every order of sixteen GPUs",
        "Does a loop in it ever end",
        """
def place_ranks(rates, pair_bytes, ring_bytes):
    p = len(rates)

    def seconds(gpus):
        pair = max(pair_bytes / rates[a][b] for a, b in zip(gpus[::2], gpus[1::2], strict=True))
        narrow = min(rates[gpus[i]][gpus[(i + 2) % p]] for i in range(p))
        return pair + 2 * (p / 2 - 1) / (p / 2) * ring_bytes / narrow

    return list(min(itertools.permutations(range(p)), key=seconds))
""",
    ),
    ("the slowest links alone", "how does it see that one of several", ((MEAN, "0.0"),)),
    ("as many slow links as there may be", "Which other links do the messages", ((MEAN, "-1e-3 * (sum(pairs) + sum(rings))"),)),
    ("from one start", "how does it see that one of several", (("for _ in range(150)", "for _ in range(1 if p > 8 else 150)"),)),
    ("no search: the first of many orders", "how does it see that one of several", (("least, better = cost(gpus), True", "least, better = cost(gpus), p == 8"),)),
    ("pairs alone", "its last one back to its first", ((SECONDS, "        seconds = max(pairs)"), (MEAN, "1e-3 * sum(pairs)"))),
    ("rings alone", "Which two GPUs does each pair sit on", ((SECONDS, "        seconds = max(rings)"), (MEAN, "1e-3 * sum(rings)"))),
    ("the worst", "and the best choice takes", (("swapped[0] < least[0] * (1 - 1e-9)", "swapped[0] > least[0] * (1 + 1e-9)"), ("min(found)", "max(found)"))),
    ("an open chain", "its last one back to its first", ((RING, "gpus[i + 2]] for i in range(p - 2)]"),)),
    (
        "whoever is nearest, one after the other",
        "and the best choice takes",
        '''
def place_ranks(rates, pair_bytes, ring_bytes):
    gpus = [0]
    while len(gpus) < len(rates):
        left = [i for i in range(len(rates)) if i not in gpus]
        gpus.append(max(left, key=lambda i: rates[gpus[-1]][i]))
    return gpus
''',
    ),
    ("the rank of each GPU", "or the rank of each GPU", (("    return min(found)[1]", "    order = min(found)[1]\n    return [order.index(i) for i in range(p)]"),)),
    ("neighbours in the order are the ring", "and the best choice takes", ((RING, "gpus[i // around * around + (i + 1) % around]] for i in range(p)]"),)),
    ("the largest sum of rates", "does their sum count, or the slowest", (("max(rings)", "sum(ring_bytes / p / ring for ring in rings) ** -1 * ring_bytes"), (MEAN, "1e-6 * sum(rings)"))),
    ("a GPU for two ranks", "names each of the 8 GPUs once", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return [0, 1, 2, 3] * (len(rates) // 4)\n"),
]  # fmt: skip

NOTHING = [
    ("the other way round", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return list(range(len(rates) - 1, -1, -1))\n"),
    ("all on one", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return [0] * len(rates)\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "a slowest pair and a slowest ring link are supposed, the best first, and an order is sought that has no slower",
        """
def place_ranks(rates, pair_bytes, ring_bytes):
    p = len(rates)
    values = sorted({rates[i][j] for i in range(p) for j in range(i)})
    bounds = sorted(
        (pair_bytes / a + 2 * (p / 2 - 1) / (p / 2) * ring_bytes / b, a, b) for a in values for b in values
    )

    def extended(gpus, pair, ring):
        k = len(gpus)
        if k == p:
            closed = rates[gpus[-2]][gpus[0]] >= ring and rates[gpus[-1]][gpus[1]] >= ring
            return gpus if closed else None
        for gpu in range(p):
            if gpu in gpus or (k % 2 and rates[gpus[-1]][gpu] < pair) or (k > 1 and rates[gpus[-2]][gpu] < ring):
                continue
            found = extended([*gpus, gpu], pair, ring)
            if found:
                return found
        return None

    # Rings can be turned, and exchanged: so rank 0 may stand anywhere.
    return next(found for _, a, b in bounds if (found := extended([0], a, b)))
""",
    ),
    (
        "moves at random that become rarer the dearer they are",
        """
def place_ranks(rates, pair_bytes, ring_bytes):
    import math

    p = len(rates)

    def cost(g):
        pairs = [pair_bytes / rates[g[i]][g[i + 1]] for i in range(0, p, 2)]
        rings = [(2 - 4 / p) * ring_bytes / rates[g[i]][g[(i + 2) % p]] for i in range(p)]
        return max(pairs) + max(rings), max(pairs) + max(rings) + 0.003 * (sum(pairs) + sum(rings))

    draw, best = random.Random(1), None
    for _ in range(12):
        g = draw.sample(range(p), p)
        here = cost(g)
        heat = here[1] / 5
        for _ in range(4000):
            i, j = draw.sample(range(p), 2)
            g[i], g[j] = g[j], g[i]
            there = cost(g)
            if there[1] <= here[1] or draw.random() < math.exp((here[1] - there[1]) / heat):
                here = there
                best = min(best or (here[1], list(g)), (here[1], list(g)))
            else:
                g[i], g[j] = g[j], g[i]
            heat *= 0.998
    return best[1]
""",
    ),
]
