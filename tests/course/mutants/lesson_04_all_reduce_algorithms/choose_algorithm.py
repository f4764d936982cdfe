"""Answers to choose_algorithm: see test_exercises.py."""

from tests.course.edits import changed

_SECONDS = """
def seconds(algorithm, nbytes, ranks, alpha, beta):
    rounds = math.ceil(math.log2(ranks))
    if algorithm == "ring":
        return 2 * (ranks - 1) * (alpha + nbytes / ranks * beta)
    if algorithm == "tree":
        return 2 * rounds * (alpha + nbytes * beta)
    if algorithm == "doubling" and ranks == 1 << rounds:
        return rounds * (alpha + nbytes * beta)
    raise ValueError(algorithm)
"""

_CHOOSE = """
def choose(nbytes, ranks, alpha, beta):
    names = ["ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])
    return min(names, key=lambda name: seconds(name, nbytes, ranks, alpha, beta))
"""

_CROSSOVER = """
def crossover(ranks, alpha, beta):
    return _meets(ranks, alpha, beta, ["tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else []))


def _meets(ranks, alpha, beta, others):
    rounds = math.ceil(math.log2(ranks))
    sizes = [0.0]
    for name in others:
        factor = {"tree": 2 * rounds, "doubling": rounds}[name]
        late, saved = 2 * (ranks - 1) - factor, factor - 2 * (ranks - 1) / ranks
        if late > 0:
            sizes.append(late * alpha / (saved * beta) if saved else math.inf)
    return max(sizes)
"""

MUTANTS = [
    (
        "logarithm rounded down",
        "How many rounds has a tree",
        changed(_SECONDS, "math.ceil(math.log2(ranks))", "int(math.log2(ranks))")
        + _CHOOSE
        + _CROSSOVER,
    ),
    (
        "chooses by size alone",
        "compare the times of this very call",
        _SECONDS
        + """
def choose(nbytes, ranks, alpha, beta):
    if nbytes > 1_000_000:
        return "ring"
    return "tree" if ranks & (ranks - 1) else "doubling"
"""
        + _CROSSOVER,
    ),
    (
        "doubling where it cannot be used",
        "what can be used there",
        _SECONDS
        + """
def choose(nbytes, ranks, alpha, beta):
    rounds = math.log2(ranks)
    times = {name: seconds(name, nbytes, ranks, alpha, beta) for name in ("ring", "tree")}
    times["doubling"] = rounds * (alpha + nbytes * beta)
    return min(times, key=times.get)
"""
        + _CROSSOVER,
    ),
    (
        "the crossover with the tree alone",
        "last rival",
        _SECONDS
        + _CHOOSE
        + changed(
            _CROSSOVER,
            '["tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])',
            '["tree"]',
        ),
    ),
]

NOTHING = [
    (
        "always the ring",
        """
def seconds(algorithm, nbytes, ranks, alpha, beta):
    raise ValueError


def choose(nbytes, ranks, alpha, beta):
    return 'ring'


def crossover(ranks, alpha, beta):
    return 0.0
""",
    ),
]

ACCEPTED = [
    (
        "rounds by bits in seconds, and the least of a table",
        (
            (
                "    rounds = math.ceil(math.log2(ranks))\n    terms",
                "    rounds = (ranks - 1).bit_length()\n    terms",
            ),
            (
                "return min(usable, key=lambda name: seconds(name, nbytes, ranks, alpha, beta))",
                "times = {name: seconds(name, nbytes, ranks, alpha, beta) for name in usable}\n"
                "    return sorted(times, key=times.get)[0]",
            ),
        ),
    ),
    (
        "where straight lines cross",
        _SECONDS
        + _CHOOSE
        + """
def crossover(ranks, alpha, beta):
    far, sizes = 1e15, [0.0]
    for other in ["tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else []):
        ahead, end = (
            seconds("ring", n, ranks, alpha, beta) - seconds(other, n, ranks, alpha, beta)
            for n in (0, far)
        )
        if ahead > 0:
            sizes.append(far * ahead / (ahead - end) if end < 0 else math.inf)
    return max(sizes)
""",
    ),
]
