"""Choose the algorithm by its cost."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_algorithm",
    lesson="04b",
    title="Choose the algorithm by its cost",
    takes=("seconds", "choose", "crossover"),
    target="what the emulated network takes, to 1e-6; 200 choices right; crossovers to 1e-6",
    forbidden=(
        "dtcourse.collectives.algorithms",
        "dtcourse.collectives.terms",
        "dtcourse.simulator.collective_cost",
        "dtcourse.simulator",
    ),
)


def _usable(ranks: int) -> list[str]:
    return ["root", "ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])


def terms(name: str, ranks: int) -> tuple[float, float, float]:
    """Latencies that follow each other, messages that pass the busiest port in turn, and how many n these are."""
    others, rounds = ranks - 1, (ranks - 1).bit_length()
    return {
        "root": (2 if others else 0, 2 * others, 2 * others),
        "ring": (2 * others, 2 * others, 2 * others / ranks),
        "tree": (2 * rounds, 2 * rounds, 2 * rounds),
        "doubling": (rounds, rounds, rounds),
    }[name]


def _time(name: str, nbytes: float, ranks: int, alpha: float, beta: float, gap: float) -> float:
    latencies, messages, vectors = terms(name, ranks)
    return latencies * alpha + messages * gap + vectors * nbytes * beta


def _from(ranks: int, alpha: float, beta: float, gap: float) -> float:
    """The size from which on the ring is the fastest."""
    at = [0.0]
    for name in _usable(ranks):
        late = _time("ring", 0, ranks, alpha, beta, gap) - _time(name, 0, ranks, alpha, beta, gap)
        if late > 0:
            vectors = terms(name, ranks)[2] - terms("ring", ranks)[2]
            at.append(late / (vectors * beta) if vectors else math.inf)
    return max(at)


def _network() -> tuple[float, float, float]:
    alpha = 10 ** random.uniform(-6, -2)
    return alpha, 10 ** random.uniform(-11, -7), alpha * random.choice([0.0, 0.05, 0.3, 1.0, 3.0])


def _emulated(_s: Any, _c: Any, _x: Any, calls: list[tuple[str, int]]) -> list[float]:
    """Seconds that this rank takes for each (algorithm, bytes); they begin a second of the virtual clock apart."""
    from dtcourse import emulation
    from dtcourse.collectives import halving_doubling, naive, ring, tree

    routes: dict[str, Any] = {
        "root": naive.all_reduce,
        "ring": ring.all_reduce,
        "tree": tree.all_reduce,
        "doubling": halving_doubling.doubling_all_reduce,
    }
    taken = []
    for start, (name, nbytes) in enumerate(calls, 1):
        x = torch.ones(nbytes // 4)
        emulation.sleep(start - emulation.now())
        routes[name](x)
        taken.append(emulation.now() - start)
    return taken


def _all_seconds(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[float]:
    return [float(seconds(*case)) for case in cases]


def _refused(seconds: Any, _c: Any, _x: Any, cases: list[Any]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {seconds(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


def _choices(_s: Any, choose: Any, _x: Any, cases: list[Any]) -> list[str]:
    return [choose(*case) for case in cases]


def _crossovers(_s: Any, _c: Any, crossover: Any, cases: list[Any]) -> list[float]:
    return [float(crossover(*case)) for case in cases]


@CHOOSE.check("the predicted times, against the emulated network", points=2)
def check_times(answer: Answer) -> None:
    """Run on the emulated network, on numbers of ranks whose tree is full; by the formula elsewhere; ValueErrors."""
    for ranks in (8, 4, 3):
        alpha, beta, gap = random.choice(
            [(20e-6, 1e-10, 5e-6), (5e-6, 2e-11, 2e-6), (50e-6, 1e-9, 60e-6)]
        )
        network = EmulatedNetwork(latency=alpha, bandwidth=1 / beta, gap=gap)
        names = [name for name in _usable(ranks) if name != "tree" or ranks != 3]
        calls = [(name, nbytes) for name in names for nbytes in (96, 480_000)]
        run = answer.run(_emulated, ranks, calls, backend="ring", network=network, clock="virtual")
        took = [max(times) for times in zip(*run, strict=True)]
        asked = [(name, nbytes, ranks, alpha, beta, gap) for name, nbytes in calls]
        for case, right, got in zip(asked, took, answer.call(_all_seconds, asked), strict=True):
            require(
                math.isclose(got, right, rel_tol=1e-6),
                f"{case[0]}, {case[1]:,} bytes on {plural(ranks, 'rank')}, alpha {alpha:.3g} s, beta {beta:.3g} s per "
                f"byte, gap {gap:.3g} s: the emulated network took {right:.6g} s, and yours is {got:.6g} s. Which "
                "latencies follow each other, and which messages pass one port in turn?",
            )
    cases = [
        (name, random.randrange(1, 10**9), ranks, *_network())
        for ranks in (1, 2, 3, 6, 8, 100, 1024)
        for name in _usable(ranks)
    ]
    for case, got in zip(cases, answer.call(_all_seconds, cases), strict=True):
        name, nbytes, ranks = case[:3]
        right = _time(*case)
        require(
            math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-15),
            f"{name}, {nbytes:,} bytes on {plural(ranks, 'rank')}, alpha {case[3]:.3g} s, beta {case[4]:.3g} s per "
            f"byte, gap {case[5]:.3g} s: it takes {right:.6g} s, and yours is {got:.6g} s. "
            + ("How many rounds has a tree of that many ranks?" if ranks & (ranks - 1) else "")
            + ("With one rank there is nothing to send." if ranks == 1 else ""),
        )
    bad = [("doubling", 8, 6, 1e-6, 1e-9, 0.0), ("carrier pigeon", 8, 4, 1e-6, 1e-9, 0.0)]
    for case, said in zip(bad, answer.call(_refused, bad), strict=True):
        require(
            said == "ValueError",
            f"seconds({case[0]!r}, ...) on {case[2]} ranks should raise a ValueError: yours {said}.",
        )


@CHOOSE.check("the fastest that can be used, in 200 calls", points=2)
def check_choice(answer: Answer) -> None:
    """Random sizes, ranks and networks."""
    cases = [
        (int(10 ** random.uniform(0, 10)), random.choice([2, 3, 4, 6, 8, 24, 64, 512]), *_network())
        for _ in range(194)
    ]
    cases += [
        (8, ranks, 1e-4, 1e-9, 1e-4) for ranks in (3, 6, 24)
    ]  # where doubling would be fastest
    cases += [(10**9, ranks, 1e-6, 1e-9, 1e-6) for ranks in (4, 6, 64)]
    for case, got in zip(cases, answer.call(_choices, cases), strict=True):
        nbytes, ranks = case[:2]
        times = {name: _time(name, *case) for name in _usable(ranks)}
        require(
            got in times,
            f"On {plural(ranks, 'rank')} choose says {got!r}; what can be used there is {', '.join(times)}.",
        )
        require(
            times[got] <= min(times.values()) * (1 + 1e-9),
            f"{nbytes:,} bytes on {plural(ranks, 'rank')}, alpha {case[2]:.2g}, beta {case[3]:.2g}, gap "
            f"{case[4]:.2g}: choose says "
            f"{got} ({times[got]:.3g} s); the fastest takes {min(times.values()):.3g} s. Did you compare the times "
            "of this very call?",
        )


@CHOOSE.check("the size from which on the ring is the fastest", points=3)
def check_crossover(answer: Answer) -> None:
    """To 1e-6 of its size; infinity where it is never the fastest."""
    # On five ranks the root is the ring's last rival where the gap is short, and the tree where it is long.
    cases = [(4, 2e-5, 1e-10, 5e-6), (5, 1e-5, 1e-9, 0.0), (5, 1e-5, 1e-9, 5e-5)]
    cases += [(ranks, *_network()) for ranks in (3, 4, 5, 6, 8, 64, 100, 1024, 2)]
    for case, got in zip(cases, answer.call(_crossovers, cases), strict=True):
        ranks, alpha, beta, gap = case
        right = _from(*case)
        if ranks & (ranks - 1) == 0:
            hint = "Which of the others is the ring's last rival here?"
        else:
            hint = "Which of the others can be used on that many ranks, and whose gaps does the ring save?"
        if right == math.inf:
            hint = "Compare the ring with each of the others, term by term: which is ahead at any size at all?"
        require(
            math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-9),
            f"On {plural(ranks, 'rank')} with alpha {alpha:.3g} s, beta {beta:.3g} s per byte and gap {gap:.3g} s the "
            f"ring is the fastest from {right:,.4g} bytes on, and you say {got:,.4g}. {hint}",
        )
