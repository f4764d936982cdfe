"""A link that is not the same in both directions, measured with one clock."""

from __future__ import annotations

from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

MEASURE = Exercise(
    "measure_link",
    lesson="05",
    title="Measure a hidden link",
    takes=("measure_link",),
    target="latency and both bandwidths within 2% on 4 links, also where rank 1 comes 40 ms late",
    forbidden=("dtcourse.profiling", "dtcourse.simulator", "dtcourse.emulation.clock"),
)

# Latency and gap of a message; bytes per second from rank 0 to rank 1, and back.
LINKS = (
    (15e-6, 3e-6, 12.5e9, 12.5e9),
    (30e-6, 0.0, 25e9, 3e9),
    (5e-3, 1e-3, 1e7, 4e7),
    (2e-6, 1e-6, 50e9, 100e9),
)
LATE, NEAR = 0.04, 0.02
# What is not known: the latency and two bandwidths. Each message that comes back tells rank 0's clock one time.
UNKNOWN = 3


def _measured(measure_link: Any, late: float) -> Any:
    import torch.distributed as dist

    from dtcourse import emulation

    if dist.get_rank() == 1:
        emulation.sleep(late)
    found = measure_link()
    return [float(x) for x in found] if dist.get_rank() == 0 else None


def _found(answer: Answer, late: float = 0.0) -> list[tuple[str, tuple[float, ...], list[float]]]:
    """In words, what is right, and what was said, for each link."""
    found: list[tuple[str, tuple[float, ...], list[float]]] = []
    for latency, gap, there, back in LINKS:
        network = EmulatedNetwork(
            latency, there, gap=gap, cables={(1, 0): EmulatedNetwork(latency, back, gap=gap)}
        )
        options = {"backend": "ring", "network": network, "clock": "virtual", "record": True}
        run = answer.run(_measured, 2, late, **options)
        _require_messages(run.traffic)
        got = run[0]
        require(
            isinstance(got, list) and len(got) == 3,
            f"on rank 0 the answer is three numbers: latency, bandwidth there, bandwidth back; got {got!r}.",
        )
        where = (
            f"A link of {1e6 * (latency + gap):.4g} µs per message, {there / 1e6:,.0f} MB/s there and "
            f"{back / 1e6:,.0f} MB/s back"
        )
        found.append((where, (latency + gap, there, back), got))
    return found


def _require_messages(traffic: Any) -> None:
    """What was measured has to have been sent; a barrier's own messages tell of no size."""
    there, back = (
        sum(
            row.messages
            for row in traffic.select(rank=rank, direction="sent")
            if row.operation != "barrier"
        )
        for rank in (0, 1)
    )
    require(
        there and back,
        f"Rank 0 sent rank 1 {plural(there, 'message')}, and got {back} back (barriers apart): a link is measured by "
        "what goes over it, and there was no message to measure.",
    )
    require(
        back >= UNKNOWN,
        f"Rank 0 got {plural(back, 'message')} back. Its clock tells one time for each, and three numbers are "
        "unknown: how many times do you need?",
    )


def _close(got: float, right: float) -> bool:
    return abs(got / right - 1) <= NEAR


@MEASURE.check("the latency", points=3)
def check_latency(answer: Answer) -> None:
    """One way, without the bytes."""
    for where, (latency, *_), (got, *_) in _found(answer):
        require(
            _close(got, latency),
            f"{where}: you say {1e6 * got:.4g} µs. Is it one message's time or the round trip's, are its bytes "
            "taken off, is the message there when the clock stops, and is it the emulated clock?",
        )


@MEASURE.check("the bandwidth of each direction", points=4)
def check_bandwidths(answer: Answer) -> None:
    """Told apart, with the latency taken off."""
    for where, (_, there, back), (_, got_there, got_back) in _found(answer):
        require(
            not (_close(got_there, back) and _close(got_back, there)) or _close(there, back),
            f"{where}: your two bandwidths are the other way round. Which of the two messages was the large one?",
        )
        require(
            _close(got_there, there) and _close(got_back, back),
            f"{where}: you say {got_there / 1e6:,.4g} and {got_back / 1e6:,.4g} MB/s. Which part of a round trip "
            "grows with the message, and which direction did its bytes take?",
        )


@MEASURE.check("a rank that comes late", points=3)
def check_late(answer: Answer) -> None:
    """Waiting for it is no latency."""
    late, in_time = _found(answer, LATE), None
    for i, (where, right, got) in enumerate(late):
        if all(_close(g, r) for g, r in zip(got, right, strict=True)):
            continue
        in_time = in_time or _found(answer)
        waited = not all(_close(g, before) for g, before in zip(got, in_time[i][2], strict=True))
        said = f"{1e6 * got[0]:.4g} µs, {got[1] / 1e6:,.4g} and {got[2] / 1e6:,.4g} MB/s"
        hint = (
            "Were both ranks there when the clock was started?"
            if waited
            else "So you say where rank 1 is in time, too: its delay does no harm. What is off is said above."
        )
        require(
            False, f"{where}, and rank 1 comes {1e3 * LATE:.0f} ms late: you say {said}. {hint}"
        )
