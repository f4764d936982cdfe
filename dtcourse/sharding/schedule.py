"""When each unit is gathered, freed and reduced: the order of a training step, and what is fetched ahead of its use.

    forward    gather(0) | compute 0   | compute 1   | ...       each unit is freed after its compute
                         | gather(1)   | gather(2)   |
    backward   gather(n) | compute n   | compute n-1 | ...
                         | gather(n-1) | reduce(n), gather(n-2) |

While a unit computes, the next one is on its way, so its all-gather costs no time where the network is fast enough. The order
of a forward is learnt in the first one, which fetches nothing ahead; a backward goes through it from the end. At most
two units are in memory, one in use and one coming (and the units around them, whose modules contain theirs). A flat of
gradients is waited for when the next unit's are ready, so one of them at a time is on its way.

Hooks call this: enter and leave from a module's forward, before_backward and after_backward from autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd import Variable

from dtcourse import events
from dtcourse.collectives.torch_private import in_backward
from dtcourse.sharding.unit import SHARDED, Reduction, Unit


class Schedule:
    """The units of one model, and where in a step they are.

    model: the outermost module
    units: all units inside, in the order of its modules
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit]) -> None:
        self.units = list(units)
        names = {module: name for name, module in model.named_modules()}
        self._around: dict[Unit, set[Unit]] = {unit: set() for unit in self.units}
        for unit in self.units:
            unit.rename(names[unit.module])
            inside = set(unit.module.modules())
            for other in self.units:
                if other is not unit and other.module in inside:
                    self._around[other].add(unit)
                    unit.innermost = False
        self._learnt: dict[Unit, list[Unit]] = {}  # the order of a forward, by its outermost unit
        self._stack: list[Unit] = []  # whose forward is running
        self._trip: list[Unit] = []  # the order of the forward that is running
        self._left: list[
            Unit
        ] = []  # the order in which units will be asked for in backward, from the end
        self._before: dict[Unit, Unit] = {}  # what backward needs after a unit
        self._ahead: Unit | None = None  # fetched, or to be fetched, ahead of its use
        self._passed: list[
            Unit
        ] = []  # backward is through with them, but for gradients that may still come
        self._reductions: list[Reduction] = []
        self._called_back = False

    # --- forward ----------------------------------------------------------------------------------------------

    def enter(self, unit: Unit) -> None:
        """A unit's forward begins: its parameters must be whole, and the next unit's come."""
        if in_backward():  # activations are computed again
            unit.finish_gather()
            return
        if not self._stack:
            self._begin()
        self._stack.append(unit)
        learnt = self._learnt.get(self._stack[0], [])
        place = len(self._trip)
        self._trip.append(unit)
        on_course = self._trip == learnt[: place + 1]
        if self._ahead is not None and self._ahead is not unit:
            self._ahead.free()  # this forward took another way
        self._ahead = None
        unit.finish_gather()
        if on_course and place + 1 < len(learnt) and learnt[place + 1].state == SHARDED:
            self._ahead = learnt[place + 1]
            self._ahead.start_gather()
        unit.begun("forward")

    def leave(self, unit: Unit, backward_will_come: bool) -> None:
        """A unit's forward has ended."""
        unit.ended("forward")
        if in_backward():
            if not unit.in_backward and not unit.stays:
                unit.free()
            return
        if unit not in self._stack:  # its gather failed
            return
        self._stack.remove(unit)
        frees = unit.reshard_after_forward
        if frees is None:  # PyTorch's default: the outermost unit is needed again at once
            frees = bool(self._stack)
        if frees or not torch.is_grad_enabled():
            unit.free()
        if backward_will_come:
            if unit in self._left:
                self._left.remove(unit)
            self._left.append(unit)
        if not self._stack:
            self._learnt[unit] = self._trip
            self._before = dict(zip(self._left[1:], self._left, strict=False))
            if self._ahead is not None:
                self._ahead.free()
                self._ahead = None

    def _begin(self) -> None:
        """A new forward of the whole. What an earlier one left gathered may be older than the optimizer's last step."""
        self._trip, self._left, self._ahead, self._passed = [], [], None, []
        self._called_back = False
        for reduction in self._reductions:  # of a backward that failed half-way
            reduction.finish_scatter()
        self._reductions.clear()
        for unit in self.units:
            unit.in_backward = False
            if not unit.kept_by_user:
                unit.free()

    # --- backward ---------------------------------------------------------------------------------------------

    def before_backward(self, unit: Unit) -> None:
        """Backward has come to a unit's output: its parameters must be whole, and the unit before it comes."""
        self._call_back()
        for other in self._passed:  # what has not come by now is no part of this loss
            if other.in_backward and other is not unit:
                self.after_backward(other)
        self._passed.clear()
        if not unit.in_backward:
            unit.in_backward, unit.waiting = True, unit.trains
        unit.finish_gather()
        following = self._before.get(unit)
        if following is not None and following.state == SHARDED:
            self._ahead = following
        self._fetch_ahead()
        unit.begun("backward")

    def gradient_is_ready(self, unit: Unit) -> None:
        """One more of a unit's gradients is there."""
        self._call_back()
        for reduction in self._reductions:
            reduction.release_early()
        unit.waiting -= 1
        if unit.waiting > 0:
            return
        # A frozen parameter may be needed up to the unit's input; one with a gradient is not needed after it.
        through = not unit.freezes or unit in self._passed
        if through:
            unit.free()  # before its flat of gradients takes memory
        self.gradients_are_ready(unit)
        if through:
            self.after_backward(unit)

    def inputs_are_ready(self, unit: Unit) -> None:
        """Backward has passed a unit. Its last gradients may still be a moment away: of its parameters, or of none."""
        if unit.waiting == 0:
            self.after_backward(unit)
        else:
            self._passed.append(unit)

    def gradients_are_ready(self, unit: Unit) -> None:
        """All of a unit's gradients are in its flats: they leave, beside the backward of the other units."""
        if unit.sync:
            for reduction in self._reductions:  # one flat of gradients at a time
                reduction.finish_scatter()
        unit.pack_gradients()
        if unit.sync:
            self._reductions += unit.start_reduce()

    def after_backward(self, unit: Unit) -> None:
        """A unit's backward is over."""
        if unit.in_backward and unit.waiting > 0:  # parameters that the loss does not depend on
            unit.waiting = 0
            self.gradients_are_ready(unit)
        unit.in_backward = False
        unit.ended("backward")
        unit.free()
        self._fetch_ahead()

    def _call_back(self) -> None:
        """Has _finish_backward run when the whole backward is done, whichever unit comes last."""
        if not self._called_back:
            Variable._execution_engine.queue_callback(self._finish_backward)
            self._called_back = True

    def _fetch_ahead(self) -> None:
        """Starts to gather the next unit, unless that would make three; what is freed next makes room for it."""
        unit = self._ahead
        if unit is None or unit.state != SHARDED:
            return
        beside = [
            other for other in self.units
            if other.state != SHARDED and other not in self._around[unit] and not other.stays and other.flats
        ]  # fmt: skip
        if len(beside) < 2:
            unit.start_gather()
            self._ahead = None

    def _finish_backward(self) -> None:
        """Backward is over: whatever has not left yet leaves now; wait for all of it."""
        self._called_back, self._ahead, self._passed = False, None, []
        for unit in self.units:
            if unit.in_backward:
                self.after_backward(unit)
            elif unit.sync and any(flat.has_gradients for flat in unit.flats):
                self.gradients_are_ready(unit)  # came after all, or in an earlier micro-batch
        for reduction in self._reductions:
            reduction.finish()
        self._reductions.clear()
        for unit in self.units:
            unit.calls = 0
            if not unit.kept_by_user:
                unit.free()
        events.instant("gradients are averaged", "step")
