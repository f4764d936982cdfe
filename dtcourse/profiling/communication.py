"""How much of a step's communication hides behind computation, and how much of it the rank waits for.

    run = launch(step, 4, record=True)
    communication_of(run.timeline, rank=0)                 # of the whole run
    for part in step_by_step(run.timeline, rank=0): ...    # of each `events.span("step", "step")`, as a Monitor makes

What is exposed costs time, what is hidden does not. Which is which is told by what the timeline has:

    recorded by launch   communication under way while the rank waits for it (its "wait" events), on any clock
    of torch.profiler    (kernels.timeline_of) communication under way while nothing is computed. On a GPU that is of
                         its streams; on a CPU of the thread that computes and of gloo's own ones. The course's own
                         backends send from threads that the profiler does not see: for these, record

No second counts twice, however many collectives are under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dtcourse.events import Event, Timeline


@dataclass(frozen=True)
class Communication:
    """One rank's communication in a stretch of time; seconds.

    rank:    whose
    span:    how long the stretch is
    busy:    in which at least one collective or message was under way
    exposed: of these, in which the rank waited
    by_name: (busy, exposed) of each collective by name; two at once count for both
    """

    rank: int
    span: float
    busy: float
    exposed: float
    by_name: dict[str, tuple[float, float]]

    @property
    def hidden(self) -> float:
        """Under way while the rank did something else."""
        return self.busy - self.exposed

    @property
    def hidden_share(self) -> float:
        """Hidden / busy; 1 where there was nothing to hide."""
        return self.hidden / self.busy if self.busy else 1.0

    @property
    def exposed_share(self) -> float:
        """The part of the stretch that was lost to it."""
        return self.exposed / self.span if self.span else 0.0

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {self.busy * 1e3:.3f} ms of communication in {self.span * 1e3:.3f} ms, "
            f"{self.hidden * 1e3:.3f} ms of it hidden, {self.exposed * 1e3:.3f} ms exposed "
            f"({self.exposed_share:.1%} of the time)"
        )


def communication_of(
    timeline: Timeline, rank: int, within: tuple[float, float] | None = None
) -> Communication:
    """One rank's communication. within: (start, end) on the timeline's clock; None takes all of the rank's events.

    Raises ValueError for a rank without events, or an end before the start.
    """
    mine = timeline.of(rank=rank)
    if not len(mine):
        raise ValueError(
            f"rank {rank} has no events in this timeline; its ranks are {timeline.ranks}"
        )
    start, end = within if within is not None else (mine.start, mine.start + mine.span)
    if end < start:
        raise ValueError(f"a stretch of time ends after its start; got {start} to {end}")
    recorded = any(event.lane == "collectives" or event.kind == "wait" for event in mine)
    waits = recorded or not any(event.kind == "compute" for event in mine)
    cut = Timeline([*_cut(mine, start, end), *_own_waits(mine, start, end)])
    names = dict.fromkeys(cut.order(rank, "communication"))
    return Communication(
        rank,
        end - start,
        cut.busy(rank, "communication"),
        _exposed(cut, rank, waits),
        {
            name: (only.busy(rank, "communication"), _exposed(only, rank, waits))
            for name in names
            for only in [Timeline(e for e in cut if e.kind != "communication" or e.name == name)]
        },
    )


def step_by_step(timeline: Timeline, rank: int) -> list[Communication]:
    """The same for each step of a rank. ValueError where no event of kind "step" says where they begin and end."""
    steps = timeline.of(rank=rank, kind="step")
    if not len(steps):
        raise ValueError(
            f'rank {rank} has recorded no steps: with events.span("step", "step"): in its loop'
        )
    return [communication_of(timeline, rank, (step.start, step.end)) for step in steps]


def _exposed(timeline: Timeline, rank: int, waits: bool) -> float:
    return timeline.overlap(rank, "communication", "wait") if waits else timeline.exposed(rank)


def _own_waits(timeline: Timeline, start: float, end: float) -> list[Event]:
    """A blocking collective that the rank ran itself was waited for throughout."""
    return [
        replace(event, kind="wait", lane="main")
        for event in _cut(timeline, start, end)
        if event.kind == "communication" and event.detail.get("blocking")
    ]


def _cut(timeline: Timeline, start: float, end: float) -> Iterator[Event]:
    """What of each event lies within."""
    for event in timeline:
        if event.start < end and event.end > start:
            yield replace(event, start=max(event.start, start), end=min(event.end, end))
