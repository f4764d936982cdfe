"""How often to save: each save costs time, and each failure the work since the last save. Young's and Daly's answers.

    job = FailingJob(save=30, mtbf=LLAMA_3.mtbf(16_384))
    young(job.save, job.mtbf)                                   # 817 s
    expected_waste(job, 817)                                    # of the time, what brings the job no further

Of the time, saves take save / interval, and a failure every mtbf throws away half an interval: interval / (2 mtbf). The
sum is smallest at sqrt(2 save mtbf) (J. W. Young, "A first order approximation to the optimum checkpoint interval",
1974). It counts no failure during a save and never two in an interval. With them, failures that come at random have

    interval / (mtbf e^(restart / mtbf) (e^((interval + save) / mtbf) - 1))

of the time left for work (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
2006). The best interval x mtbf of that solves (1 - x) e^(x + save / mtbf) = 1, whatever a restart takes; Daly's formula
is the first three terms of its series in sqrt(2 save / mtbf). Where a restart takes no time, x is also the waste.

All times in one unit, seconds say. An interval is the training between two saves, without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailingJob:
    """A job that saves and fails.

    save:    seconds for which a save stops training
    mtbf:    mean time between failures, of the whole job
    restart: seconds from a failure until training goes on from the last checkpoint: noticed, started, loaded. A failure
             within them begins them anew
    written: seconds from a save's begin until the checkpoint is complete: more than `save` where it is written while
             training goes on (fault_tolerance.BackgroundCheckpoints). The next save waits for it. Default: save
    """

    save: float
    mtbf: float
    restart: float = 0.0
    written: float | None = None

    def __post_init__(self) -> None:
        _check(self.save, self.mtbf)
        if not 0 <= self.restart < math.inf:
            raise ValueError(f"restart is a number of seconds, 0 or more; got {self.restart}")
        if self.written is not None and not self.save <= self.written < math.inf:
            raise ValueError(
                f"a checkpoint is complete when its save no longer stops training, or later: written is at least save, "
                f"{self.save}; got {self.written}"
            )

    @property
    def complete(self) -> float:
        """Seconds from a save's begin until its checkpoint is complete."""
        return self.save if self.written is None else self.written

    @property
    def shortest(self) -> float:
        """The interval below which a save would wait for the one before: 0 where training stands still for all of it.

        An asynchronous save stops training so shortly that the formulas may answer with less: take the larger one.
        """
        return self.complete - self.save

    def period(self, interval: float) -> float:
        """Seconds from one save's begin to the next one's: a save waits until the one before is complete."""
        return max(interval + self.save, self.complete)


@dataclass(frozen=True)
class FailureLog:
    """What stopped a long run, counted.

    failures: of the whole run;  days: how long it was;  devices: how many trained
    """

    failures: int
    days: float
    devices: int

    def mtbf(self, devices: int) -> float:
        """Seconds between failures on so many devices, each as reliable as one of these: half as long on twice as many.

        ValueError for less than one device.
        """
        if devices < 1:
            raise ValueError(f"devices is at least 1; got {devices}")
        return self.days * 86_400 / self.failures * self.devices / devices


# Unexpected interruptions: Llama 3, Table 5 (arXiv 2407.21783), in simulator/published/fault_tolerance.json.
LLAMA_3 = FailureLog(failures=419, days=54, devices=16_384)


def young(save: float, mtbf: float) -> float:
    """Young's interval, sqrt(2 save mtbf). Of an asynchronous save `save` is what stops training.

    ValueError for times that are not above 0.
    """
    _check(save, mtbf)
    return math.sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Daly's higher order interval; the mean time between failures itself where a save takes twice that or longer.

    sqrt(2 save mtbf) (1 + sqrt(save / (2 mtbf)) / 3 + save / (2 mtbf) / 9) - save. ValueError as `young`'s.
    """
    _check(save, mtbf)
    if save >= 2 * mtbf:
        return mtbf
    part = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - save


def first_order_waste(job: FailingJob, interval: float) -> float:
    """Young's sum, as a part of the time: saves, half an interval per failure, restarts. May pass 1, where it fails."""
    _check_interval(interval)
    return job.save / interval + interval / (2 * job.mtbf) + job.restart / job.mtbf


def expected_waste(job: FailingJob, interval: float, shape: float = 1.0) -> float:
    """The part of the time that brings the job no further: saves, work that is done again, restarts. 0 to 1.

    shape: of the Weibull distribution of the time from one failure to the next. 1: exponential, failures come at
           random. Below 1 they come in clusters: soon after one another, or late

    After a restart, save number k is complete when the time since the failure is past restart + interval + complete +
    (k - 1) period. Each that is reached before the next failure has saved an interval of work. So the part of the time
    that is work is interval / mtbf times the sum, over k, of the chance to live that long. Of the exponential that is a
    geometric series, and without asynchronous saves Daly's formula. ValueError for a shape or an interval not above 0.
    """
    _check_interval(interval)
    if not 0 < shape < math.inf:
        raise ValueError(f"a Weibull distribution's shape is above 0; got {shape}")
    scale = job.mtbf / math.gamma(1 + 1 / shape)
    time, period = job.restart + interval + job.complete, job.period(interval)
    if shape == 1.0:
        return 1 - interval / job.mtbf * math.exp(-time / job.mtbf) / -math.expm1(
            -period / job.mtbf
        )
    saves = 0.0
    # To 1e-15 of the first chances; beyond, what is left adds nothing in double precision.
    while (chance := math.exp(-((time / scale) ** shape))) > 1e-15:
        saves += chance
        time += period
    return 1 - interval / job.mtbf * saves


def best_interval(waste: Callable[[float], float], low: float, high: float) -> float:
    """The interval from low to high with the least waste, by golden sections of its logarithm, to one millionth.

    waste: of an interval; falls, then rises. Raises ValueError where the least lies at an end: the range is too narrow.
    """
    if not 0 < low < high:
        raise ValueError(f"low is above 0, and high above low; got {low} and {high}")
    golden = (math.sqrt(5) - 1) / 2
    left, right = math.log(low), math.log(high)
    a, b = right - golden * (right - left), left + golden * (right - left)
    of_a, of_b = waste(math.exp(a)), waste(math.exp(b))
    while right - left > 1e-6:
        if of_a <= of_b:
            right, b, of_b = b, a, of_a
            a = right - golden * (right - left)
            of_a = waste(math.exp(a))
        else:
            left, a, of_a = a, b, of_b
            b = left + golden * (right - left)
            of_b = waste(math.exp(b))
    found = math.exp((left + right) / 2)
    if not low * (1 + 1e-5) < found < high * (1 - 1e-5):
        raise ValueError(
            f"from {low:g} to {high:g} the waste is least at the end, {found:g}: search in a wider range"
        )
    return found


def _check(save: float, mtbf: float) -> None:
    for name, value in (("save", save), ("mtbf", mtbf)):
        if not 0 < value < math.inf:
            raise ValueError(
                f"{name} is a number of seconds above 0; got {value}. Of saves that cost nothing there is no best "
                "interval: save after each step"
            )


def _check_interval(interval: float) -> None:
    if not 0 < interval < math.inf:
        raise ValueError(f"an interval is a number of seconds above 0; got {interval}")
