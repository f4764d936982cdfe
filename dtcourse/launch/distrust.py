"""For a process that launches the code of people whom it does not trust, and has to answer for what came of it.

    distrust.begin()    # from now on, and for good
    launch(...)

Its ranks are the same user's processes, so by default they can read and write its memory and its pipes, and what they
send it can call anything, as a pickle may. From then on

- the system lets no process of its user in (Linux's PR_SET_DUMPABLE, prctl(2): neither ptrace nor /proc/PID/fd),
- what ranks send is read as data. It builds numbers, text, lists, dicts, plain tensors and the records of a launch. All
  else becomes a Foreign, which takes anything and keeps nothing. A pickle can also set attributes of what it names, so
  each message gets classes and functions of its own. What was built may still hold such a class: take plain values out
  of it before it is pickled again.
- a stack shows lines of Python's and the course's files alone: which files a rank's stack names is the rank's own word.

Start the ranks' server before: ranks must be able to open its /proc/PID/fd.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import linecache
import os
import pickle
import sys
from collections.abc import Iterable
from typing import Any

from dtcourse.launch import rendezvous, serialization
from dtcourse.launch.course_files import COURSE

_PR_SET_DUMPABLE = 4
# The records of a launch, by module.
_RECORDS = {
    "dtcourse.events": ("Event",),
    "dtcourse.collectives.counted": ("RankRecord", "Row"),
    "dtcourse.emulation.clock": ("Account",),
}


class Foreign(Exception):
    """In the place of what is no data: a rank's exception, an object of a class of its own."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __setstate__(self, _: object) -> None: ...


def begin() -> None:
    """From now on. OSError where the system refuses. Who may look in elsewhere than on Linux stays as it is."""
    for module in _RECORDS:
        importlib.import_module(module)
    serialization.loads = _loads
    rendezvous.in_memory = False  # a file in memory is found through /proc/PID/fd
    roots = tuple(f"{path}/" for path in (sys.prefix, sys.base_prefix, os.path.dirname(COURSE)))
    read = linecache.updatecache

    def read_ours(filename: str, module_globals: Any = None) -> list[str]:
        ours = os.path.normpath(filename).startswith(roots)
        return read(filename, module_globals) if ours else []

    linecache.updatecache = read_ours
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")


def _loads(stream: bytes, *, buffers: Iterable[Any] = ()) -> Any:
    """In the place of pickle.loads."""
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if name in _RECORDS.get(module, ()):
            record = getattr(importlib.import_module(module), name)
            return type(name, (record,), {})
        if (module, name) == (serialization.__name__, serialization.rebuild_tensor.__name__):
            return lambda *parts: serialization.rebuild_tensor(*parts)
        # Not by getattr, for which torch may import what is asked for.
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        return type("Foreign", (Foreign,), {})
