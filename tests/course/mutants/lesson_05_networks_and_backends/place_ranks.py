"""Answers to place_ranks: see test_exercises.py."""

MUTANTS = [
    ("as they are counted", "and the best choice takes", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return list(range(8))\n"),
    ("pairs alone", "its last one back to its first", (("        return pair + 2 * 3 / 4 * ring_bytes / narrow", "        return pair"),)),
    ("rings alone", "Which two GPUs does each pair sit on", (("        return pair + 2 * 3 / 4 * ring_bytes / narrow", "        return -narrow"),)),
    ("the worst", "and the best choice takes", (("list(min(", "list(max("),)),
    ("an open chain", "its last one back to its first", (("for i in range(4)", "for i in range(1, 4)"), ("        return pair +", "        return 0.1 * pair +"))),
    (
        "whoever is nearest, one after the other",
        "and the best choice takes",
        '''
def place_ranks(rates, pair_bytes, ring_bytes):
    gpus = [0]
    while len(gpus) < 8:
        left = [i for i in range(8) if i not in gpus]
        gpus.append(max(left, key=lambda i: rates[gpus[-1]][i]))
    return gpus
''',
    ),
    ("the rank of each GPU", "or the rank of each GPU", (("    return list(min(itertools.permutations(range(8)), key=seconds))", "    found = min(itertools.permutations(range(8)), key=seconds)\n    return [found.index(i) for i in range(8)]"),)),
    ("neighbours in the order are the ring", "and the best choice takes", (("for side in (gpus[::2], gpus[1::2])", "for side in (gpus[:4], gpus[4:])"),)),
    ("the largest sum of rates", "does their sum count, or the slowest", (("        narrow = min(", "        narrow = sum("), ("        return pair + 2 * 3 / 4 * ring_bytes / narrow", "        return 0.1 * pair + ring_bytes / narrow"))),
    ("a GPU for two ranks", "names each of the 8 GPUs once", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return [0, 1, 2, 3] * 2\n"),
]  # fmt: skip

NOTHING = [
    ("the other way round", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return list(range(7, -1, -1))\n"),
    ("all on one", "\ndef place_ranks(rates, pair_bytes, ring_bytes):\n    return [0] * 8\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "swaps that help, from fifty starts",
        """
import random


def place_ranks(rates, pair_bytes, ring_bytes):
    def cost(g):
        pair = max(pair_bytes / rates[g[i]][g[i + 1]] for i in (0, 2, 4, 6))
        links = [(g[i], g[(i + 2) % 8]) for i in range(8)]
        return pair + 1.5 * ring_bytes / min(rates[a][b] for a, b in links) + 1e-3 * sum(ring_bytes / rates[a][b] for a, b in links)

    draw, found = random.Random(0), []
    for _ in range(50):
        g = draw.sample(range(8), 8)
        better = True
        while better:
            better = False
            for i, j in itertools.combinations(range(8), 2):
                h = list(g)
                h[i], h[j] = h[j], h[i]
                if cost(h) < cost(g) * (1 - 1e-9):
                    g, better = h, True
        found.append((cost(g), g))
    return min(found)[1]
""",
    ),
    (
        "all placements at once, in a tensor",
        """
def place_ranks(rates, pair_bytes, ring_bytes):
    orders = torch.tensor(list(itertools.permutations(range(8))))
    table = torch.tensor(rates, dtype=torch.double)
    pair = pair_bytes / table[orders[:, ::2], orders[:, 1::2]].amin(1)
    ring = 1.5 * ring_bytes / table[orders, orders.roll(-2, 1)].amin(1)
    return orders[(pair + ring).argmin()]
""",
    ),
]
