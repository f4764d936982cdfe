"""All ranks look at a step before it is taken, and all do the same.

    guard = LossGuard(touched=[Tensors(model, parameters=False), RandomStates()])
    for x, y in batches:
        guard.begin()                                   # before the forward
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if guard.look(loss, gradients_of(model)).take:  # before the optimizer's step; every rank calls it
            optimizer.step()
            schedule.step()

A loss or a gradient that is not finite makes every weight so; a loss that jumps (a bad batch, a learning rate too high,
a faulty chip) may cost days before it is down again. One rank alone may see it: of sharded gradients each has its own,
of a pipeline the last stage has the loss. A rank that left out a step by itself would train another model from there
on. So they add up what they have seen: one all-reduce of 24 bytes a step, and where something is not finite one
all-gather of 4 more, which says whose it was. It is the only wait for the device that the guard adds.

What is done then:

    "skip"      the step is left out. What forward and backward have changed (`touched`: batch statistics, random
                states, what a compression has left out) is put back, so that all is, to the bit, as if there had never
                been such a batch
    "roll back" the last copy is put back, and training goes on with the batches that come: those from the copy to the
                spike are never seen again. So was PaLM trained (Chowdhery et al., "PaLM: Scaling Language Modeling with
                Pathways"), from checkpoints: the spikes did not come back with other batches
    "lower lr"  lower_lr() is called; alone, the step is taken with it. With "roll back" it is what the logbook of OPT
                tells (Zhang et al., "OPT: Open Pre-trained Transformer Language Models")

After `limit` in a row it stops, on all ranks, with a sentence.

With a loss scaler: look(loss) with the loss before it is scaled, without gradients, before scaler.unscale_ and step.
A gradient that overflows is the scaler's everyday business, which it skips and remembers; a loss that does is not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dtcourse.fault_tolerance.guard.copies import Copies, Stateful, how_to_pass
from dtcourse.fault_tolerance.guard.seen import all_finite, summed, whose
from dtcourse.fault_tolerance.guard.spikes import Spikes
from dtcourse.parameters.hook_states import CalledHooks, called_hooks
from dtcourse.parameters.replicas import Group

ACTIONS = ("skip", "roll back", "lower lr")


class Unstable(RuntimeError):
    """Too many steps in a row were left out."""


@dataclass(frozen=True)
class Verdict:
    """What all ranks do with this step.

    take:        whether the optimizer's step is to be taken
    loss:        the mean over all ranks that have one, by their weights; nan where one is not finite
    deviations:  how far it lies above the median of those before
    done:        "skip", "roll back", "lower lr"
    why:         what was wrong, in words; "" where nothing was
    steps:       taken until now, this one not among them; after "roll back", as it was at the copy
    """

    take: bool
    loss: float
    deviations: float
    done: tuple[str, ...]
    why: str
    steps: int


@dataclass
class _Copy:
    steps: int
    parts: list[Any]
    touched: list[Any]
    spikes: dict[str, Any]
    lowered: int


class LossGuard:
    """Looks at each step on all ranks.

    touched:      what forward and backward change: buffers (Tensors(model, parameters=False)), RandomStates, and what
                  a hook of the course's wrappers keeps (CompressionState, Attributes(PyTorch's PowerSGDState)), which
                  the guard asks for. Hooks of PyTorch's DistributedDataParallel it does not see
    spikes:       how a jump is told; default: Spikes()
    on_nonfinite: what is done where something is not finite; on_spike: where the loss jumps. () of a spike: nothing
    copies:       for "roll back": what is copied every `every` steps. Two copies are kept: where the newer does not
                  help, it goes back to the older
    lower_lr:     for "lower lr", such as lowering(optimizer, 0.5)
    limit:        so many in a row are answered; at the next one, Unstable
    group:        the ranks that train one model; default: all, or this process alone where no group is formed

    steps: how many have been taken. Raises ValueError for actions that lack what they need.
    """

    def __init__(
        self,
        touched: Sequence[Stateful] = (),
        *,
        spikes: Spikes | None = None,
        on_nonfinite: Sequence[str] = ("skip",),
        on_spike: Sequence[str] = ("skip",),
        copies: Copies | None = None,
        every: int = 100,
        lower_lr: Callable[[], object] | None = None,
        limit: int = 5,
        group: Group = None,
    ) -> None:
        self.on_nonfinite, self.on_spike = tuple(on_nonfinite), tuple(on_spike)
        asked = {*self.on_nonfinite, *self.on_spike}
        if unknown := asked - {*ACTIONS}:
            raise ValueError(
                f"actions are of {', '.join(ACTIONS)}; got {', '.join(sorted(unknown))}"
            )
        if not {"skip", "roll back"} & {*self.on_nonfinite}:
            raise ValueError(
                f"a step that is not finite cannot be taken: on_nonfinite needs skip or roll back; got {on_nonfinite}"
            )
        for action, name, value in (
            ("roll back", "copies", copies),
            ("lower lr", "lower_lr", lower_lr),
        ):
            if action in asked and value is None:
                raise ValueError(f"to {action}, the guard needs {name}")
        if every < 1 or limit < 1:
            raise ValueError(
                f"every and limit are numbers of steps, 1 or more; got {every} and {limit}"
            )
        self.spikes = Spikes() if spikes is None else spikes
        self.every, self.limit, self.lower_lr, self.group = every, limit, lower_lr, group
        self.steps = self.in_a_row = self._lowered = self._worst = 0
        self._copies, self._touched = copies, Copies(touched)
        self._kept: deque[_Copy] = deque(maxlen=2)
        self._went_back_to: _Copy | None = None
        self._before: list[Any] | None = None
        self._hooks: CalledHooks | None = None

    def begin(self) -> None:
        """Before each forward: copies what it changes, and every `every` steps all that `copies` has."""
        self._before, self._hooks = self._touched.save(), called_hooks()
        if self._copies is None or (self._kept and self.steps % self.every):
            return
        if not self._kept or self._kept[-1].steps != self.steps:
            parts, spikes = self._copies.save(), self.spikes.state_dict()
            self._kept.append(_Copy(self.steps, parts, self._before, spikes, self._lowered))

    def look(
        self,
        loss: Tensor | float | None,
        gradients: Iterable[Tensor | None] = (),
        weight: float = 1.0,
    ) -> Verdict:
        """What all ranks do with this step. A collective.

        loss:      of this rank; None where it has none (a stage of a pipeline that is not the last)
        gradients: that this rank holds, whole or shards
        weight:    of its loss in the mean: how many samples it is of

        Raises Unstable, on all ranks, where too many were bad in a row; RuntimeError without `begin` before;
        ValueError, in the first step, for a communication hook whose state is not in `touched`.
        """
        if self._before is None:
            raise RuntimeError(
                "look without begin: call begin before each forward, which it copies for"
            )
        self._check_hooks()
        mine = loss.item() if isinstance(loss, Tensor) else math.nan if loss is None else loss
        bad_loss = loss is not None and not math.isfinite(mine)
        bad_gradients = not all_finite(gradients)
        has = loss is not None and not bad_loss
        total, weights, bad = summed(
            [mine * weight if has else 0.0, weight if has else 0.0, float(bad_loss or bad_gradients)], self.group
        )  # fmt: skip
        mean = total / weights if weights and not bad else math.nan
        deviations = self.spikes.deviations(mean) if math.isfinite(mean) else 0.0
        if bad:
            why, do = whose(bad_loss, bad_gradients, self.group), self.on_nonfinite
        elif math.isfinite(mean) and self.spikes.is_spike(mean):
            why = f"the loss {mean:.4g} lies {deviations:.1f} deviations above the median of those before"
            do = self.on_spike
        else:
            why, do = "", ()
        take = not {"skip", "roll back"} & {*do}
        if why and do:
            self._answer(do, take, why)
        elif self.steps >= self._worst:  # past the place where it was bad
            self.in_a_row, self._went_back_to = 0, None
        verdict = Verdict(take, mean, deviations, do, why, self.steps)
        if take:
            self.steps += 1
            if math.isfinite(mean) and not (why and do):
                self.spikes.add(mean)
        self._before = None
        return verdict

    def _check_hooks(self) -> None:
        assert self._hooks is not None, "begin was called"
        for state in self._hooks.states:
            if not self._touched.has(state):
                raise ValueError(
                    f"the communication hook of this model keeps a {type(state).__name__} from step to step, which a "
                    f"batch that is left out would have changed: {how_to_pass(state)}"
                )
        self._hooks = None

    def _answer(self, do: Sequence[str], take: bool, why: str) -> None:
        self.in_a_row += 1
        self._worst = max(self._worst, self.steps)
        if self.in_a_row > self.limit:
            raise Unstable(
                f"{self.in_a_row} bad steps in a row, after {self.steps} that were taken; the last: {why}. Nothing was "
                "changed by them but what the guard was asked for. Look at these batches and at the learning rate; if "
                "it is always the same rank, at its device"
            )
        if "roll back" in do:
            self._go_back()
        elif not take:
            assert self._before is not None
            self._touched.load(self._before)
        if "lower lr" in do:
            self._lower(self._lowered + 1)

    def _go_back(self) -> None:
        assert self._copies is not None
        if self._kept[-1] is self._went_back_to and len(self._kept) > 1:
            self._kept.pop()
        back = self._went_back_to = self._kept[-1]
        lowered = self._lowered
        self._copies.load(back.parts)
        self._touched.load(back.touched)
        self.spikes.load_state_dict(back.spikes)
        self.steps, self._lowered = back.steps, back.lowered
        self._lower(lowered)  # the copy has the learning rate of its time

    def _lower(self, times: int) -> None:
        while self._lowered < times:
            assert self.lower_lr is not None
            self.lower_lr()
            self._lowered += 1
