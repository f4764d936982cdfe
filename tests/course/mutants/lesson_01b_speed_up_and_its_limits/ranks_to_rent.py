"""Answers to ranks_to_rent: see test_exercises.py."""

_ROW = "[1 / ranks, 1.0, ranks]"
_TIME = "divided / ranks + constant + growing * ranks"
_RANKS = "range(1, most + 1)"
_NAMES = "divided, constant, growing ="

MUTANTS = [
    ("Amdahl's law", "Does Amdahl's law know", ((_ROW, "[1 / ranks, 1.0]"), (_NAMES, "divided, constant ="), (" + growing * ranks", ""))),
    ("every rank as good as the first", "How many messages follow one after the other", ((_TIME, "min(seconds) * seconds[min(seconds)] / ranks"),)),
    ("from the last measurement", "How many messages follow one after the other", ((_TIME, "max(seconds) * seconds[max(seconds)] / ranks"),)),
    ("nothing is repeated", "which stays", ((_ROW, "[1 / ranks, ranks]"), (_NAMES, "divided, growing ="), ("constant + ", ""))),
    ("all there are", "What does each further rank do to the cost?", ((_RANKS, "[most]"),)),
    ("the most that end in time", "What does each further rank do to the cost?", ((_RANKS, "range(most, 0, -1)"),)),
    ("what was measured is all there is", "the time on any number follows", ((_RANKS, "sorted(seconds)"),)),
    ("late is better than never", "beyond which a step becomes longer again", (("return None", "return most"),)),
    ("one rank is no job", "1 rank would end in time", ((_RANKS, "range(2, most + 1)"),)),
    ("a float", "a number of ranks is an int", (("return ranks", "return float(ranks)"),)),
]  # fmt: skip

NOTHING = [
    (
        "as many as there are",
        """
def ranks_to_rent(seconds, most, limit):
    return most
""",
    ),
    (
        "never",
        """
def ranks_to_rent(seconds, most, limit):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "the cost's parabola through three measurements",
        """
def ranks_to_rent(seconds, most, limit):
    places = sorted(seconds)[:3]
    for ranks in range(1, most + 1):
        cost = 0.0
        for at in places:
            weight = 1.0
            for other in places:
                if other != at:
                    weight *= (ranks - other) / (at - other)
            cost += weight * at * seconds[at]
        if cost <= ranks * limit:
            return ranks
""",
    ),
    (
        "three equations, and the cheapest of all that end in time",
        """
import torch


def ranks_to_rent(seconds, most, limit):
    few = torch.tensor(sorted(seconds)[-3:], dtype=torch.double)
    rows = torch.stack([1 / few, torch.ones(3, dtype=torch.double), few - 1], 1)
    times = torch.tensor([seconds[int(ranks)] for ranks in few], dtype=torch.double)
    ranks = torch.arange(1.0, most + 1, dtype=torch.double)
    every = torch.stack([1 / ranks, torch.ones_like(ranks), ranks - 1], 1) @ torch.linalg.solve(rows, times)
    cost = torch.where(every <= limit, every * ranks, torch.inf)
    return int(cost.argmin()) + 1 if cost.isfinite().any() else None
""",
    ),
]
