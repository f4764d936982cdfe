"""What can be done to a run from outside, with the process ids of its ranks and the folder of its checkpoints.

    kill      SIGKILL: no handler runs, nothing is flushed
    stop      SIGSTOP: it keeps its memory and its connections, and does nothing until it is noticed
    delay     SIGSTOP, and SIGCONT a while later: a machine that swaps, a disk that hangs
    fill      its files may not grow beyond a few bytes for a while (RLIMIT_FSIZE): EFBIG where a full disk has ENOSPC
    flip      one bit of one byte in the newest checkpoint, then a kill, so that it is read
    truncate  the end of one of its files is gone, then a kill
    preempt   the signal by which a scheduler says that it takes the node
    pair      SIGKILL to a rank and to its neighbour, which keeps the copy of its state (peer_copies.py): then no memory
              has all of the state any more

Where the ranks start anew from a file a pair is two kills. Where they go on from each other's memory nobody can be
preempted: who is to leave is asked to (elastic/). So there are two lists, FROM_FILES and FROM_MEMORY.

Each returns what it has done, for the log; what must be undone later it gives to `later`.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dtcourse.fault_tolerance import folders

BYTES = 64  # that a file of a rank whose disk is full may have: less than any file of a checkpoint


@dataclass(frozen=True)
class Reach:
    """What the monkey can reach at the moment of a strike.

    pids:      of the ranks, by rank
    folder:    of the checkpoints
    draw:      whatever is left to chance is drawn from it
    later:     later(seconds, act) has something done that much later
    longest:   seconds that a delay lasts at most, and a full disk
    preempted: the signal of a preemption
    distance:  rank r's copy lies with rank r + distance
    """

    pids: tuple[int, ...]
    folder: Path
    draw: random.Random
    later: Callable[[float, Callable[[], object]], object]
    longest: float = 1.0
    preempted: signal.Signals = signal.SIGURG
    distance: int = 1


def _kill(reach: Reach, rank: int) -> str:
    os.kill(reach.pids[rank], signal.SIGKILL)
    return f"SIGKILL to rank {rank}"


def _stop(reach: Reach, rank: int) -> str:
    os.kill(reach.pids[rank], signal.SIGSTOP)
    return f"SIGSTOP to rank {rank}"


def _delay(reach: Reach, rank: int) -> str:
    pid, seconds = reach.pids[rank], reach.draw.uniform(0.2, 1.0) * reach.longest
    os.kill(pid, signal.SIGSTOP)
    reach.later(seconds, partial(os.kill, pid, signal.SIGCONT))
    return f"SIGSTOP to rank {rank}, and SIGCONT {seconds:.2f} s later"


def _fill(reach: Reach, rank: int) -> str:
    pid, seconds = reach.pids[rank], reach.draw.uniform(0.5, 1.0) * reach.longest
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (BYTES, before[1]))
    reach.later(seconds, partial(resource.prlimit, pid, resource.RLIMIT_FSIZE, before))
    return f"the disk of rank {rank} is full for {seconds:.2f} s"


def _preempt(reach: Reach, rank: int) -> str:
    os.kill(reach.pids[rank], reach.preempted)
    return f"{reach.preempted.name} to rank {rank}"


def _pair(reach: Reach, rank: int) -> str:
    holder = (rank + reach.distance) % len(reach.pids)
    if holder == rank:
        raise ProcessLookupError("it has no neighbour")
    os.kill(reach.pids[holder], signal.SIGKILL)
    os.kill(reach.pids[rank], signal.SIGKILL)
    return f"SIGKILL to rank {rank} and to rank {holder}, which keeps its copy"


def _flip(reach: Reach, rank: int) -> str:
    def flip(path: Path) -> str:
        place, bit = reach.draw.randrange(path.stat().st_size), reach.draw.randrange(8)
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << bit]))
        return f"bit {bit} of byte {place} flipped in"

    return _damage(reach, rank, flip)


def _truncate(reach: Reach, rank: int) -> str:
    def truncate(path: Path) -> str:
        before = path.stat().st_size
        left = reach.draw.randrange(before)
        os.truncate(path, left)
        return f"{left} of {before} bytes left of"

    return _damage(reach, rank, truncate)


def _damage(reach: Reach, rank: int, damage: Callable[[Path], str]) -> str:
    steps = folders.steps(reach.folder)
    if not steps:
        raise FileNotFoundError("there is no checkpoint yet")
    newest = reach.folder / folders.name_of(steps[-1])
    files = sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size)
    path = reach.draw.choice(files)
    done = damage(path)
    # It is the newest one when the ranks start again only if they write no other one before that.
    return f"{done} {path.relative_to(reach.folder)}, and {_kill(reach, rank)}"


KINDS: dict[str, Callable[[Reach, int], str]] = {
    "kill": _kill,
    "stop": _stop,
    "delay": _delay,
    "fill": _fill,
    "flip": _flip,
    "truncate": _truncate,
    "preempt": _preempt,
    "pair": _pair,
}
FROM_FILES = tuple(kind for kind in KINDS if kind != "pair")
FROM_MEMORY = tuple(kind for kind in KINDS if kind != "preempt")
