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
