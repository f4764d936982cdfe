"""Answers to ranks_per_run: see test_exercises.py."""

_ROUNDS = "math.ceil(runs / (ranks // size))"
_STEP = "compute / size + repeated + 2 * (size - 1) * (latency + transfer / size)"
_SIZES = "range(1, ranks + 1)"

MUTANTS = [
    ("every run on a rank of its own", "the last round full", ((_SIZES, "[1]"),)),
    ("every run on all ranks", "the last round full", ((_SIZES, "[ranks]"),)),
    ("a fast step is all", "the last round full", ((_ROUNDS, "1"),)),
    ("rounds that are not full cost less", "the last round full", ((_ROUNDS, "runs / (ranks // size)"),)),
    ("a group of what is left", "the last round full", ((_ROUNDS, "math.ceil(runs / (ranks / size))"),)),
    ("messages are free", "every message of its all-reduce", ((_STEP, "compute / size + repeated"),)),
    ("latency is free", "every message of its all-reduce", (("(latency + transfer / size)", "(transfer / size)"),)),
    ("bytes are free", "every message of its all-reduce", (("(latency + transfer / size)", "latency"),)),
    ("one message for the whole gradient", "every message of its all-reduce", (("2 * (size - 1) * (latency + transfer / size)", "(latency + transfer)"),)),
    ("powers of two only", "every size been tried", ((_SIZES, "[s for s in (1, 2, 4, 8) if s <= ranks]"),)),
    ("what is repeated is forgotten", "paid in every round", (("repeated + ", ""),)),
    ("a float", "a number of ranks is an int", (("    return min(", "    return float(min("), ("key=seconds)", "key=seconds))"))),
]  # fmt: skip

NOTHING = [
    (
        "as many ranks as runs",
        """
def ranks_per_run(runs, ranks, compute, repeated, latency, transfer):
    return min(runs, ranks) + 20
""",
    ),
]

ACCEPTED = [
    (
        "each size's rounds performed, one after the other",
        """
def ranks_per_run(runs, ranks, compute, repeated, latency, transfer):
    best = None
    for size in reversed(range(1, ranks + 1)):
        left, now = runs, 0.0
        while left > 0:
            left -= ranks // size
            now += compute / size + repeated
            for _ in range(2 * (size - 1)):
                now += latency + transfer / size
        if best is None or now <= best[0]:
            best = now, size
    return best[1]
""",
    ),
    (
        "by tensors",
        """
import torch


def ranks_per_run(runs, ranks, compute, repeated, latency, transfer):
    size = torch.arange(1, ranks + 1)
    rounds = (runs + ranks // size - 1) // (ranks // size)
    step = compute / size + repeated + 2 * (size - 1) * (latency + transfer / size)
    return int(size[(rounds * step).argmin()])
""",
    ),
]
