"""Ranks that are used more than once: for one who puts many short launches to one function, and trusts it with none.

    with standby.keeping():
        launch(...)             # ends as ever, but its processes stay
        launch(...)             # may run in the same ones: a group of its own, the same random numbers, no fork

Elsewhere each launch has fresh processes, which is the only way to be sure of what is in them. To judge an exercise
takes dozens of launches, though, and to split off a rank costs more than most answers compute. So a rank that has
answered takes down its group and looks at itself; it stays only if it finds nothing that the function may have left:
threads, children, open and mapped files, signal handlers, timers, hooks and modes of PyTorch. Otherwise, and after any
failure, it ends as ever, and the next launch gets a fresh one.

What a function may leave unseen is in the modules that it imports; the judge compares these itself (tampering.py).
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from dtcourse.launch import rendezvous

_SIGNALS = sorted(signal.valid_signals())
_frozen = False
_own: set[str] = set()  # open files


def freeze() -> None:
    """Puts all that is loaded out of the garbage collector's sight, in a process of which ranks are copies.

    Else the first full collection of a rank would write to every object, and so copy the pages that all ranks share:
    300 ms each.
    """
    global _frozen
    gc.freeze()
    _frozen = True


def stays_open(descriptor: int) -> None:
    """Says of an open file that it is this process's own, for all of its launches."""
    _own.add(str(descriptor))


class Condition:
    """What this process is like before a function runs in it."""

    def __init__(self) -> None:
        import torch

        self._excepthook = sys.excepthook
        self._seen = _look()
        self._generator = torch.get_rng_state()
        self._main = set(vars(sys.modules["__main__"]))

    def is_restored(self) -> bool:
        """Whether it is so again, with what can be put back put back. The group is to be gone by now."""
        import torch

        from dtcourse.emulation import clock

        if not _frozen:  # a collection would look at all that was imported: a fork is cheaper
            return False
        sys.excepthook = self._excepthook  # PyTorch's own names the rank of the group that was
        clock.install(None)  # that of an emulated cluster goes with it
        space = vars(sys.modules["__main__"])
        for name in space.keys() - self._main:  # the function's own: see own_process.adopt_main
            del space[name]
        gc.collect()  # groups, their threads and their stores go with the last who knows them
        rendezvous.leave()
        if _look() != self._seen or _has_children():
            return False
        torch.set_rng_state(self._generator)
        # forgets what gauss() has kept; own_process.seed gives the next launch its numbers
        random.seed(0)
        return True


def _look() -> tuple[Any, ...]:
    from dtcourse import torch_private

    return (
        len(os.listdir("/proc/self/task")) - _is_guarded(),
        _open_files(),
        _mapped_files(),
        [signal.getsignal(number) for number in _SIGNALS],
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        (sys.gettrace(), sys.getprofile(), threading.excepthook),
        (len(gc.callbacks), gc.isenabled(), _umask()),
        torch_private.settings_of_process(),
    )


def _open_files() -> dict[str, str]:
    found = {}
    for name in set(os.listdir("/proc/self/fd")) - _own:
        with suppress(FileNotFoundError):  # what listed them
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _mapped_files() -> list[str]:
    """Those that are written to as memory, which other processes may do as well: they need not be open."""
    with open("/proc/self/maps") as file:
        return [line for line in file if " rw-s " in line]


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _is_guarded() -> int:
    """1 where the thread lives that watches over our own collectives (wire/guard.py): it stays,
    and serves each group.
    """
    return sum(thread.name == "dtcourse-guard" for thread in threading.enumerate())


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
