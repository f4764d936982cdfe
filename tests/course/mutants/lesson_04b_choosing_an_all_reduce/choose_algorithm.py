"""Answers to choose_algorithm: see test_exercises.py."""

from tests.course.edits import changed

_SECONDS = """
def seconds(algorithm, nbytes, ranks, alpha, beta, gap):
    rounds = math.ceil(math.log2(ranks))
    one = alpha + gap
    if algorithm == "root":
        return 2 * alpha * (ranks > 1) + 2 * (ranks - 1) * (gap + nbytes * beta)
    if algorithm == "ring":
        return 2 * (ranks - 1) * (one + nbytes / ranks * beta)
    if algorithm == "tree":
        return 2 * rounds * (one + nbytes * beta)
    if algorithm == "doubling" and ranks == 1 << rounds:
        return rounds * (one + nbytes * beta)
    raise ValueError(algorithm)
"""

_CHOOSE = """
def choose(nbytes, ranks, alpha, beta, gap):
    names = ["root", "ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])
    return min(names, key=lambda name: seconds(name, nbytes, ranks, alpha, beta, gap))
"""

_CROSSOVER = """
def crossover(ranks, alpha, beta, gap):
    return max([0.0, *_meets(ranks, alpha, beta, gap)])


def _meets(ranks, alpha, beta, gap):
    rounds, others = math.ceil(math.log2(ranks)), ranks - 1
    factors = {"root": (2, 2 * others, 2 * others), "tree": (2 * rounds,) * 3}
    if ranks == 1 << rounds:
        factors["doubling"] = (rounds,) * 3
    for latencies, messages, vectors in factors.values():
        late = (2 * others - latencies) * alpha + (2 * others - messages) * gap
        saved = (vectors - 2 * others / ranks) * beta
        if late > 0:
            yield late / saved if saved else math.inf
"""

MUTANTS = [
    (
        "the gap left out",
        "which messages pass one port in turn",
        changed(
            changed(_SECONDS, "one = alpha + gap", "one = alpha"),
            "(gap + nbytes * beta)",
            "nbytes * beta",
        )
        + _CHOOSE
        + _CROSSOVER,
    ),
    (
        "a root that pays two gaps, as it pays two latencies",
        "which messages pass one port in turn",
        changed(
            _SECONDS,
            "2 * alpha * (ranks > 1) + 2 * (ranks - 1) * (gap + nbytes * beta)",
            "2 * one * (ranks > 1) + 2 * (ranks - 1) * nbytes * beta",
        )
        + _CHOOSE
        + _CROSSOVER,
    ),
    (
        "a root whose messages follow each other",
        "Which latencies follow each other",
        changed(
            _SECONDS,
            "2 * alpha * (ranks > 1) + 2 * (ranks - 1) * (gap + nbytes * beta)",
            "2 * (ranks - 1) * (one + nbytes * beta)",
        )
        + _CHOOSE
        + _CROSSOVER,
    ),
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
def choose(nbytes, ranks, alpha, beta, gap):
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
def choose(nbytes, ranks, alpha, beta, gap):
    rounds = math.log2(ranks)
    times = {name: seconds(name, nbytes, ranks, alpha, beta, gap) for name in ("root", "ring", "tree")}
    times["doubling"] = rounds * (alpha + gap + nbytes * beta)
    return min(times, key=times.get)
"""
        + _CROSSOVER,
    ),
    (
        "the lesson's own crossover, of ring and tree",
        "last rival",
        _SECONDS
        + _CHOOSE
        + """
def crossover(ranks, alpha, beta, gap):
    rounds = math.ceil(math.log2(ranks))
    if ranks == 2:
        return math.inf
    if ranks == 3:
        return 2 * alpha / ((4 - 4 / 3) * beta)
    return (alpha + gap) / beta * (ranks - 1 - rounds) / (rounds - (ranks - 1) / ranks)
""",
    ),
    (
        "a crossover without the root",
        "whose gaps does the ring save",
        _SECONDS
        + _CHOOSE
        + changed(_CROSSOVER, '{"root": (2, 2 * others, 2 * others), "tree"', '{"tree"'),
    ),
    (
        "a crossover without the gap",
        "last rival",
        _SECONDS
        + _CHOOSE
        + changed(
            _CROSSOVER,
            "    return max([0.0, *_meets(ranks, alpha, beta, gap)])",
            "    return max([0.0, *_meets(ranks, alpha, beta, 0.0)])",
        ),
    ),
]

NOTHING = [
    (
        "always the ring",
        """
def seconds(algorithm, nbytes, ranks, alpha, beta, gap):
    raise ValueError


def choose(nbytes, ranks, alpha, beta, gap):
    return 'ring'


def crossover(ranks, alpha, beta, gap):
    return 0.0
""",
    ),
    (
        "the course's own",
        """
from dtcourse.simulator import collective_cost as cost

NAMES = {"root": "naive", "ring": "ring", "tree": "tree"}


def seconds(algorithm, nbytes, ranks, alpha, beta, gap):
    if algorithm == "doubling":
        return seconds("tree", nbytes, ranks, alpha, beta, gap) / 2
    return cost.seconds(NAMES[algorithm], "all_reduce", nbytes, ranks, cost.Link(alpha, beta, gap=gap))


def choose(nbytes, ranks, alpha, beta, gap):
    return min(NAMES, key=lambda name: seconds(name, nbytes, ranks, alpha, beta, gap))


def crossover(ranks, alpha, beta, gap):
    return cost.crossover("ring", "tree", "all_reduce", ranks, cost.Link(alpha, beta, gap=gap))
""",
    ),
]

ACCEPTED = [
    ("formulas written out", _SECONDS + _CHOOSE + _CROSSOVER),
    (
        "rounds by bits, and the least of a sorted table",
        (
            (
                "others, rounds = ranks - 1, math.ceil(math.log2(ranks))",
                "others, rounds = ranks - 1, (ranks - 1).bit_length()",
            ),
            (
                "return min(usable, key=lambda name: seconds(name, nbytes, ranks, alpha, beta, gap))",
                "times = {name: seconds(name, nbytes, ranks, alpha, beta, gap) for name in usable}\n"
                "    return sorted(times, key=times.get)[0]",
            ),
        ),
    ),
    (
        "where straight lines cross",
        _SECONDS
        + _CHOOSE
        + """
def crossover(ranks, alpha, beta, gap):
    far, sizes = 1e15, [0.0]
    for other in ["root", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else []):
        ahead, end = (
            seconds("ring", n, ranks, alpha, beta, gap) - seconds(other, n, ranks, alpha, beta, gap)
            for n in (0, far)
        )
        if ahead > 0:
            sizes.append(far * ahead / (ahead - end) if end < 0 else math.inf)
    return max(sizes)
""",
    ),
]
