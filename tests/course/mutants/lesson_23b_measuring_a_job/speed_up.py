"""Answers to speed_up: see test_exercises.py."""

_WARM = "    warm, size = 10, 30\n"
_MAX = "max(of_step)"
_HALF = "    half = 2.1 * ratio * math.hypot(off / first, off_then / then)\n"

MUTANTS = [
    (
        "the mean over ranks",
        "What does a step take when each rank is late by chance",
        ((_MAX, "sum(of_step) / len(of_step)"),),
    ),
    (
        "the first rank",
        "What does a step take when each rank is late by chance",
        ((_MAX, "of_step[0]"),),
    ),
    (
        "each step as if it were by itself",
        "How many steps tell something new",
        ((_WARM, "    warm, size = 10, 1\n"),),
    ),
    (
        "the warm-up, too",
        "which steps are in them",
        ((_WARM, "    warm, size = 0, 30\n"),),
    ),
    (
        "one standard error",
        "how far can a mean of so many steps be off",
        ((_HALF, _HALF.replace("2.1 * ", "")),),
    ),
    (
        "how single steps vary, and not their mean",
        "and which are left out",
        ((_HALF, _HALF.replace("2.1 *", "20 *")),),
    ),
]

NOTHING = [
    (
        "anything is possible",
        "\ndef speed_up(before, after):\n    return 0.0, 1e9\n",
    ),
]

ACCEPTED = [
    (
        "a bootstrap of blocks, in numpy",
        """
import numpy as np


def speed_up(before, after):
    draw = np.random.default_rng(0)

    def means(job):
        slowest = np.array(job).max(0)[10:]
        starts = draw.integers(0, len(slowest) - 30, (400, 10))
        return slowest[starts[..., None] + np.arange(30)].mean((1, 2)), slowest.mean()

    (some, first), (others, then) = means(before), means(after)
    low, high = np.quantile(np.log(some / others), (0.025, 0.975))
    middle, wider = np.log(first / then), 1.1
    return [float(np.exp(middle - wider * (high - low) / 2)), float(np.exp(middle + wider * (high - low) / 2))]
""",
    ),
    (
        "how alike neighbouring steps are, in tensors",
        """
import torch


def speed_up(before, after):
    def moments(job):
        x = torch.tensor(job, dtype=torch.double).amax(0)[10:].log()
        centred = x - x.mean()
        n = len(x)
        near = [(centred[: n - k] @ centred[k:] / (centred @ centred)).item() for k in range(1, 30)]
        alike = 0.0
        for one in near:
            if one < 0.05:
                break
            alike += one
        level = torch.tensor(job, dtype=torch.double).amax(0)[10:].mean().log()
        return level, x.var() / n * max(1.0, 1 + 2 * alike)

    (first, off), (then, off_then) = moments(before), moments(after)
    half = 2.1 * (off + off_then).sqrt()
    return tuple((first - then + sign * half).exp().item() for sign in (-1, 1))
""",
    ),
]
