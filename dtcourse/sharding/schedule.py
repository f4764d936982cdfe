"""When each unit is gathered, freed and reduced: the order of a training step, and what is fetched ahead of its use.

    forward    gather(0) | compute 0   | compute 1   | ...       each unit is freed after its compute
                         | gather(1)   | gather(2)   |
    backward   gather(n) | compute n   | compute n-1 | ...
                         | gather(n-1) | reduce(n), gather(n-2) |

While a unit computes, the next one is on its way, so its all-gather costs no time where the network is fast enough. The order
of a forward is learnt in the first one, which fetches nothing ahead; a backward goes through it from the end. At most
two units are in memory, one in use and one coming (and the units around them, whose modules contain theirs). A unit's
gradients are waited for when the next unit's are ready, so those of one at a time are on their way.

Hooks call this: enter and leave from a module's forward, before_backward and after_backward from autograd.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from dtcourse import events
from dtcourse.sharding.unit import SHARDED, Reduction, Unit
from dtcourse.torch_private import after_backward, backward_pass, in_backward


@dataclass
class Progress:
    """Where one unit is in a step.

    around:      the units whose modules contain its own
    innermost:   no other unit inside
    in_backward: its backward runs
    backward_pass: in which of autograd's passes backward came to its end
    waiting:     gradients of it still to come
    unsent:      backward has come to it, and its gradients, if any, are still to leave
    to_come:     forwards of it whose results backward has not come to
    to_pass:     forwards of it whose inputs backward has not come to
    tells_its_end: whether backward says so, for all of them
    since:       when its forward or backward began, for the timeline
    """

    around: set[Unit] = field(default_factory=set)
    innermost: bool = True
    in_backward: bool = False
    backward_pass: int = -1
    waiting: int = 0
    unsent: bool = False
    to_come: int = 0
    to_pass: int = 0
    tells_its_end: bool = True
    since: dict[str, float] = field(default_factory=dict)


class Schedule:
    """The units of one model, and where in a step they are.

    model: the outermost module
    units: all units inside, in the order of its modules
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit]) -> None:
        self.units = list(units)
        names = {module: name for name, module in model.named_modules()}
        self.progress = {unit: Progress() for unit in self.units}
        for unit in self.units:
            unit.rename(names[unit.module])
            inside = set(unit.module.modules())
            for other in self.units:
                if other is not unit and other.module in inside:
                    self.progress[other].around.add(unit)
                    self.progress[unit].innermost = False
        self._learnt: dict[Unit, list[Unit]] = {}  # the order of a forward, by its outermost unit
        self._stack: list[Unit] = []  # whose forward is running
        self._trip: list[Unit] = []  # the order of the forward that is running
        # The order in which units will be asked for in backward, from the end.
        self._left: list[Unit] = []
        self._before: dict[Unit, Unit] = {}  # what backward needs after a unit
        self._ahead: Unit | None = None  # fetched, or to be fetched, ahead of its use
        # Backward is through with them, but for gradients that may still come.
        self._passed: list[Unit] = []
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
        self._begun(unit, "forward")

    def leave(self, unit: Unit, backward_will_come: bool, unseen: bool = False) -> None:
        """A unit's forward has ended.

        unseen: its result may hold tensors that have no hook. Nothing would say when backward comes to them, so the
                parameters stay for it.
        """
        self._ended(unit, "forward")
        if in_backward():
            if not (self.progress[unit].in_backward or unit.stays or unseen):
                unit.free()
            return
        if unit not in self._stack:  # its gather failed
            return
        self._stack.remove(unit)
        frees = unit.reshard_after_forward
        if frees is None:  # PyTorch's default: the outermost unit is needed again at once
            frees = bool(self._stack)
        if (frees and not unseen) or not torch.is_grad_enabled():
            unit.free()
        elif not unit.kept_by_user:
            unit.hide()
        if unseen and torch.is_grad_enabled():
            self.progress[unit].unsent, self.progress[unit].tells_its_end = True, False
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
            self.progress[unit].in_backward = False
            if not unit.kept_by_user:
                unit.free()

    def called(self, unit: Unit, tells_its_end: bool) -> None:
        """A forward of a unit has begun that may have a backward, which says when it has passed, or does not."""
        now = self.progress[unit]
        now.to_pass += tells_its_end
        if not in_backward():  # what a checkpoint computes again, backward passes at once
            now.to_come += 1
            now.tells_its_end = now.tells_its_end and tells_its_end  # better late than early

    def running_around(self, unit: Unit) -> list[Unit]:
        """The units whose forward runs around a unit's, from outside in."""
        return [other for other in self._stack if other in self.progress[unit].around]

    # --- backward ---------------------------------------------------------------------------------------------

    def comes_to(self, unit: Unit, around: Sequence[Unit]) -> None:
        """Backward has come to what a forward returned that ran inside those of `around`, from outside in.

        All ranks must call the same collectives in the same order, also where they use different parameters. Hooks alone do
        not see to it, where the results of two modules are one tensor, or one's inputs are the other's results: so the unit
        that followed is reduced before, and those around are gathered before.
        """
        for other, before in self._before.items():
            now = self.progress[other]
            if before is unit and now.innermost and now.in_backward and self._ends_here(other):
                self.after_backward(other)
        self.progress[unit].to_come = max(0, self.progress[unit].to_come - 1)
        for each in around:
            if not self.progress[each].in_backward:
                self.before_backward(each)

    def before_backward(self, unit: Unit) -> None:
        """Backward has come to a unit's output: its parameters must be whole, and the unit before it comes."""
        self._call_back()
        for other in self._passed:  # what has not come by now is no part of this loss
            if self.progress[other].in_backward and other is not unit:
                self.after_backward(other)
        self._passed.clear()
        self._backward_begins(unit)
        unit.finish_gather()
        following = self._before.get(unit)
        if following is not None and following.state == SHARDED:
            self._ahead = following
        self._fetch_ahead()
        self._begun(unit, "backward")

    def gradient_is_ready(self, unit: Unit) -> None:
        """One more of a unit's gradients is there."""
        self._call_back()
        for reduction in self._reductions:
            reduction.release_early()
        self._backward_begins(unit)  # where no hook has seen it begin: it came by an unseen result
        now = self.progress[unit]
        # In one pass a parameter's gradient comes once. A reentrant checkpoint inside the unit has a pass of its own, and
        # each forward a checkpoint: whether such a gradient is the parameter's last one shows when backward is through.
        if now.backward_pass != backward_pass():
            return
        now.waiting -= 1
        if now.waiting == 0 and self._may_leave_early(unit):
            unit.free()  # before its gradients take memory on their way
            self.after_backward(unit)

    def _may_leave_early(self, unit: Unit) -> bool:
        """Whether a unit whose gradients are all here may be reduced at once.

        On a rank that uses fewer parameters it leaves when backward has passed it (inputs_are_ready), or comes to the next
        unit at the latest (comes_to): until then there must be no other collective, so no unit inside. A frozen parameter
        may be needed up to the unit's input; one with a gradient is not needed after it.
        """
        through = not unit.freezes or unit in self._passed
        return self.progress[unit].innermost and self._ends_here(unit) and through

    def _ends_here(self, unit: Unit) -> bool:
        """Whether backward has come to the last forward of a unit, and says when it has passed that."""
        return self.progress[unit].tells_its_end and self.progress[unit].to_come == 0

    def inputs_are_ready(self, unit: Unit) -> None:
        """Backward has passed one forward of a unit; after the last of them nothing in it is needed any more.

        Its last gradients may still be a moment away: of its parameters, or of none.
        """
        now = self.progress[unit]
        now.to_pass = max(0, now.to_pass - 1)
        if now.to_pass or not now.tells_its_end or not now.in_backward:
            return
        if now.waiting == 0 and now.innermost:
            self.after_backward(unit)
        else:
            self._passed = self._inner_first([*self._passed, unit])

    def gradients_are_ready(self, unit: Unit) -> None:
        """All of a unit's gradients are there: they leave, beside the backward of the other units."""
        if unit.sync:
            self.progress[unit].unsent = False
            for reduction in self._reductions:  # one unit's gradients at a time
                reduction.finish_scatter()
        unit.pack_gradients()
        if unit.sync:
            self._reductions += unit.start_reduce()

    def after_backward(self, unit: Unit) -> None:
        """A unit's backward is over."""
        now = self.progress[unit]
        if now.in_backward and now.unsent:
            self.gradients_are_ready(unit)
        now.in_backward = False
        self._ended(unit, "backward")
        unit.free()
        self._fetch_ahead()

    def in_backward(self, unit: Unit) -> bool:
        """Whether a unit's backward runs: a forward of it now computes activations again."""
        return self.progress[unit].in_backward

    def _backward_begins(self, unit: Unit) -> None:
        now = self.progress[unit]
        if not now.in_backward:
            now.in_backward, now.waiting = True, unit.trains
            now.backward_pass, now.unsent = backward_pass(), True

    def _inner_first(self, units: Iterable[Unit]) -> list[Unit]:
        """The order in which all ranks reduce what leaves together: a unit before those around it."""
        return sorted(units, key=lambda unit: -len(self.progress[unit].around))

    def _call_back(self) -> None:
        """Has _finish_backward run when the whole backward is done, whichever unit comes last."""
        if not self._called_back:
            after_backward(self._finish_backward)
            self._called_back = True

    def _fetch_ahead(self) -> None:
        """Starts to gather the next unit, unless that would make three; what is freed next makes room for it."""
        unit = self._ahead
        if unit is None or unit.state != SHARDED:
            return
        beside = [
            other for other in self.units
            if other.state != SHARDED and other not in self.progress[unit].around and not other.stays and other.groups
        ]  # fmt: skip
        if len(beside) < 2:
            unit.start_gather()
            self._ahead = None

    def _finish_backward(self) -> None:
        """Backward is over: whatever has not left yet leaves now; wait for all of it."""
        self._called_back, self._ahead, self._passed = False, None, []
        for unit in self.units:
            if not unit.kept_by_user:
                unit.free()  # before gradients on their way take memory
        for unit in self._inner_first(self.units):
            if self.progress[unit].in_backward:
                self.after_backward(unit)
            elif unit.sync and self.progress[unit].unsent:
                # By an unseen result, or from an earlier micro-batch: here or on another rank.
                self.gradients_are_ready(unit)
        for reduction in self._reductions:
            reduction.finish()
        self._reductions.clear()
        for unit in self.units:
            now = self.progress[unit]
            now.to_come, now.to_pass, now.tells_its_end = 0, 0, True
        events.instant("gradients are averaged", "step")

    # --- the timeline -----------------------------------------------------------------------------------------

    def _begun(self, unit: Unit, what: str) -> None:
        """Notes the start of a unit's computation, where no other unit's runs inside."""
        if self.progress[unit].innermost and events.recording():
            self.progress[unit].since.setdefault(what, time.monotonic())

    def _ended(self, unit: Unit, what: str) -> None:
        """Records the computation as an event."""
        if what in self.progress[unit].since:
            since = self.progress[unit].since.pop(what)
            events.add(f"{what} {unit.name}", "compute", since, time.monotonic())
