"""Who writes into the books that an answer is judged by: bytes and messages, events, an emulated rank's clock.

Each of them is written by the course alone, where a message leaves, an operation ends, a lane moves on. In the ranks of
a judge, whoever else writes there is refused at that moment, under whatever name it got there: what an answer's text
shows is refused before (course_names.py). So is who, where a run is recorded, has a store or a group of its own carry
what is counted nowhere. (Files and sockets carry as much, and nobody refuses these: checks ask besides for the least
that a rank receives.)
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import dtcourse
from dtcourse.course.judging.requirements import Refused

_COURSE = os.path.join(os.path.dirname(os.path.abspath(dtcourse.__file__)), "")
# What a store carries: the rest of its methods ask how it is set.
_CARRIES = (
    *(
        "add",
        "append",
        "check",
        "compare_set",
        "delete_key",
        "get",
        "list_keys",
        "multi_get",
        "multi_set",
    ),
    *("num_keys", "queue_len", "queue_pop", "queue_push", "set", "wait"),
)
_SPANS = {"step", "compute", "data", "log", "idle"}  # kinds of events that are anybody's
_watching = False


def watch() -> None:
    """From now on, in this process and in its copies."""
    global _watching
    if _watching:
        return
    _watching = True
    import torch.distributed as dist

    from dtcourse import events
    from dtcourse.collectives import traffic
    from dtcourse.emulation import clock

    message, add, on, installed = (
        traffic.Counter.message,
        events.Recorder.add,
        clock.Lanes.on,
        clock.installed,
    )

    def checked_message(self: Any, *args: Any, **keywords: Any) -> None:
        _require("counts a message that it has not sent", traffic.__file__)
        message(self, *args, **keywords)

    def checked_add(self: Any, name: str, kind: str, *args: Any, **more: Any) -> None:
        if kind not in _SPANS:
            _require(f"records an event of kind {kind!r}", events.__file__, contextlib.__file__)
        add(self, name, kind, *args, **more)

    def checked_on(self: Any, *args: Any) -> Any:
        _require("leaves the lane on which its time is counted", clock.__file__)
        return on(self, *args)

    def checked_installed() -> Any:
        _require("reaches for the clock of its emulated rank")
        return installed()

    def checked_setattr(self: Any, name: str, value: Any) -> None:
        _require(f"sets the {name} of its emulated clock")
        if name == "time" and value < getattr(self, "time", value):
            raise Refused("the answer puts its emulated clock back")
        object.__setattr__(self, name, value)

    for holder, name, function in (
        (traffic.Counter, "message", checked_message),
        (events.Recorder, "add", checked_add),
        (clock.Lanes, "on", checked_on),
        (clock, "installed", checked_installed),
        (clock.Lane, "__setattr__", checked_setattr),
    ):
        setattr(holder, name, function)
    for name in _CARRIES:
        if hasattr(dist.Store, name):  # not all versions of PyTorch have all of them
            _uncounted(dist.Store, name, "hands something on by a store")
    _uncounted(dist.ProcessGroupGloo, "__init__", "makes a gloo group of its own")


def _uncounted(holder: Any, name: str, what: str) -> None:
    """Has a method called by the course and PyTorch's groups alone, where this process counts its whole run."""
    import torch.distributed as dist

    from dtcourse.collectives import traffic

    method, groups = getattr(holder, name), dist.distributed_c10d.__file__

    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        if vars(traffic)["_whole_run"] is not None:
            what_else = f"{what}, where no byte is counted: send it by torch.distributed, or by p2p"
            _require(what_else, theirs=(groups,))
        return method(self, *args, **keywords)

    setattr(holder, name, checked)


def instruments() -> dict[str, Any]:
    """{name: object} of what is written into in this rank: at the end of a run they are the same ones."""
    places = {
        "dtcourse.collectives.traffic": ("_whole_run",),
        "dtcourse.events": ("_recorder", "_clock"),
        "dtcourse.emulation.clock": ("_clock",),
    }
    loaded = {name: vars(sys.modules[name]) for name in places if name in sys.modules}
    return {f"{m}.{name}": space[name] for m, space in loaded.items() for name in places[m]}


def exchanged(before: dict[str, Any]) -> list[str]:
    """The names of those that are not."""
    now = instruments()
    return [name for name, one in before.items() if one is not None and now[name] != one]


def _require(what: str, *passed_over: str, theirs: tuple[str, ...] = ()) -> None:
    """Refuse where the caller's caller, those in `passed_over` left out, is no code of the course's or of `theirs`."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in passed_over:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not frame.f_code.co_filename.startswith((_COURSE, *theirs)):
        raise Refused(f"the answer {what}")
