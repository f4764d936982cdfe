"""How a step scales, strong and weak, in one call: times on each number of ranks, and the laws fitted to them.

    def step(samples):                       # of this rank; runs on every rank, as under launch
        loss = model(batch[:samples]) ...

    study = scaling_study(step, ranks=[1, 2, 4, 8], samples=64)
    print(study)
    plots.speedup(study.strong); plots.efficiency(study.weak, weak=True)

    strong    the same `samples` shared by p ranks: Amdahl's law
    weak      `samples` for each of p ranks: Gustafson's, beside what one rank takes for p times as much

Each law is fitted twice: to the whole step, where it takes whatever keeps the step from scaling for serial work (as one
does who has only times), and to the step without the communication that it waits for ("computing"), which is what the
law is about. Communication has its own: seconds of the collectives by their critical paths, alpha and beta.

On this machine ranks share its cores, so what it says of 4 and 8 ranks on two cores is about those cores; on an
emulated cluster (devices=, network=, clock="virtual") it is about the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtcourse import events
from dtcourse.collectives.terms import Terms
from dtcourse.events import Event, Timeline
from dtcourse.launch import launch
from dtcourse.profiling.collective_bench import line_up
from dtcourse.profiling.collective_lines import algorithm_of
from dtcourse.profiling.communication import communication_of
from dtcourse.profiling.scaling_fits import (
    Bootstrap,
    Fit,
    fit_alpha_beta,
    fit_amdahl,
    fit_gustafson,
)
from dtcourse.simulator import collective_cost as cost

Times = dict[int, list[float]]
"""{ranks: seconds of each step}"""


@dataclass
class Measured:
    """One way of scaling: {ranks: of each step}, in seconds of the slowest rank.

    seconds:   of the step
    computing: of it, what is not waiting for communication
    """

    seconds: Times = field(default_factory=dict)
    computing: Times = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingStudy:
    """What a step takes on each number of ranks, and the fits.

    strong, weak: {ranks: seconds of each step}
    alone:        {p: seconds that one rank takes for the work of p}
    amdahl, gustafson: fitted to the whole step
    amdahl_computing, gustafson_computing: fitted to the step without exposed communication
    link:         alpha and beta of its collectives; None where they do not tell the two apart
    """

    samples: int
    strong: Times
    weak: Times
    alone: Times
    amdahl: Fit
    amdahl_computing: Fit
    gustafson: Fit
    gustafson_computing: Fit
    link: Fit | None

    def rows(self) -> list[dict[str, Any]]:
        """For plots.table: one row a number of ranks, in seconds and parts of perfect."""
        mean = {
            name: {p: sum(of[p]) / len(of[p]) for p in of}
            for name, of in (("strong", self.strong), ("weak", self.weak))
        }
        return [
            {
                "ranks": p,
                "strong seconds": mean["strong"][p],
                "speed-up": mean["strong"][1] / mean["strong"][p],
                "strong efficiency": mean["strong"][1] / mean["strong"][p] / p,
                "weak seconds": mean["weak"][p],
                "weak efficiency": mean["weak"][1] / mean["weak"][p],
            }
            for p in self.strong
        ]

    def __str__(self) -> str:
        lines = [f"{'ranks':>6}{'strong ms':>12}{'speed-up':>10}{'weak ms':>12}{'efficiency':>12}"]
        lines += [
            f"{row['ranks']:>6}{row['strong seconds'] * 1e3:12.3f}{row['speed-up']:10.2f}"
            f"{row['weak seconds'] * 1e3:12.3f}{row['weak efficiency']:12.0%}"
            for row in self.rows()
        ]
        fits = {
            "Amdahl": self.amdahl,
            "Amdahl, computing": self.amdahl_computing,
            "Gustafson": self.gustafson,
            "Gustafson, computing": self.gustafson_computing,
            "link": self.link,
        }
        return "\n".join([*lines, *(f"{name}: {fit}" for name, fit in fits.items() if fit)])


def scaling_study(
    step: Callable[[int], Any],
    ranks: Sequence[int] = (1, 2, 4, 8),
    *,
    samples: int = 64,
    steps: int = 8,
    warm_up: int = 1,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    **where: Any,
) -> ScalingStudy:
    """Launches the step on each number of ranks, once, strong and weak in the same launch, and fits the laws.

    step:    called as step(samples) on every rank, with what is the rank's own share
    ranks:   1 and at least one more; each divides `samples`
    samples: of the strong step, shared; and of each rank, in the weak one
    steps:   timed, each after the ranks have lined up; warm_up: before them, in each launch and way
    level, resamples, seed: of the bootstrap's intervals
    where:   as launch's: backend, devices, network, clock, nodes, ...

    One rank also takes the step with p times `samples`, for each p: Gustafson's speed-up is over that.
    Raises ValueError for ranks without 1, or that do not divide samples, or fewer than 2 steps.
    """
    ordered, bootstrap = sorted(set(ranks)), Bootstrap(level, resamples, seed)
    if len(ordered) < 2 or ordered[0] != 1:
        raise ValueError(
            f"scaling is from one rank to more: ranks=[1, 2, 4]; got ranks={list(ranks)}"
        )
    uneven = [p for p in ordered if samples < p or samples % p]
    if uneven:
        raise ValueError(
            f"samples={samples} cannot be shared equally by {uneven} ranks: give a multiple"
        )
    if steps < 2 or warm_up < 0:
        raise ValueError(
            f"an interval needs 2 steps or more, and warm_up is 0 or more; got {steps} and {warm_up}"
        )
    strong, weak, alone = Measured(), Measured(), Measured()
    paths: list[tuple[Terms, list[float]]] = []
    for p in ordered:
        shares = [samples // p, samples] if p > 1 else [samples * each for each in ordered]
        run = launch(_measure, p, step, shares, steps, warm_up, record=True, **where)
        ways: list[tuple[Measured, int]] = [(strong, p), (weak, p)]
        if p == 1:
            ways = [(alone, each) for each in ordered]
        for number, (way, key) in enumerate(ways):
            measured = _of_way(run.timeline, p, number)
            way.seconds[key], way.computing[key] = measured[0], measured[1]
            if p > 1 and measured[2]:
                path = _path(measured[2], run.layout.backend, p)
                paths.append((path, measured[3]))
    for way in (strong, weak):
        way.seconds = {1: alone.seconds[1], **way.seconds}
        way.computing = {1: alone.computing[1], **way.computing}
    return ScalingStudy(
        samples,
        strong.seconds,
        weak.seconds,
        alone.seconds,
        fit_amdahl(strong.seconds, bootstrap),
        fit_amdahl(strong.computing, bootstrap),
        fit_gustafson(weak.seconds, alone.seconds, bootstrap),
        fit_gustafson(weak.computing, alone.computing, bootstrap),
        fit_alpha_beta(paths, bootstrap),
    )


def _measure(step: Callable[[int], Any], shares: Sequence[int], steps: int, warm_up: int) -> None:
    """On a rank: each way's steps, as events."""
    for way, share in enumerate(shares):
        for _ in range(warm_up):
            step(share)
        for _ in range(steps):
            line_up()
            with events.span("scaling study", "step", detail={"way": way}):
                step(share)


def _of_way(
    timeline: Timeline, ranks: int, way: int
) -> tuple[list[float], list[float], list[Event], list[float]]:
    """Of each step: seconds, and seconds without exposed communication, of the slowest rank; then the collectives of a
    step, and what they take in each.

    Of a collective that some rank comes late to, the last one's time counts: the others' is waiting for that rank.
    """
    by_rank = [timeline.of(rank=rank) for rank in range(ranks)]
    spans = [
        [e for e in mine if e.name == "scaling study" and e.detail.get("way") == way]
        for mine in by_rank
    ]
    seconds, computing, taken, calls = [], [], [], []
    for same in zip(*spans, strict=True):
        slowest = max(same, key=lambda each: each.seconds)
        waited = communication_of(
            by_rank[slowest.rank], slowest.rank, (slowest.start, slowest.end)
        ).exposed
        seconds.append(slowest.seconds)
        computing.append(slowest.seconds - waited)
        in_step = [_collectives(by_rank[each.rank], each) for each in same]
        calls = in_step[0]
        taken.append(sum(min(e.seconds for e in together) for together in zip(*in_step, strict=False)))  # fmt: skip
    return seconds, computing, calls, taken


def _collectives(mine: Timeline, step: Event) -> list[Event]:
    return [
        e for e in mine
        if e.lane == "collectives" and e.name in cost.COLLECTIVES
        and step.start <= e.start < step.end
    ]  # fmt: skip


def _path(calls: Sequence[Event], backend: str, ranks: int) -> Terms:
    """The critical paths of a step's collectives, one after the other."""
    total = Terms()
    for call in calls:
        nbytes = call.bytes
        if call.name == "reduce_scatter" and "backend" not in call.detail:
            nbytes *= ranks  # of ours the event has what comes out, of torch's what goes in
        total += cost.terms(algorithm_of(backend, call.name), call.name, nbytes, ranks)
    return total
