"""Answers to amdahl: see test_exercises.py."""

_FIT = """
def serial_fraction(seconds):
    a, b = _line(seconds)
    return a / (a + b)


def _line(seconds):
    n = len(seconds)
    x = [1 / w for w in seconds]
    y = list(seconds.values())
    mx, my = sum(x) / n, sum(y) / n
    b = sum((p - mx) * (q - my) for p, q in zip(x, y)) / sum((p - mx) ** 2 for p in x)
    return my - b * mx, b
"""

_PREDICT = """
def predict_seconds(seconds, ranks):
    a, b = _line(seconds)
    return a + b / ranks
"""

_MOST = """
def most_ranks(seconds, efficiency):
    import math
    return math.floor(1 + (1 / efficiency - 1) / serial_fraction(seconds))
"""

MUTANTS = [
    (
        "solves for one measurement only",
        "Does every measurement count",
        _FIT.replace(
            "n = len(seconds)", "seconds = {w: seconds[w] for w in sorted(seconds)[:2]}; n = 2"
        )
        + _PREDICT
        + _MOST,
    ),
    (
        "takes the first measurement for one rank's",
        "a + b / W",
        """
def serial_fraction(seconds):
    first, last = min(seconds), max(seconds)
    speedup = seconds[first] / seconds[last]
    return (1 / speedup - 1 / last) / (1 - 1 / last)


def predict_seconds(seconds, ranks):
    s = serial_fraction(seconds)
    return seconds[min(seconds)] * (s + (1 - s) / ranks)
"""
        + _MOST,
    ),
    (
        "divides the serial part too",
        "only the rest is divided",
        _FIT + _PREDICT.replace("a + b / ranks", "(a + b) / ranks") + _MOST,
    ),
    (
        "Gustafson's law for work that stays the same",
        "only the rest is divided",
        _FIT + _PREDICT.replace("a + b / ranks", "(a + b) ** 2 / (a + b * ranks)") + _MOST,
    ),
    (
        "rounds up",
        "which way do you round",
        _FIT + _PREDICT + _MOST.replace("math.floor", "math.ceil"),
    ),
    (
        "forgets the rank that was there already",
        "speed-up divided by ranks",
        _FIT + _PREDICT + _MOST.replace("1 + (1 /", "(1 /"),
    ),
]

NOTHING = [
    (
        "constants",
        """
def serial_fraction(seconds):
    return 0.25


def predict_seconds(seconds, ranks):
    return min(seconds.values())


def most_ranks(seconds, efficiency):
    return 1
""",
    ),
]

ACCEPTED = [
    (
        "numpy's fit, and a search",
        """
import numpy

def line(seconds):
    return numpy.polyfit([1 / ranks for ranks in seconds], list(seconds.values()), 1)

def serial_fraction(seconds):
    b, a = line(seconds)
    return a / (a + b)

def predict_seconds(seconds, ranks):
    return numpy.polyval(line(seconds), 1 / ranks)

def most_ranks(seconds, efficiency):
    b, a = line(seconds)
    ranks = 1
    while (a + b) / ((ranks + 1) * a + b) >= efficiency:
        ranks += 1
    return ranks
""",
    ),
    (
        "least squares by torch",
        """
import torch


def fit(seconds):
    ranks = torch.tensor(list(seconds), dtype=torch.double)
    times = torch.tensor(list(seconds.values()), dtype=torch.double)
    columns = torch.stack([torch.ones_like(ranks), 1 / ranks], 1)
    return torch.linalg.lstsq(columns, times[:, None]).solution.flatten()

def serial_fraction(seconds):
    return fit(seconds)[0] / fit(seconds).sum()

def predict_seconds(seconds, ranks):
    return fit(seconds) @ torch.tensor([1, 1 / ranks], dtype=torch.double)

def most_ranks(seconds, efficiency):
    s = serial_fraction(seconds)
    return int((1 / efficiency - 1 + s) // s)
""",
    ),
]
