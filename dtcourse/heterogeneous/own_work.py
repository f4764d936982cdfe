"""This rank's part of a step: what it has weighed, whether it has sent its gradients, and how long it worked."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dtcourse import device
from dtcourse.emulation import clock
from dtcourse.parameters.reducer import Reducer
from dtcourse.plural import plural
from dtcourse.streams import Moment


class Mark(NamedTuple):
    """A moment, and how many seconds this rank has waited for others before it: 0 where no clock is emulated."""

    moment: Moment
    waited: float

    @classmethod
    def now(cls) -> Mark:
        """This moment."""
        running = clock.installed()
        return cls(Moment(device.current()), 0.0 if running is None else running.account().waited)

    def seconds_since(self, earlier: Mark) -> float:
        """Seconds from `earlier` to this moment, without the waiting that an emulated clock has seen."""
        return self.moment.seconds_since(earlier.moment) - (self.waited - earlier.waited)


class OwnWork(Reducer):
    """A Reducer that sees a step through: all its samples are weighed before anything is sent, and it sends once.

    samples, weighed: of this rank in the step; and of those, what its losses so far are means over
    forwards: of the step, for a backward
    averaged: whether the step's gradients have been
    """

    samples = weighed = forwards = 0
    averaged = False
    began: Mark | None = None
    ended: Mark | None = None

    def begin_step(self, samples: int) -> None:
        """A step begins, in which this rank has so many samples."""
        self.samples, self.weighed, self.forwards, self.averaged = samples, 0, 0, False
        self.began, self.ended = Mark.now(), None

    def end_step(self, averages: bool) -> None:
        """A step of a rank with samples is over. averages: not inside no_sync().

        Raises ValueError where its losses are not of all its samples, or nothing was averaged.
        """
        self.check_weighed()
        if averages and not self.averaged:
            raise ValueError(
                "the step has ended and its gradients were not averaged, for which the other ranks wait: call backward "
                "on the weighed loss, the last one outside of no_sync(); or put no_sync() round the whole step, on all "
                "ranks"
            )
        self.ended = self.ended or Mark.now()

    def check_weighed(self) -> None:
        """Raises ValueError unless the losses are of all samples."""
        if self.weighed != self.samples:
            raise ValueError(
                f"this rank has weighed losses of {plural(self.weighed, 'sample')} and said that it had "
                f"{self.samples}; nothing of them has been averaged: weigh(loss, samples) each loss by the samples "
                "that it is a mean over, before the last backward"
            )

    def check_first(self) -> None:
        """Raises ValueError for a forward whose backward would average a second time in a step."""
        if self.averaged:
            raise ValueError(
                "this step's gradients have been averaged, and another backward would average again, which ranks with "
                "fewer pieces do not: put all but the last forward and backward of a step in no_sync()"
            )

    def gradient_is_ready(self, parameter: torch.Tensor) -> None:
        """The hook. Before the first gradient nothing has been sent, so a mistake does not reach other ranks."""
        if self.expects_backward and not self.backward.arrivals:
            self.check_weighed()
        super().gradient_is_ready(parameter)

    def finish_backward(self) -> None:
        """All gradients are on their way: what follows is waiting."""
        if self.backward.arrivals:
            self.ended, self.averaged = Mark.now(), True
        super().finish_backward()

    @property
    def seconds(self) -> float | None:
        """Of this rank's own work of the step; None where it had none."""
        if self.began is None or self.ended is None:
            return None
        return self.ended.seconds_since(self.began)
