"""What a study reads off curves of loss: steps to a target, the best of several learning rates, an interval.

A method's curves are, for each seed, {learning rate: [loss at each look]};
None from where a loss is no number any more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

Curve = Sequence[float | None]


def steps_to(losses: Curve, target: float, every: int) -> float:
    """The first step at which the loss is at the target or below; infinite where it never is. every: steps per look."""
    for look, loss in enumerate(losses):
        if loss is not None and loss <= target:
            return float(look * every)
    return math.inf


def median_at(runs: Sequence[dict[str, Curve]], lr: str, look: int) -> float:
    """Over the seeds, at this look (-1: the last); infinite where half of them have none any more."""
    return statistics.median(math.inf if (at := run[lr][look]) is None else at for run in runs)


def best_lr(runs: Sequence[dict[str, Curve]], look: int = -1) -> str:
    """The learning rate whose median loss over the seeds is lowest at this look, the last if no other is named."""
    return min(runs[0], key=lambda lr: median_at(runs, lr, look))


def quickest_lr(
    runs: Sequence[dict[str, Curve]], target: float, every: int
) -> tuple[str, list[float]]:
    """The learning rate whose median number of steps to the target is lowest, and each seed's number."""
    found = {lr: [steps_to(run[lr], target, every) for run in runs] for lr in runs[0]}
    return min(found.items(), key=lambda one: statistics.median(one[1]))


def tuned_lr(
    ends: Callable[[list[float]], list[list[float]]],
    guess: float,
    ratio: float = 2.0,
    most: int = 15,
) -> tuple[float, dict[float, list[float]]]:
    """The learning rate with the lowest median loss at the end, and all those tried with their losses, by seed.

    ends:  learning rates -> for each seed, the loss at the end with each of them; no number where training diverged
    guess: the middle of the first five, each `ratio` times the one before

    The best lies inside: where it is the least or the largest of those tried, two more are tried beyond it, until it
    is not. ValueError where `most` are not enough.
    """
    tried: dict[float, list[float]] = {}
    asked = [_three_digits(guess * ratio**k) for k in range(-2, 3)]
    while True:
        if len(tried) + len(asked) > most:
            raise ValueError(
                f"the best of {sorted(tried)} is the least or the largest of them: guess nearer to it"
            )
        tried |= dict(zip(asked, map(list, zip(*ends(asked), strict=True)), strict=True))
        best = min(sorted(tried), key=lambda lr: statistics.median(map(_or_infinite, tried[lr])))
        if best == min(tried):
            asked = [_three_digits(best / ratio**k) for k in (1, 2)]
        elif best == max(tried):
            asked = [_three_digits(best * ratio**k) for k in (1, 2)]
        else:
            return best, dict(sorted(tried.items()))


def _three_digits(rate: float) -> float:
    return float(f"{rate:.3g}")


def _or_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Of the mean, by Student's t: the differences are taken as independent, and as normal about their mean."""
    from scipy.stats import t  # here: a second to import

    n = len(differences)
    half = t.ppf(0.5 + confidence / 2, n - 1) * statistics.stdev(differences) / n**0.5
    middle = statistics.mean(differences)
    return middle - half, middle + half


def at_end(runs: Sequence[dict[str, Curve]], lr: str) -> list[float]:
    """By seed, the loss at the last look; infinite where it is no number any more."""
    return [math.inf if (end := run[lr][-1]) is None else end for run in runs]


def paired_interval(values: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """`interval` of the differences within a seed; no numbers where there is one seed only, or an infinite value."""
    if len(values) < 2 or not all(map(math.isfinite, (*values, *base))):
        return math.nan, math.nan
    return interval([a - b for a, b in zip(values, base, strict=True)])
