"""When each unit is gathered, freed and reduced: the order of a training step, and what is fetched ahead of its use.

    forward    gather(0) | compute 0   | compute 1   | ...       each unit is freed after its compute
                         | gather(1)   | gather(2)   |
    backward   gather(n) | compute n   | compute n-1 | ...
                         | gather(n-1) | reduce(n), gather(n-2) |

While a unit computes, the next one is on its way, so its all-gather costs no time where the network is fast enough. The
order of a forward is learnt in the first one, which fetches nothing ahead; a backward goes through it from the end. At
most two units are in memory, one in use and one coming (and the units around them, whose modules contain theirs). A
unit's gradients are waited for when the next unit's are ready, so those of one at a time are on their way.

Hooks call this: pre_forward and post_forward from a module's forward, pre_backward and the others from autograd.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from dtcourse import events
from dtcourse.sharding.progress import Progress
from dtcourse.sharding.reduction import Reduction
from dtcourse.sharding.unit import SHARDED, UNSHARDED, Unit
from dtcourse.torch_private import after_backward, backward_pass, in_backward


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
            unit.set_name(names[unit.module])
            inside = set(unit.module.modules())
            for other in self.units:
                if other is not unit and other.module in inside:
                    self.progress[other].ancestors.add(unit)
                    self.progress[unit].is_innermost = False
        # the order of a forward, by its outermost unit
        self._known_orders: dict[Unit, list[Unit]] = {}
        self._running: list[Unit] = []  # whose forward is running
        self._forward_order: list[Unit] = []  # the order of the forward that is running
        # In which units' forwards ended: backward asks for them from the end.
        self._post_forward_order: list[Unit] = []
        # whose parameters backward needs after a unit's
        self._next_in_backward: dict[Unit, Unit] = {}
        self._next_unit: Unit | None = None  # gathered, or to be gathered, ahead of its use
        # Backward is through with them, but for gradients that may still come.
        self._passed_by_backward: list[Unit] = []
        self._reductions: list[Reduction] = []
        self._callback_queued = False

    # --- forward ----------------------------------------------------------------------------------------------

    def pre_forward(self, unit: Unit) -> None:
        """A unit's forward begins: its parameters must be whole, and the next unit's come."""
        if in_backward():  # activations are computed again
            unit.wait_for_unshard()
            return
        if not self._running:
            self._begin_forward()
        self._running.append(unit)
        known_order = self._known_orders.get(self._running[0], [])
        place = len(self._forward_order)
        self._forward_order.append(unit)
        order_is_known = self._forward_order == known_order[: place + 1]
        if self._next_unit is not None and self._next_unit is not unit:
            self._next_unit.reshard()  # this forward took another way
        self._next_unit = None
        unit.wait_for_unshard()
        if (
            order_is_known
            and place + 1 < len(known_order)
            and known_order[place + 1].state == SHARDED
        ):
            self._next_unit = known_order[place + 1]
            self._next_unit.unshard()
        self._computation_began(unit, "forward")

    def post_forward(self, unit: Unit, backward_will_come: bool, unseen: bool = False) -> None:
        """A unit's forward has ended.

        unseen: its result may hold tensors that have no hook. Nothing would say when backward comes to them, so the
                parameters stay for it.
        """
        self._computation_ended(unit, "forward")
        if in_backward():
            if not (self.progress[unit].in_backward or unit.keeps_unsharded or unseen):
                unit.reshard()
            return
        if unit not in self._running:  # its gather failed
            return
        self._running.remove(unit)
        frees = unit.reshard_after_forward
        if frees is None:  # PyTorch's default: the outermost unit is needed again at once
            frees = bool(self._running)
        frees = frees and unit.reshard_after_backward
        if unit in self._running:  # in another forward of its own, which still computes with it
            pass
        elif (frees and not unseen) or not torch.is_grad_enabled():
            unit.reshard()
        elif not unit.unsharded_by_user:
            unit.use_sharded_views()
        if unseen and torch.is_grad_enabled():
            self.progress[unit].has_unsent_gradients = True
            self.progress[unit].tells_its_end = False
        if backward_will_come:
            if unit in self._post_forward_order:
                self._post_forward_order.remove(unit)
            self._post_forward_order.append(unit)
        if not self._running:
            self._known_orders[unit] = self._forward_order
            self._next_in_backward = dict(
                zip(self._post_forward_order[1:], self._post_forward_order, strict=False)
            )
            if self._next_unit is not None:
                self._next_unit.reshard()
                self._next_unit = None

    def _begin_forward(self) -> None:
        """A new forward of the whole. What an earlier one left gathered may be older than the optimizer's last step."""
        self._forward_order, self._post_forward_order = [], []
        self._next_unit, self._passed_by_backward = None, []
        self._callback_queued = False
        for reduction in self._reductions:  # of a backward that failed half-way
            reduction.wait_for_reduce_scatter()
        self._reductions.clear()
        for unit in self.units:
            self.progress[unit].in_backward = False
            stays = not unit.reshard_after_backward and unit.is_current
            if not (unit.unsharded_by_user or stays):
                unit.reshard()

    def expect_backward(self, unit: Unit, tells_its_end: bool) -> None:
        """A forward of a unit has begun that may have a backward, which says when it has passed, or does not."""
        now = self.progress[unit]
        now.backwards_to_pass += tells_its_end
        if not in_backward():  # what a checkpoint computes again, backward passes at once
            now.backwards_to_come += 1
            now.tells_its_end = now.tells_its_end and tells_its_end  # better late than early

    def is_running(self, unit: Unit) -> bool:
        """Whether a forward of it is under way: its parameters are whole."""
        return unit in self._running

    def running_ancestors(self, unit: Unit) -> list[Unit]:
        """The units whose forward runs around a unit's, from outside in."""
        return [other for other in self._running if other in self.progress[unit].ancestors]

    # --- backward ---------------------------------------------------------------------------------------------

    def backward_reaches(self, unit: Unit, ancestors: Sequence[Unit]) -> None:
        """Backward has come to what a forward returned that ran inside those of `ancestors`, from outside in.

        All ranks must call the same collectives in the same order, also where they use different parameters. Hooks
        alone do not see to it, where the results of two modules are one tensor, or one's inputs are the other's
        results: so the unit that followed is reduced before, and those around are gathered before.
        """
        for other, before in self._next_in_backward.items():
            now = self.progress[other]
            if (
                before is unit
                and now.is_innermost
                and now.in_backward
                and self._last_backward_reached(other)
            ):
                self.post_backward(other)
        self.progress[unit].backwards_to_come = max(0, self.progress[unit].backwards_to_come - 1)
        for each in ancestors:
            if not self.progress[each].in_backward:
                self.pre_backward(each)

    def pre_backward(self, unit: Unit) -> None:
        """Backward has come to a unit's output: its parameters must be whole, and the unit before it comes."""
        self._queue_finish_backward()
        for other in self._passed_by_backward:  # what has not come by now is no part of this loss
            if self.progress[other].in_backward and other is not unit:
                self.post_backward(other)
        self._passed_by_backward.clear()
        self._backward_begins(unit)
        unit.wait_for_unshard()
        following = self._next_in_backward.get(unit)
        if following is not None and following.state == SHARDED:
            self._next_unit = following
        self._prefetch()
        self._computation_began(unit, "backward")

    def gradient_is_ready(self, unit: Unit) -> None:
        """One more of a unit's gradients is there."""
        self._queue_finish_backward()
        for reduction in self._reductions:
            reduction.release_early()
        self._backward_begins(unit)  # where no hook has seen it begin: it came by an unseen result
        now = self.progress[unit]
        # In one pass a parameter's gradient comes once. A reentrant checkpoint inside the unit has a pass of its own,
        # and each forward a checkpoint: whether such a gradient is the parameter's last one
        # shows when backward is through.
        if now.backward_pass != backward_pass():
            return
        now.gradients_to_come -= 1
        if now.gradients_to_come == 0 and self._may_leave_early(unit):
            self._leave(unit)  # before its gradients take memory on their way
            self.post_backward(unit)

    def _may_leave_early(self, unit: Unit) -> bool:
        """Whether a unit whose gradients are all here may be reduced at once.

        On a rank that uses fewer parameters it leaves when backward has passed it (inputs_are_ready), or comes to the
        next unit at the latest (backward_reaches): until then there must be no other collective, so no unit inside. A
        frozen parameter may be needed up to the unit's input; one with a gradient is not needed after it.
        """
        through = not unit.has_frozen or unit in self._passed_by_backward
        return self.progress[unit].is_innermost and self._last_backward_reached(unit) and through

    def _last_backward_reached(self, unit: Unit) -> bool:
        """Whether backward has come to the last forward of a unit, and says when it has passed that."""
        return self.progress[unit].tells_its_end and self.progress[unit].backwards_to_come == 0

    def inputs_are_ready(self, unit: Unit) -> None:
        """Backward has passed one forward of a unit; after the last of them nothing in it is needed any more.

        Its last gradients may still be a moment away: of its parameters, or of none.
        """
        now = self.progress[unit]
        now.backwards_to_pass = max(0, now.backwards_to_pass - 1)
        if now.backwards_to_pass or not now.tells_its_end or not now.in_backward:
            return
        if now.gradients_to_come == 0 and now.is_innermost:
            self.post_backward(unit)
        else:
            self._passed_by_backward = self._inner_first([*self._passed_by_backward, unit])

    def send_gradients(self, unit: Unit) -> None:
        """All of a unit's gradients are there: they leave, beside the backward of the other units."""
        if unit.reduces_gradients:
            self.progress[unit].has_unsent_gradients = False
            for reduction in self._reductions:  # one unit's gradients at a time
                reduction.wait_for_reduce_scatter()
        unit.pack_gradients()
        if unit.reduces_gradients:
            self._reductions += unit.start_reduce()

    def post_backward(self, unit: Unit) -> None:
        """A unit's backward is over."""
        now = self.progress[unit]
        if now.in_backward and now.has_unsent_gradients:
            self.send_gradients(unit)
        now.in_backward = False
        self._computation_ended(unit, "backward")
        self._leave(unit)
        self._prefetch()

    def _leave(self, unit: Unit) -> None:
        """Backward needs a unit's parameters no more: they go, or wait for the next micro-batch."""
        if unit.reshard_after_backward:
            unit.reshard()
        elif unit.state == UNSHARDED:
            unit.use_sharded_views()

    def in_backward(self, unit: Unit) -> bool:
        """Whether a unit's backward runs: a forward of it now computes activations again."""
        return self.progress[unit].in_backward

    def _backward_begins(self, unit: Unit) -> None:
        now = self.progress[unit]
        if not now.in_backward:
            now.in_backward, now.gradients_to_come = True, unit.num_trained
            now.backward_pass, now.has_unsent_gradients = backward_pass(), True

    def _inner_first(self, units: Iterable[Unit]) -> list[Unit]:
        """The order in which all ranks reduce what leaves together: a unit before those around it."""
        return sorted(units, key=lambda unit: -len(self.progress[unit].ancestors))

    def _queue_finish_backward(self) -> None:
        """Has _finish_backward run when the whole backward is done, whichever unit comes last."""
        if not self._callback_queued:
            after_backward(self._finish_backward)
            self._callback_queued = True

    def _prefetch(self) -> None:
        """Starts to gather the next unit, unless that would make three; what is freed next makes room for it."""
        unit = self._next_unit
        if unit is None or unit.state != SHARDED:
            return
        beside = [
            other for other in self.units
            if other.state != SHARDED and other.param_groups and not other.keeps_unsharded
            and other not in self.progress[unit].ancestors
        ]  # fmt: skip
        if len(beside) < 2:
            unit.unshard()
            self._next_unit = None

    def _finish_backward(self) -> None:
        """Backward is over: whatever has not left yet leaves now; wait for all of it."""
        self._callback_queued, self._next_unit, self._passed_by_backward = False, None, []
        for unit in self.units:
            if not unit.unsharded_by_user:
                self._leave(unit)  # before gradients on their way take memory
        for unit in self._inner_first(self.units):
            if self.progress[unit].in_backward:
                self.post_backward(unit)
            elif unit.reduces_gradients and self.progress[unit].has_unsent_gradients:
                # By an unseen result, or from an earlier micro-batch: here or on another rank.
                self.send_gradients(unit)
        for reduction in self._reductions:
            reduction.finish()
        self._reductions.clear()
        for unit in self.units:
            now = self.progress[unit]
            now.backwards_to_come, now.backwards_to_pass, now.tells_its_end = 0, 0, True
        events.instant("gradients are averaged", "step")

    # --- the timeline -----------------------------------------------------------------------------------------

    def _computation_began(self, unit: Unit, what: str) -> None:
        """Notes the start of a unit's computation, where no other unit's runs inside."""
        if self.progress[unit].is_innermost and events.recording():
            self.progress[unit].started.setdefault(what, events.now())

    def _computation_ended(self, unit: Unit, what: str) -> None:
        """Records the computation as an event."""
        if what in self.progress[unit].started:
            started = self.progress[unit].started.pop(what)
            events.add(f"{what} {unit.name}", "compute", started, events.now())
