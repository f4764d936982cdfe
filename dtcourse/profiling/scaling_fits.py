"""The laws of scaling, fitted to times of several steps on each number of ranks, with bootstrap intervals.

    Amdahl (1967)       seconds(p) = a + b / p         serial fraction a / (a + b), of fixed work
    Gustafson (1988)    speed-up(p) = s + (1 - s) p    of work that grows with p; s: the serial part of its time
    alpha-beta          seconds(p) = latencies(p) alpha + bytes(p) beta, of the collectives' critical paths

Least squares of relative errors, on the mean of each group of steps. An interval is the percentile bootstrap's (Efron
1979): the steps of each group are drawn anew with replacement, their deviations widened, as a mean of so few varies
less when drawn than when measured: by sqrt(n / (n - 1)), and by Student's quantile over the normal one. It says how
much the steps that were run vary; another day, or a law that does not hold, is not in it: `misfit` shows the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dtcourse.collectives.terms import Terms


@dataclass(frozen=True)
class Fit:
    """values: by name; intervals: (low, high) of each; level: how often such intervals hold the truth, 0 to 1;
    misfit: the largest relative error of a group's mean.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    level: float
    misfit: float

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        parts = [
            f"{name.replace('_', ' ')} {value:.4g} ({low:.4g} to {high:.4g})"
            for name, value in self.values.items()
            for low, high in [self.intervals[name]]
        ]
        return f"{', '.join(parts)}; {self.level:.0%} intervals, off by {self.misfit:.1%} at most"


@dataclass(frozen=True)
class Bootstrap:
    """level: of intervals; resamples: how many; seed: of their draws. Raises ValueError for what is none."""

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.resamples < 100:
            raise ValueError(
                "level is between 0 and 1, and resamples 100 or more; "
                f"got {self.level} and {self.resamples}"
            )

    def means(self, groups: Sequence[np.ndarray]) -> np.ndarray:
        """(1 + resamples, groups): in the first row the groups' own means, then those of what was drawn."""
        draw, rows = np.random.default_rng(self.seed), []
        freedom = max(1, sum(len(group) - 1 for group in groups))
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        students = 1 + (z**2 + 1) / (4 * freedom)  # its quantile over z, to first order
        for group in groups:
            n, mean = len(group), group.mean()
            widened = (group - mean) * students * (np.sqrt(n / (n - 1)) if n > 1 else 0.0)
            drawn = widened[draw.integers(n, size=(self.resamples, n))].mean(1)
            rows.append(np.concatenate([[mean], mean + drawn]))
        return np.stack(rows, 1)

    def fit(self, found: Mapping[str, np.ndarray], misfit: float) -> Fit:
        """found: by name, the value itself and then those of the resamples."""
        tail = (1 - self.level) / 2
        values = {name: float(each[0]) for name, each in found.items()}
        intervals = {
            name: (float(low), float(high))
            for name, each in found.items()
            for low, high in [np.quantile(each[1:], [tail, 1 - tail])]
        }
        return Fit(values, intervals, self.level, misfit)


def fit_amdahl(times: Mapping[int, Sequence[float]], bootstrap: Bootstrap | None = None) -> Fit:
    """Amdahl's law: "serial_fraction", and "one_rank" in seconds. Two numbers of ranks at least.

    times: {ranks: seconds of each step} of the same work
    """
    groups, p = _groups(times, 2)
    columns = np.stack([np.ones_like(p), 1 / p], 1)
    return _least_squares(
        groups, columns, bootstrap or Bootstrap(),
        lambda a, b: {"serial_fraction": a / (a + b), "one_rank": a + b},
    )  # fmt: skip


def fit_gustafson(
    times: Mapping[int, Sequence[float]],
    alone: Mapping[int, Sequence[float]],
    bootstrap: Bootstrap | None = None,
) -> Fit:
    """Gustafson's law: "serial_fraction".

    times: {ranks: seconds of each step} of work that grows with the ranks
    alone: {ranks: seconds that one rank takes for the work of so many}
    """
    bootstrap = bootstrap or Bootstrap()
    several = {p: times[p] for p in sorted(times) if p > 1}
    missing = [p for p in several if p not in alone]
    if missing:
        raise ValueError(
            f"a scaled speed-up needs what one rank takes for the same work; not given for {missing} ranks"
        )
    groups, p = _groups(several, 1)
    base, _ = _groups({each: alone[each] for each in several}, 1)
    means = bootstrap.means([*groups, *base])
    speedup = means[:, len(p) :] / means[:, : len(p)]
    column = (1 - p) / p  # speed-up / p = 1 + s (1 - p) / p
    s = (speedup / p - 1) @ column / (column @ column)
    misfit = np.abs((s[0] + (1 - s[0]) * p) / speedup[0] - 1).max()
    return bootstrap.fit({"serial_fraction": s}, float(misfit))


def fit_alpha_beta(
    times: Sequence[tuple[Terms, Sequence[float]]], bootstrap: Bootstrap | None = None
) -> Fit | None:
    """A link: "alpha" (seconds per message, its gap included) and "beta" (seconds per byte).

    times: the collectives of a step by their critical path, and their seconds in each step
    None where these do not tell the two apart: one path alone, or all with the same bytes per message.
    """
    groups = [np.asarray(seconds, dtype=float) for _, seconds in times]
    columns = np.array([[path.latencies, path.bytes] for path, _ in times])
    if len(times) < 2:
        return None
    scaled = columns / np.abs(columns).max(0).clip(1e-300)
    if np.linalg.matrix_rank(scaled, tol=1e-6) < 2:
        return None
    return _least_squares(
        groups, columns, bootstrap or Bootstrap(), lambda a, b: {"alpha": a, "beta": b}
    )


def _groups(
    times: Mapping[int, Sequence[float]], least: int
) -> tuple[list[np.ndarray], np.ndarray]:
    ranks = sorted(times)
    if len(ranks) < least:
        raise ValueError(f"this law needs times of {least} numbers of ranks or more; got {ranks}")
    groups = [np.asarray(times[p], dtype=float) for p in ranks]
    for p, group in zip(ranks, groups, strict=True):
        if not group.size or not (group > 0).all() or not np.isfinite(group).all():
            raise ValueError(
                f"seconds are above 0, one or more; got {list(times[p])} for {p} ranks"
            )
    return groups, np.array(ranks, dtype=float)


def _least_squares(
    groups: Sequence[np.ndarray],
    columns: np.ndarray,
    bootstrap: Bootstrap,
    named: Callable[..., dict[str, np.ndarray]],
) -> Fit:
    """Of relative errors: each row is divided by its group's mean."""
    means = bootstrap.means(groups)
    weighted = columns / means[0][:, None]
    scale = np.abs(weighted).max(0)  # latencies and bytes are a billion apart
    found = (means / means[0]) @ np.linalg.pinv(weighted / scale).T / scale
    misfit = float(np.abs(weighted @ found[0] - 1).max())
    return bootstrap.fit(named(*found.T), misfit)
