"""What went wrong in the ranks, as one exception that a person can act on.

The first failing rank comes first (by the clock, not by its number): what follows it is usually an echo.
"""

from __future__ import annotations

import linecache
import re
import signal
import sys
import sysconfig
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dtcourse.callers import is_library


@dataclass(frozen=True)
class Failure:
    """One rank's failure. `when` is in seconds on the machine's monotonic clock."""

    rank: int
    summary: str  # one line: "raised ValueError: bad shape", "was killed by SIGKILL"
    details: str = ""  # its own traceback, or its stacks
    when: float = 0.0
    exception: BaseException | None = None  # the rank's exception itself, where it could travel

    @property
    def order(self) -> tuple[bool, float, int]:
        """Sorts causes before their echoes: when a rank dies, its peers' sockets tell them before we are told."""
        return bool(_ECHO.search(self.summary)), self.when, self.rank


_ECHO = re.compile(
    r"onnection (closed|reset|refused)|Broken pipe|gloo/transport|remote process exited|NCCL communicator was aborted"
    r"|PeerFailure",  # dtcourse.collectives.wire.guard: another rank failed in the collective
)


class RankFailure(RuntimeError):
    """Raised in the notebook when a rank raised, exited, was killed or could not return its result.

    With launch(on_failure="continue") it is not raised: it takes the place of that rank's result.

    .rank      the first failing rank
    .failures  every failure, first failing rank first
    """

    def __init__(self, message: str, failures: list[Failure], world_size: int) -> None:
        super().__init__(message)
        self.failures = failures
        self.rank = failures[0].rank if failures else None
        self.world_size = world_size

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures, self.world_size)


WAIT_ONCE = "A handle is waited for once: on gloo, a second wait() for what isend or irecv returned is for ever."


class RankTimeout(RankFailure):
    """Raised when the time limit passed: says for every rank where it was, and holds the stacks of all.

    .waiting  {rank: where it was at that moment}
    """

    def __init__(self, message: str, failures: list[Failure], world_size: int) -> None:
        super().__init__(message, failures, world_size)
        self.waiting = {f.rank: f.summary for f in failures}


def rank_failure(failures: list[Failure], world_size: int) -> RankFailure:
    """One exception out of all that failed."""
    failures = sorted(failures, key=lambda f: f.order)
    first, others = failures[0], failures[1:]
    lines = [f"rank {first.rank} of {world_size} {first.summary}"]
    if first.details:
        lines += ["", readable(first.details).rstrip()]
    if others:
        lines += ["", *(f"after it, rank {f.rank} {f.summary}" for f in others)]
    stopped = sorted(set(range(world_size)) - {f.rank for f in failures})
    if stopped:
        lines += ["", f"Every other rank was stopped ({_numbers(stopped)})."]
    return RankFailure("\n".join(lines), failures, world_size)


def one_failure(failure: Failure, world_size: int) -> RankFailure:
    """What stands for the result of a rank that failed while the others go on."""
    lines = [f"rank {failure.rank} of {world_size} {failure.summary}"]
    if failure.details:
        lines += ["", readable(failure.details).rstrip()]
    error = RankFailure("\n".join(lines), [failure], world_size)
    error.__cause__ = failure.exception
    return error


def one_timeout(limit: float, rank: int, stack: str, world_size: int) -> RankTimeout:
    """What stands for the result of a rank that was not done in time, where others were."""
    failure = Failure(rank, where(stack), stack, time.monotonic())
    lines = [f"rank {rank} of {world_size} was not done after {limit:g} s: it {failure.summary}"]
    if stack:
        lines += ["", "its stack, innermost call first:", readable(stack).rstrip()]
    return RankTimeout("\n".join(lines), [failure], world_size)


def rank_timeout(
    limit: float, finished: set[int], stacks: dict[int, str], world_size: int
) -> RankTimeout:
    """The report of a launch that ran out of time: who waits where, with the stacks of all ranks."""
    failures = []
    for rank in range(world_size):
        stack = stacks.get(rank, "")
        summary = "had returned from the function" if rank in finished else where(stack)
        failures.append(Failure(rank, summary, stack))
    lines = [
        f"not done after {limit:g} s. Where the ranks were at that moment:",
        *(f"  rank {f.rank} {f.summary}" for f in failures),
        "",
        "Ranks that wait in different places wait for each other for ever: every rank must call the same",
        "collectives in the same order, and every receive needs its send. If the work is only long, pass",
        "launch(..., timeout=seconds), or timeout=None for no limit.",
        *([WAIT_ONCE] if any(".wait(" in f.summary for f in failures) else []),
    ]
    for failure in failures:
        if failure.details:
            lines += ["", f"stack of rank {failure.rank}, innermost call first:"]
            lines += [readable(failure.details).rstrip()]
    return RankTimeout("\n".join(lines), failures, world_size)


def exit_summary(exitcode: int | None) -> str:
    """One line on a process that went away without an answer."""
    if exitcode is None:
        return "stopped answering"
    if exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        hints = {
            "SIGKILL": " (kill -9, or the system ran out of memory)",
            "SIGSEGV": " (a crash in compiled code)",
            "SIGABRT": " (compiled code gave up)",
        }
        return f"was killed by {name}{hints.get(name, '')}"
    return f"left with exit code {exitcode} before it returned"


def hide_our_frames(error: BaseException) -> None:
    """Has a notebook show the reader's own frames of `error`, without launch's: a failure is meant to be read, and a
    saved notebook must not hold this machine's paths. Debuggers and pytest still see all frames.
    """
    if _shell() is not None:
        error._render_traceback_ = partial(_render, error)  # type: ignore[attr-defined]


def _render(error: BaseException) -> list[str]:
    """What IPython would show of `error`, less the frames of this package. IPython calls it by that name above."""
    ours = str(Path(__file__).parent)
    frames, tb = [], error.__traceback__
    while tb is not None:
        if not tb.tb_frame.f_code.co_filename.startswith(ours):
            frames.append(tb)
        tb = tb.tb_next
    kept = None
    for tb in reversed(frames):
        kept = TracebackType(kept, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    cause = error.__cause__
    if isinstance(error, RankFailure):
        error.__cause__ = None  # its text, and the rank's traceback, are in the message already
    try:
        return _shell().InteractiveTB.structured_traceback(type(error), error, kept)
    finally:
        error.__cause__ = cause


def _shell() -> Any:
    """The notebook's IPython; None in a script."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


# --- reading faulthandler's stacks ----------------------------------------------------------------------------

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')


def main_thread(stack: str) -> list[tuple[str, int, str]]:
    """The frames (file, line, function) of the thread that runs the user's function, innermost first."""
    threads = re.split(r"(?m)^(?:Current thread|Thread) .*$", stack)
    for thread in threads:
        frames = [m for m in map(_FRAME.match, thread.splitlines()) if m]
        found = [(m["file"], int(m["line"]), m["name"]) for m in frames]
        inner = [
            i
            for i, (file, _, name) in enumerate(found)
            if file.endswith("launch/rank.py") and name == "main"
        ]
        if inner:
            return found[: inner[0]]
    return []


def where(stack: str) -> str:
    """One line: what the rank waits in, and which line of the user's called it."""
    return where_in(main_thread(stack))


def where_in(frames: list[tuple[str, int, str]]) -> str:
    """The same of a thread's frames, innermost first."""
    if not frames:
        return "did not say where it was"
    user = next((f for f in frames if not is_library(f[0])), None)
    # The outermost function of torch.distributed is the one that was called.
    calls = [name for file, _, name in frames if "distributed_c10d" in file]
    doing = f"waited in {calls[-1]}()" if calls else f"was in {frames[0][2]}()"
    if user is None:
        return doing
    file, line, name = user
    text = linecache.getline(file, line).strip()
    place = readable(f'File "{file}", line {line}')
    return f"{doing}, called in {name}() at {place}" + (f": {text}" if text else "")


def readable(text: str) -> str:
    """The same text with cells by their number and library files by their module path, as on every machine."""
    for name, label in _cell_names().items():
        text = text.replace(f'File "{name}"', label)
    for key in ("purelib", "platlib", "stdlib"):
        text = text.replace(sysconfig.get_paths()[key] + "/", "")
    root = str(Path(__file__).resolve().parents[2]) + "/"
    return text.replace(f'"{root}dtcourse/', '"dtcourse/')


def _cell_names() -> dict[str, str]:
    """{file name that IPython gives to a cell's code: "Cell In[3]"}; empty outside IPython."""
    numbers = getattr(getattr(_shell(), "compile", None), "_filename_map", None) or {}
    return {name: f"Cell In[{number}]" for name, number in numbers.items()}


def _numbers(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' * (len(ranks) != 1)} {shown}" + (", ..." if len(ranks) > 8 else "")
