"""What a MemoryTracker saw, as plain data: every storage's birth and death, from which come curve, peak and trace.

A history can be sent from a rank to the notebook, kept, and drawn; dtcourse.memory.allocator replays its trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from dtcourse.profiling.memory import CATEGORIES

PHASES = ("forward", "backward", "optimizer")


@dataclass(eq=False)
class Allocation:
    """One storage. born and died are places in History.events; died is None while it lives."""

    bytes: int
    op: str  # the operator that made it; "" if it was there before
    module: str  # the module whose forward was running, by its name in the model; "" outside
    phase: str  # one of PHASES, or "before"
    shape: tuple[int, ...]
    dtype: torch.dtype
    born: int
    died: int | None = None
    category: str = "other"


@dataclass(frozen=True)
class Peak:
    """The moment with the most live bytes, and the operator that brought it about."""

    bytes: int
    at: int  # its place in the curve
    op: str
    module: str
    phase: str
    by_category: dict[str, int]
    alive: list[Allocation] = field(repr=False)  # largest first


@dataclass
class History:
    """Allocations and frees in their order.

    events: (bytes gained or lost, which allocation, how many operators had begun)
    backwards: places in events where a backward pass began
    """

    allocations: list[Allocation] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)

    def born(self, allocation: Allocation, ops: int) -> int:
        """Adds a new storage; returns its number."""
        self.allocations.append(allocation)
        self.events.append((allocation.bytes, len(self.allocations) - 1, ops))
        return len(self.allocations) - 1

    def died(self, number: int, ops: int) -> None:
        """Says that a storage is gone."""
        allocation = self.allocations[number]
        allocation.died = len(self.events)
        self.events.append((-allocation.bytes, number, ops))

    def find_activations(self) -> None:
        """What forward made and a backward found alive are activations: autograd, or a checkpoint, kept it."""
        starts = np.array(self.backwards)
        for a in self.allocations:
            if a.category == "other" and a.phase == "forward":
                i = int(np.searchsorted(starts, a.born, side="right"))
                if i < len(starts) and (a.died is None or a.died >= starts[i]):
                    a.category = "activations"

    def curve(self) -> dict[str, np.ndarray]:
        """Live bytes after each event, by category; their sum is the total. `op_counts` is a clock for it."""
        curves = {c: np.zeros(len(self.events), dtype=np.int64) for c in CATEGORIES}
        for i, (change, number, _) in enumerate(self.events):
            curves[self.allocations[number].category][i] = change
        return {c: changes.cumsum() for c, changes in curves.items()}

    def op_counts(self) -> np.ndarray:
        """For each event, how many operators had begun: a clock that is the same on every machine."""
        return np.array([ops for _, _, ops in self.events])

    def total(self) -> np.ndarray:
        """Live bytes after each event."""
        return np.cumsum([change for change, _, _ in self.events], dtype=np.int64)

    @property
    def peak(self) -> Peak:
        """The first moment with the most live bytes."""
        if not self.events:
            raise ValueError("nothing was tracked: no operator ran inside the block")
        at = int(self.total().argmax())
        made_by = self.allocations[self.events[at][1]]
        return Peak(
            bytes=int(self.total()[at]),
            at=at,
            op=made_by.op,
            module=made_by.module,
            phase=made_by.phase,
            by_category={c: int(values[at]) for c, values in self.curve().items()},
            alive=self.alive_at(at),
        )

    def alive_at(self, at: int) -> list[Allocation]:
        """The allocations that live at a place in the curve, largest first."""
        alive = [a for a in self.allocations if a.born <= at and (a.died is None or a.died > at)]
        return sorted(alive, key=lambda a: -a.bytes)

    def activation_bytes(self) -> int:
        """Activations at their most: what a forward pass leaves for its backward pass."""
        activations = self.curve()["activations"]
        return int(activations.max()) if len(activations) else 0

    def trace(self) -> list[tuple[str, int, int]]:
        """What an allocator is asked, in order: ("alloc" or "free", which storage, bytes).
        Empty storages are left out.
        """
        return [
            ("alloc" if self.allocations[number].born == i else "free", number, abs(change))
            for i, (change, number, _) in enumerate(self.events)
            if change
        ]
