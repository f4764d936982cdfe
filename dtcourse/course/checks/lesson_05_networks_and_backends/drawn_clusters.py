"""Clusters with several interfaces, and jobs, as they are drawn for choose_way; and what each choice takes there.

The times are those of traces.py, which a test holds to the emulated network's.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import lru_cache

from dtcourse.course.checks.lesson_04b_choosing_an_all_reduce.traces import Network
from dtcourse.emulation import EmulatedNetwork

RANKS, NOISE = 4, 0.002
APART = 1.08  # times the best choice's seconds: what every other interface takes, at least
SHORT, LONG = 64, 1 << 20  # bytes of the messages that were measured
NAMES = ("eth0", "eth1", "eth2", "ib0", "ib1", "hsn0")
# The course's modules, and what traces.py calls their messages.
ALGORITHMS = {"naive": "root", "tree": "tree", "ring": "ring"}
Choice = tuple[str, str]  # interface, algorithm
Calls = list[tuple[int, int]]  # bytes of an all-reduce, how many of them a step has
Pings = dict[str, dict[int, list[list[float | None]]]]


@lru_cache(1 << 10)
def _seconds(network: Network, route: str, nbytes: int) -> float:
    return network.seconds(route, RANKS, nbytes)


@dataclass(frozen=True)
class Way:
    """An interface: seconds per message, seconds per byte.

    slow:    (from, to, how many times as long a message takes on this cable)
    refuses: (from, to) of which no message arrives
    """

    alpha: float
    beta: float
    slow: tuple[int, int, float] = (-1, -1, 1.0)
    refuses: tuple[int, int] | None = None

    def seconds(self, algorithm: str, calls: Calls, slow: bool = True) -> float:
        """Of a step; infinite where ranks do not reach each other.

        slow: False: as if all cables were alike and every message arrived
        """
        if slow and self.refuses:
            return float("inf")
        network = Network(self.alpha, 0.0, self.beta, self.slow if slow else (-1, -1, 1.0))
        return sum(times * _seconds(network, ALGORITHMS[algorithm], n) for n, times in calls)

    def bound(self, algorithm: str, calls: Calls) -> float:
        """Seconds of a step if every cable were as slow as the slowest one."""
        k = self.slow[2]
        return Way(k * self.alpha, k * self.beta, refuses=self.refuses).seconds(algorithm, calls)

    def pings(self, nbytes: int) -> list[list[float | None]]:
        """Seconds of one message, measured alone, from each rank to each other one."""

        def one(a: int, b: int) -> float | None:
            if a == b:
                return 0.0
            if (a, b) == self.refuses:
                return None
            times = self.slow[2] if (a, b) == self.slow[:2] else 1.0
            return times * (self.alpha + nbytes * self.beta) * random.uniform(1 - NOISE, 1 + NOISE)

        return [[one(a, b) for b in range(RANKS)] for a in range(RANKS)]

    def network(self) -> EmulatedNetwork:
        """What ranks run on."""
        a, b, k = self.slow
        cables = {(a, b): EmulatedNetwork(k * self.alpha, 1 / (k * self.beta))} if k > 1 else {}
        return EmulatedNetwork(self.alpha, 1 / self.beta, cables=cables)


@dataclass(frozen=True)
class Cluster:
    """Its interfaces by name, and what a job sends on it in a step."""

    ways: dict[str, Way]
    calls: Calls

    def given(self) -> tuple[Pings, Calls]:
        """What an answer gets."""
        pings = {name: {n: way.pings(n) for n in (SHORT, LONG)} for name, way in self.ways.items()}
        return pings, self.calls

    def seconds(self, calls: Calls | None = None, slow: bool = True) -> dict[Choice, float]:
        """Of a step with each choice."""
        return {
            (name, algorithm): way.seconds(algorithm, calls or self.calls, slow)
            for name, way in self.ways.items()
            for algorithm in ALGORITHMS
        }

    def best(self, calls: Calls | None = None, slow: bool = True) -> Choice:
        """The choice with the shortest step."""
        found = self.seconds(calls, slow)
        return min(found, key=lambda choice: found[choice])

    def is_clear(self) -> bool:
        """Whether no other interface comes near, also for who takes all cables for the slowest one."""
        found, best = self.seconds(), self.best()
        others = [taken for (name, _), taken in found.items() if name != best[0]]
        bounds = {(n, a): self.ways[n].bound(a, self.calls) for n, a in found}
        return min(others) > APART * found[best] and min(bounds, key=lambda c: bounds[c]) == best

    def describe(self) -> str:
        """In words."""
        calls = " and ".join(f"{times} of {n:,} bytes" for n, times in self.calls)
        return f"{RANKS} ranks, interfaces {', '.join(self.ways)}, all-reduces: {calls}"


def _ways(hurt: str = "") -> dict[str, Way]:
    """Three: of one messages begin early, another one is wide, and the third is neither.

    hurt: "slow" or "refuses": one of the first two has such a cable, which is not the one from rank 0 to rank 1
    """
    early = Way(random.uniform(3e-6, 9e-6), 1 / random.uniform(0.8e9, 2e9))
    wide = Way(random.uniform(60e-6, 150e-6), 1 / random.uniform(8e9, 20e9))
    neither = Way(random.uniform(1.3, 3) * early.alpha, random.uniform(1.3, 2) * early.beta)
    if hurt:
        pair = random.choice([p for p in itertools.permutations(range(RANKS), 2) if p != (0, 1)])
        worse = {"slow": {"slow": (*pair, random.uniform(3, 12))}, "refuses": {"refuses": pair}}[
            hurt
        ]
        which = random.choice((0, 1))
        early, wide = (Way(w.alpha, w.beta, **(worse if i == which else {})) for i, w in enumerate((early, wide)))  # type: ignore[arg-type]  # fmt: skip
    names = random.sample(NAMES, 3)
    return dict(sorted(zip(names, (early, wide, neither), strict=True)))


def _short() -> tuple[int, int]:
    return 16 * random.randint(8, 128), random.randint(30, 200)


def _long() -> tuple[int, int]:
    return 1024 * random.randint(4096, 8192), random.randint(1, 2)


def drawn(kind: str) -> Cluster:
    """A cluster and a job. kind: which of its properties decides; the mistakes that this excludes are in `_decides`."""
    while True:
        ways = _ways(kind if kind in ("slow", "refuses") else "")
        calls = {"short": [_short(), _short()], "long": [_long()]}.get(kind, [_short(), _long()])
        random.shuffle(calls)
        cluster = Cluster(ways, calls)
        if cluster.is_clear() and _decides(kind, cluster):
            return cluster


def _decides(kind: str, cluster: Cluster) -> bool:
    calls, (name, _) = cluster.calls, cluster.best()
    if kind in ("slow", "refuses"):
        return cluster.best(slow=False)[0] != name
    if (
        kind == "many"
    ):  # the short ones, which are many: neither the longest call decides, nor one of each
        each_once = [(n, 1) for n, _ in calls]
        return cluster.best([max(calls)])[0] != name and cluster.best(each_once)[0] != name
    if kind == "few":  # the long one, though it is one of many
        return cluster.best([min(calls)])[0] != name
    return True
