"""Ranks that wait for each other for ever, found from outside long before the time limit (Linux).

A rank that computes, or would if it were given a processor, is runnable; one whose message is on its way has a thread
that moves. So the ranks are deadlocked when

- each rank's main thread has slept one single sleep for seconds: the system counts how often a thread went to sleep
- no thread sleeps for a time that it has chosen, and none has moved but those that only go round: gloo's event loop,
  which has found nothing to deliver, the guard of our own collectives (collectives/wire/guard.py), which has had the
  time to find ranks that disagree, and the one that asks who has died (lost_peers.py)
- the stacks say that each rank which has not returned waits in a collective, a receive or a send, and not in a sleep

None of that depends on how fast the machine is. What is not recognised is left to the time limit.

    with deadlock.found_early():
        launch(...)             # raises RankTimeout as at its limit, seconds after a deadlock
"""

from __future__ import annotations

import linecache
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from dtcourse.launch import failures

LOOK = 0.5  # seconds between two looks
STILL = 1.5  # seconds without a move
# Of every thread that goes round: more than 2 s of the guard's ticks, who needs 7 of them.
ROUNDS = 9

_Key = tuple[int, int]  # a process and one of its threads
_wanted: ContextVar[bool] = ContextVar("dtcourse_deadlocks_found_early", default=False)


@contextmanager
def found_early() -> Iterator[None]:
    """Launches in this block end when their ranks are deadlocked, with what the time limit would raise."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def watch() -> Watch | None:
    """For one launch, where that is wanted and the system tells of its threads."""
    return Watch() if _wanted.get() and Path("/proc/self/task").is_dir() else None


@dataclass(frozen=True)
class _Thread:
    """One thread at one moment."""

    asleep: bool
    sleeps: int  # how often it has gone to sleep since it began


@dataclass(frozen=True)
class Still:
    """A process that stands still: its threads that go round, event loops apart,
    and whether the main one is at a lock.
    """

    going_round: int
    in_lock: bool


class Watch:
    """Looks at the ranks' processes again and again. A thread is named by its process's number and its own."""

    def __init__(self) -> None:
        self.patience = STILL  # seconds without a move
        self._since: dict[_Key, tuple[_Thread, float]] = {}  # each thread as it is, and since when
        # each as it was when the last main thread fell asleep
        self._first: dict[_Key, _Thread] = {}
        self._event_loops: set[_Key] = set()

    def still(self, pids: Sequence[int]) -> list[Still] | None:
        """How each process stands still; None where something may have moved."""
        now = {(pid, tid): thread for pid in pids for tid, thread in _threads(pid).items()}
        moved = self._note(now)
        mains = {(pid, pid) for pid in pids}
        if now.keys() != self._first.keys() or mains & moved:
            self._first = now
            return None
        moment = time.monotonic()
        restless = {key for key, (_, at) in self._since.items() if moment - at < self.patience}
        rounds = [now[key].sleeps - self._first[key].sleeps for key in restless]
        if mains & restless or min(rounds, default=ROUNDS) < ROUNDS:
            return None
        if any("nanosleep" in _sleeps_in(*key) for key in now.keys() - restless):
            return None  # on purpose, and will go on
        return [
            Still(
                sum(key[0] == pid and key not in self._event_loops for key in restless),
                "futex" in _sleeps_in(pid, pid),
            )
            for pid in pids
        ]

    def _note(self, now: dict[_Key, _Thread]) -> set[_Key]:
        """Takes down what each thread does now. Returns those that have moved since the last look."""
        before, moment = self._since, time.monotonic()
        moved = {
            key
            for key, thread in now.items()
            if not thread.asleep or key not in before or before[key][0] != thread
        }
        self._since = {
            key: (thread, moment) if key in moved else before[key] for key, thread in now.items()
        }
        # gloo's goes round a hundred times a second: at one look it sleeps in epoll, at another it is up.
        self._event_loops |= {key for key in moved if "epoll" in _sleeps_in(*key)}
        return moved

    def begin_again(self) -> None:
        """It was no deadlock: be more patient."""
        self.patience *= 2
        self._first = {}


def all_wait(stacks: Mapping[int, str], still: Sequence[Still]) -> bool:
    """Whether every rank that was asked for its stacks (see failures.py) waits for another one."""
    return all(
        _waits(failures.main_thread(stack), still[rank].in_lock)
        and still[rank].going_round <= len(_GUARD.findall(stack))
        for rank, stack in stacks.items()
    )


def waits_for_a_rank(stack: str) -> bool:
    """Whether, by its stacks alone, a rank waits in a collective, a receive or a send."""
    return waits_in(failures.main_thread(stack))


def waits_in(frames: list[tuple[str, int, str]]) -> bool:
    """The same of a thread's frames (file, line, function), innermost first."""
    return _waits(frames, in_lock=False)


_GUARD = re.compile(r'dtcourse/(?:collectives|launch)/[\w/]+\.py", line \d+ in _loop\b')
# An exercise's peers of the answer: they call communication as an answer does.
_CHECKS = "/dtcourse/course/checks/"
_COMMUNICATION = re.compile(r"/torch/distributed/|/torch/autograd/|/dtcourse/collectives/")
# A compiled function that the user's own line calls has no frame.
_CALL = re.compile(
    r"\.wait\(|\b\w*(recv|send|barrier|reduce|gather|scatter|broadcast|all_to_all)\w*\("
)


def _waits(frames: list[tuple[str, int, str]], in_lock: bool) -> bool:
    """Whether a main thread's frames (file, line, function; innermost first) are those of communication."""
    if not frames or "sleep" in frames[0][2]:
        return False
    file, line, _ = frames[0]
    if not failures.is_library(file) or _CHECKS in file:
        text = linecache.getline(file, line)
        return bool(_CALL.search(text)) if text else in_lock
    for file, _, _ in frames:
        if _COMMUNICATION.search(file):
            return True
        if not failures.is_library(file):
            break
    return False


def _threads(pid: int) -> dict[int, _Thread]:
    """A process's threads; none where it is gone."""
    found = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = (task / "status").read_text()
            found[int(task.name)] = _Thread(
                "\nState:\tS" in status,
                int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0]),
            )
    except (OSError, ValueError, IndexError):
        return {}
    return found


def _sleeps_in(pid: int, tid: int) -> str:
    """The system's own function that a thread sleeps in; empty where that is not told."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/wchan").read_text()
    except OSError:
        return ""
