"""What has been told about one sample, or one client, after so many noisy sums: Rényi differential privacy, added up.

    accountant = Accountant()
    accountant.spend(rate=0.01, noise_multiplier=1.1, steps=1000)
    accountant.epsilon(delta=1e-5)

A step takes each unit with probability q (Poisson sampling), clips what it gives to length C and adds noise
N(0, (z C)^2) to the sum. With one unit more or less the sum comes from one of two distributions: N(0, z^2) and the
mixture (1 - q) N(0, z^2) + q N(1, z^2). Their Rényi divergence of order a is log A(a) / (a - 1), where for a whole a

    A(a) = sum_k C(a, k) (1 - q)^(a-k) q^k exp((k^2 - k) / (2 z^2))

and for a fraction two series, of the halves on either side of z0 = z^2 log(1/q - 1) + 1/2. Divergences of the same
order add up over the steps: that is all that composition takes. At the end the order is chosen that gives the best
(epsilon, delta):

    epsilon = r + log(1 - 1/a) - (log delta + log a) / (a - 1)

The unit is a sample (private_work.py) or a client (client_level.py). Compared are data with it and data in which
nothing stands in its place, so that their number, which is public, is the same (zero-out adjacency: Kairouz et al.,
arXiv 2103.00039); where another one stands in its place, the sum changes by 2 C. The figures are bounds for a sampling
that is Poisson's, and hold against who sees the models alone: not the noise, nor who was drawn.

Source: Mironov, Talwar and Zhang (arXiv 1908.10530), sections 3.2 and 3.3; the conversion is proposition 12 of Canonne,
Kamath and Steinke (arXiv 2004.00010); that epsilon is 0 is told by Bretagnolle and Huber's bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Dense where the best order usually lies, sparse above.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512)


class BudgetSpent(ValueError):
    """The next step would tell more than was allowed."""


@dataclass(frozen=True)
class Budget:
    """What may be told: epsilon, and the probability delta that it is more."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon is above 0 and finite; got {self.epsilon}")
        _check_delta(self.delta)


class Accountant:
    """Adds up the divergences of what has been done with one unit's data."""

    def __init__(self, orders: Sequence[float] = ORDERS) -> None:
        if not len(orders):
            raise ValueError("there is no order to choose from")
        if wrong := [a for a in orders if not 1 < a < math.inf]:
            raise ValueError(f"orders are above 1 and finite; got {wrong[0]}")
        self.orders = tuple(orders)
        self.divergences = [0.0] * len(self.orders)
        self._one_step: dict[tuple[float, float], list[float]] = {}

    def spend(self, rate: float, noise_multiplier: float, steps: int = 1) -> None:
        """Counts so many steps. rate: q;  noise_multiplier: z, the noise's deviation by the clipping length."""
        self.divergences = self._after(rate, noise_multiplier, steps)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of all orders."""
        return epsilon_of(self.orders, self.divergences, delta)

    def epsilon_after(
        self, rate: float, noise_multiplier: float, steps: int, delta: float
    ) -> float:
        """What epsilon would be after so many more steps; nothing is counted."""
        return epsilon_of(self.orders, self._after(rate, noise_multiplier, steps), delta)

    def require(self, budget: Budget, rate: float, noise_multiplier: float, steps: int = 1) -> None:
        """Raises BudgetSpent where so many more steps would pass the budget; nothing is counted."""
        after = self.epsilon_after(rate, noise_multiplier, steps, budget.delta)
        if not after <= budget.epsilon:
            raise BudgetSpent(
                f"the privacy budget is spent: epsilon is {self.epsilon(budget.delta):.4g} of {budget.epsilon:.4g} at "
                f"delta = {budget.delta:.3g}, and {steps} more step(s) would make it {after:.4g}. Stop here, or "
                "begin with more noise or a lower sampling rate"
            )

    def summary(self) -> str:
        """All that was counted, in six digits: ranks compare it."""
        return f"{sum(self.divergences):.6g}"

    def _after(self, rate: float, noise_multiplier: float, steps: int) -> list[float]:
        _check_steps(steps, 0)
        key = rate, noise_multiplier
        if key not in self._one_step:
            self._one_step[key] = [_divergence(rate, noise_multiplier, a) for a in self.orders]
        pairs = zip(self.divergences, self._one_step[key], strict=True)
        # no steps tell nothing, of noise 0 too
        return [before + steps * one if steps else before for before, one in pairs]


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta is between 0 and 1; got {delta}")


def _check_steps(steps: int, least: int) -> None:
    if not isinstance(steps, int) or steps < least:
        raise ValueError(f"steps is a whole number, {least} or more; got {steps}")


def epsilon_of(orders: Sequence[float], divergences: Sequence[float], delta: float) -> float:
    """The smallest epsilon that these divergences give at delta."""
    _check_delta(delta)
    best = math.inf
    for a, r in zip(orders, divergences, strict=True):
        if delta**2 + math.expm1(-r) >= 0:  # so near to each other that nothing but delta is told
            return 0.0
        best = min(best, r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1))
    return max(best, 0.0)


def noise_multiplier_for(budget: Budget, rate: float, steps: int, precision: float = 1e-3) -> float:
    """The smallest z, to `precision`, with which so many steps stay within the budget."""
    _check_steps(steps, 1)
    if not precision > 0:
        raise ValueError(f"precision is above 0; got {precision}")

    def fits(z: float) -> bool:
        return Accountant().epsilon_after(rate, z, steps, budget.delta) <= budget.epsilon

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"no noise keeps {steps} steps at rate {rate} within {budget}")
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


# --- one step -----------------------------------------------------------------------------------------------


def renyi_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """Of order a > 1, of one step: log A(a) / (a - 1). Infinite without noise, 0 where nobody takes part."""
    q, z, a = rate, noise_multiplier, order
    if not 0 <= q <= 1 or not z >= 0 or not 1 < a < math.inf:
        raise ValueError(
            f"the rate is a probability, the noise multiplier 0 or more and the order above 1; got {q}, {z} and {a}"
        )
    if q == 0 or z == math.inf:
        return 0.0
    if z * z < 1e-300:  # as without noise
        return math.inf
    if q == 1:
        return a / (2 * z * z)
    log_moment = _of_whole_order(q, z, int(a)) if a == int(a) else _of_fraction(q, z, a)
    return log_moment / (a - 1)


class _NoEnd(ValueError):
    """A series whose terms do not vanish."""


def _divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """As renyi_divergence; infinite, so that another order is chosen, where the series does not end."""
    try:
        return renyi_divergence(rate, noise_multiplier, order)
    except _NoEnd:
        return math.inf


def _of_whole_order(q: float, z: float, a: int) -> float:
    k = torch.arange(a + 1, dtype=torch.float64)
    terms = _log_binomials(a, a + 1)[0] + k * math.log(q) + (a - k) * math.log1p(-q)
    return float(torch.logsumexp(terms + (k * k - k) / (2 * z * z), 0))


def _of_fraction(q: float, z: float, a: float) -> float:
    """Both series at once. From the a-th term on signs alternate and terms fall, so it ends where they vanish."""
    z0 = z * z * math.log(1 / q - 1) + 0.5
    num = math.ceil(a) + 64
    while True:
        i = torch.arange(num, dtype=torch.float64)
        j = a - i
        logs, signs = _log_binomials(a, num)
        below = logs + i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * z * z)
        above = logs + j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * z * z)
        # the halves of the normal distributions below z0 and above it
        below = below + torch.special.log_ndtr((z0 - i) / z)
        above = above + torch.special.log_ndtr((j - z0) / z)
        terms = torch.cat([below, above])
        largest = terms.max()
        if max(below[-1], above[-1]) < largest - 30:
            total = float(((terms - largest).exp() * torch.cat([signs, signs])).sum())
            return float(largest) + math.log(total)
        if num > 1 << 16:
            raise _NoEnd(
                f"the series of order {a} does not end at rate {q} and noise multiplier {z}: take whole orders"
            )
        num *= 2


def _log_binomials(a: float, num: int) -> tuple[Tensor, Tensor]:
    """log |C(a, i)| and the sign of it, for i = 0 to num - 1."""
    i = torch.arange(num - 1, dtype=torch.float64)
    factors = (a - i) / (i + 1)
    zero = torch.zeros(1, dtype=torch.float64)
    logs = torch.cat([zero, factors.abs().log().cumsum(0)])
    return logs, torch.cat([zero + 1, factors.sign().cumprod(0)])
