"""Answers to choose_broadcast: see test_exercises.py."""

MUTANTS = [
    (
        "the tree always",
        "What does one chunk more cost",
        """
def choose_broadcast(ranks, nbytes, latency, bandwidth, gap):
    return "tree", 1
""",
    ),
    (
        "a chunk costs nothing",
        "What does one chunk more cost",
        (("port = gap + nbytes / c / bandwidth", "port = nbytes / c / bandwidth"),),
    ),
    (
        "one chunk only",
        "What does one chunk more cost",
        (("range(1, 65)", "range(1, 2)"),),
    ),
    (
        "a latency for the chain as a whole",
        "How many latencies wait for each other",
        (("(ranks - 1) * latency +", "latency +"),),
    ),
    (
        "the best chain, and no tree",
        "How many latencies wait for each other",
        (('found = [(tree, "tree", 1)]', "found = []"),),
    ),
    (
        "chunks for another number of ranks",
        "How many ranks fill the chain",
        (("(ranks + c - 2) * port", "(4 * ranks + c) * port"),),
    ),
    (
        "a tree against the chain in one chunk",
        "the chain's best number of chunks",
        """
def choose_broadcast(ranks, nbytes, latency, bandwidth, gap):
    if nbytes < 1_500_000 and nbytes / bandwidth > 5 * latency * 0.99 and ranks < 8:
        found = []
    elif nbytes < 2_000_000:
        return "tree", 1
    found = []
    for c in range(1, 65):
        port = gap + nbytes / c / bandwidth
        found.append(((ranks - 1) * latency + (ranks + c - 2) * port, "chain", c))
    _, route, chunks = min(found)
    return route, chunks
""",
    ),
]

ACCEPTED = [
    (
        "the best number of chunks by its formula",
        (
            (
                "for c in range(1, 65):",
                "near = max(1, round(((ranks - 2) * nbytes / bandwidth / gap) ** 0.5))\n"
                "    for c in (min(64, near),):",
            ),
        ),
    ),
    (
        "rounds by bits",
        (("math.ceil(math.log2(ranks))", "(ranks - 1).bit_length()"),),
    ),
]

NOTHING = [
    (
        "no choice",
        """
def choose_broadcast(ranks, nbytes, latency, bandwidth, gap):
    return None
""",
    ),
]
