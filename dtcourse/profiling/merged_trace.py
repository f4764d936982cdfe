"""torch.profiler's traces of all ranks and our own timeline, on one clock, as one file for Perfetto.

    merged = merge(run, ["rank-0.json", "rank-1.json"])
    merged.save("all.json")                       # open it in ui.perfetto.dev
    print(*merged.says, sep="; ")                  # how the clocks were brought together, and what is missing

torch.profiler writes Unix time, our events carry a monotonic clock (or the emulated cluster's), and machines' clocks
differ. So each file is moved by one offset, the first of these that can be had:

    marks        `torch_trace.mark()` inside the profile wrote our clock's time into the trace: the median difference
    collectives  the file's communication against a rank that is placed already: a collective that all ranks need ends
                 at about one time on all, so the median difference of the ends, one after the other
    Unix time    both clocks of this machine are asked now. Right on this machine while it is not restarted

Each file is moved as a whole: a clock that drifts within a recording is not straightened. A span's length stays.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dtcourse.events import Event, Timeline, timeline_of
from dtcourse.profiling.diagnosis.matching import Matched
from dtcourse.profiling.torch_trace import TorchTrace

APART = 3600.0  # seconds: recordings of one run are not further from one another


@dataclass
class MergedTrace:
    """All of it.

    timeline: on our clock
    offsets:  by rank, the seconds that were added to its file's times
    says:     how, and what is missing or left out, a sentence each
    """

    timeline: Timeline
    offsets: dict[int, float] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)

    def to_perfetto(self) -> dict[str, Any]:
        """Ranks as processes, lanes as threads, messages as arrows from send to receive; times in microseconds."""
        origin = self.timeline.start
        lanes = {rank: sorted({e.lane for e in self.timeline.of(rank=rank)}, key=_main_first)
                 for rank in self.timeline.ranks}  # fmt: skip
        thread = {(rank, lane): i for rank, own in lanes.items() for i, lane in enumerate(own)}
        made: list[dict[str, Any]] = []
        for rank in lanes:
            made.append(_named("process_name", rank, 0, f"rank {rank}"))
            made.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0,
                         "args": {"sort_index": rank}})  # fmt: skip
            made += [_named("thread_name", rank, thread[rank, lane], lane) for lane in lanes[rank]]
        for event in self.timeline:
            made.append(
                {"ph": "X", "name": event.name, "cat": event.kind, "pid": event.rank,
                 "tid": thread[event.rank, event.lane], "ts": (event.start - origin) * 1e6,
                 "dur": max(0.0, event.seconds) * 1e6, "args": {"bytes": event.bytes, **event.detail}}
            )  # fmt: skip
        for number, message in enumerate(Matched.of(self.timeline).messages):
            for phase, event, moment in (
                ("s", message.send, message.send.start),
                ("f", message.recv, message.recv.end),
            ):
                arrow = {"ph": phase, "name": "message", "cat": "message", "id": number,
                         "pid": event.rank, "tid": thread[event.rank, event.lane],
                         "ts": (moment - origin) * 1e6}  # fmt: skip
                made.append(arrow | ({"bp": "e"} if phase == "f" else {}))
        return {"traceEvents": made, "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> None:
        """Writes the file, all or nothing."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(self.to_perfetto(), allow_nan=False))
        partial.replace(path)


def merge(run: Any = None, files: Iterable[str | Path] = ()) -> MergedTrace:
    """Brings what was recorded of one run together.

    run:   what launch(..., record=True) returned, or a Timeline; None where there are files only
    files: of torch.profiler, one per rank, in any order

    Raises ValueError where there is nothing, and for two files of one rank.
    """
    ours = Timeline() if run is None else timeline_of(run)
    merged = MergedTrace(ours)
    traces = sorted(map(TorchTrace.load, files), key=lambda t: (t.rank is None, t.rank or 0))
    placed: dict[int, list[Event]] = {}
    sizes = [t.world_size for t in traces if t.world_size]
    size = statistics.mode(sizes) if sizes else max([r + 1 for r in ours.ranks], default=1)
    if len(ours) and ours.ranks[-1] >= size:
        size = ours.ranks[-1] + 1
    for trace in sorted(traces, key=lambda t: not t.marks):  # those with marks place the others
        _place(trace, ours, size, placed, merged)
    merged.timeline = Timeline([*ours, *(e for of_rank in placed.values() for e in of_rank)])
    if not len(merged.timeline):
        raise ValueError(
            "there is nothing to merge: give a run recorded with record=True, or files of torch.profiler. "
            + " ".join(merged.says)
        )
    if missing := sorted(set(range(size)) - set(merged.timeline.ranks)):
        merged.says.append(
            f"Of rank {', '.join(map(str, missing))} nothing is here; the run had {size} ranks."
        )
    return merged


def _place(
    trace: TorchTrace,
    ours: Timeline,
    size: int,
    placed: dict[int, list[Event]],
    merged: MergedTrace,
) -> None:
    """Moves one file onto our clock, or says why it is left out."""
    name, says = trace.path.name, merged.says
    rank = trace.rank if trace.rank is not None else 0
    if trace.rank is None:
        says.append(
            f"{name} does not say whose it is (no group was formed in its process): taken for rank 0."
        )
    if trace.world_size not in (None, size):
        says.append(
            f"{name} is left out: it is of a run with {trace.world_size} ranks, the others of one with {size}."
        )
        return
    if rank in placed:
        raise ValueError(
            f"{name} is a second file of rank {rank}: give one file per rank, of one run"
        )
    if not trace.complete:
        says.append(
            f"{name} is cut off: what came before the cut is here, {len(trace.events)} spans."
        )
    if not trace.events:
        says.append(f"{name} has no spans.")
        return
    offset, how = _offset(trace, ours, placed)
    moved = [
        replace(e, rank=rank, start=e.start + offset, end=e.end + offset) for e in trace.events
    ]
    others = [e.start for e in ours] or [e.start for of_rank in placed.values() for e in of_rank]
    if (
        others
        and abs(statistics.median(others) - statistics.median(e.start for e in moved)) > APART
    ):
        says.append(
            f"{name} is left out: it lies over an hour from the others, so it is of another run."
        )
        return
    placed[rank], merged.offsets[rank] = moved, offset
    says.append(f"{name} is rank {rank}'s, brought onto the clock by {how}.")


def _offset(trace: TorchTrace, ours: Timeline, placed: dict[int, list[Event]]) -> tuple[float, str]:
    """Seconds to add to a file's times, and by what they were found."""
    if trace.marks:
        apart = [own - theirs for own, theirs in trace.marks]
        spread = max(apart) - min(apart)
        return statistics.median(
            apart
        ), f"{len(apart)} marks, which differ by {spread * 1e6:.0f} microseconds"
    near = time.monotonic() - time.time()
    theirs = _collective_ends(trace.events)
    reference = next(iter(placed.values()), [])
    ends = _collective_ends(reference)
    if ends and len(ends) == len(theirs):
        apart = [a - b for a, b in zip(ends, theirs, strict=True)]
        return statistics.median(apart), f"the ends of {len(apart)} collectives"
    return near, "Unix time, which is right for this machine only"


def _collective_ends(events: Sequence[Event]) -> list[float]:
    """When the communication ended, in its order; an operator and the work that it started count once."""
    spans = [e for e in events if e.kind == "communication" and e.detail.get("cat") != "cpu_op"]
    return sorted(e.end for e in spans)


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _main_first(lane: str) -> tuple[bool, str]:
    return lane != "main", lane
