"""What can cost a run its time, each told from the evidence, with the seconds of the critical path that it costs.

The seconds are what the path would lose at once if the cause were gone: the path's part that the cause lengthened,
times the excess in it. Then another path may be the critical one, so this is a bound from above; it ranks causes.

    slow rank         more seconds per FLOP, and per byte moved, than the other ranks
    unequal work      what is left of unequal compute when devices are taken for equal: stages that do not balance
    slow link         more seconds per message than the other links need for as many bytes
    small buckets     collectives one behind another on the path, of which each but the first pays its fixed cost again
    waiting for data  the main lane is in the loader on the path
    writing its log   the main lane writes its log on the path
    recomputing       forwards that checkpoints, or the stages of a pipeline, repeat for their backward
    synchronisation   ranks wait at collectives that carry next to nothing; the seconds are those by which the run is
                      shorter when it is played through without them, if that is more
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dtcourse.plural import plural
from dtcourse.profiling.diagnosis.evidence import Evidence
from dtcourse.profiling.diagnosis.without import end_without

NEXT_TO_NOTHING = 1024  # bytes


@dataclass(frozen=True)
class Cause:
    """One cause.

    kind:    as in the table above
    seconds: of the window, lost by it
    says:    the sentence, without the seconds
    ranks:   where: a rank, the two ends of a link, or all that it concerns
    """

    kind: str
    seconds: float
    says: str
    ranks: tuple[int, ...] = ()


def slowness(evidence: Evidence) -> dict[int, float]:
    """By rank: how many times as long as the others' median it takes for the same work; 1 where nobody counted work.

    Other work has another mixture of FLOPs and bytes, which makes the time for one of them longer and for the other
    shorter; a slow device makes both longer. How much is told by the one of the two in which the other ranks agree.
    """
    counters = evidence.counters
    found = dict.fromkeys(counters, 1.0)
    if len(counters) < 2 or not all(min(c.busy, c.flops, c.bytes) > 0 for c in counters.values()):
        return found
    ratios = [
        {rank: c.busy / of(c) for rank, c in counters.items()}
        for of in (lambda c: c.flops, lambda c: c.bytes)
    ]
    for rank in counters:
        seen = []
        for by in ratios:
            others = [value for other, value in by.items() if other != rank]
            usual = statistics.median(others)
            seen.append(((max(others) - min(others)) / usual, by[rank] / usual))
        if min(factor for _, factor in seen) > 1.05:
            found[rank] = min(seen)[1]
    return found


def slow_rank(evidence: Evidence) -> Iterator[Cause]:
    """A minority of ranks that take longer for the same work."""
    slow = {rank: s for rank, s in slowness(evidence).items() if s > 1.1}
    if 2 * len(slow) > len(evidence.counters):  # so many are no exception
        return
    for rank, factor in slow.items():
        yield Cause(
            "slow rank",
            evidence.computing_on_path(rank) * (1 - 1 / factor),
            f"rank {rank} takes {factor:.1f} times as long as the other ranks for the same operations",
            (rank,),
        )


def unequal_work(evidence: Evidence) -> Iterator[Cause]:
    """Some rank has more to compute than the mean, on devices taken for equal."""
    slow = slowness(evidence)
    work = {rank: c.busy / max(1.0, slow[rank]) for rank, c in evidence.counters.items()}
    if len(work) < 2 or not all(work.values()):
        return
    mean = statistics.mean(work.values())
    rank = max(work, key=lambda r: (work[r], -r))
    factor = work[rank] / mean
    lost = evidence.computing_on_path(rank) / max(1.0, slow[rank]) * (1 - 1 / factor)
    what = "the stage of rank" if evidence.is_pipeline else "rank"
    yield Cause(
        "unequal work",
        lost if factor > 1.05 else 0.0,
        f"{what} {rank} has {factor:.1f} times the mean rank's work to compute",
        (rank,),
    )


def slow_link(evidence: Evidence) -> Iterator[Cause]:
    """A minority of links that take longer for messages of the same size."""
    links = evidence.links
    sizes = {m.send.bytes for messages in links.values() for m in messages}
    # Of each size, on each link, the quickest: what stood in no queue.
    quick = {
        size: {
            pair: min(m.seconds for m in messages if m.send.bytes == size)
            for pair, messages in links.items()
            if any(m.send.bytes == size for m in messages)
        }
        for size in sizes
    }
    factors: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for size, by_pair in quick.items():
        usual = statistics.median_low(by_pair.values())
        if len(by_pair) < 3 or not usual > 0:
            continue
        for pair, seconds in by_pair.items():
            factors.setdefault(pair, []).append((size, seconds / usual))
    # By the largest messages: there the bandwidth shows, and the latency too if that is it.
    slow = {pair: max(seen)[1] for pair, seen in factors.items() if max(seen)[1] > 1.1}
    if not slow or 2 * len(slow) >= len(
        factors
    ):  # so many are no exception: that is how the machine is built
        return
    lost = {
        pair: sum(s.seconds for s in evidence.path if s.pair == pair) * (1 - 1 / factor)
        for pair, factor in slow.items()
    }
    cables: dict[tuple[int, ...], float] = {}  # both directions are one cable
    for pair, seconds in lost.items():
        cables[tuple(sorted(pair))] = cables.get(tuple(sorted(pair)), 0.0) + seconds
    worst = max(cables, key=lambda ends: (cables[ends], ends))
    src, dst = max((pair for pair in slow if tuple(sorted(pair)) == worst), key=lambda p: lost[p])
    yield Cause(
        "slow link",
        cables[worst],
        f"the link from rank {src} to rank {dst} takes {slow[src, dst]:.1f} times as long as the other links "
        "for as many bytes",
        worst,
    )


def small_buckets(evidence: Evidence) -> Iterator[Cause]:
    """Runs of collectives on the path with nothing between them: one in their place would pay the fixed cost once."""
    alpha, _ = evidence.message_cost
    lost, most, sizes = 0.0, 0, []
    for run in evidence.runs:
        fixed = 0.0
        for segments in run:
            event = segments[0].whole or segments[0].event
            assert event is not None
            sizes.append(event.bytes)
            once = alpha if segments[0].whole else evidence.collective_cost(event)[0]
            fixed += sum(min(once, segment.seconds) for segment in segments)
        lost += fixed * (1 - 1 / len(run))
        most = max(most, len(run))
    yield Cause(
        "small buckets",
        lost,
        f"up to {plural(most, 'collective')} of {statistics.median(sizes) if sizes else 0:,.0f} bytes go one behind "
        "another, and each pays its fixed cost again: fewer and larger buckets would pay it less often",
    )


def waiting_for_data(evidence: Evidence) -> Iterator[Cause]:
    """The loader is on the path."""
    loading = evidence.standing_on_path(("data",))
    rank = max(loading, key=lambda r: (loading[r], -r), default=0)
    yield Cause(
        "waiting for data",
        sum(loading.values()),
        f"the ranks wait for their batches, rank {rank} most",
        (rank,),
    )


def writing_its_log(evidence: Evidence) -> Iterator[Cause]:
    """Some rank's log is on the path."""
    writing = evidence.standing_on_path(("log",))
    rank = max(writing, key=lambda r: (writing[r], -r), default=0)
    lines = [
        e
        for e in evidence.timeline.of(rank=rank, kind="log", lane="main")
        if evidence.within(e.start)
    ]
    nbytes = sum(e.bytes for e in lines)
    size = f"{nbytes:,} bytes" + (f" in {plural(evidence.steps, 'step')}" if evidence.steps else "")
    yield Cause(
        "writing its log",
        sum(writing.values()),
        f"rank {rank} writes {plural(len(lines), 'line')} of log, {size}, and does nothing else meanwhile",
        (rank,),
    )


def recomputing(evidence: Evidence) -> Iterator[Cause]:
    """Forwards are computed twice."""
    again, busy = (
        sum(getattr(c, name) for c in evidence.counters.values()) for name in ("recomputed", "busy")
    )
    if busy > 0:
        yield Cause(
            "recomputing",
            evidence.computing_on_path() * again / busy,
            f"checkpoints repeat forwards: {again / busy:.0%} of all computing",
        )


def synchronisation(evidence: Evidence) -> Iterator[Cause]:
    """Ranks wait for one another where next to nothing is sent, between two pieces of their own work.

    The collective's own seconds may be the least of it: a rank that came early would have gone on, and what it did then
    would have been beside what it waited for.
    """
    lost, calls = 0.0, set()
    for run in evidence.runs:
        event = run[0][0].whole or run[0][0].event
        if len(run) == 1 and event is not None and event.bytes <= NEXT_TO_NOTHING:
            lost += sum(s.seconds for s in run[0])
            calls.add(id(evidence.matched.collectives[id(event)]))
    if calls:
        lost = max(lost, end_without(evidence, ()) - end_without(evidence, calls))
    yield Cause(
        "synchronisation",
        lost,
        f"{plural(len(calls), 'collective')} of next to nothing let all ranks wait for one another",
    )


CAUSES: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    slow_rank, unequal_work, slow_link, small_buckets, waiting_for_data, writing_its_log, recomputing,
    synchronisation,
)  # fmt: skip
