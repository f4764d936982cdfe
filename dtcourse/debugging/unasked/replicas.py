"""Parameters that ought to be the same on all ranks, told by what they were: unasked, nobody says which these are.

What has the same bits on all ranks before a step and others after it has drifted. Where all
gradients are the same on all ranks (so they were averaged, as between replicas), what differs in its values has started
from another place. A shard does
neither: it differs from the start, and so do its gradients. Zeros and ones are left out: a bias of a shard begins so
too.
"""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dtcourse.debugging.held import piece_of
from dtcourse.debugging.replicas import first_drift
from dtcourse.debugging.unasked.watch import Roots, unseen
from dtcourse.parameters.checksum import checksum
from dtcourse.parameters.placement import local, placement_of

MOST = 200  # steps
# Of a parameter in a step: its sum before and after it, its gradient's (None: it has none), whether it is all one
Row = tuple[float, float, float | None, bool]
Key = tuple[str, tuple[Any, ...], str]


class ReplicaSums:
    """Sums the bits of all parameters of each optimizer, before and after each of its steps."""

    name = "replicas"

    def __init__(self) -> None:
        self._roots = Roots()
        self._handles: list[Any] = []
        self._before: dict[int, tuple[float, float | None, bool]] = {}
        self._steps: list[dict[Key, Row]] = []

    def begin(self) -> None:
        self._roots.begin()
        self._handles = [
            register_optimizer_step_pre_hook(self._steps_next),
            register_optimizer_step_post_hook(self._has_stepped),
        ]

    def end(self) -> list[dict[Key, Row]]:
        self._roots.end()
        for handle in self._handles:
            handle.remove()
        return self._steps

    @unseen
    def _steps_next(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if len(self._steps) >= MOST:
            return
        for p in _parameters(optimizer):
            mine = local(p.detach())
            gradient = None if p.grad is None else checksum(local(p.grad)).item()
            moved = gradient is not None and bool(local(p.grad).any())
            same = mine.numel() == 0 or bool((mine == mine.flatten()[0]).all())
            self._before[id(p)] = (checksum(mine).item(), gradient if moved else None, same)

    @unseen
    def _has_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if len(self._steps) >= MOST:
            return
        names, step = self._roots.names(), {}
        for number, p in enumerate(_parameters(optimizer)):
            if id(p) not in self._before:
                continue
            before, gradient, same = self._before.pop(id(p))
            mine = local(p.detach())
            name = names.get(id(p), f"parameter {number} of the optimizer")
            piece = piece_of(placement_of(p))
            if piece is not None:
                key = (name, piece, f"{tuple(mine.shape)} {str(mine.dtype)[6:]}")
                step[key] = (before, checksum(mine).item(), gradient, same)
        self._steps.append(step)


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def drifted(seen: list[Any], results: list[Any]) -> str | None:
    """The first parameter that has drifted, or that started elsewhere, with the rank and the step."""
    for step in range(min(map(len, seen))):
        keys = [key for key in seen[0][step] if all(key in mine[step] for mine in seen)]
        rows = {key: [mine[step][key] for mine in seen] for key in keys}
        apart = {key: of for key, of in rows.items() if _differ(of, 1)}
        now = {
            key: of for key, of in apart.items() if not _differ(of, 0) and not all(r[3] for r in of)
        }
        moved = [of for of in rows.values() if any(row[2] for row in of)]
        began = {key: of for key, of in rows.items() if _differ(of, 0) and of[0][2] is not None}
        # One gradient alone may be the same by chance: that of a sum's bias is a count.
        if began and not any(_differ(of, 2) for of in moved):
            said = first_drift(_found(began, 0))
            return f"Before step {step} {said} All gradients are the same on all ranks, so these are replicas."
        if now:
            return f"Since step {step}, and not before it: {first_drift(_found(now, 1))}"
    return None


def _differ(rows: list[Row], column: int) -> bool:
    return len({row[column] for row in rows}) > 1


def _found(rows: dict[Key, list[Row]], column: int) -> dict[tuple[str, Any], dict[int, Any]]:
    return {
        (name, piece): {rank: (form, row[column]) for rank, row in enumerate(of)}
        for (name, piece, form), of in rows.items()
    }
