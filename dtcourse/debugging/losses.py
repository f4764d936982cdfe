"""Two layouts of one training give one loss a step. Where they do not, the first step that differs says where to look.

    found = compare_layouts({
        "one process": lambda: launch(train, 1),
        "tensor parallel": lambda: launch(train, 2, HybridConfig(tp=2)),
    })
    print(found)     # ... differ first at step 1: 3.104 and 3.251, ... : the gradients or the optimizer's step differ

Step 0 is before any update: what differs there is the start, the data or the forward. Step 1 has seen one update. What
differs for the first time later is state that only some steps show, or rounding that has grown: sums in another order
differ in the last digits from step 0 on, and training multiplies that. The two are told apart by how it came.

A loss curve that is "similar" proves nothing: gradients too large by a factor look so under Adam. This finds where to
look; that a technique is right is proven by its gradients (dtcourse.verify).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtcourse.plural import plural

# A step multiplies rounding by a few; what is a hundred times what it was has another cause.
JUMP = 100.0

WHERE = {
    "start": "the start, the data or the forward differ, since there was no update yet",
    "update": "the forward is right, so the gradients or the optimizer's step differ",
    "jump": "the steps before agree to rounding, so what differs is something that this step is the first to show: a "
    "schedule, a buffer, another batch, a state that was restored",
    "growth": "the difference has grown step by step, as rounding does",
    "length": "one of them has stopped",
}


@dataclass(frozen=True)
class LossDifference:
    """The first step at which two layouts' losses differ. False where there is none.

    kind:    "start", "update", "jump", "growth", "length"; empty where there is none
    step:    the first that differs, from 0
    losses:  there, by layout
    relative: at each step that both have, |one - other| / |one|
    sentence: all of that
    """

    kind: str = ""
    step: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    relative: list[float] = field(default_factory=list)
    sentence: str = ""

    def __bool__(self) -> bool:
        return bool(self.kind)

    def __str__(self) -> str:
        return self.sentence


def compare_layouts(
    layouts: Mapping[str, Callable[[], Any] | Sequence[Any]], tolerance: float = 1e-5
) -> LossDifference:
    """Runs the layouts, and compares the first one's losses with each other's; returns the first that differs from it.

    layouts:   by name, a function that trains and returns the losses of its steps, or those losses: numbers, or one
               such list from each rank, as launch returns them. The loss is the whole batch's, the same on every rank
               that has it; None from ranks that have none, as a pipeline's first ones
    tolerance: relative, of what is rounding: 1e-12 in double

    Raises ValueError for fewer than two layouts, for losses that are none, and where ranks of one layout have others.
    """
    if len(layouts) < 2:
        raise ValueError(
            f"two layouts or more can be compared; got {plural(len(layouts), 'layout')}"
        )
    losses = {name: _losses(name, run() if callable(run) else run) for name, run in layouts.items()}
    first, *others = losses
    agreed = []
    for name in others:
        found = _compare(first, losses[first], name, losses[name], tolerance)
        if found:
            return found
        agreed.append(max(found.relative, default=0.0))
    said = f"{first} and {', '.join(others)} have the same losses over {plural(len(losses[first]), 'step')}"
    relative = found.relative
    return LossDifference(relative=relative, sentence=f"{said}, to {max(agreed):.1e} of them.")


def _compare(
    one: str, ones: list[float], other: str, others: list[float], tolerance: float
) -> LossDifference:
    relative = [_relative(a, b) for a, b in zip(ones, others, strict=False)]
    step = next((i for i, error in enumerate(relative) if not error <= tolerance), None)
    if step is None:
        if len(ones) == len(others):
            return LossDifference(relative=relative)
        both = f"{one} has {plural(len(ones), 'step')} and {other} {plural(len(others), 'step')}"
        return LossDifference(
            "length",
            len(relative),
            {},
            relative,
            f"{both}, the same as far as both go: {WHERE['length']}.",
        )
    kind = _kind(relative, step)
    said = (
        f"{one} and {other} differ first at step {step}: {ones[step]:.6g} and {others[step]:.6g}, "
        f"{relative[step]:.1e} of it"
    )
    if step:
        said += f", where the steps before agree to {max(relative[:step]):.1e}"
    losses = {one: ones[step], other: others[step]}
    return LossDifference(kind, step, losses, relative, f"{said}: {WHERE[kind]}.")


def _kind(relative: list[float], step: int) -> str:
    if step == 0:
        return "start"
    before = max(relative[:step])
    # Exactly equal until here, and not to rounding now, is no growth.
    if before > 0 and relative[step] <= JUMP * before:
        return "growth"
    return "update" if step == 1 else "jump"


def _relative(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _losses(name: str, given: Any) -> list[float]:
    """The losses of one layout, from what its ranks returned."""
    rows = [*given]
    if not any(isinstance(row, (list, tuple)) for row in rows):
        rows = [rows]
    found: dict[int, list[float]] = {}
    for rank, row in enumerate(rows):
        kept = [float(loss) for loss in row or () if loss is not None]
        if kept:
            found[rank] = kept
    if not found:
        raise ValueError(
            f"{name} has returned no losses: a list of one number a step, or one such list a rank"
        )
    rank, mine = next(iter(found.items()))
    for other, theirs in found.items():
        for step, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if _relative(a, b) > 1e-6:
                raise ValueError(
                    f"in {name}, rank {rank} has loss {a:.6g} at step {step} and rank {other} {b:.6g}: give the whole "
                    "batch's, the mean over the ranks that have other samples"
                )
    return mine
