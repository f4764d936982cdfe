"""Which layers go into which stage: consecutive ones, so that the slowest stage is as fast as it can be.

A pipeline is as fast as its slowest stage; all others wait for it, in every micro-batch. Equally many layers are not
equally much work: the embedding of a Transformer costs next to nothing and its last projection much (PipeDream,
Narayanan et al. 2019, section 3.1, balances by measured times; AMP, Li et al. 2022, on unequal devices).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from dtcourse.plural import plural


def balance(
    costs: Sequence[float],
    stages: int,
    speeds: Sequence[float] | None = None,
    transfers: Sequence[float] | None = None,
    fits: Callable[[int, range], bool] | None = None,
) -> list[range]:
    """By stage, the layers that it takes. Dynamic programming, in len(costs)^2 * stages steps.

    costs:  of each layer, in any unit: FLOPs, seconds
    speeds: of each stage's device, in units of cost per second; default: all alike
    transfers: seconds that the output of each layer takes to the next stage, its gradient back at the same time. A link
            works while the stages do; so it is one more that may be the slowest (PipeDream, section 3.1)
    fits:   whether a stage's device has memory for these layers; default: each has for all

    Among those whose slowest stage is fastest, one whose other stages are most even (least sum of squares of their
    seconds), since it leaves room for noise.

    Raises ValueError if there are fewer layers than stages, a negative cost, or a speed of 0, and where no cut fits.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(
            f"{plural(len(costs), 'layer')} cannot make {plural(stages, 'stage')}: each takes at least one layer."
        )
    speeds = [1.0] * stages if speeds is None else speeds
    if len(speeds) != stages or not all(speed > 0 for speed in speeds):
        raise ValueError(
            f"{plural(stages, 'stage')} need as many speeds above 0; got {list(speeds)}."
        )
    if not all(cost >= 0 for cost in costs):
        raise ValueError(f"A layer's cost is 0 or more; got {min(costs)}.")
    if transfers is not None and (
        len(transfers) != len(costs) or not all(one >= 0 for one in transfers)
    ):
        raise ValueError(
            f"{plural(len(costs), 'layer')} need as many transfers of 0 or more; got {list(transfers)}."
        )
    before = [0.0, *accumulate(costs)]

    def seconds(stage: int, start: int, end: int) -> float:
        return (before[end] - before[start]) / speeds[stage]

    def with_link(stage: int, start: int, end: int) -> float:
        if fits is not None and not fits(stage, range(start, end)):
            return math.inf
        link = transfers[end - 1] if transfers is not None and end < len(costs) else 0.0
        return max(seconds(stage, start, end), link)

    slowest = _best_cuts(with_link, len(costs), stages, max)[0]
    if fits is not None and slowest == math.inf:
        raise ValueError(
            f"No cut of {plural(len(costs), 'layer')} into {plural(stages, 'stage')} fits into their memory: take more "
            "stages, or cut the layers themselves."
        )
    # Rounding: the same sum by another way may be a last digit above.
    limit = slowest * (1 + 1e-12)

    def evenly(stage: int, start: int, end: int) -> float:
        return seconds(stage, start, end) if with_link(stage, start, end) <= limit else math.inf

    _, cuts = _best_cuts(evenly, len(costs), stages, _add_square)
    return [range(start, end) for start, end in zip([0, *cuts], [*cuts, len(costs)], strict=True)]


def _add_square(total: float, one: float) -> float:
    return total + one * one


def _best_cuts(
    seconds: Callable[[int, int, int], float],
    layers: int,
    stages: int,
    combine: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """The least that `combine` makes of all stages' seconds, and where the cuts are.

    best[n] is that for the first n layers in the stages so far; one more stage takes the last of them.
    """
    best = [0.0] + [math.inf] * layers
    cuts_of: list[list[int]] = [[] for _ in best]
    for stage in range(stages):
        new = [math.inf] * (layers + 1)
        new_cuts: list[list[int]] = [[] for _ in new]
        for end in range(stage + 1, layers + 1):
            for start in range(stage, end):
                total = combine(best[start], seconds(stage, start, end))
                if total < new[end]:
                    new[end] = total
                    new_cuts[end] = [*cuts_of[start], start] if stage else []
        best, cuts_of = new, new_cuts
    return best[layers], cuts_of[layers]
