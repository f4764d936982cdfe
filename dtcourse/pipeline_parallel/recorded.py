"""What a run has recorded, step by step, as the simulator gives it: to draw it, and to hold one against the other."""

from __future__ import annotations

from dtcourse.events import Event, Timeline


def steps(timeline: Timeline) -> list[Timeline]:
    """The actions of each step (or evaluation) of a Pipeline, from a launch with record=True.

        plots.schedules({"simulated": simulate(schedule, times), "run": steps(run.timeline)[-1]})

    Other events (messages, waiting, what the function records itself) are left out. But a rank's events of the name
    "optimizer" belong to the last step of which it has finished an action before.
    """
    found: dict[int, list[Event]] = {}
    for event in timeline:
        if "step" in event.detail:
            found.setdefault(event.detail["step"], []).append(event)
    finished = {
        (number, rank): min(event.end for event in events if event.rank == rank)
        for number, events in found.items()
        for rank in {event.rank for event in events}
    }
    for event in timeline.of(name="optimizer"):
        before = [
            n for (n, rank), end in finished.items() if rank == event.rank and end <= event.start
        ]
        if before:
            found[max(before)].append(event)
    return [Timeline(found[number]) for number in sorted(found)]


def cost(step: Timeline) -> float:
    """Seconds from a rank's first action to the end of its last one, of the rank where that is longest: what
    `Simulation.cost` is of a simulated step. The optimizer's events do not count.

    step: one of `steps`, of a schedule with a flush

    Raises ValueError if there is no action in it.
    """
    return max(max(e.end for e in one) - min(e.start for e in one) for one in _by_rank(step))


def bubble_rate(step: Timeline) -> float:
    """The part of `cost` in which the busiest rank does not work: what `Simulation.bubble_rate` is of a simulated step.

    step: one of `steps`, of a schedule with a flush

    Raises ValueError if there is no action in it.
    """
    return 1 - max(sum(e.seconds for e in one) for one in _by_rank(step)) / cost(step)


def _by_rank(step: Timeline) -> list[list[Event]]:
    """The actions of each rank that has any."""
    actions = [e for e in step if "stage" in e.detail]
    if not actions:
        raise ValueError(
            f"{step!r} holds no action of a pipeline: take one of steps(run.timeline), "
            "from a launch with record=True."
        )
    return [[e for e in actions if e.rank == rank] for rank in sorted({e.rank for e in actions})]
