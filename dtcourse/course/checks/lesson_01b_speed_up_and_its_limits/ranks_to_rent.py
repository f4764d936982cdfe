"""A step that was measured on a few ranks, and a limit: how many ranks to rent? All numbers of ranks are run."""

from __future__ import annotations

from functools import cache

from dtcourse.course.judging import Answer, Exercise, call_each, own_ranks, require
from dtcourse.course.judging.verdicts import NEAR
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

RENT = Exercise(
    "ranks_to_rent",
    lesson="01b",
    title="How many ranks to rent?",
    takes=("ranks_to_rent",),
    launches=True,
    target="in time, and at most 1.01 times the lowest cost, for 9 jobs on 3 emulated clusters of 10 ranks",
)

MOST = 10  # ranks of each cluster
NUMBERS = 2_520  # of 8 bytes in the gradient: every number of ranks up to 10 divides it

PARTS = (
    "Which part of a step is divided by the ranks, which stays, and which grows with each of them?"
)

# latency of a message, seconds for a gradient's bytes
Network = tuple[float, float]
# seconds of computing, of repeated work; the most that a step may take; the numbers of ranks that are told
Job = tuple[float, float, float, tuple[int, ...]]
LATE, LATE_JOBS = (
    (1e-3, 6e-3),
    (
        (240e-3, 5e-3, 60e-3, (1, 2, 3, 4)),
        (240e-3, 5e-3, 57e-3, (1, 2, 4)),
        (100e-3, 2e-3, 41e-3, (2, 3, 4, 5)),
    ),
)
NARROW, NARROW_JOBS = (
    (10e-6, 60e-3),
    (
        (600e-3, 10e-3, 192e-3, (1, 2, 3)),
        (100e-3, 10e-3, 115e-3, (2, 3, 4)),
        (100e-3, 10e-3, 105e-3, (1, 2, 3, 4)),
    ),
)
QUICK, QUICK_JOBS = (
    (100e-6, 3e-3),
    (
        (300e-3, 20e-3, 62e-3, (1, 2, 4, 6)),
        (300e-3, 20e-3, 330e-3, (1, 2, 3)),
        (50e-3, 20e-3, 36e-3, (1, 2, 3)),
    ),
)


def _steps(work: list[tuple[float, float]]) -> list[list[float]]:
    """For each (computing, repeated work), what this rank's step takes in groups of 1, 2, ... ranks; 0 outside."""
    import torch
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.course.judging.trials import begin_together

    rank, sizes = dist.get_rank(), range(1, dist.get_world_size() + 1)
    groups = [dist.new_group(list(range(size))) for size in sizes]
    gradient, found = torch.ones(NUMBERS, dtype=torch.double), []
    for compute, repeated in work:
        taken = []
        for size, group in zip(sizes, groups, strict=True):
            begin = begin_together()
            if rank < size:
                emulation.sleep(compute / size)
                if size > 1:
                    dist.all_reduce(gradient, group=group)
                emulation.sleep(repeated)
            taken.append(emulation.now() - begin)
        found.append(taken)
    return found


@cache
def measured(network: Network, jobs: tuple[Job, ...]) -> list[dict[int, float]]:
    """For each job, {ranks: seconds of a step}, run on the emulated cluster."""
    latency, transfer = network
    emulated = EmulatedNetwork(latency=latency, bandwidth=NUMBERS * 8 / transfer)
    work = [(compute, repeated) for compute, repeated, *_ in jobs]
    different = list(dict.fromkeys(work))
    run = own_ranks.launched(
        _steps, MOST, different, network=emulated, backend="ring", clock="virtual"
    )
    found = {
        done: {size: max(times) for size, times in enumerate(zip(*by_rank, strict=True), 1)}
        for done, by_rank in zip(different, zip(*run, strict=True), strict=True)
    }
    return [found[done] for done in work]


def _require(answer: Answer, network: Network, jobs: tuple[Job, ...], hint: str) -> None:
    steps = measured(network, jobs)
    given = [
        ({ranks: step[ranks] for ranks in told}, MOST, limit)
        for step, (_, _, limit, told) in zip(steps, jobs, strict=True)
    ]
    for step, (told, _, limit), got in zip(steps, given, call_each(answer, given), strict=True):
        times = ", ".join(f"{1e3 * s:.4g} ms on {ranks}" for ranks, s in told.items())
        where = f"A step takes {times}, and may take {1e3 * limit:.4g} ms"
        require(
            got is None or (type(got) is int and 1 <= got <= MOST),
            f"{where}: a number of ranks is an int, 1 to {MOST}, or None; got {got!r}.",
        )
        in_time = {ranks: ranks * s for ranks, s in step.items() if s <= limit}
        if not in_time:
            require(
                got is None,
                f"{where}: you rent {plural(got or 0, 'rank')}, and no number ends in time. {hint} Is there a number "
                "of ranks beyond which a step becomes longer again?",
            )
            continue
        cheapest = min(in_time, key=in_time.__getitem__)
        require(
            got is not None,
            f"{where}: you rent none, and {plural(cheapest, 'rank')} would end in time, in "
            f"{1e3 * step[cheapest]:.4g} ms. {PARTS} From these the time on any number follows.",
        )
        require(
            got in in_time,
            f"{where}: {plural(got, 'rank')} would need {1e3 * step[got]:.4g} ms. {hint}",
        )
        require(
            in_time[got] <= NEAR * in_time[cheapest],
            f"{where}: {plural(got, 'rank')} end in time, and cost {1e3 * in_time[got]:.4g} ms of rank time per step; "
            f"{1e3 * in_time[cheapest]:.4g} would do. What does each further rank do to the cost?",
        )


@RENT.check("where messages take long", points=3)
def check_late(answer: Answer) -> None:
    """Amdahl's law is too hopeful."""
    _require(
        answer,
        LATE,
        LATE_JOBS,
        "How many messages follow one after the other when one more rank joins the ring? Does Amdahl's law know?",
    )


@RENT.check("where bytes take long", points=3)
def check_narrow(answer: Answer) -> None:
    """Some work is not worth sending."""
    _require(
        answer,
        NARROW,
        NARROW_JOBS,
        "How do the bytes that a rank sends grow from one rank to two, and from there on?",
    )


@RENT.check("on a quick network", points=3)
def check_quick(answer: Answer) -> None:
    """More ranks than were measured, or one alone."""
    _require(
        answer,
        QUICK,
        QUICK_JOBS,
        "What of a step stays, however many ranks there are?",
    )
